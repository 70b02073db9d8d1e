package relay

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"causeway/remote"
	"causeway/remote/frame"
)

// rounding is a session whose memory goes ahead of it from one stream to another.
type rounding struct {
	*going
	did  chan frame.Round // what Round said
	held uint32           // by what it asks for
}

var awaited = framed(frame.Header{Kind: frame.More}, nil)

// roundRun is newRun for a server that sends memory ahead.
func roundRun(t testing.TB) *rounding {
	t.Helper()
	s, g, one, ended := newRun(t.Context())
	s.parks.mu.Lock()
	s.rounds = true
	s.parks.mu.Unlock()
	g.submit(make([]byte, 64))
	one.await(func() bool { return len(one.out) == frame.HeaderSize+64 })
	return &rounding{&going{Session: s, g: g, one: one, two: newPausing(), ended: ended, moved: make(chan error, 1)}, make(chan frame.Round, 1), 0}
}

// begins has another server await the session.
func (x *rounding) begins(t testing.TB) {
	t.Helper()
	var ctx context.Context
	ctx, x.cancel = context.WithCancel(t.Context())
	x.two.say(awaited)
	m, err := x.Ahead(ctx, x.two, remote.Hello{Pid: 7}, 3, "gpu2")
	if err != nil {
		t.Fatal(err)
	}
	x.m = m
}

func rounds(t testing.TB) *rounding {
	t.Helper()
	x := roundRun(t)
	x.begins(t)
	return x
}

// asks has a round asked for, the server hear of it.
func (x *rounding) asks(ctx context.Context, t testing.TB) {
	t.Helper()
	n := x.count(frame.Ahead)
	go func() {
		did, err := x.m.Round(ctx, x.held)
		x.did <- did
		x.moved <- err
	}()
	x.one.await(func() bool { return countIn(x.one.out, frame.Ahead) == n+1 })
}

// count is how many frames of a kind the first server has been sent.
func (x *rounding) count(k frame.Kind) int { return countIn(x.one.sent(), k) }

func countIn(b []byte, kind frame.Kind) (n int) {
	for len(b) >= frame.HeaderSize {
		h := frame.ParseHeader(b)
		if h.Kind == kind {
			n++
		}
		b = b[min(len(b), frame.HeaderSize+int(h.Len)):]
	}
	return n
}

func state(b []byte) []byte { return framed(frame.Header{Kind: frame.State}, b) }

func whole(r frame.Round) []byte {
	return framed(frame.Header{Kind: frame.State, Flags: frame.Whole}, r.Append(nil))
}

// calls has a record and a word pass while memory goes ahead.
func (x *rounding) calls(t testing.TB, value uint32) {
	t.Helper()
	n := x.count(frame.Ring)
	x.g.submit(make([]byte, 32))
	x.one.await(func() bool { return countIn(x.one.out, frame.Ring) == n+1 })
	x.one.say(word(9, value))
	x.g.awaitWord(9, value)
}

// TestAhead: rounds are passed on while the program's calls are, granted as they are passed on, and
// what stands still goes behind them; the session goes on at the other server.
func TestAhead(t *testing.T) {
	x := rounds(t)
	for n := range uint32(3) {
		x.asks(t.Context(), t)
		x.one.say(state([]byte("abc")))
		x.two.await(func() bool { return bytes.HasSuffix(x.two.out, state([]byte("abc"))) })
		x.calls(t, n+1)
		x.one.await(func() bool { return countIn(x.one.out, frame.More) == int(n)+1 })
		want := frame.Round{Looked: 9, Sent: 3, Cut: n == 1}
		x.one.say(whole(want))
		if did, err := <-x.did, <-x.moved; did != want || err != nil {
			t.Errorf("round %d: %+v, %v", n, did, err)
		}
	}
	if err := x.m.Decide(true); !errors.Is(err, ErrMoving) {
		t.Errorf("it goes on where nothing of it is: %v", err)
	}
	go func() { x.moved <- x.m.Stand(t.Context()) }()
	x.one.await(func() bool { return x.one.sends(frame.Leave) })
	x.told(t)
	if err := x.m.Decide(true); err != nil {
		t.Fatal(err)
	}
	x.two.await(func() bool { return x.two.sends(frame.State) })
	kinds, args, text := frames(t, x.two.sent())
	want := []frame.Kind{frame.Ahead, frame.State, frame.Arrive, frame.Region, frame.State, frame.State}
	if !slices.Equal(kinds, want) || args[2] != 64+3*32 || string(text) != "abcabcabcall of it" {
		t.Errorf("frames %d to the other server, arguments %d, and %q", kinds, args, text)
	}
	if !bytes.Contains(x.two.sent(), framed(frame.Header{Kind: frame.Arrive, Arg: args[2]}, nil)) {
		t.Fatal("who the program is has been said, and is again")
	}
	if x.m.ahead.runs || x.count(frame.Stay) != 0 {
		t.Error("the first one is told to go on")
	}
	x.two.say(word(9, 77))
	x.g.awaitWord(9, 77)
	x.guestGoes(t)
}

