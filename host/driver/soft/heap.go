package soft

import (
	"cmp"
	"slices"
	"sync"

	"causeway/cuda"
	"causeway/host/driver/soft/exec"
)

// heapUnit is the alignment of what kernels allocate; heapLeast bounds their number.
const (
	heapUnit  = 16
	heapLeast = 64 // bytes that an allocation takes at least
)

// heap is what malloc in kernels gives out: first fit in one allocation of the context. It outlives
// modules. Any goroutine.
type heap struct {
	mu   sync.Mutex // a leaf lock; guards what follows
	free []run      // sorted, never adjacent
	used map[uint64]uint64
}

// run is free memory.
type run struct{ lo, size uint64 }

var _ exec.Heap = (*heap)(nil)

func newHeap(lo, size uint64) *heap {
	return &heap{free: []run{{lo, size}}, used: map[uint64]uint64{}}
}

// Malloc implements exec.Heap: 0 when there is no room.
func (h *heap) Malloc(size uint64) uint64 {
	if size == 0 || size > 1<<40 {
		return 0
	}
	size = max((size+heapUnit-1)&^(heapUnit-1), heapLeast)
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.free {
		r := &h.free[i]
		if r.size < size {
			continue
		}
		at := r.lo
		r.lo, r.size = r.lo+size, r.size-size
		if r.size == 0 {
			h.free = slices.Delete(h.free, i, i+1)
		}
		h.used[at] = size
		return at
	}
	return 0
}

// Free implements exec.Heap: false for what Malloc did not give.
func (h *heap) Free(addr uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	size, ok := h.used[addr]
	if !ok {
		return false
	}
	delete(h.used, addr)
	i, _ := slices.BinarySearchFunc(h.free, addr, func(r run, a uint64) int { return cmp.Compare(r.lo, a) })
	h.free = slices.Insert(h.free, i, run{addr, size})
	if i+1 < len(h.free) && h.free[i].lo+h.free[i].size == h.free[i+1].lo {
		h.free[i].size += h.free[i+1].size
		h.free = slices.Delete(h.free, i+1, i+2)
	}
	if i > 0 && h.free[i-1].lo+h.free[i-1].size == h.free[i].lo {
		h.free[i-1].size += h.free[i].size
		h.free = slices.Delete(h.free, i, i+1)
	}
	return true
}

// heapFor makes the context's heap when the first kernel that may ask for memory is launched.
// Worker.
func (s *session) heapFor(g *gpuContext) (*heap, cuda.Result) {
	if g.heap != nil {
		return g.heap, cuda.Success
	}
	size, ok := g.limits[cuda.LimitMallocHeapSize]
	if !ok {
		size = defaultLimits[cuda.LimitMallocHeapSize]
	}
	size = (max(size, heapLeast) + pageSize - 1) &^ (pageSize - 1)
	a, res := s.space.alloc(request{device: g.device, size: size, align: pageSize, ctx: g, kind: variable})
	if res != cuda.Success {
		return nil, res
	}
	g.heap = newHeap(a.lo, a.size)
	return g.heap, cuda.Success
}
