package cuda

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/arena"
	"causeway/host/driver/cuda/cudatest"
	"causeway/host/driver/drivertest"
)

// TestBackingByChance: memory at addresses of a session's choice, of which now and then a part
// cannot be had: nothing is left of that, all that is allocated is backed, and small blocks that
// are freed wait for each other, so that there are few waits for the GPU.
func TestBackingByChance(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	rng := rand.New(rand.NewPCG(1, 2))
	others := map[string]uint64{}
	for _, name := range []string{"cuMemAddressReserve", "cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap", "cuMemSetAccess", "cuCtxSynchronize"} {
		others[name] = cudatest.Mapping(name)
	}
	host := drivertest.NewHost()
	host.OnCallBack = func(uint64, cuda.Result) {}
	s := newSession(agreeingDriver(others), host, driver.Options{Migratable: true, MemoryLimit: 1 << 40})
	s.warm = &warmth{version: 13000, devices: make([]deviceInfo, 1)}
	call := func() *wire.Call { return &wire.Call{Ctx: 16, Replier: silent{}} }
	if res := s.PrimaryCtxRetain(call(), &wire.PrimaryCtxRetainArgs{Ctx: 16}, &wire.PrimaryCtxRetainReply{}); res != cuda.Success {
		t.Fatal(res)
	}
	st, _ := s.stream(call(), wire.StreamLegacy)
	st.submitted++ // it has work for ever
	blocks, all, refused, armed, freed, large := map[uint64]uint64{}, uint64(0), 0, 0, uint64(0), 0
	_, _, before, _ := cudatest.MappingCounts()
	free := func(p uint64) {
		if res := s.MemFree(call(), &wire.MemFreeArgs{Ptr: p}); res != cuda.Success {
			t.Fatal(res)
		}
		if all -= blocks[p]; blocks[p] >= arena.Large {
			large++
		} else {
			freed += blocks[p]
		}
		delete(blocks, p)
	}
	check := func() {
		t.Helper()
		created, pages, _, wrong := cudatest.MappingCounts()
		r := s.arenas.ranges[0]
		if r == nil {
			return
		}
		if wrong != 0 || uint64(pages)*arena.Page != r.Backed() || created != len(r.pages) || s.used != all {
			t.Fatalf("%d pages are mapped, %d bytes are said to be; %d pieces of memory, %d are known; %d bytes are booked for %d; %d calls made no sense",
				pages, r.Backed(), created, len(r.pages), s.used, all, wrong)
		}
	}
	for range 3000 {
		if len(blocks) > 60 || len(blocks) > 0 && rng.IntN(2) == 0 {
			for p := range blocks {
				free(p)
				break
			}
		} else {
			size := 1 + rng.Uint64N(100<<10)
			if rng.IntN(10) == 0 {
				size = arena.Large + rng.Uint64N(8<<20)
			}
			if rng.IntN(10) == 0 { // there may be none
				cudatest.FailMapping(1 + rng.IntN(3))
				armed++
			}
			var m wire.MemAllocReply
			if res := s.MemAlloc(call(), &wire.MemAllocArgs{Size: size}, &m); res == cuda.Success {
				blocks[m.Ptr], all = size, all+size
			} else if refused++; res != cuda.ErrorOutOfMemory {
				t.Fatal(res)
			}
			cudatest.FailMapping(0)
		}
		check()
	}
	_, _, waits, _ := cudatest.MappingCounts()
	if most := large + armed + int(freed/mostDying) + 1; waits-before > most || waits == before || refused == 0 {
		t.Errorf("%d waits, at most %d; %d refused", waits-before, most, refused)
	}
	for p := range blocks {
		free(p)
	}
	s.reclaim()
	s.arenas.ranges[0].Trim()
	check()
	if created, pages, _, _ := cudatest.MappingCounts(); created+pages != 0 {
		t.Errorf("of nothing %d pieces and %d pages are left", created, pages)
	}
	st.submitted--
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
