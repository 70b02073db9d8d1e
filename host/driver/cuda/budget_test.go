package cuda

import (
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/bind"
	"causeway/host/driver/cuda/cudatest"
	"causeway/host/driver/drivertest"
)

// contexts is a budget that counts contexts, and has room for some.
type contexts struct {
	driver.Budget
	now, most int
}

func (b *contexts) Enter() bool {
	if b.now >= b.most {
		return false
	}
	b.now++
	return true
}

func (b *contexts) Leave() { b.now-- }

// TestContextsCount: each context counts once, however often it is retained; what goes with it is
// given back, what pools hold is not.
func TestContextsCount(t *testing.T) {
	drv := agreeingDriver(nil)
	s := agreeing(t, drv, drivertest.NewHost())
	b := &contexts{Budget: s.budget, most: 2}
	s.budget = b
	call := func(ctx wire.ID) *wire.Call { return &wire.Call{Ctx: ctx, Replier: silent{}} }
	check := func(what string, res, want cuda.Result, contexts int, used uint64) {
		t.Helper()
		if res != want || b.now != contexts || b.Used() != used {
			t.Fatalf("%s: %v, %d contexts, %d bytes; want %v, %d, %d", what, res, b.now, b.Used(), want, contexts, used)
		}
	}
	retain := func() cuda.Result {
		return s.PrimaryCtxRetain(call(0), &wire.PrimaryCtxRetainArgs{Ctx: 16}, &wire.PrimaryCtxRetainReply{})
	}
	release := func() cuda.Result { return s.PrimaryCtxRelease(call(0), &wire.PrimaryCtxReleaseArgs{Ctx: 16}) }
	b.most, s.warm.primary = 0, made[bind.Context](0x5000)
	check("no room for the one that is ready", retain(), cuda.ErrorOutOfMemory, 0, 0)
	if !s.warm.primary.IsZero() {
		t.Error("the worker keeps a context that there is no room for")
	}
	b.most, s.warm.primary = 2, made[bind.Context](0x5000)
	check("retain", retain(), cuda.Success, 1, 0)
	check("retain again", retain(), cuda.Success, 1, 0)
	check("create", s.CtxCreate(call(0), &wire.CtxCreateArgs{Ctx: 17}), cuda.Success, 2, 0)
	check("one too many", s.CtxCreate(call(0), &wire.CtxCreateArgs{Ctx: 18}), cuda.ErrorOutOfMemory, 2, 0)
	var m wire.MemAllocReply
	check("allocate", s.MemAlloc(call(17), &wire.MemAllocArgs{Size: 1000}, &m), cuda.Success, 2, 1000)
	check("elsewhere", s.MemAlloc(call(16), &wire.MemAllocArgs{Size: 10}, &m), cuda.Success, 2, 1010)
	var p wire.MemAllocAsyncReply
	check("of a pool", s.MemAllocAsync(call(17), &wire.MemAllocAsyncArgs{Size: 300, Stream: wire.StreamLegacy}, &p), cuda.Success, 2, 1310)
	check("destroy", s.CtxDestroy(call(17), &wire.CtxDestroyArgs{Ctx: 17}), cuda.Success, 1, 310)
	check("release", release(), cuda.Success, 1, 310)
	check("to the pool", s.MemFreeAsync(call(16), &wire.MemFreeAsyncArgs{Ptr: p.Ptr, Stream: wire.StreamLegacy}), cuda.Success, 1, 310)
	if s.pooling.spare != 300 || s.used != 10 {
		t.Errorf("%d bytes held by pools, %d used", s.pooling.spare, s.used)
	}
	s.settlePools() // this driver's pools hold nothing
	check("settled", cuda.Success, cuda.Success, 1, 10)
	check("release the last", release(), cuda.Success, 0, 0)
}

