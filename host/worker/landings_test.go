package worker

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"
)

// TestLandings: nobody has memory that another has, whatever is taken and given back, and all of it
// can be taken at once.
func TestLandings(t *testing.T) {
	const all = landingCount * landingSize
	o := newLandings()
	if _, ok := o.take(all + 1); ok {
		t.Error("more than there is")
	}
	if l, ok := o.take(all); !ok || len(l.bytes()) != all {
		t.Fatal("not all of it")
	} else {
		l.put()
	}
	r := rand.New(rand.NewPCG(1, 2))
	var have []landing
	owned := make([]bool, all) // bytes
	mark := func(l landing, to bool) {
		for i := l.at; i < l.at+l.size; i += 4096 {
			if owned[i] == to {
				t.Fatalf("%#x+%#x: byte %#x was %v", l.at, l.size, i, to)
			}
			owned[i] = to
		}
	}
	taken, refused := 0, 0
	for range 20000 {
		if len(have) > 0 && r.IntN(2) == 0 {
			i := r.IntN(len(have))
			mark(have[i], false)
			have[i].put()
			have = append(have[:i], have[i+1:]...)
			continue
		}
		l, ok := o.take(1 + r.Uint64N(earlyPiece))
		if !ok {
			refused++
			continue
		}
		taken++
		mark(l, true)
		have = append(have, l)
	}
	for _, l := range have {
		l.put()
	}
	if o.taken != 0 || taken == 0 || refused == 0 {
		t.Errorf("%#x left, %d taken, %d refused", o.taken, taken, refused)
	}
	if _, ok := (*landings)(nil).take(1); ok {
		t.Error("of none")
	}
}

// TestEarlyHeld: from when a driver asks for them on, bytes come to landings, and stay there until
// they are let go; what does not fit comes elsewhere.
func TestEarlyHeld(t *testing.T) {
	e, _, m := newComingUp(t, 12)
	mem := e.landings()
	if len(mem) == 0 || unsafe.SliceData(mem) != unsafe.SliceData(e.landings()) {
		t.Fatal("no landings, or others each time")
	}
	e.look(0)
	var held []landing
	for i := range 4 {
		m.open[i](nil)
		l, ok, err := e.hold(up(i))
		if !ok || err != nil || mem[l.at] != byte(i) || mem[l.at+l.size-1] != 2 {
			t.Fatalf("copy %d: %v, %v at %#x", i, ok, err, l.at)
		}
		held = append(held, l)
	}
	// Others were asked for meanwhile, for which there was no landing.
	m.open[4](nil)
	if _, ok, _ := e.hold(up(4)); ok {
		t.Error("a landing that others have")
	}
	for i, l := range held {
		if mem[l.at] != byte(i) {
			t.Errorf("copy %d has not stayed", i)
		}
		l.put()
	}
	p := make([]byte, 1<<20)
	if ok, err := e.take(up(4), p); !ok || err != nil || p[0] != 4 {
		t.Errorf("copy 4: %v, %v, %v", ok, err, p[:2])
	}
	// What is given up is not given to others before it came.
	for i := 5; i < 8; i++ {
		m.open[i](nil)
		if ok, err := e.take(up(i), p); !ok || err != nil || p[0] != byte(i) {
			t.Errorf("copy %d: %v, %v", i, ok, err)
		}
	}
	taken := func() uint32 {
		e.pinned.mu.Lock()
		defer e.pinned.mu.Unlock()
		return e.pinned.taken
	}
	for i := 8; i < 12; i++ {
		if e.came[i-8].p != nil {
			t.Fatalf("copy %d does not come to a landing", i)
		}
	}
	broken := errors.New("broken")
	m.open[8](broken)
	if _, ok, err := e.hold(up(8)); !ok || !errors.Is(err, broken) {
		t.Error(ok, err)
	}
	before := taken()
	e.pass(up(9))
	time.Sleep(10 * time.Millisecond)
	if n := taken(); n != before {
		t.Fatalf("%#x is taken behind a copy whose bytes may come yet, want %#x", n, before)
	}
	for i := 9; i < 12; i++ {
		m.open[i](nil)
	}
	for i := 10; i < 12; i++ {
		if ok, err := e.take(up(i), p); !ok || err != nil || p[0] != byte(i) {
			t.Errorf("copy %d: %v, %v", i, ok, err)
		}
	}
	for end := time.Now().Add(10 * time.Second); taken() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%#x is taken for ever", taken())
		}
	}
}

// lateMemory is a comingMemory by which nobody waits for an answer itself before look: whoever
// waits sleeps in the kernel first.
type lateMemory struct {
	*comingMemory
	look chan struct{}
}

func (m lateMemory) Answer(done <-chan error) error {
	<-m.look
	return <-done
}

// TestEarlyHeldBehind: a copy that is waited for while so many others have come that what waits is
// given up has its landing all the same, until it is let go; nobody else waits for its bytes.
func TestEarlyHeldBehind(t *testing.T) {
	e, _, m := newComingUp(t, 5)
	late := lateMemory{m, make(chan struct{})}
	e.memory = late
	mem := e.landings()
	e.look(0)
	type answer struct {
		l   landing
		ok  bool
		err error
	}
	held := make(chan answer, 1)
	go func() {
		l, ok, err := e.hold(up(0))
		held <- answer{l, ok, err}
	}()
	for awaited := false; !awaited; time.Sleep(time.Millisecond) {
		e.mu.Lock()
		awaited = e.came[0].awaited
		e.mu.Unlock()
	}
	for range earlyWaits {
		if ok, _ := e.take(up(9), nil); ok {
			t.Fatal("what was not asked for")
		}
	}
	e.look(0) // which gives up the oldest
	if len(m.open) != 5 || e.came[0].copy != up(1) {
		t.Fatalf("%d were asked for, the oldest is %+v", len(m.open), e.came[0].copy)
	}
	m.open[0](nil)
	time.Sleep(10 * time.Millisecond)
	close(late.look)
	select {
	case a := <-held:
		if !a.ok || a.err != nil || mem[a.l.at] != 0 || mem[a.l.at+1] != 2 {
			t.Errorf("%v, %v at %#x", a.ok, a.err, a.l.at)
		}
		if e.pinned.taken != 1<<16-1 {
			t.Errorf("%#x is taken while it is held", e.pinned.taken)
		}
		a.l.put()
		if e.pinned.taken != 0xfff0 {
			t.Errorf("%#x is taken behind it", e.pinned.taken)
		}
	case <-time.After(10 * time.Second):
		t.Error("whoever waits for the copy has no answer")
	}
}