// TestAheadInVain: whatever is in the way of a round, the session runs on where it was, whose
// server is told once; when that has said that the round is over it can go elsewhere.
func TestAheadInVain(t *testing.T) {
	for name, row := range map[string]struct {
		do   func(x *rounding)
		want error
		says string
		over bool // the server has said so
	}{
		"the server refuses": {func(x *rounding) {
			x.one.say(framed(frame.Header{Kind: frame.State, Flags: frame.Refused}, []byte("it captures")))
		}, ErrRefused, "gpu1: it captures", true},
		"the other refuses":           {func(x *rounding) { x.two.say(welcome(5, "no room for it")) }, ErrRefused, "no room for it", false},
		"the other has it":            {func(x *rounding) { x.two.say(welcome(0, "")) }, remote.ErrProtocol, "gpu2", false},
		"the other is lost":           {func(x *rounding) { x.two.do('c') }, ErrServer, "gpu2", false},
		"it is called off":            {func(x *rounding) { x.cancel() }, context.Canceled, "", false},
		"it is called off by another": {func(x *rounding) { go func() { _ = x.m.Decide(false) }() }, context.Canceled, "", false},
		"nothing comes":               {func(*rounding) {}, ErrServer, "nothing of a round", false},
		"nothing is taken": {func(x *rounding) {
			x.two.mu.Lock()
			x.two.full = true
			x.two.mu.Unlock()
			x.one.say(state([]byte("some")))
		}, ErrServer, "nothing of a round", false},
		"the other takes no more": {func(x *rounding) {
			x.two.mu.Lock()
			x.two.writes = errTest
			x.two.mu.Unlock()
			x.one.say(state([]byte("some")))
		}, ErrServer, "gpu2", false},
	} {
		t.Run(name, func(t *testing.T) {
			x := rounds(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			off := x.cancel
			x.cancel = func() { cancel(); off() }
			if strings.HasPrefix(name, "nothing") {
				x.m.ahead.patience = 20 * time.Millisecond
			}
			x.asks(ctx, t)
			row.do(x)
			if err := errorOf(x); !errors.Is(err, row.want) || !strings.Contains(err.Error(), row.says) {
				t.Errorf("%v", err)
			}
			x.one.await(func() bool { return x.one.sends(frame.Stay) })
			x.calls(t, 1)
			if !row.over {
				if _, err := x.Ahead(t.Context(), newPausing(), remote.Hello{}, 0, "gpu3"); !errors.Is(err, ErrMoving) {
					t.Errorf("again, while the server may say more of it: %v", err)
				}
				x.one.say(append(state(make([]byte, 1000)), whole(frame.Round{})...))
			}
			if err := x.m.Decide(false); err != nil {
				t.Error(err)
			}
			if err := x.m.Stand(t.Context()); err == nil {
				t.Error("it stands")
			}
			if x.count(frame.Stay) != 1 || x.count(frame.More) != 0 || !x.two.isClosed() {
				t.Errorf("%d times STAY, %d times MORE", x.count(frame.Stay), x.count(frame.More))
			}
			x.two = newPausing()
			x.begins(t)
			x.asks(t.Context(), t)
			x.one.say(whole(frame.Round{}))
			if err := errorOf(x); err != nil {
				t.Error(err)
			}
			if err := x.m.Decide(false); err != nil {
				t.Error(err)
			}
			x.calls(t, 2)
			x.guestGoes(t)
		})
	}
}

func errorOf(x *rounding) error {
	<-x.did
	return <-x.moved
}

func (p *pausing) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// TestAheadStandsInVain: a session whose memory went ahead and that cannot stand, or go in the end,
// goes on where it was, which is told to forget what went ahead.
func TestAheadStandsInVain(t *testing.T) {
	for name, do := range map[string]func(x *rounding){
		"the server refuses": func(x *rounding) {
			x.one.await(func() bool { return x.one.sends(frame.Leave) })
			x.one.say(framed(frame.Header{Kind: frame.State, Flags: frame.Refused}, []byte("no")))
		},
		"it is parked, and called off": func(x *rounding) { x.cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			x := rounds(t)
			x.asks(t.Context(), t)
			x.one.say(whole(frame.Round{}))
			if err := errorOf(x); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			x.cancel = cancel
			parks := strings.Contains(name, "parked")
			if parks {
				if _, err := x.Park(t.Context(), nothing); err != nil {
					t.Fatal(err)
				}
			}
			go func() { x.moved <- x.m.Stand(ctx) }()
			do(x)
			if err := <-x.moved; err == nil {
				t.Error("it goes")
			}
			x.one.await(func() bool { return x.one.sends(frame.Stay) })
			if parks {
				if err := x.Resume(nothing); err != nil {
					t.Error(err)
				}
			}
			<-x.m.free
			x.calls(t, 1)
			x.two = newPausing()
			x.begins(t)
			x.guestGoes(t)
			cancel()
		})
	}
}

