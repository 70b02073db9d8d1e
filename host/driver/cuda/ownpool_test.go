package cuda

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/arena"
	"causeway/host/driver/cuda/bind"
	"causeway/host/driver/cuda/cudatest"
	"causeway/host/driver/drivertest"
)

// ownSession is one that may move, on a driver that maps memory and whose streams are never done of
// themselves while working is not 0.
func ownSession(t *testing.T, limit uint64) (s *session, call func() *wire.Call) {
	t.Helper()
	return ownSessionOn(t, mappingDriver(), limit)
}

func mappingDriver() *bind.Driver {
	others := map[string]uint64{"cuStreamQuery": cudatest.Busy("cuStreamQuery"), "cuCtxSetCurrent": cudatest.Busy("cuCtxSetCurrent")}
	for _, name := range []string{"cuMemAddressReserve", "cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap", "cuMemSetAccess", "cuCtxSynchronize"} {
		others[name] = cudatest.Mapping(name)
	}
	return agreeingDriver(others)
}

// ownSessionOn is ownSession on a driver that outlives the test.
func ownSessionOn(t *testing.T, drv *bind.Driver, limit uint64) (s *session, call func() *wire.Call) {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	host := drivertest.NewHost()
	host.OnCallBack = func(uint64, cuda.Result) {}
	s = newSession(drv, host, driver.Options{Migratable: true, MemoryLimit: limit})
	s.warm = &warmth{version: 13000, devices: make([]deviceInfo, 1)}
	s.devices = s.warm.devices
	call = func() *wire.Call { return &wire.Call{Ctx: 16, Replier: silent{}} }
	if res := s.PrimaryCtxRetain(call(), &wire.PrimaryCtxRetainArgs{Ctx: 16}, &wire.PrimaryCtxRetainReply{}); res != cuda.Success {
		t.Fatal(res)
	}
	cudatest.SetBusy(0)
	cudatest.FailMapping(0)
	cudatest.RestartMapping()
	t.Cleanup(func() {
		cudatest.SetBusy(0)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, call
}

// TestOwnPoolsByChance: memory that was freed on a stream is another's only when that stream's work
// is done, and stays behind its addresses until then; no two allocations meet; what is booked is
// what is allocated and what is kept back; and it comes to nothing.
func TestOwnPoolsByChance(t *testing.T) {
	for _, opportunistic := range []uint64{1, 0} {
		rng := rand.New(rand.NewPCG(3, opportunistic))
		s, call := ownSession(t, 1<<30)
		b := &contexts{Budget: s.budget, most: 1}
		s.budget = b
		handle := number(s.ctxs.m[16].handle)
		const pool, streams = 20, 4
		if res := s.PoolCreate(call(), &wire.PoolCreateArgs{Pool: pool}); res != cuda.Success {
			t.Fatal(res)
		}
		set := func(attr int32, v uint64) {
			t.Helper()
			if res := s.PoolSetAttribute(call(), &wire.PoolSetAttributeArgs{Pool: pool, Attr: attr, Value: v}); res != cuda.Success {
				t.Fatal(res)
			}
		}
		set(cuda.PoolAttrReuseAllowOpportunistic, opportunistic)
		next := uint32(100)
		begin := func() uint32 {
			next++
			if res := s.StreamCreate(call(), &wire.StreamCreateArgs{Stream: next, Flags: next % 2 * cuda.StreamNonBlocking}); res != cuda.Success {
				t.Fatal(res)
			}
			return next
		}
		ids := []uint32{wire.StreamLegacy}
		for range streams - 1 {
			ids = append(ids, begin())
		}
		type piece struct {
			ptr, size uint64
			st        *stream
			n         uint64
		}
		var live, undone []piece
		reused, waited, refused, waits := 0, 0, 0, 0
		check := func(step int) {
			t.Helper()
			_, _, now, _ := cudatest.MappingCounts()
			ended := now > waits // the GPU's work was waited for: what was freed before may be away
			waits = now
			var all uint64
			for _, p := range live {
				all += p.size
			}
			if s.used != all || s.pooling.live != all || b.Used() != all+s.pooling.spare || b.Used() > 1<<30 || s.pooling.own[pool].used > all {
				t.Fatalf("step %d: %d bytes are allocated; noted are %d and %d, with %d kept back; booked are %d", step, all, s.used, s.pooling.live, s.pooling.spare, b.Used())
			}
			left := undone[:0]
			for _, p := range undone {
				if p.st.done >= p.n || ended {
					continue
				}
				if left = append(left, p); s.arenas.ranges[0].pages[p.ptr].handle.IsZero() && s.arenas.ranges[0].pages[p.ptr&^(arena.Page-1)].handle.IsZero() {
					t.Fatalf("step %d: what was freed behind work is away at %#x", step, p.ptr)
				}
			}
			undone = left
		}
		for step := range 6000 {
			id := ids[rng.IntN(streams)]
			st, res := s.stream(call(), id)
			if res != cuda.Success {
				t.Fatal(res)
			}
			switch k := rng.IntN(24); {
			case k < 9:
				size := 1 + rng.Uint64N(4)*300<<10 + rng.Uint64N(2)<<20*20
				var from wire.MemAllocFromPoolReply
				var at wire.MemAllocAsyncReply
				before, _, _, _ := cudatest.MappingCounts()
				if rng.IntN(8) == 0 {
					cudatest.FailMapping(1 + rng.IntN(2))
				}
				if rng.IntN(3) == 0 {
					res = s.MemAllocAsync(call(), &wire.MemAllocAsyncArgs{Size: size, Stream: id}, &at)
				} else {
					res = s.MemAllocFromPool(call(), &wire.MemAllocFromPoolArgs{Pool: pool, Size: size, Stream: id}, &from)
					at.Ptr = from.Ptr
				}
				cudatest.FailMapping(0)
				if res != cuda.Success {
					refused++
					break
				}
				if now, _, _, _ := cudatest.MappingCounts(); now == before && size >= arena.Large {
					reused++
				}
				for _, p := range live {
					if at.Ptr < p.ptr+p.size && p.ptr < at.Ptr+size {
						t.Fatalf("step %d: %#x is allocated twice", step, at.Ptr)
					}
				}
				_, _, now, _ := cudatest.MappingCounts()
				for i, p := range undone {
					if now == waits && p.st.done < p.n && at.Ptr < p.ptr+p.size && p.ptr < at.Ptr+size {
						if p.st != st {
							t.Fatalf("step %d: %#x is another stream's, which works", step, at.Ptr)
						}
						undone[i].n = 0
					}
				}
				live = append(live, piece{ptr: at.Ptr, size: size})
			case k < 17 && len(live) > 0:
				i := rng.IntN(len(live))
				p := live[i]
				live = append(live[:i], live[i+1:]...)
				if k == 16 && opportunistic == 1 {
					if res := s.MemFree(call(), &wire.MemFreeArgs{Ptr: p.ptr}); res != cuda.Success {
						t.Fatal(res)
					}
					break
				}
				if res := s.MemFreeAsync(call(), &wire.MemFreeAsyncArgs{Ptr: p.ptr, Stream: id}); res != cuda.Success {
					t.Fatal(res)
				}
				p.st, p.n = st, st.submitted
				undone = append(undone, p)
			case k < 19:
				st.submitted++
			case k < 21: // its work ends; only the word says so
				if st.nonBlocking {
					st.done = st.submitted
				}
			case k < 22: // all of it
				for o := range s.everyStream() {
					o.done = o.submitted
				}
			case k < 23:
				cudatest.SetBusy(handle * uint64(rng.IntN(2)))
				if rng.IntN(2) == 0 {
					s.takeAwayAll(true, rng.IntN(2) == 0)
				} else {
					set(cuda.PoolAttrReleaseThreshold, rng.Uint64N(2)*(64<<20))
				}
				cudatest.SetBusy(handle)
				waited++
			default:
				if i := 1 + rng.IntN(streams-1); st.handle != s.legacy[16].handle {
					o, _ := s.stream(call(), ids[i])
					if res := s.StreamDestroy(call(), &wire.StreamDestroyArgs{Stream: ids[i]}); res != cuda.Success {
						t.Fatal(res)
					}
					ids[i] = begin()
					for j := range undone {
						// Who looks no more for its work, waits for the whole context.
						if undone[j].st == o {
							undone[j].n = 0
						}
					}
				}
			}
			check(step)
		}
		if reused == 0 || refused == 0 || waited == 0 {
			t.Errorf("%d times memory was had again, %d times there was none", reused, refused)
		}
		cudatest.SetBusy(0)
		for _, p := range live {
			if res := s.MemFreeAsync(call(), &wire.MemFreeAsyncArgs{Ptr: p.ptr, Stream: wire.StreamLegacy}); res != cuda.Success {
				t.Fatal(res)
			}
		}
		if res := s.PoolDestroy(call(), &wire.PoolDestroyArgs{Pool: pool}); res != cuda.Success {
			t.Fatal(res)
		}
		s.takeAwayAll(false, true)
		s.reclaim()
		s.arenas.ranges[0].Trim()
		if created, pages, _, wrong := cudatest.MappingCounts(); created+pages+wrong != 0 || b.Used() != 0 || s.used != 0 || len(s.pooling.all) != 1 {
			t.Errorf("of nothing %d pieces and %d pages are left; %d bytes are booked, %d pools; %d calls made no sense", created, pages, b.Used(), len(s.pooling.all), wrong)
		}
	}
}

// TestOwnPoolsMove: memory of pools lies where it was when another process rebuilds a session,
// whatever other memory the pool has given out before, and is not the driver's choice.
func TestOwnPoolsMove(t *testing.T) {
	const pool = 20
	s, call := ownSession(t, 1<<30)
	alloc := func(s *session, c *wire.Call, size uint64) (uint64, cuda.Result) {
		var r wire.MemAllocFromPoolReply
		res := s.MemAllocFromPool(c, &wire.MemAllocFromPoolArgs{Pool: pool, Size: size, Stream: wire.StreamLegacy}, &r)
		return r.Ptr, res
	}
	if res := s.PoolCreate(call(), &wire.PoolCreateArgs{Pool: pool, Max: 100 << 20}); res != cuda.Success {
		t.Fatal(res)
	}
	places := map[uint64]uint64{}
	for i := range uint64(60) {
		size := 1 + i%7*(700<<10)
		at, res := alloc(s, call(), size)
		if res != cuda.Success {
			t.Fatal(res)
		}
		if places[at] = size; i%3 != 0 {
			s.MemFreeAsync(call(), &wire.MemFreeAsyncArgs{Ptr: at, Stream: wire.StreamLegacy})
			delete(places, at)
		}
	}
	if _, res := alloc(s, call(), 100<<20); res != cuda.ErrorOutOfMemory {
		t.Errorf("more than the pool may have: %v", res)
	}
	s.surrender()
	for _, r := range s.arenas.ranges { // the process ends
		for ptr := range s.allocs {
			r.Free(ptr)
		}
		r.Trim()
	}
	again, call := ownSession(t, 1<<30)
	if res := again.PoolCreate(call(), &wire.PoolCreateArgs{Pool: pool}); res != cuda.Success {
		t.Fatal(res)
	}
	for want, size := range places {
		c := call()
		c.Replay, c.Placed = true, []uint64{want}
		if got, res := alloc(again, c, size); res != cuda.Success || got != want {
			t.Fatalf("%d bytes come out at %#x, and were at %#x: %v", size, got, want, res)
		}
	}
	c := call()
	c.Replay, c.Placed = true, []uint64{0x302000000}
	for want := range places {
		c.Placed = []uint64{want}
		if _, res := alloc(again, c, 512); res == cuda.Success || c.Reason() == nil {
			t.Errorf("twice at one place: %v, %v", res, c.Reason())
		}
		break
	}
}