// TestRegionsOutliveContexts: what the guest shares is registered again with the next context after
// its last one went, before anything uses it, unless the guest dropped it meanwhile.
func TestRegionsOutliveContexts(t *testing.T) {
	drv := agreeingDriver(nil)
	host := drivertest.NewHost()
	s := agreeing(t, drv, host)
	call := func(ctx wire.ID) *wire.Call { return &wire.Call{Ctx: ctx, Replier: silent{}} }
	want := func(what string, ids ...uint32) {
		t.Helper()
		for _, id := range ids {
			if s.regions[id].IsZero() {
				t.Errorf("%s: region %d is not registered", what, id)
			}
		}
		if len(s.regions) != len(ids) {
			t.Errorf("%s: %d regions are registered, want %v", what, len(s.regions), ids)
		}
	}
	for _, id := range []uint32{0, 5, 6} {
		host.Regions[id] = driver.Region{ID: id, Kind: wire.RegionStaging, Mem: make([]byte, 4096)}
	}
	for round := range 2 {
		ctx := wire.ID(17 + round)
		if res := s.CtxCreate(call(0), &wire.CtxCreateArgs{Ctx: ctx}); res != cuda.Success {
			t.Fatal(res)
		}
		if round == 0 {
			for _, id := range []uint32{5, 6} {
				var r wire.RegionAddReply
				if res := s.RegionAdd(call(ctx), &wire.RegionAddArgs{Region: id, Kind: wire.RegionStaging}, &r); res != cuda.Success {
					t.Fatal(res)
				}
			}
		}
		want("with a context", [][]uint32{{0, 5, 6}, {0, 6}}[round]...)
		if res := s.CtxDestroy(call(ctx), &wire.CtxDestroyArgs{Ctx: ctx}); res != cuda.Success {
			t.Fatal(res)
		}
		want("without")
		s.RegionDrop(call(0), &wire.RegionDropArgs{Region: 5})
	}
	// A context that lives takes them over from one that goes, fences included.
	for _, ctx := range []wire.ID{20, 21} {
		if res := s.CtxCreate(call(0), &wire.CtxCreateArgs{Ctx: ctx}); res != cuda.Success {
			t.Fatal(res)
		}
	}
	if s.regions[6].ctx != 20 || s.fences.ctx != 20 {
		t.Errorf("region 6 is context %d's, fences are %d's; want the first, 20", s.regions[6].ctx, s.fences.ctx)
	}
	s.CtxDestroy(call(20), &wire.CtxDestroyArgs{Ctx: 20})
	want("the first of two is gone", 0, 6)
	if s.regions[0].ctx != 21 || s.regions[6].ctx != 21 || s.fences == nil || s.fences.ctx != 21 {
		t.Errorf("the second context has not taken over: %v, %v", s.regions, s.fences)
	}
	if res := s.RegionDrop(call(0), &wire.RegionDropArgs{Region: 6}); res != cuda.Success {
		t.Errorf("a region is dropped by a thread without a context: %v", res)
	}
	want("dropped by a thread without a context", 0)
	s.CtxDestroy(call(21), &wire.CtxDestroyArgs{Ctx: 21})
	want("both are gone")
}

// TestRowsAreBookedFirst: rows beyond the limit are refused before the driver takes memory for them
// that others could have.
func TestRowsAreBookedFirst(t *testing.T) {
	// Which is counted.
	s := agreeing(t, agreeingDriver(map[string]uint64{"cuMemAllocPitch_v2": cudatest.Busy("cuCtxDestroy_v2")}), drivertest.NewHost())
	for height, want := range map[uint64]cuda.Result{1 << 20: cuda.ErrorOutOfMemory, 1 << 62: cuda.ErrorOutOfMemory, 0: cuda.ErrorInvalidValue} {
		cudatest.SetBusy(0)
		res := s.MemAllocPitch(&wire.Call{Ctx: 1, Replier: silent{}}, &wire.MemAllocPitchArgs{Width: 4096, Height: height, Element: 4}, &wire.MemAllocPitchReply{})
		if _, _, calls := cudatest.BusyCounts(); res != want || calls != 0 || s.used != 0 {
			t.Errorf("%d rows: %v, after %d calls of the driver, with %d bytes booked", height, res, calls, s.used)
		}
	}
}
