package relay

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"causeway/remote"
	"causeway/remote/frame"
)

// frames are those of some bytes, all of them whole.
func frames(t testing.TB, b []byte) (kinds []frame.Kind, args []uint64, state []byte) {
	t.Helper()
	for len(b) > 0 {
		h := frame.ParseHeader(b)
		if h.Kind == frame.State {
			state = append(state, b[frame.HeaderSize:][:h.Len]...)
		}
		if n := len(kinds); n == 0 || kinds[n-1] != frame.State || h.Kind != frame.State || h.Len == 0 {
			kinds, args = append(kinds, h.Kind), append(args, h.Arg)
		}
		b = b[frame.HeaderSize+h.Len:]
	}
	return kinds, args, state
}

func framed(h frame.Header, payload []byte) []byte {
	h.Len = uint32(len(payload))
	return append(h.Append(nil), payload...)
}

func welcome(status uint32, text string) []byte {
	return framed(frame.Header{Kind: frame.Welcome}, remote.FormatHello(remote.Hello{Type: remote.MsgWelcome, Status: status, Size: 2}, text))
}

// sends reports whether the last frame of a stream is of a kind. The stream is locked.
func (p *pausing) sends(kind frame.Kind) bool {
	for b := p.out; len(b) > 0; {
		h := frame.ParseHeader(b)
		if b = b[frame.HeaderSize+h.Len:]; len(b) == 0 {
			return h.Kind == kind
		}
	}
	return false
}

// going is a session on its way from one stream to another, whose server has been told so.
type going struct {
	*Session
	g        *fakeGuest
	one, two *pausing
	ended    chan error
	moved    chan error // what Move said
	m        *Moving
	cancel   context.CancelFunc
}

// goes begins a move of a session that has sent 64 bytes.
func goes(t testing.TB) *going {
	t.Helper()
	s, g, one, ended := newRun(t.Context())
	g.submit(make([]byte, 64))
	one.await(func() bool { return len(one.out) == frame.HeaderSize+64 })
	x := &going{Session: s, g: g, one: one, two: newPausing(), ended: ended, moved: make(chan error, 1)}
	var ctx context.Context
	ctx, x.cancel = context.WithCancel(t.Context())
	go func() {
		m, err := s.Move(ctx, x.two, remote.Hello{Pid: 7}, 3, "gpu2")
		x.m = m
		x.moved <- err
	}()
	one.await(func() bool { return one.sends(frame.Leave) })
	return x
}

var stateEnd = framed(frame.Header{Kind: frame.State}, nil)

// told has the first server say all of the session, and the other one answer.
func (x *going) told(t testing.TB) {
	t.Helper()
	x.one.say(append(framed(frame.Header{Kind: frame.State}, []byte("all of it")), stateEnd...))
	x.two.await(func() bool { return x.two.sends(frame.State) && bytes.HasSuffix(x.two.out, stateEnd) })
	x.two.say(welcome(0, ""))
	if err := <-x.moved; err != nil {
		t.Fatal(err)
	}
}

// goesOn has a record sent over a stream, and a word come by it.
func (x *going) goesOn(t testing.TB, by *pausing) {
	t.Helper()
	was := len(by.sent())
	x.g.submit(make([]byte, 32))
	by.await(func() bool { return len(by.out) >= was+frame.HeaderSize+32 && by.sends(frame.Ring) })
	kinds, args, _ := frames(t, by.sent())
	if n := len(kinds) - 1; kinds[n] != frame.Ring || args[n] != 64 {
		t.Errorf("record in frame %d at %d", kinds[n], args[n])
	}
	by.say(word(9, 1))
	x.g.awaitWord(9, 1)
}

func (x *going) guestGoes(t testing.TB) {
	t.Helper()
	close(x.g.done)
	if err := <-x.ended; err != nil {
		t.Error(err)
	}
	for _, c := range []*pausing{x.one, x.two} {
		c.await(func() bool { return c.closed })
	}
}

