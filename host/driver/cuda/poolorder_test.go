package cuda

import (
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/cudatest"
	"causeway/host/driver/drivertest"
)

// TestPoolsComeInOrder: memory of a pool lies where it was when another process rebuilds a session, whatever had asked for the device's
// own pool before: memory in stream order that is gone, or the account of what pools hold.
func TestPoolsComeInOrder(t *testing.T) {
	const ctx, pool = 16, 17
	drv := agreeingDriver(map[string]uint64{
		"cuMemPoolCreate": cudatest.Pools("cuMemPoolCreate"), "cuDeviceGetDefaultMemPool": cudatest.Pools("cuDeviceGetDefaultMemPool"),
		"cuMemAllocFromPoolAsync": cudatest.Pools("cuMemAllocFromPoolAsync"), "cuMemAllocAsync": cudatest.Pools("cuMemAllocAsync"),
	})
	o := driver.Options{Migratable: true, MemoryLimit: 1 << 30}
	call := func() *wire.Call { return &wire.Call{Ctx: ctx, Replier: silent{}} }
	process := func(t *testing.T, warm bool) *session { // that has a context
		t.Helper()
		cudatest.RestartPools()
		s := agreeing(t, drv, drivertest.NewHost())
		s.opt, s.arenas.on, s.warm = o, true, nil
		if warm {
			b := &Backend{drv: drv}
			if err := b.Warm(o); err != nil {
				t.Fatal(err)
			}
			s.warm = b.warm
		}
		res := s.SessionInit(call(), &wire.SessionInitArgs{}, &wire.SessionInitReply{})
		if res == cuda.Success {
			res = s.PrimaryCtxRetain(call(), &wire.PrimaryCtxRetainArgs{Ctx: ctx}, &wire.PrimaryCtxRetainReply{})
		}
		if res != cuda.Success {
			t.Fatal(res)
		}
		return s
	}
	alloc := func(t *testing.T, s *session, c *wire.Call) uint64 {
		t.Helper()
		var r wire.MemAllocFromPoolReply
		res := s.PoolCreate(call(), &wire.PoolCreateArgs{Pool: pool})
		if res == cuda.Success {
			res = s.MemAllocFromPool(c, &wire.MemAllocFromPoolArgs{Size: 4096, Pool: pool, Stream: wire.StreamLegacy}, &r)
		}
		if res != cuda.Success {
			t.Fatal(res, c.Reason())
		}
		return r.Ptr
	}
	before := map[string]func(*testing.T, *session){
		"nothing": func(*testing.T, *session) {},
		"memory in stream order that is gone": func(t *testing.T, s *session) {
			var r wire.MemAllocAsyncReply
			if res := s.MemAllocAsync(call(), &wire.MemAllocAsyncArgs{Size: 512, Stream: wire.StreamLegacy}, &r); res != cuda.Success {
				t.Fatal(res)
			}
			if res := s.MemFreeAsync(call(), &wire.MemFreeAsyncArgs{Ptr: r.Ptr, Stream: wire.StreamLegacy}); res != cuda.Success {
				t.Fatal(res)
			}
		},
		"its account": func(_ *testing.T, s *session) {
			s.pooling.changes++
			s.settlePools()
		},
	}
	for name, earlier := range before {
		for _, warm := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				s := process(t, warm)
				earlier(t, s)
				at := alloc(t, s, call())
				again := call()
				again.Replay, again.Placed = true, []uint64{at}
				if got := alloc(t, process(t, warm), again); got != at {
					t.Errorf("the driver started before: %v: memory of a pool comes out at %#x, and was at %#x", warm, got, at)
				}
			})
		}
	}
}
