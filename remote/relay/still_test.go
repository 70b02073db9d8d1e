package relay

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"runtime"
	"testing"

	"causeway/remote"
	"causeway/remote/frame"
)

var errTest = errors.New("of the test")

func word(n, value uint32) []byte {
	return frame.Header{Kind: frame.Word, Arg: frame.Pair(n, value)}.Append(nil)
}

func nothing() error { return nil }

// stands parks a session in the middle of what its server says, and has it stand still.
func (s *Session) stands(t *testing.T, conn *pausing, says []byte) State {
	t.Helper()
	if _, err := s.Park(t.Context(), nothing); err != nil {
		t.Fatal(err)
	}
	conn.say(says)
	// It is on its way to memory that is out of reach.
	conn.await(func() bool { return len(conn.in) == 0 })
	st, err := s.StandStill()
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// TestStandsStill: a session that runs can be described in the middle of what its server says, as
// often as one asks; it goes on here, and so does another that is made of what was said.
func TestStandsStill(t *testing.T) {
	s, g, conn, ended := newRun(t.Context())
	if err := s.Movable(); err != nil {
		t.Error(err)
	}
	if _, err := s.StandStill(); !errors.Is(err, ErrNotParked) {
		t.Error(err)
	}
	g.submit(make([]byte, 64))
	conn.await(func() bool { return len(conn.out) == frame.HeaderSize+64 })
	for round := range uint32(3) {
		says := append(word(3, round+1), word(4, round+1)...)
		half := frame.Header{Kind: frame.Write, Len: frame.ExtentSize + 8}.Append(nil)
		half = append(frame.Extent{Region: 1, Offset: 16, Size: 8}.Append(half), "four"...)
		says = append(says, half...)
		st := s.stands(t, conn, says)
		if st.Sent != 64+64*uint64(round) || st.Head != 0 || !bytes.Equal(st.Unread, says) || len(st.Regions) != 2 {
			t.Errorf("%+v", st)
		}
		again, err := s.StandStill()
		if err != nil || !reflect.DeepEqual(again, st) {
			t.Errorf("it is described as %+v, then as %+v, %v", st, again, err)
		}
		s.parks.mu.Lock()
		if s.parks.halted != nil || !s.parks.still || s.parks.leaving {
			t.Error("something of it runs")
		}
		s.parks.mu.Unlock()
		if g.word(3) == round+1 {
			t.Error("a word came while it stood still")
		}

		other, elsewhere := newGuest(), newPausing()
		two, err := Adopt(fakeCarrier{g: other}, elsewhere, st, "gpu1", quietLog)
		if err != nil {
			t.Fatal(err)
		}
		over := make(chan error, 1)
		go func() { over <- two.Run(t.Context()) }()
		elsewhere.say([]byte("more"))
		for _, x := range []struct {
			s *Session
			g *fakeGuest
			c *pausing
		}{{two, other, elsewhere}, {s, g, conn}} {
			if x.s == s {
				conn.say([]byte("more"))
			}
			if err := x.s.Resume(nothing); err != nil {
				t.Fatal(err)
			}
			x.g.awaitWord(3, round+1)
			x.g.awaitWord(4, round+1)
			x.c.say(word(5, round+1))
			x.g.awaitWord(5, round+1)
			if string(x.g.mem[16:24]) != "fourmore" {
				t.Errorf("the region has %q", x.g.mem[16:24])
			}
			clear(x.g.mem)
			was := len(x.c.sent())
			x.g.submit(make([]byte, 64))
			x.c.await(func() bool { return len(x.c.out) == was+frame.HeaderSize+64 })
			if h := frame.ParseHeader(x.c.sent()[was:]); h.Kind != frame.Ring || h.Arg != st.Sent {
				t.Errorf("%+v, where %d bytes were sent", h, st.Sent)
			}
		}
		if did := elsewhere.acts(); did != "r" {
			t.Errorf("the other's stream: %s", did)
		}
		close(other.done)
		if err := <-over; err != nil {
			t.Error(err)
		}
	}
	if did := conn.acts(); did != "hhrhhrhhr" {
		t.Errorf("the stream: %s", did)
	}
	g.err = errTest
	close(g.done)
	if err := <-ended; !errors.Is(err, errTest) || conn.acts()[9] != 'c' {
		t.Errorf("%v, %s", err, conn.acts())
	}
}

// TestStandsStillInVain: where the stream cannot be held the session is parked as before, and goes
// on behind that.
func TestStandsStillInVain(t *testing.T) {
	s, g, conn, ended := newRun(t.Context())
	if _, err := s.Park(t.Context(), nothing); err != nil {
		t.Fatal(err)
	}
	conn.fail = errTest
	for range 2 { // while it runs, and then
		if _, err := s.StandStill(); !errors.Is(err, errTest) {
			t.Error(err)
		}
		if _, err := s.Park(t.Context(), nothing); !errors.Is(err, ErrParked) || s.reachable() {
			t.Errorf("it is not parked: %v", err)
		}
	}
	if err := s.Resume(func() error { return errTest }); !errors.Is(err, errTest) || s.reachable() {
		t.Error(err)
	}
	if err := s.Resume(nothing); err != nil {
		t.Error(err)
	}
	conn.say(word(3, 1))
	g.awaitWord(3, 1)
	close(g.done)
	if err := <-ended; err != nil || conn.acts()[:3] != "hhr" {
		t.Errorf("%v, %s", err, conn.acts())
	}
}

// TestStandsStillInVainWithinAFrame: a session that was to stand still in the middle of what its
// server says, and cannot, misses nothing of it when it goes on: a word that was not stored yet is,
// and of a WRITE the rest.
func TestStandsStillInVainWithinAFrame(t *testing.T) {
	half := append(frame.Extent{Region: 1, Offset: 16, Size: 8}.Append(frame.Header{Kind: frame.Write, Len: frame.ExtentSize + 8}.Append(nil)), "four"...)
	for what, says := range map[string][]byte{"a word": word(3, 1), "some of a WRITE": half} {
		s, g, conn, ended := newRun(t.Context())
		if _, err := s.Park(t.Context(), nothing); err != nil {
			t.Fatal(err)
		}
		conn.say(says)
		// It is on its way to memory that is out of reach.
		conn.await(func() bool { return len(conn.in) == 0 })
		conn.fail = errTest
		for range 2 {
			if _, err := s.StandStill(); !errors.Is(err, errTest) {
				t.Error(err)
			}
		}
		if err := s.Resume(nothing); err != nil {
			t.Error(err)
		}
		if len(says) > frame.HeaderSize {
			conn.say([]byte("more"))
		}
		conn.say(word(4, 1))
		for g.word(4) != 1 {
			select {
			case err := <-ended:
				t.Fatalf("%s: it ends: %v", what, err)
			default:
				runtime.Gosched()
			}
		}
		if len(says) == frame.HeaderSize && g.word(3) != 1 {
			t.Errorf("%s is lost", what)
		}
		if len(says) > frame.HeaderSize && string(g.mem[16:24]) != "fourmore" {
			t.Errorf("%s: the region has %q", what, g.mem[16:24])
		}
		close(g.done)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// TestEndsWhileStill: a session that stands still ends with its guest, and with who runs it; who
// has it parked hears that it is over, and its guest's memory is left alone.
func TestEndsWhileStill(t *testing.T) {
	for _, guest := range []bool{true, false} {
		ctx, cancel := context.WithCancel(t.Context())
		s, g, conn, ended := newRun(ctx)
		s.stands(t, conn, word(3, 1))
		g.err = errTest
		want := errTest
		if guest {
			close(g.done)
		} else {
			cancel()
			want = nil
		}
		if err := <-ended; !errors.Is(err, want) {
			t.Error(err)
		}
		if _, err := s.StandStill(); !errors.Is(err, ErrOver) {
			t.Error(err)
		}
		if err := s.Resume(nothing); !errors.Is(err, ErrOver) {
			t.Error(err)
		}
		if err := s.touch(nothing); !errors.Is(err, remote.ErrClosed) || g.lastState() == remote.WorkerDead {
			t.Errorf("memory that does not come back is touched: %v", err)
		}
		if acts := conn.acts(); acts[len(acts)-1] != 'c' {
			t.Errorf("the stream stays: %s", acts)
		}
		cancel()
	}
}

// TestHaltedAtTheEnd: a session that ends just as it is to stand still is over, and not parked.
func TestHaltedAtTheEnd(t *testing.T) {
	s := &Session{ring: newGuest()}
	conn, p := newPausing(), &s.parks
	s.away.Lock()
	p.resume, p.halted = make(chan struct{}), make(chan struct{})
	p.halt = func(err error) {
		if !errors.Is(err, errStill) || !s.reachable() || !errors.Is(s.touch(nothing), errStill) {
			t.Errorf("%v, within reach %v", err, s.reachable())
		}
		s.endPark()
		close(p.halted)
	}
	p.mu.Lock()
	if err := s.haltLocked(conn); !errors.Is(err, ErrOver) || p.leaving {
		t.Error(err)
	}
	p.mu.Unlock()
	if s.still = false; !errors.Is(s.touch(nothing), remote.ErrClosed) {
		t.Error("its memory is touched")
	}
}

// plainStream cannot stand still.
type plainStream struct{ frame.Stream }

// TestMovable: which streams another relay can go on with.
func TestMovable(t *testing.T) {
	for _, x := range []struct {
		conn frame.Stream
		want error
	}{{newPausing(), nil}, {plainStream{newPausing()}, ErrFixed}} {
		s := newSession(fakeCarrier{g: newGuest()}, x.conn, "gpu1", quietLog)
		if err := s.Movable(); !errors.Is(err, x.want) {
			t.Errorf("%T: %v", x.conn, err)
		}
		if _, err := s.StandStill(); x.want != nil && !errors.Is(err, x.want) {
			t.Errorf("%T: %v", x.conn, err)
		}
		s.parks.resume = make(chan struct{})
		s.dead.Store(true)
		if _, err := s.StandStill(); x.want == nil && !errors.Is(err, ErrServer) {
			t.Errorf("of a worker that is dead: %v", err)
		}
	}
}

// TestStateBounds: what can be a session is one, up to each of its bounds.
func TestStateBounds(t *testing.T) {
	one := []Asked{{1, frame.Extent{Size: 1}}}
	for name, x := range map[string]struct {
		s  State
		ok bool
	}{
		"nothing":              {State{}, true},
		"all of a ring":        {State{Sent: 5 + remote.RingSize, Head: 5}, true},
		"more":                 {State{Sent: 6 + remote.RingSize, Head: 5}, false},
		"less than done":       {State{Sent: 4, Head: 5}, false},
		"much unread":          {State{Unread: make([]byte, MostUnread)}, true},
		"more unread":          {State{Unread: make([]byte, MostUnread+1)}, false},
		"many READs":           {State{Reads: many(mostReads, one[0])}, true},
		"more READs":           {State{Reads: many(mostReads+1, one[0])}, false},
		"many regions":         {State{Untold: make([]Change, mostChanges-1)}, true},
		"more regions":         {State{Untold: make([]Change, mostChanges)}, false},
		"a READ of nothing":    {State{Reads: []Asked{{}}}, false},
		"of a byte":            {State{Reads: one}, true},
		"of much":              {State{Reads: []Asked{{1, frame.Extent{Size: frame.MaxRead}}}}, true},
		"of more":              {State{Reads: []Asked{{1, frame.Extent{Size: frame.MaxRead + 1}}}}, false},
		"a branch":             {State{Branches: []Branch{{Unread: make([]byte, MostUnread), Answering: one}}}, true},
		"its more unread":      {State{Branches: []Branch{{Unread: make([]byte, MostUnread+1)}}}, false},
		"two READs of its":     {State{Branches: []Branch{{Answering: many(2, one[0])}}}, false},
		"a READ of nothing of": {State{Branches: []Branch{{}, {Answering: []Asked{{}}}}}, false},
	} {
		if err := x.s.check(); (err == nil) != x.ok || err != nil && !errors.Is(err, ErrState) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func many(n int, a Asked) (list []Asked) {
	for range n {
		list = append(list, a)
	}
	return list
}