// TestMoves: a session goes to another server with all regions, from its place in the ring on, once
// it is told so, and the first one's stream ends; what is called off goes on where it was, and can
// go elsewhere again.
func TestMoves(t *testing.T) {
	x := goes(t)
	x.told(t)
	kinds, args, state := frames(t, x.two.sent())
	if len(kinds) != 4 || kinds[0] != frame.Arrive || args[0] != 64 || kinds[1] != frame.Region || args[1] != 1 || string(state) != "all of it" {
		t.Errorf("the other server hears frames %d at %d, and %q", kinds, args, state)
	}
	if _, err := x.Move(t.Context(), newPausing(), remote.Hello{}, 0, "gpu3"); !errors.Is(err, ErrMoving) {
		t.Errorf("a second move: %v", err)
	}
	if _, err := x.Park(t.Context(), nothing); err != nil {
		t.Error(err)
	}
	if _, err := x.StandStill(); !errors.Is(err, ErrMoving) {
		t.Errorf("its VM moves meanwhile: %v", err)
	}
	if err := x.Resume(nothing); err != nil {
		t.Error(err)
	}
	if err := x.m.Decide(true); err != nil {
		t.Fatal(err)
	}
	x.goesOn(t, x.two)
	if did := x.one.acts(); !strings.HasSuffix(did, "c") {
		t.Errorf("the first stream: %s", did)
	}
	if _, err := x.Park(t.Context(), nothing); err != nil { // as any other
		t.Error(err)
	}
	if err := x.Resume(nothing); err != nil {
		t.Error(err)
	}
	x.guestGoes(t)

	x = goes(t)
	x.told(t)
	if err := x.m.Decide(false); err != nil {
		t.Error(err)
	}
	x.one.await(func() bool { return x.one.sends(frame.Stay) })
	x.goesOn(t, x.one)
	third := newPausing()
	go func() {
		_, err := x.Move(t.Context(), third, remote.Hello{}, 0, "gpu3")
		x.moved <- err
	}()
	x.one.await(func() bool { return x.one.sends(frame.Leave) })
	x.guestGoes(t)
	if err := <-x.moved; !errors.Is(err, ErrOver) || third.acts() != "c" {
		t.Errorf("%v, and its stream: %s", err, third.acts())
	}
}

// TestMovesInVain: whatever the other server does or does not do, and whenever it is called off,
// the session goes on where it was, which is told so.
func TestMovesInVain(t *testing.T) {
	for name, row := range map[string]struct {
		do   func(x *going)
		want error
		says string
	}{
		"the first server refuses": {func(x *going) {
			x.one.say(framed(frame.Header{Kind: frame.State, Flags: frame.Refused}, []byte("a call is going on")))
		}, ErrRefused, "a call is going on"},
		"the first server refuses halfway": {func(x *going) {
			x.one.say(append(framed(frame.Header{Kind: frame.State}, []byte("some")), framed(frame.Header{Kind: frame.State, Flags: frame.Refused}, nil)...))
		}, ErrRefused, "gpu1"},
		"the other refuses": {func(x *going) { x.two.say(welcome(5, "no room for it")) }, ErrRefused, "no room for it"},
		"the other refuses all of it": {func(x *going) {
			x.one.say(stateEnd)
			x.two.await(func() bool { return bytes.HasSuffix(x.two.out, stateEnd) })
			x.two.say(welcome(5, "bad state"))
		}, ErrRefused, "bad state"},
		"the other has it too early":    {func(x *going) { x.two.say(welcome(0, "")) }, remote.ErrProtocol, "gpu2"},
		"the other says something else": {func(x *going) { x.two.say(word(1, 1)) }, remote.ErrProtocol, "gpu2"},
		"the other is lost":             {func(x *going) { x.two.do('c') }, ErrServer, "gpu2"},
		"the other takes no more": {func(x *going) {
			x.two.mu.Lock()
			x.two.writes = errTest
			x.two.mu.Unlock()
			x.one.say(framed(frame.Header{Kind: frame.State}, []byte("some")))
		}, ErrServer, "takes no more"},
		"it is called off": {func(x *going) { x.cancel() }, context.Canceled, ""},
		"it is called off when all has come": {func(x *going) {
			x.one.say(stateEnd)
			x.two.await(func() bool { return bytes.HasSuffix(x.two.out, stateEnd) })
			x.cancel()
		}, context.Canceled, ""},
	} {
		t.Run(name, func(t *testing.T) {
			x := goes(t)
			row.do(x)
			if err := <-x.moved; !errors.Is(err, row.want) || !strings.Contains(err.Error(), row.says) {
				t.Errorf("%v", err)
			}
			x.one.await(func() bool { return x.one.sends(frame.Stay) })
			x.one.say(stateEnd[:0])
			x.goesOn(t, x.one)
			if strings.Trim(x.two.acts(), "c") != "" {
				t.Errorf("the other's stream: %s", x.two.acts())
			}
			x.guestGoes(t)
		})
	}
}

