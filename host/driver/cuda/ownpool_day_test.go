package cuda

import (
	"math/rand/v2"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/cudatest"
	"causeway/host/driver/drivertest"
)

// TestDayOfOwnPools: memory in stream order, pools that their memory outlives, streams that end
// with what was freed on them, and graphs that allocate, of a session that may move: of what is
// made and ended all day nothing adds up in it, of whatever size it was.
func TestDayOfOwnPools(t *testing.T) {
	const pool, stream = 20, 21
	r, rng := newGraphRig(t), rand.New(rand.NewPCG(4, 4))
	s := r.s
	r.want(cuda.Success, s.GraphDestroy(r.call(), &wire.GraphDestroyArgs{Graph: 30}), "destroy")
	size := func() uint64 { return 1 + rng.Uint64N(8<<20)>>rng.IntN(16) }
	turns := map[string]func(){
		"memory": func() {
			var list []uint64
			for range 1 + rng.IntN(4) {
				var m wire.MemAllocAsyncReply
				r.want(cuda.Success, s.MemAllocAsync(r.call(), &wire.MemAllocAsyncArgs{Size: size(), Stream: wire.StreamLegacy}, &m), "allocate")
				list = append(list, m.Ptr)
			}
			for _, at := range list {
				r.want(cuda.Success, r.freeOutside(at), "free")
			}
		},
		"pools": func() {
			var m wire.MemAllocFromPoolReply
			r.want(cuda.Success, s.PoolCreate(r.call(), &wire.PoolCreateArgs{Pool: pool}), "create")
			r.want(cuda.Success, s.MemAllocFromPool(r.call(), &wire.MemAllocFromPoolArgs{Pool: pool, Size: size(), Stream: wire.StreamLegacy}, &m), "allocate")
			first := rng.IntN(2) == 0
			if first {
				r.want(cuda.Success, r.freeOutside(m.Ptr), "free")
			}
			r.want(cuda.Success, s.PoolDestroy(r.call(), &wire.PoolDestroyArgs{Pool: pool}), "destroy")
			if !first {
				r.want(cuda.Success, r.freeOutside(m.Ptr), "free")
			}
		},
		"streams": func() {
			var m wire.MemAllocAsyncReply
			r.want(cuda.Success, s.StreamCreate(r.call(), &wire.StreamCreateArgs{Stream: stream, Flags: uint32(rng.IntN(2))}), "create")
			r.want(cuda.Success, s.MemAllocAsync(r.call(), &wire.MemAllocAsyncArgs{Size: size(), Stream: stream}, &m), "allocate")
			r.want(cuda.Success, s.MemFreeAsync(r.call(), &wire.MemFreeAsyncArgs{Ptr: m.Ptr, Stream: stream}), "free")
			r.want(cuda.Success, s.StreamDestroy(r.call(), &wire.StreamDestroyArgs{Stream: stream}), "destroy")
		},
		"graphs": func() {
			r.want(cuda.Success, s.GraphCreate(r.call(), &wire.GraphCreateArgs{Graph: 30}), "create")
			_, at := r.node(size(), 0)
			inside := rng.IntN(2) == 0
			if inside {
				r.want(cuda.Success, r.free(at), "free node")
			}
			r.want(cuda.Success, r.instantiate(40, 0), "instantiate")
			r.want(cuda.Success, r.launch(40), "launch")
			if !inside {
				r.want(cuda.Success, r.freeOutside(at), "free")
			}
			r.want(cuda.Success, s.GraphExecDestroy(r.call(), &wire.GraphExecDestroyArgs{Exec: 40}), "end")
			r.want(cuda.Success, s.GraphDestroy(r.call(), &wire.GraphDestroyArgs{Graph: 30}), "end")
		},
	}
	settled := func() map[string]int {
		s.takeAwayAll(false, true) // as a synchronisation
		s.reclaim()
		for _, a := range s.arenas.ranges {
			a.Trim()
		}
		return drivertest.Weigh(s)
	}
	for name, turn := range turns {
		t.Run(name, func(t *testing.T) {
			for range 100 {
				turn()
			}
			minute := settled()
			_, pages, _, _ := cudatest.MappingCounts()
			for range 3000 {
				turn()
			}
			if more := drivertest.Grown(minute, settled(), 100); more != "" {
				t.Errorf("there is more:\n%s", more)
			}
			if _, then, _, wrong := cudatest.MappingCounts(); then > pages || wrong != 0 || s.used != 0 {
				t.Errorf("%d pages are mapped, were %d; %d bytes are booked; %d calls made no sense", then, pages, s.used, wrong)
			}
		})
	}
}
