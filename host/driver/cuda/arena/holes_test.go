package arena

import (
	"math/bits"
	"math/rand/v2"
	"testing"
)

// longest is a page's longest free run.
func (p *page) longest() (most uint) {
	run := uint(0)
	for i := range uint(units) {
		if run++; get(&p.taken, i) {
			run = 0
		}
		most = max(most, run)
	}
	return most
}

// TestHolesAreFilled: a hole is used by what just fits it, of pages in the range as of units in a
// page; what is thought to be free of a page is never less than is.
func TestHolesAreFilled(t *testing.T) {
	m := newMemory(t)
	a := New(base, 8*Page, m)
	var large []uint64
	for range 8 {
		at, err := a.Alloc(Page)
		if err != nil {
			t.Fatal(err)
		}
		large = append(large, at)
	}
	for _, hole := range [][]int{{3}, {0}, {7}, {4, 5}, {0, 1, 2}, {5, 6, 7}} {
		for _, i := range hole {
			a.Free(large[i])
		}
		if at, err := a.Alloc(uint64(len(hole)) * Page); err != nil || at != large[hole[0]] {
			t.Fatalf("a hole at %v: %#x, %v", hole, at, err)
		}
		a.Free(large[hole[0]])
		for _, i := range hole {
			if err := a.AllocAt(large[i], Page); err != nil {
				t.Fatal(err)
			}
		}
	}
	rng := rand.New(rand.NewPCG(5, 6))
	a = New(base, 64*Page, newMemory(t))
	var blocks []uint64
	for range 4000 {
		if len(blocks) > 0 && rng.IntN(9) < 4 {
			i := rng.IntN(len(blocks))
			a.Free(blocks[i])
			blocks[i] = blocks[len(blocks)-1]
			blocks = blocks[:len(blocks)-1]
		} else if at, err := a.Alloc(1 + rng.Uint64N(1<<rng.IntN(20))); err == nil {
			blocks = append(blocks, at)
		}
		for class, list := range a.byRoom {
			for i, p := range list {
				if p.class != class || p.index != i || bits.Len(p.room) != class || p.room < p.longest() {
					t.Fatalf("a page with a run of %d free units is thought to have %d, in class %d, at %d of class %d", p.longest(), p.room, p.class, i, class)
				}
			}
		}
	}
}