// TestMovesLost: a first server that is lost when it has said all is not missed by a session that
// goes on at the other; one that is lost before takes the session along, and the other's stream
// ends.
func TestMovesLost(t *testing.T) {
	x := goes(t)
	x.told(t)
	x.one.do('c')
	if err := x.m.Decide(true); err != nil {
		t.Fatal(err)
	}
	x.goesOn(t, x.two)
	x.guestGoes(t)

	x = goes(t)
	x.told(t)
	x.one.do('c')
	if err := x.m.Decide(false); err != nil {
		t.Error(err)
	}
	if err := <-x.ended; !errors.Is(err, ErrServer) || x.g.lastState() != remote.WorkerDead {
		t.Error(err)
	}
	x.two.await(func() bool { return x.two.closed })

	x = goes(t)
	x.one.do('c')
	if err := <-x.moved; !errors.Is(err, ErrOver) {
		t.Error(err)
	}
	if err := <-x.ended; !errors.Is(err, ErrServer) {
		t.Error(err)
	}
	x.two.await(func() bool { return x.two.closed })
	if _, err := x.Move(t.Context(), newPausing(), remote.Hello{}, 0, "gpu3"); !errors.Is(err, ErrOver) {
		t.Error(err)
	}
}

// TestMovesParked: a session that is parked goes nowhere before it is resumed.
func TestMovesParked(t *testing.T) {
	s, g, one, ended := newRun(t.Context())
	if _, err := s.Park(t.Context(), nothing); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	two := newPausing()
	if _, err := s.Move(ctx, two, remote.Hello{}, 0, "gpu2"); !errors.Is(err, context.Canceled) || two.acts() != "c" || len(two.sent())+len(one.sent()) != 0 {
		t.Errorf("%v, %q and %q", err, two.sent(), one.sent())
	}
	if err := s.Resume(nothing); err != nil {
		t.Error(err)
	}
	close(g.done)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// FuzzMoving: a first server says whatever it likes to LEAVE. Either the other one hears all of the
// session or the session goes nowhere, and nothing hangs.
func FuzzMoving(f *testing.F) {
	f.Add(append(framed(frame.Header{Kind: frame.State}, []byte("all of it")), stateEnd...))
	f.Add(append(bytes.Clone(stateEnd), stateEnd...))
	f.Add(framed(frame.Header{Kind: frame.State, Flags: frame.Refused}, []byte("no")))
	f.Add(framed(frame.Header{Kind: frame.State, Flags: 2}, []byte("no")))
	f.Add(framed(frame.Header{Kind: frame.State, Arg: 1}, nil))
	f.Add(append(framed(frame.Header{Kind: frame.State}, []byte("some")), word(1, 1)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		x := goes(t)
		x.two.say(nil)
		x.one.say(b)
		x.one.await(func() bool { return len(x.one.in) == 0 || x.one.closed })
		time.AfterFunc(time.Millisecond, x.cancel)
		err := <-x.moved
		if err == nil {
			t.Error("the other server has not answered")
		}
		x.one.do('c')
		if err := <-x.ended; err == nil {
			t.Error("it ends well")
		}
		x.two.await(func() bool { return x.two.closed })
		kinds, _, _ := frames(t, x.two.sent())
		for i, k := range kinds {
			if want := []frame.Kind{frame.Arrive, frame.Region}; i < len(want) && k != want[i] || i >= len(want) && k != frame.State {
				t.Errorf("frame %d of those to the other server is of type %d", i, k)
			}
		}
	})
}

// TestMovesToOneThatDoesNotRead: a session whose guest goes ends also while the server that it
// would go to takes nothing of it.
func TestMovesToOneThatDoesNotRead(t *testing.T) {
	x := goes(t)
	x.two.mu.Lock()
	x.two.full = true
	x.two.mu.Unlock()
	x.one.say(framed(frame.Header{Kind: frame.State}, []byte("some of it")))
	x.two.await(func() bool { return x.two.stuck })
	x.guestGoes(t)
	if err := <-x.moved; err == nil {
		t.Error("it is at the other server")
	}
}
