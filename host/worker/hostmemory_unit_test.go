package worker

import (
	"testing"

	"causeway/host/schedule/memory"
	"causeway/remote/sys"
)

// TestHostMemoryUnits: a session takes whole units of what its virtual GPU has, holds on to one
// beyond its use, and gives the rest back; its own limit and the shared one each refuse, leave
// nothing behind, and are counted.
func TestHostMemoryUnits(t *testing.T) {
	page, err := memory.New(10 * hostUnit)
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	join := func(limit uint64) (*hostMemory, *int) {
		slot, err := page.Take()
		if err != nil {
			t.Fatal(err)
		}
		mem, err := sys.MapPage(page.File(), true)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { sys.UnmapPage(mem) })
		all, err := memory.Open(mem, slot, 0)
		if err != nil {
			t.Fatal(err)
		}
		n := new(int)
		return &hostMemory{limit: limit, all: all, refused: func() { *n++ }}, n
	}
	a, refusedA := join(6 * hostUnit)
	b, refusedB := join(0)
	step := func(what string, got, want bool, used uint64) {
		t.Helper()
		if got != want || page.Used() != used*hostUnit {
			t.Fatalf("%s: %v, %d units are taken, want %v and %d", what, got, page.Used()/hostUnit, want, used)
		}
	}
	step("one byte", a.reserve(1), true, 1)
	step("the rest of a unit", a.reserve(hostUnit-1), true, 1)
	step("one more", a.reserve(1), true, 2)
	step("all of its own limit", a.reserve(5*hostUnit-1), true, 6)
	step("beyond its own", a.reserve(1), false, 6)
	step("beyond any", a.reserve(1<<63), false, 6)
	step("the other, beyond what is left", b.reserve(4*hostUnit+1), false, 6)
	step("what is left", b.reserve(4*hostUnit), true, 10)
	step("nothing", a.reserve(0), true, 10)
	a.release(2*hostUnit + 1)
	step("one unit is kept", true, true, 9)
	step("and used", a.reserve(hostUnit), true, 9)
	a.release(1 << 62)
	step("more than it holds is returned", true, true, 5)
	a.book(20 * hostUnit)
	step("what is there already is booked", true, true, 24)
	a.release(20 * hostUnit)
	a.move(true)
	step("what moves is not refused", a.reserve(8*hostUnit), true, 12)
	a.move(false)
	step("afterwards it is", a.reserve(1), false, 12)
	if *refusedA != 3 || *refusedB != 1 {
		t.Errorf("%d and %d refusals are counted", *refusedA, *refusedB)
	}
	for _, c := range []struct {
		h    *hostMemory
		used uint64
		fits bool
	}{{&hostMemory{limit: 10}, 10, true}, {&hostMemory{limit: 10}, 11, false}, {&hostMemory{}, 1 << 40, true}, {a, 0, false}, {b, 0, false}} {
		c.h.used += c.used
		if page.SetLimit(12*hostUnit - 1); (c.h.fits() == nil) != c.fits {
			t.Errorf("what came with %d bytes of %d, beside %d of %d: %v", c.h.used, c.h.limit, page.Used(), page.Limit(), c.h.fits())
		}
	}
	a.limit = 0
	if page.SetLimit(12 * hostUnit); a.fits() != nil || b.fits() != nil {
		t.Errorf("what came fits to the byte, and is refused: %v, %v", a.fits(), b.fits())
	}
	var none *hostMemory
	if !none.reserve(1 << 60) {
		t.Error("no budget refuses")
	}
	none.book(1)
	none.release(1)
	none.move(true)
}
