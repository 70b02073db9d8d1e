package cuda

import (
	"testing"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/bind"
	"causeway/host/driver/cuda/cudatest"
	"causeway/host/driver/drivertest"
)

// busyDriver is a driver with a context that works until the test ends that.
func busyDriver() *bind.Driver {
	others := map[string]uint64{}
	for _, name := range []string{"cuCtxSetCurrent", "cuStreamQuery", "cuCtxSynchronize", "cuMemHostUnregister", "cuMemFree_v2", "cuCtxDestroy_v2"} {
		others[name] = cudatest.Busy(name)
	}
	cudatest.SetBusy(0)
	return agreeingDriver(others)
}

// TestEndBesideWork: a context that has registered what others use ends for the guest at once,
// without anything waiting for the others' work, which may need later requests; the driver ends it
// when that work is done.
func TestEndBesideWork(t *testing.T) {
	for _, primary := range []bool{false, true} {
		drv, host := busyDriver(), drivertest.NewHost()
		for _, id := range []uint32{0, 6} {
			host.Regions[id] = driver.Region{ID: id, Kind: wire.RegionStaging, Mem: make([]byte, 4096)}
		}
		s := agreeing(t, drv, host)
		b := &contexts{Budget: s.budget, most: 3}
		s.budget = b
		call := func(ctx wire.ID) *wire.Call { return &wire.Call{Ctx: ctx, Replier: silent{}} }
		must := func(res cuda.Result) {
			t.Helper()
			if res != cuda.Success {
				t.Fatal(res)
			}
		}
		retain := func() cuda.Result {
			return s.PrimaryCtxRetain(call(0), &wire.PrimaryCtxRetainArgs{Ctx: 20}, &wire.PrimaryCtxRetainReply{})
		}
		end := func() cuda.Result { return s.CtxDestroy(call(20), &wire.CtxDestroyArgs{Ctx: 20}) }
		if primary {
			must(retain())
			end = func() cuda.Result { return s.PrimaryCtxRelease(call(20), &wire.PrimaryCtxReleaseArgs{Ctx: 20}) }
		} else {
			must(s.CtxCreate(call(0), &wire.CtxCreateArgs{Ctx: 20}))
		}
		must(s.CtxCreate(call(0), &wire.CtxCreateArgs{Ctx: 21}))
		must(s.RegionAdd(call(20), &wire.RegionAddArgs{Region: 6, Kind: wire.RegionStaging}, &wire.RegionAddReply{}))
		must(s.MemAlloc(call(20), &wire.MemAllocArgs{Size: 1000}, &wire.MemAllocReply{}))
		must(s.StreamCreate(call(21), &wire.StreamCreateArgs{Stream: 30}))
		first, other := number(s.handleOf(20)), number(s.handleOf(21))

		st, _ := s.submit(call(21), 30)
		cudatest.SetBusy(other)
		must(end())
		if primary { // and comes back as it is
			must(retain())
			if number(s.handleOf(20)) != first || b.now != 2 {
				t.Errorf("context %#x again, %d booked; want %#x, 2", number(s.handleOf(20)), b.now, first)
			}
			must(end())
		}
		s.lookedAt = time.Time{}
		s.Before(wire.OpMemAlloc, false)
		waits, freed, destroyed := cudatest.BusyCounts()
		if waits != 0 || destroyed != 0 || freed != 1 {
			t.Errorf("the end of a context beside work: %d calls that wait, %d contexts destroyed, %d pieces of memory freed; want 0, 0, 1", waits, destroyed, freed)
		}
		if s.regions[6].ctx != 20 || b.now != 2 || b.Used() != 0 || !s.handleOf(20).IsZero() {
			t.Errorf("meanwhile: region of context %d, %d contexts and %d bytes booked", s.regions[6].ctx, b.now, b.Used())
		}

		cudatest.SetBusy(0)
		s.lookedAt = time.Time{}
		s.Before(wire.OpMemAlloc, false)
		if len(s.lingering) != 0 || s.regions[6].ctx != 21 || s.regions[0].ctx != 21 || s.fences.ctx != 21 || b.now != 1 || st.busy() {
			t.Errorf("afterwards: %d linger, regions %v, fences of %d, %d contexts booked, busy: %v", len(s.lingering), s.regions, s.fences.ctx, b.now, st.busy())
		}

		// The last one takes those that linger with it.
		must(s.CtxCreate(call(0), &wire.CtxCreateArgs{Ctx: 22}))
		_, _ = s.submit(call(22), wire.StreamLegacy)
		cudatest.SetBusy(number(s.handleOf(22)))
		must(s.CtxDestroy(call(21), &wire.CtxDestroyArgs{Ctx: 21}))
		if len(s.lingering) != 1 {
			t.Fatalf("%d contexts linger, want 1", len(s.lingering))
		}
		must(s.CtxDestroy(call(22), &wire.CtxDestroyArgs{Ctx: 22}))
		if _, _, destroyed := cudatest.BusyCounts(); destroyed != 2 || len(s.lingering) != 0 || b.now != 0 || len(s.regions) != 0 {
			t.Errorf("all are gone: %d destroyed, %d linger, %d booked, %d regions", destroyed, len(s.lingering), b.now, len(s.regions))
		}
		cudatest.SetBusy(0)
	}
}
