package memory

import (
	"sync/atomic"
	"testing"
)

// TestTold: whatever this side says, the workers have at once, and with it all that it said before,
// also what a worker has written over.
func TestTold(t *testing.T) {
	p := page(t, 1<<40)
	b, slot := join(t, p, 0)
	p.SetRoom(1 << 30)
	p.AddAway(300)
	p.AddKept(500)
	p.SetPart(1 << 20)
	for what, c := range map[string]struct {
		say  func()
		word int
		now  uint64
	}{
		"a limit":          {func() { p.SetLimit(1 << 41) }, wordLimit, 1 << 41},
		"room":             {func() { p.SetRoom(1 << 31) }, wordRoom, 1 << 31},
		"what is away":     {func() { p.AddAway(-100) }, wordAway, 200},
		"what is kept":     {func() { p.AddKept(100) }, wordKept, 600},
		"limit of a part":  {func() { p.SetPart(1 << 21) }, wordPart, 1 << 21},
		"another session":  {func() { _, _ = p.Take() }, wordSlots, uint64(slot) + 2},
		"what a GPU holds": {func() { p.SetBeside(slot, 7) }, wordSlots, 0},
	} {
		for w := range headWords {
			atomic.StoreUint64(&p.words[w], 1) // by a worker
		}
		c.say()
		if got := atomic.LoadUint64(&p.words[c.word]); c.now != 0 && got != c.now {
			t.Errorf("%s: %d is told, not %d", what, got, c.now)
		}
		for w, want := range map[int]uint64{wordLimit: p.Limit(), wordRoom: p.Room(), wordAway: p.Away(), wordKept: p.Kept(), wordPart: p.Part(), wordSlots: p.high.Load()} {
			if got := atomic.LoadUint64(&p.words[w]); got != want {
				t.Errorf("%s: word %d has %d, not %d", what, w, got, want)
			}
		}
	}
	if p.Kept() != 600 || p.Away() != 200 || p.Used() != 600+7 || b.Used() != 600+7+200 {
		t.Errorf("%d kept, %d away, %d used, %d as the worker sees it", p.Kept(), p.Away(), p.Used(), b.Used())
	}
}

// TestSaneReserves: without a limit as much as is sane can be reserved, and no more.
func TestSaneReserves(t *testing.T) {
	b, slot := join(t, page(t, 0), 0)
	if b.Reserve(sane+1) || b.Reserve(^uint64(0)) || !b.Reserve(sane) {
		t.Errorf("%d are held in slot %d", b.held(), slot)
	}
}

// TestShort: what was short is the most that room lacked since it was asked, whatever came first.
func TestShort(t *testing.T) {
	p := page(t, 1000)
	p.SetRoom(10)
	b, _ := join(t, p, 0)
	for _, list := range [][]uint64{{20, 50, 30}, {50, 20}, {20, 20}} {
		most := uint64(0)
		for _, n := range list {
			if b.Reserve(n) {
				t.Fatalf("%d are reserved", n)
			}
			most = max(most, n)
		}
		if got := b.Short(); got != most || b.Short() != 0 {
			t.Errorf("%v: %d are short", list, got)
		}
	}
	if b.Reserve(1001) || b.Short() != 0 {
		t.Error("what the limit forbids is short of room")
	}
}
