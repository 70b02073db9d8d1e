package soft

import (
	"math/rand/v2"
	"testing"
)

func TestHeap(t *testing.T) {
	const lo, size = 0x1000, 1 << 16
	h := newHeap(lo, size)
	rng := rand.New(rand.NewPCG(1, 2))
	held := map[uint64]uint64{}
	for range 20000 {
		if rng.IntN(2) == 0 {
			n := uint64(rng.IntN(3000))
			p := h.Malloc(n)
			if p == 0 {
				continue
			}
			if p%heapUnit != 0 || p < lo || p+n > lo+size {
				t.Fatalf("Malloc(%d) = %#x", n, p)
			}
			for q, m := range held {
				if p < q+m && q < p+n {
					t.Fatalf("%#x+%d overlaps %#x+%d", p, n, q, m)
				}
			}
			held[p] = n
			continue
		}
		for p := range held {
			if !h.Free(p) {
				t.Fatalf("Free(%#x) failed", p)
			}
			delete(held, p)
			break
		}
	}
	for p := range held {
		h.Free(p)
	}
	if len(h.free) != 1 || h.free[0] != (run{lo, size}) || len(h.used) != 0 {
		t.Errorf("free memory is in pieces: %v", h.free)
	}
	if h.Free(lo) || h.Malloc(0) != 0 || h.Malloc(size+1) != 0 {
		t.Error("freed or got what is not there")
	}
}
