package memory

import "testing"

// TestFits: up to its bound, to the byte, there is room; nothing fits at it as well, and beyond it
// nothing at all.
func TestFits(t *testing.T) {
	for _, c := range []struct {
		bound, there, n uint64
		want            bool
	}{
		{0, 1 << 63, 1 << 63, true}, {10, 0, 10, true}, {10, 0, 11, false}, {10, 9, 1, true}, {10, 9, 2, false}, {10, 10, 0, true}, {10, 10, 1, false}, {10, 11, 0, false},
		{10, 5, 1<<64 - 1, false}, {1<<64 - 1, 1, 1<<64 - 2, true},
	} {
		if got := fits(c.bound, c.there, c.n); got != c.want {
			t.Errorf("%d beside %d of %d: %v", c.n, c.there, c.bound, got)
		}
	}
}

// TestAdoptGivesBack: what a successor gives back while it books what its predecessor holds is not
// booked in the end.
func TestAdoptGivesBack(t *testing.T) {
	p := page(t, 100)
	a, slot := join(t, p, 0)
	if !a.Reserve(70) {
		t.Fatal("no room")
	}
	next, err := Open(p.mem, slot, 0)
	if err != nil {
		t.Fatal(err)
	}
	next.Adopt()
	next.Book(50)
	if !next.Reserve(30) {
		t.Error("refused while it moves")
	}
	if next.Release(25); p.Used() != 70 {
		t.Errorf("used %d while it moves", p.Used())
	}
	if next.Settle(); p.Used() != 55 {
		t.Errorf("used %d, want 55", p.Used())
	}
}
