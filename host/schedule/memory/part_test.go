package memory

import (
	"sync"
	"sync/atomic"
	"testing"
)

// TestPart: a part of what sessions have has a limit for all of them, beside that of all; it is in
// nobody's sum twice, and ends with its session.
func TestPart(t *testing.T) {
	p := page(t, 1000)
	a, sa := join(t, p, 0)
	b, _ := join(t, p, 0)
	step := func(what string, got, want bool, parts uint64) {
		t.Helper()
		if got != want || a.parts() != parts || b.parts() != parts {
			t.Errorf("%s: %v, %d and %d are counted, want %v and %d", what, got, a.parts(), b.parts(), want, parts)
		}
	}
	step("no limit", a.ReservePart(1<<40), true, 1<<40)
	a.ReleasePart(1 << 40)
	p.SetPart(100)
	if p.Part() != 100 || a.PartLimit() != 100 {
		t.Errorf("limits of %d and %d", p.Part(), a.PartLimit())
	}
	step("one", a.ReservePart(60), true, 60)
	step("another, too much", b.ReservePart(41), false, 60)
	step("another, the rest", b.ReservePart(40), true, 100)
	step("nothing left", a.ReservePart(1), false, 100)
	step("absurd", a.ReservePart(1<<60), false, 100)
	if p.Used() != 0 || !a.Reserve(1000) || p.Used() != 1000 {
		t.Errorf("%d are used", p.Used())
	}
	p.SetPart(50)
	b.ReleasePart(40)
	step("below what there is", b.ReservePart(1), false, 60)
	b.BookPart(70)
	step("what is there already", true, true, 130)
	b.ReleasePart(1 << 50) // more than it has
	step("released too much", true, true, 60)
	p.Free(sa) // killed
	step("of one that is gone", b.ReservePart(50), true, 50)
}

// TestAdoptsPart: a successor counts anew what its predecessor has, and has no more or less when
// that lets go.
func TestAdoptsPart(t *testing.T) {
	p := page(t, 0)
	p.SetPart(100)
	a, slot := join(t, p, 0)
	if !a.ReservePart(70) {
		t.Fatal("no room")
	}
	next, err := Open(p.mem, slot, 0)
	if err != nil {
		t.Fatal(err)
	}
	next.Adopt()
	next.BookPart(50)
	if !next.ReservePart(40) || a.parts() != 70 {
		t.Errorf("%d are counted while both are there", a.parts())
	}
	next.ReleasePart(30)
	next.Settle()
	if next.parts() != 60 || next.ReservePart(41) || !next.ReservePart(40) {
		t.Errorf("%d are counted then", next.parts())
	}
	next.Adopt()
	next.Settle()
	if next.parts() != 0 {
		t.Errorf("%d are counted of nothing", next.parts())
	}
}

// TestPartsRace: sessions that take and give back at the same time never have more than the limit
// between them, and lose nothing.
func TestPartsRace(t *testing.T) {
	const limit, each, sessions, rounds = 100, 30, 8, 500
	p := page(t, 0)
	p.SetPart(limit)
	var all atomic.Int64
	var wg sync.WaitGroup
	for range sessions {
		b, _ := join(t, p, 0)
		wg.Go(func() {
			for range rounds {
				if !b.ReservePart(each) {
					continue
				}
				if n := all.Add(each); n > limit {
					t.Errorf("%d at once", n)
				}
				all.Add(-each)
				b.ReleasePart(each)
			}
		})
	}
	wg.Wait()
	if b, _ := join(t, p, 0); b.parts() != 0 {
		t.Errorf("%d are left", b.parts())
	}
}