// TestAheadOfVersions: a server without rounds is asked for none, and one that takes the hello for
// none of its own has none either; whatever else it says is its fault.
func TestAheadOfVersions(t *testing.T) {
	for name, row := range map[string]struct {
		old  bool
		says []byte
		want error
		not  error
	}{
		"the first one":         {old: true, want: ErrNoRounds},
		"the other one":         {says: welcome(71, "handshake: frame 23 of 64 bytes is no hello"), want: ErrNoRounds},
		"one that has it":       {says: welcome(0, ""), want: remote.ErrProtocol, not: ErrNoRounds},
		"one that says a word":  {says: word(1, 1), want: remote.ErrProtocol, not: ErrNoRounds},
		"one that awaits more":  {says: framed(frame.Header{Kind: frame.More, Arg: 8}, nil), want: remote.ErrProtocol, not: ErrNoRounds},
		"one that is there not": {want: ErrServer, not: ErrNoRounds},
	} {
		t.Run(name, func(t *testing.T) {
			x := roundRun(t)
			x.parks.mu.Lock()
			x.rounds = !row.old
			x.parks.mu.Unlock()
			if row.says != nil {
				x.two.say(row.says)
			} else if !row.old {
				x.two.do('c')
			}
			_, err := x.Ahead(t.Context(), x.two, remote.Hello{}, 0, "gpu2")
			if !errors.Is(err, row.want) || row.not != nil && errors.Is(err, row.not) {
				t.Errorf("%v", err)
			}
			if !x.two.isClosed() || x.count(frame.Ahead)+x.count(frame.Stay) != 0 {
				t.Error("the first server has heard of it, or the other's stream is open")
			}
			go func() {
				m, err := x.Move(t.Context(), newPausing(), remote.Hello{}, 0, "gpu2")
				x.m = m
				x.moved <- err
			}()
			x.one.await(func() bool { return x.one.sends(frame.Leave) }) // at once, and all of it
			x.endsOnTheWay(t)
		})
	}
}

// endsOnTheWay ends a session that is on its way to a stream of which the test knows nothing.
func (x *rounding) endsOnTheWay(t testing.TB) {
	t.Helper()
	close(x.g.done)
	if err := <-x.ended; err != nil {
		t.Error(err)
	}
	if err := <-x.moved; err == nil {
		t.Error("it has moved")
	}
}

