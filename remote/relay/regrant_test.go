package relay

import (
	"errors"
	"slices"
	"testing"
	"time"

	"causeway/remote"
	"causeway/remote/frame"
)

// liftingStream is a grantingStream whose server may reach memory later.
type liftingStream struct {
	*grantingStream
	lifted func()
}

func (l *liftingStream) Lifts(f func()) bool {
	l.lifted = f
	return true
}

// TestLetsGo: a session has nothing granted once its server says so: not before, also of a region
// that is gone, and not where it says nothing.
func TestLetsGo(t *testing.T) {
	s, conn, mem, _ := grantingSession(true)
	s.grants.limit = 50 * time.Millisecond
	if err := s.letGo(); err != nil {
		t.Error(err)
	}
	if err := s.told(change{id: 1, size: 100}); err != nil || len(conn.grantsOf()) != 1 {
		t.Fatal(err)
	}
	if err := s.letGo(); !errors.Is(err, ErrReached) {
		t.Errorf("it has a region: %v", err)
	}
	mem.revokes[1]() // it is gone, and the server has not heard of it
	if len(s.grants.live) != 0 {
		t.Fatal("it is there")
	}
	if err := s.letGo(); !errors.Is(err, ErrReached) {
		t.Errorf("it has one that is gone: %v", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.recall(t.Context())
	}()
	conn.await(func() bool { return len(conn.out) == frame.HeaderSize })
	if err := s.letGo(); !errors.Is(err, ErrReached) { // it does not answer
		t.Error(err)
	}
	s.grants.limit = time.Minute
	late := time.AfterFunc(2*recallLimit, func() {
		if err := s.recalled(); err != nil {
			t.Error(err)
		}
	})
	defer late.Stop()
	if err := s.letGo(); err != nil { // later than who is only parked waits for it
		t.Error(err)
	}
	<-done
}

// TestGrantsWhatIsKnown: where a region has ended and another come under its number, of which the
// server has not heard, that is not granted in the place of the first; it is when it has.
func TestGrantsWhatIsKnown(t *testing.T) {
	s, conn, _, _ := grantingSession(true)
	for _, c := range []struct {
		change
		granted bool
	}{{change{id: 1, size: 50}, false}, {change{id: 1}, false}, {change{id: 1, size: 100}, true}} {
		if err := s.told(c.change); err != nil {
			t.Fatal(err)
		}
		if got := conn.grantsOf(); (len(got) > 0) != c.granted {
			t.Errorf("%+v: %v is granted", c.change, got)
		}
	}
}

// TestGrantsNothingBehindRecall: what was to be granted again is not while a RECALL waits for its
// answer, or the session is parked, but when both are over.
func TestGrantsNothingBehindRecall(t *testing.T) {
	s, conn, _, _ := grantingSession(true)
	g := &s.grants
	g.closed = true
	if err := s.told(change{id: 1, size: 100}); err != nil || len(conn.grantsOf()) != 0 || len(g.live) != 1 {
		t.Fatal(err)
	}
	for what, set := range map[string]func(bool){"parked": func(is bool) { g.parked = is }, "recalled": func(is bool) { g.owed = is }} {
		set(true)
		g.renew.Store(true)
		if err := s.regrant(); err != nil || len(conn.grantsOf()) != 0 || !g.closed {
			t.Errorf("%s: %v, closed %v", what, err, g.closed)
		}
		set(false)
	}
	s.reopen()
	if err := s.regrant(); err != nil || len(conn.grantsOf()) != 1 {
		t.Error(err)
	}
}

// TestGrantsWhereItComes: a session that has come has regions granted once it goes on, each when it
// is there and the server knows it, from when there is a way to; what it is described as meanwhile
// does not tell of that.
func TestGrantsWhereItComes(t *testing.T) {
	mem := &exposing{guestMem: guestMem{newGuest()}, sizes: map[uint32]int{1: 100, 2: 200, 3: 300}, revokes: map[uint32]func(){}}
	conn := &liftingStream{grantingStream: &grantingStream{pausing: newPausing()}}
	st := State{Regions: []Change{{Size: remote.Region0Size}, {ID: 1, Size: 100}, {ID: 2, Size: 200}, {ID: 3, Size: 300}}, Untold: []Change{{ID: 2, Size: 200}}}
	s, err := Adopt(movedCarrier{fakeCarrier{g: mem.g}, mem}, conn, st, "gpu1", quietLog)
	if err != nil {
		t.Fatal(err)
	}
	grants := func(what string, want ...uint64) {
		t.Helper()
		if err := s.sendRegions(); err != nil {
			t.Fatal(err)
		}
		got := conn.grantsOf()
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v is granted, not %v", what, got, want)
		}
	}
	mem.fails = remote.ErrUnknownRegion // none is there
	s.regions.Declared(1, remote.Declared{Size: 100})
	if _, untold := s.regions.describe(); len(untold) != 1 {
		t.Errorf("the server is to be told of %v", untold)
	}
	grants("parked, without a way")
	conn.does = true
	conn.lifted()
	grants("parked")
	s.unpark()
	grants("not there")
	mem.fails = nil
	s.regions.Declared(3, remote.Declared{Size: 300})
	grants("one is there", 3)
	s.reopen()
	grants("all are", 1, 2)
}

// movedCarrier is a fakeCarrier with memory that adapters reach.
type movedCarrier struct {
	fakeCarrier
	mem *exposing
}

func (c movedCarrier) Memory() remote.GuestMemory { return c.mem }

// TestGrantsElsewhere: where a session goes to another server what the first one had ends, who
// waits for its word waits no longer, it is told nothing more, and the other one has what it knows.
func TestGrantsElsewhere(t *testing.T) {
	s, one, _, _ := grantingSession(true)
	for id, size := range map[uint32]uint64{1: 100, 2: 200} {
		if err := s.told(change{id: id, size: size}); err != nil {
			t.Fatal(err)
		}
	}
	one.out = nil
	g := &s.grants
	g.closed, g.owed, g.answer = true, true, make(chan struct{})
	answer := g.answer
	two := &grantingStream{pausing: newPausing(), does: true}
	s.goOver(two, []Change{{ID: 2, Size: 200}})
	if one.revoked != 2 || g.pinned.Load() != 0 || !isClosed(answer) || g.owed || g.lent || s.out.conn != two {
		t.Errorf("%d regions have ended, owed %v, lent %v", one.revoked, g.owed, g.lent)
	}
	s.sendRecall(answer)
	if len(one.sent())+len(two.sent()) != 0 {
		t.Error("a server is asked to let go of what the other one had")
	}
	if err := s.regrant(); err != nil || len(two.grantsOf()) != 1 || len(g.live) != 1 {
		t.Error(err)
	}
	three := newPausing() // over which nothing is granted
	s.goOver(three, nil)
	s.recall(t.Context())
	if err := s.regrant(); err != nil || two.revoked != 1 || len(three.sent()) != 0 || g.to != nil {
		t.Error(err)
	}
}
