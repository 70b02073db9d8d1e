package memory

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"causeway/remote/sys"
)

func page(t testing.TB, limit uint64) *Page {
	t.Helper()
	p, err := New(limit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// join is a session in this process, with a mapping of its own.
func join(t testing.TB, p *Page, context uint64) (*Budget, int) {
	t.Helper()
	slot, err := p.Take()
	if err != nil {
		t.Fatal(err)
	}
	mem, err := sys.MapPage(p.fd, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sys.UnmapPage(mem) })
	b, err := Open(mem, slot, context)
	if err != nil {
		t.Fatal(err)
	}
	return b, slot
}

func TestShared(t *testing.T) {
	p := page(t, 100)
	a, sa := join(t, p, 10)
	b, sb := join(t, p, 10)
	step := func(what string, got, want bool, used uint64) {
		t.Helper()
		if got != want || p.Used() != used || a.Used() != used || b.Used() != used {
			t.Fatalf("%s: %v, used %d %d %d, want %v and %d", what, got, p.Used(), a.Used(), b.Used(), want, used)
		}
	}
	step("first", a.Reserve(60), true, 60)
	step("other, too much", b.Reserve(41), false, 60)
	step("other, the rest", b.Reserve(40), true, 100)
	step("nothing left", a.Reserve(1), false, 100)
	step("nothing", a.Reserve(0), true, 100)
	p.SetLimit(50)
	step("below what is used", b.Reserve(1), false, 100)
	b.Release(40)
	step("still below", b.Reserve(1), false, 60)
	p.SetLimit(0)
	step("no limit", b.Reserve(1<<40), true, 1<<40+60)
	step("absurd", b.Reserve(1<<60), false, 1<<40+60)
	b.Release(1 << 40)
	p.SetLimit(100)
	a.Book(70)
	step("booked beyond", true, true, 130)
	if now, peak := p.Held(sa); now != 130 || peak != 130 {
		t.Errorf("first session: %d, peak %d", now, peak)
	}
	p.Free(sa) // killed
	step("killed", b.Reserve(100), true, 100)
	if now, peak := p.Held(sb); now != 100 || peak != 1<<40 {
		t.Errorf("second session: %d, peak %d", now, peak)
	}
	b.Release(1 << 50) // more than it has
	step("released too much", true, true, 0)
}

// TestContexts: the worker's guess counts until the driver has told.
func TestContexts(t *testing.T) {
	p := page(t, 100)
	a, slot := join(t, p, 30)
	entered := 0
	for range 4 {
		if a.Enter() {
			entered++
		}
	}
	if entered != 3 || p.Used() != 90 {
		t.Fatalf("entered %d times, used %d", entered, p.Used())
	}
	a.Leave()
	if p.Used() != 60 {
		t.Errorf("used %d after one left", p.Used())
	}
	p.SetBeside(slot, 45)
	if !a.Reserve(55) || a.Reserve(1) || p.Allocated(slot) != 55 {
		t.Errorf("used %d beside what the driver told", p.Used())
	}
}

// TestAdopt: a successor books again what its predecessor holds.
func TestAdopt(t *testing.T) {
	p := page(t, 100)
	a, slot := join(t, p, 0)
	other, _ := join(t, p, 0)
	if !a.Reserve(70) || !other.Reserve(20) {
		t.Fatal("no room")
	}
	next, err := Open(p.mem, slot, 0)
	if err != nil {
		t.Fatal(err)
	}
	next.Adopt()
	if !next.Reserve(50) || !next.Reserve(30) || p.Used() != 90 {
		t.Fatalf("used %d while it moves", p.Used())
	}
	next.Release(15)
	next.Settle()
	next.Adopt() // once more: from nothing
	if !next.Reserve(65) {
		t.Error("refused while it moves")
	}
	next.Settle()
	if p.Used() != 85 || next.Reserve(16) || !next.Reserve(15) {
		t.Errorf("used %d", p.Used())
	}
}

// TestRace: many sessions never have more than the limit together, and all room is found.
func TestRace(t *testing.T) {
	const sessions, limit, part = 16, 1000, 10
	p := page(t, limit)
	var held atomic.Int64
	var wg sync.WaitGroup
	for range sessions {
		b, _ := join(t, p, 0)
		wg.Go(func() {
			mine := 0
			for range 3000 {
				if b.Reserve(part) {
					mine++
					if n := held.Add(part); n > limit {
						t.Errorf("%d bytes given out", n)
						return
					}
					continue
				}
				held.Add(int64(-part * mine))
				b.Release(uint64(part * mine))
				mine = 0
			}
			held.Add(int64(-part * mine))
			b.Release(uint64(part * mine))
		})
	}
	wg.Wait()
	if p.Used() != 0 {
		t.Errorf("%d bytes left", p.Used())
	}
}

// TestHostilePage: a worker that writes anything confuses nobody else.
func TestHostilePage(t *testing.T) {
	p := page(t, 100)
	a, slot := join(t, p, 0)
	for i := range p.words {
		p.words[i] = ^uint64(0)
	}
	if n := p.Used(); n == 0 {
		t.Error("nothing used")
	}
	if now, peak := p.Held(slot); now > 2*sane || peak > 2*sane {
		t.Errorf("%d, %d", now, peak)
	}
	p.SetBeside(slot, 0)
	if p.Limit() != 100 || a.Limit() != 100 {
		t.Errorf("limit %d", a.Limit())
	}
	if a.Reserve(1) {
		t.Error("room in a full page")
	}
}

func TestSlots(t *testing.T) {
	p := page(t, 0)
	for range Slots {
		if _, err := p.Take(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.Take(); !errors.Is(err, ErrFull) {
		t.Error(err)
	}
	p.Free(7)
	if n, err := p.Take(); n != 7 || err != nil {
		t.Error(n, err)
	}
	for _, c := range []struct{ size, slot int }{{pageBytes, -1}, {pageBytes, Slots}, {4096, 0}} {
		if _, err := Open(make([]byte, c.size), c.slot, 0); err == nil {
			t.Errorf("slot %d of %d bytes", c.slot, c.size)
		}
	}
}

func BenchmarkReserve(b *testing.B) {
	p := page(b, 1<<40)
	s, _ := join(b, p, 0)
	for range 127 {
		join(b, p, 0)
	}
	for b.Loop() {
		s.Reserve(512)
		s.Release(512)
	}
}

// FuzzPage is a worker that writes anything anywhere into the page, between calls of both sides:
// nothing panics or waits for long, and what the other side believes stays sane.
func FuzzPage(f *testing.F) {
	f.Add([]byte{0, 0, 0xff, 8, 0, 1, 9, 1, 0x7f})
	f.Add([]byte{1, 0, 0xff, 10, 0, 0xff, 2, 0, 0})
	f.Fuzz(func(t *testing.T, writes []byte) {
		p := page(t, 1000)
		b, slot := join(t, p, 10)
		for len(writes) >= 3 {
			word := (int(writes[0]) | int(writes[1])<<8) % len(p.words)
			atomic.StoreUint64(&p.words[word], uint64(writes[2])*0x0101010101010101)
			b.Reserve(uint64(writes[0]))
			b.Enter()
			b.Release(uint64(writes[1]))
			b.Leave()
			if b.ReservePart(uint64(writes[1])) {
				b.ReleasePart(uint64(writes[0]))
			}
			p.SetBeside(slot, uint64(writes[2]))
			now, peak := p.Held(slot)
			if n := p.Used(); now > 2*sane || peak > 2*sane || n > Slots*2*sane || p.Limit() != 1000 || b.Limit() != 1000 {
				t.Fatalf("%d held, peak %d, %d used, limit %d", now, peak, n, b.Limit())
			}
			writes = writes[3:]
		}
	})
}