// TestRoundRules: a server that says of a round what is none, or more than was granted, breaks a
// rule, which is the session's end and the other stream's.
func TestRoundRules(t *testing.T) {
	for name, b := range map[string][]byte{
		"more than granted": bytes.Repeat(state(make([]byte, frame.AheadWindow/2)), 3),
		"nothing":           state(nil),
		"with an argument":  framed(frame.Header{Kind: frame.State, Arg: 1}, []byte("some")),
		"of another kind":   framed(frame.Header{Kind: frame.State, Flags: 3}, []byte("some")),
		"a long refusal":    framed(frame.Header{Kind: frame.State, Flags: frame.Refused}, make([]byte, frame.MaxWhy+1)),
		"a short round":     framed(frame.Header{Kind: frame.State, Flags: frame.Whole}, make([]byte, frame.RoundSize-1)),
		"a long round":      framed(frame.Header{Kind: frame.State, Flags: frame.Whole}, make([]byte, frame.RoundSize+1)),
		"a false round":     whole(frame.Round{Looked: 1, Sent: 2}),
		"two ends":          append(whole(frame.Round{}), whole(frame.Round{})...),
	} {
		t.Run(name, func(t *testing.T) {
			x := rounds(t)
			x.two.mu.Lock()
			x.two.full = true // who passes on grants nothing
			x.two.mu.Unlock()
			x.asks(t.Context(), t)
			x.one.say(b)
			if err := <-x.ended; !errors.Is(err, remote.ErrProtocol) {
				t.Errorf("ended with %v", err)
			}
			if err := errorOf(x); name != "two ends" && !errors.Is(err, ErrOver) {
				t.Errorf("the round: %v", err)
			}
			x.two.await(func() bool { return x.two.closed })
			if n := cap(x.m.ahead.came) + cap(x.m.ahead.passed); n > AheadMemory {
				t.Errorf("it keeps %d bytes", n)
			}
		})
	}
}

// TestAheadAndAnEnd: a session whose guest goes ends while the other server takes nothing of a
// round, and while nothing is asked for.
func TestAheadAndAnEnd(t *testing.T) {
	x := rounds(t)
	x.two.mu.Lock()
	x.two.full = true
	x.two.mu.Unlock()
	x.asks(t.Context(), t)
	x.one.say(state([]byte("some of it")))
	x.two.await(func() bool { return x.two.stuck })
	x.calls(t, 1) // nothing waits for the other server but who passes on
	x.guestGoes(t)
	if err := errorOf(x); !errors.Is(err, ErrOver) {
		t.Error(err)
	}
	x = rounds(t)
	x.guestGoes(t)
	if _, err := x.m.Round(t.Context(), 0); !errors.Is(err, ErrOver) {
		t.Error(err)
	}
	if err := x.m.Decide(false); err != nil {
		t.Error(err)
	}
}

// FuzzAhead: a server says whatever it likes of a round. Nothing hangs, the other one hears of
// nothing but memory, and no more is kept than was granted.
func FuzzAhead(f *testing.F) {
	f.Add(append(state([]byte("all of it")), whole(frame.Round{Looked: 9, Sent: 9})...))
	f.Add(append(whole(frame.Round{}), whole(frame.Round{})...))
	f.Add(framed(frame.Header{Kind: frame.State, Flags: frame.Refused}, []byte("no")))
	f.Add(state(nil))
	f.Add(slices.Concat(word(1, 1), state([]byte("some")), word(1, 2), whole(frame.Round{Looked: 1, Cut: true})))
	f.Fuzz(func(t *testing.T, b []byte) {
		x := rounds(t)
		x.asks(t.Context(), t)
		x.one.say(b)
		x.one.await(func() bool { return len(x.one.in) == 0 || x.one.closed })
		time.AfterFunc(time.Millisecond, func() { x.one.do('c') })
		_ = errorOf(x)
		if err := <-x.ended; err == nil {
			t.Error("it ends well")
		}
		x.two.await(func() bool { return x.two.closed })
		kinds, _, _ := frames(t, x.two.sent())
		for i, k := range kinds {
			if i == 0 && k != frame.Ahead || i > 0 && k != frame.State {
				t.Errorf("frame %d of those to the other server is of type %d", i, k)
			}
		}
		if n := cap(x.m.ahead.came) + cap(x.m.ahead.passed); n > AheadMemory {
			t.Errorf("it keeps %d bytes", n)
		}
	})
}
