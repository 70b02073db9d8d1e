package cuda

import (
	"math/rand/v2"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
	"causeway/host/driver/cuda/cudatest"
	"causeway/host/driver/drivertest"
)

// TestBookedByChance: what is booked is what is allocated and what pools hold beside, at any
// moment, refusals for lack of memory among them; and it comes to nothing.
func TestBookedByChance(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	s := agreeing(t, agreeingDriver(map[string]uint64{"cuMemAllocAsync": cudatest.Mapping("cuMemAllocAsync")}), drivertest.NewHost())
	b := &contexts{Budget: s.budget, most: 1}
	s.budget = b
	call := func() *wire.Call { return &wire.Call{Ctx: 16, Replier: silent{}} }
	if res := s.PrimaryCtxRetain(call(), &wire.PrimaryCtxRetainArgs{Ctx: 16}, &wire.PrimaryCtxRetainReply{}); res != cuda.Success {
		t.Fatal(res)
	}
	plain, pooled := map[uint64]uint64{}, map[uint64]uint64{}
	refused, settled := 0, 0
	any := func(m map[uint64]uint64) uint64 {
		for p := range m {
			return p
		}
		return 0
	}
	check := func(step int) {
		t.Helper()
		var all, live uint64
		for _, n := range pooled {
			live += n
		}
		for _, n := range plain {
			all += n
		}
		if all += live; s.used != all || s.pooling.live != live || b.Used() != all+s.pooling.spare || b.Used() > 1<<30 {
			t.Fatalf("step %d: %d bytes are allocated, %d of them of pools; noted are %d and %d, with %d that pools hold beside; booked are %d",
				step, all, live, s.used, s.pooling.live, s.pooling.spare, b.Used())
		}
	}
	for step := range 3000 {
		size := 1 + rng.Uint64N(200<<20)
		switch rng.IntN(8) {
		case 0, 1:
			var r wire.MemAllocReply
			if s.MemAlloc(call(), &wire.MemAllocArgs{Size: size}, &r) == cuda.Success {
				plain[r.Ptr] = size
			} else {
				refused++
			}
		case 2, 3:
			var r wire.MemAllocAsyncReply
			cudatest.FailMapping(rng.IntN(4) / 3) // the driver may have none
			if s.MemAllocAsync(call(), &wire.MemAllocAsyncArgs{Size: size, Stream: wire.StreamLegacy}, &r) == cuda.Success {
				pooled[r.Ptr] = size
			} else {
				refused++
			}
		case 4, 5:
			if p := any(plain); p != 0 {
				s.MemFree(call(), &wire.MemFreeArgs{Ptr: p})
				delete(plain, p)
			}
		case 6:
			if p := any(pooled); p != 0 {
				s.MemFreeAsync(call(), &wire.MemFreeAsyncArgs{Ptr: p, Stream: wire.StreamLegacy})
				delete(pooled, p)
			}
		default:
			if rng.IntN(10) == 0 {
				s.settlePools() // this driver's pools hold nothing beside
				settled++
				if s.pooling.spare != 0 {
					t.Fatalf("step %d: pools hold %d", step, s.pooling.spare)
				}
			}
		}
		check(step)
	}
	if refused == 0 || settled == 0 {
		t.Errorf("%d refused, %d times settled", refused, settled)
	}
	for p := range plain {
		s.MemFree(call(), &wire.MemFreeArgs{Ptr: p})
	}
	for p := range pooled {
		s.MemFreeAsync(call(), &wire.MemFreeAsyncArgs{Ptr: p, Stream: wire.StreamLegacy})
	}
	if s.settlePools(); b.Used() != 0 || s.used != 0 {
		t.Errorf("%d bytes are booked for nothing", b.Used())
	}
}

// TestPoolsEndWithWhatTheyHold: a pool that is destroyed holds nothing any more that nobody counts,
// whatever it was to keep back; one that cannot be is as it was.
func TestPoolsEndWithWhatTheyHold(t *testing.T) {
	cudatest.RestartPools()
	s := agreeing(t, bind.New(func(symbol string) uint64 {
		if f := cudatest.Pools(symbol); f != 0 {
			return f
		}
		return cudatest.Agreeing(symbol)
	}), drivertest.NewHost())
	c := &wire.Call{Ctx: 16, Replier: silent{}}
	if res := s.PoolGetDefault(c, &wire.PoolGetDefaultArgs{Pool: 20}); res != cuda.Success {
		t.Fatal(res)
	}
	for id := uint32(21); id < 23; id++ {
		if res := s.PoolCreate(c, &wire.PoolCreateArgs{Pool: id}); res != cuda.Success {
			t.Fatal(res)
		}
	}
	for n, id := range []uint32{20, 21, 22} {
		cudatest.Hold(uint64(n+1), 1<<30)
		if id == 22 { // one that keeps nothing back
			continue
		}
		if res := s.PoolSetAttribute(c, &wire.PoolSetAttributeArgs{Pool: id, Attr: cuda.PoolAttrReleaseThreshold, Value: 1 << 40}); res != cuda.Success {
			t.Fatal(res)
		}
	}
	for id, want := range map[uint32]cuda.Result{20: cuda.ErrorInvalidValue, 21: cuda.Success, 22: cuda.Success} {
		if res := s.PoolDestroy(c, &wire.PoolDestroyArgs{Pool: id}); res != want {
			t.Errorf("%d: %v", id, res)
		}
		if _, there := s.pools.get(id); there != (want != cuda.Success) {
			t.Errorf("%d is there: %v", id, there)
		}
	}
	if cudatest.Lost() != 0 || cudatest.Kept(1) != 1<<40 {
		t.Errorf("%d bytes are lost; the device's own keeps back %d", cudatest.Lost(), cudatest.Kept(1))
	}
}
