package relay

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"causeway/remote"
	"causeway/remote/frame"
)

// departing is a session, of which nothing runs, on its way to another stream.
func departing(t *testing.T) (s *Session, m *Moving, one, two *pausing) {
	t.Helper()
	one, two = newPausing(), newPausing()
	s = newSession(fakeCarrier{g: newGuest()}, one, "gpu1", quietLog)
	m = s.newMoving(t.Context(), two, remote.Hello{}, 0, "gpu2")
	m.asked, s.moving = true, m
	return s, m, one, two
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// TestStateFrames: what a server says of a session is due once it was asked, until it has said all,
// and within bounds; a refusal is the end of it, as is a frame of nothing, of which the other
// server is told.
func TestStateFrames(t *testing.T) {
	const most = frame.MaxWhy
	for what, c := range map[string]struct {
		set     func(s *Session, m *Moving, two *pausing)
		h       frame.Header // without its length
		n       int
		refused bool // by this end
		ended   bool
		failed  bool
		passed  int // frames
	}{
		"some of it":                   {n: 5, passed: 1},
		"more than a refusal":          {n: most + 1, passed: 1},
		"its end":                      {ended: true, passed: 1},
		"its end, to one that is lost": {set: func(_ *Session, _ *Moving, two *pausing) { two.writes = errTest }, ended: true, failed: true, passed: 1},
		"some, to one that is lost":    {set: func(_ *Session, _ *Moving, two *pausing) { two.writes = errTest }, n: 5, failed: true, passed: 1},
		"some, when it is called off":  {set: func(_ *Session, m *Moving, _ *pausing) { m.cancel() }, n: 5},
		"a refusal":                    {h: frame.Header{Flags: frame.Refused}, n: 4, ended: true},
		"without a reason":             {h: frame.Header{Flags: frame.Refused}, ended: true},
		"a long one":                   {h: frame.Header{Flags: frame.Refused}, n: most, ended: true},
		"one too long":                 {h: frame.Header{Flags: frame.Refused}, n: most + 1, refused: true},
		"of another kind":              {h: frame.Header{Flags: frame.Refused + 1}, refused: true},
		"with an argument":             {h: frame.Header{Arg: 1}, refused: true},
		"of no move":                   {set: func(s *Session, _ *Moving, _ *pausing) { s.moving = nil }, refused: true},
		"before it was asked":          {set: func(_ *Session, m *Moving, _ *pausing) { m.asked = false }, refused: true},
		"behind its end":               {set: func(_ *Session, m *Moving, _ *pausing) { m.ended = true }, refused: true},
	} {
		s, m, one, two := departing(t)
		if c.set != nil {
			c.set(s, m, two)
		}
		c.h.Kind, c.h.Len = frame.State, uint32(c.n)
		text := bytes.Repeat([]byte("x"), c.n)
		one.say(text)
		err := s.stateFrame(c.h)
		if c.refused {
			if !errors.Is(err, remote.ErrProtocol) || len(two.out) != 0 {
				t.Errorf("%s: %v, %d bytes are passed on", what, err, len(two.out))
			}
			continue
		}
		if err != nil || len(one.in)+s.in.Buffered() != 0 {
			t.Errorf("%s: %v, %d bytes are left", what, err, len(one.in)+s.in.Buffered())
		}
		refusal := c.h.Flags != 0
		if m.ended != c.ended || isClosed(m.whole) != c.ended || (m.why != nil) != refusal || m.sent != (c.ended && !refusal) || m.broken != c.failed || isClosed(m.failed) != c.failed {
			t.Errorf("%s: ended %v, sent %v, failed %v, why %v", what, m.ended, m.sent, m.broken, m.why)
		}
		if refusal && (!errors.Is(m.why, ErrRefused) || !strings.Contains(m.why.Error(), "gpu1") || !strings.HasSuffix(m.why.Error(), string(text))) {
			t.Errorf("%s: %v", what, m.why)
		}
		if kinds, _, state := frames(t, two.out); len(kinds) != c.passed || c.passed > 0 && string(state) != string(text) {
			t.Errorf("%s: frames %d are passed on, %d bytes", what, kinds, len(state))
		}
		if s.moving != m {
			t.Errorf("%s: it goes nowhere", what)
		}
	}
}

// TestStateThatNobodyWants: what the first server says of a session that stays is taken all the
// same, and then it can go elsewhere; a stream fails once.
func TestStateThatNobodyWants(t *testing.T) {
	s, m, _, _ := departing(t)
	close(m.decided)
	s.said(m, nil)
	if s.moving != nil || !m.ended {
		t.Error("it is on its way still")
	}
	s, m, _, _ = departing(t)
	s.fails(m)
	s.fails(m)
	if s.moving != m || !isClosed(m.failed) {
		t.Error("it goes nowhere")
	}
}

// TestEndsOfMoves: a session that goes to another server has that one's stream, and nothing of what
// the first one said; one that stands still is on its way as before; any other end is the move's.
func TestEndsOfMoves(t *testing.T) {
	s, m, one, two := departing(t)
	if s.endMove(errStill); s.moving != m || isClosed(m.over) {
		t.Error("it stands still, and goes nowhere")
	}
	two.say(append(welcome(0, ""), word(9, 1)...)) // which come in one piece
	if n, err := m.welcomed(5); err != nil || n != 2 {
		t.Error(n, err)
	}
	reads, wide := s.reads, s.wide.reads
	s.sent, m.want = 640, 3
	s.dead.Store(true)
	s.wide.asked, s.wide.list = true, make([]*branch, 1)
	s.endMove(errMoved)
	if s.moving != nil || s.out.conn != two || s.input.conn != two || s.server != "gpu2" || s.head.Load() != 640 || s.dead.Load() || s.reads == reads {
		t.Errorf("it goes on at %s, from %d on", s.server, s.head.Load())
	}
	if b, err := s.in.Peek(len(word(9, 1))); err != nil || !bytes.Equal(b, word(9, 1)) {
		t.Errorf("of the other server comes %q, %v", b, err)
	}
	if w := &s.wide; w.want != 3 || w.asked || len(w.list) != 0 || w.reads == wide {
		t.Errorf("branches: %d wanted, asked %v, %d there", w.want, w.asked, len(w.list))
	}
	if m.ctx.Err() == nil || !isClosed(m.over) || m.end != nil || one.closed || two.closed {
		t.Errorf("the move: %v, %v", m.ctx.Err(), m.end)
	}
	if s.endMove(errMoved); s.out.conn != two {
		t.Error("it has gone twice")
	}

	for _, rounds := range []bool{false, true} {
		// By what the other server says, whatever the first one did.
		s, m, _, two = departing(t)
		s.rounds = !rounds
		hello := remote.Hello{Type: remote.MsgWelcome}
		if rounds {
			hello.Flags = frame.Rounds
		}
		two.say(framed(frame.Header{Kind: frame.Welcome}, remote.FormatHello(hello, "")))
		if _, err := m.welcomed(0); err != nil {
			t.Fatal(err)
		}
		if s.Rounds() == rounds {
			t.Error("it sends memory ahead as the other server does, before it is there")
		}
		if s.endMove(errMoved); s.Rounds() != rounds {
			t.Errorf("it goes on at a server that sends memory ahead: %v", s.Rounds())
		}
	}

	s, m, one, two = departing(t)
	s.endMove(errTest)
	<-m.over
	if s.moving != nil || !errors.Is(m.end, ErrOver) || !two.closed || s.out.conn != one || s.server != "gpu1" || m.ctx.Err() == nil {
		t.Errorf("%v", m.end)
	}
}

// TestMovesFinishOnce: a move ends for the first reason, and its stream is closed once; one that
// the consumer has, or another, is not dropped.
func TestMovesFinishOnce(t *testing.T) {
	s, m, _, two := departing(t)
	other := &Moving{over: make(chan struct{}), cancel: func() {}}
	if s.drop(other); s.moving != m {
		t.Error("another is dropped")
	}
	m.begun = true
	if s.drop(m); s.moving != m || m.gave {
		t.Error("it is dropped under the consumer")
	}
	m.begun = false
	s.drop(m)
	m.finish(errTest)
	if <-m.over; s.moving != nil || !errors.Is(m.end, context.Canceled) || two.acts() != "c" || m.ctx.Err() == nil {
		t.Errorf("%v, the stream: %s", m.end, two.acts())
	}
	s, m, _, two = departing(t)
	if s.leaveMove(errMoved); m.gave {
		t.Error("it goes, and its stream ends")
	}
	s.leaveMove(errTest)
	if <-m.over; s.moving != m || !errors.Is(m.end, ErrOver) || two.acts() != "c" {
		t.Errorf("%v, the stream: %s", m.end, two.acts())
	}
	s.moving = nil
	s.leaveMove(errTest)
}

// TestMayMove: which sessions can go where.
func TestMayMove(t *testing.T) {
	for what, c := range map[string]struct {
		set  func(s *Session)
		want error
	}{
		"any":                     {},
		"from one that cannot":    {set: func(s *Session) { s.out.conn = plainStream{newPausing()} }, want: ErrFixed},
		"one that is over":        {set: func(s *Session) { s.parks.over = true }, want: ErrOver},
		"one on its way":          {set: func(s *Session) { s.moving = &Moving{} }, want: ErrMoving},
		"one that stands still":   {set: func(s *Session) { s.parks.still = true }, want: ErrParked},
		"one that is over, still": {set: func(s *Session) { s.parks.still, s.parks.over = true, true }, want: ErrOver},
	} {
		s, m, _, _ := departing(t)
		s.moving = nil
		if c.set != nil {
			c.set(s)
		}
		was := s.moving
		if err := s.mayMove(m); !errors.Is(err, c.want) || (s.moving == m) != (c.want == nil) || c.want != nil && s.moving != was {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestArrives: the other server is told whose session it is, where its control page lies, and of
// each region; what it does not take is that server's loss.
func TestArrives(t *testing.T) {
	s, m, _, two := departing(t)
	m.hello = remote.Hello{Pid: 7, Type: 99, Region: 5}
	all := []Change{{ID: 1, VA: 1 << 40, Size: 4096}, {ID: 9, VA: 2 << 40, Size: 8192}}
	if err := m.arrive(t.Context(), 640, all); err != nil {
		t.Fatal(err)
	}
	var got []remote.Hello
	for b := two.out; len(b) > 0; {
		h := frame.ParseHeader(b)
		p, text, err := remote.ParseHello(b[frame.HeaderSize:][:h.Len])
		if err != nil || text != "" || len(got) == 0 && (h.Kind != frame.Arrive || h.Arg != 640) || len(got) > 0 && (h.Kind != frame.Region || h.Arg != uint64(p.Region)) {
			t.Fatalf("%+v: %v", h, err)
		}
		got, b = append(got, p), b[frame.HeaderSize+h.Len:]
	}
	want := []remote.Hello{{Type: remote.MsgHello, Pid: 7, Va: 0x1000, Size: remote.Region0Size}, {Type: remote.MsgRegion, Region: 1, Va: 1 << 40, Size: 4096}, {Type: remote.MsgRegion, Region: 9, Va: 2 << 40, Size: 8192}}
	for i := range got {
		want[min(i, 2)].Magic, want[min(i, 2)].Version = got[i].Magic, got[i].Version
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
	two.writes = errTest
	if err := m.arrive(t.Context(), 0, nil); !errors.Is(err, ErrServer) || !strings.Contains(err.Error(), "gpu2") {
		t.Error(err)
	}
	_ = s
}

// TestAccepted: the answer to all of it is awaited so long and no longer, unless the move, or the
// session, ends before; afterwards the stream has no end.
func TestAccepted(t *testing.T) {
	_, m, _, two := departing(t)
	m.welcome <- nil
	if err := m.accepted(t.Context()); err != nil || !two.at.IsZero() {
		t.Errorf("%v, until %v", err, two.at)
	}
	m.welcome <- errTest
	if err := m.accepted(t.Context()); !errors.Is(err, errTest) || !strings.Contains(err.Error(), "gpu2") {
		t.Error(err)
	}
	if left := time.Until(two.at); left <= welcomeLimit/2 || left > welcomeLimit {
		t.Errorf("it is awaited for %v", left)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.accepted(over); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	m.cancel()
	if err := m.accepted(t.Context()); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestAwaitsTheDecision: the end of the first server's stream costs a session nothing that another
// server has and that goes there; any other it costs what it always does.
func TestAwaitsTheDecision(t *testing.T) {
	for what, c := range map[string]struct {
		set  func(s *Session, m *Moving)
		want error
	}{
		"of no move":       {func(s *Session, _ *Moving) { s.moving = nil }, errTest},
		"before all came":  {func(_ *Session, m *Moving) { m.ended = false }, errTest},
		"that was refused": {func(_ *Session, m *Moving) { m.why = ErrRefused }, errTest},
		"that stays":       {func(_ *Session, m *Moving) { close(m.decided) }, errTest},
		"that goes":        {func(_ *Session, m *Moving) { m.goes = true; close(m.decided) }, errMoved},
	} {
		s, m, _, _ := departing(t)
		m.ended = true
		c.set(s, m)
		if err := s.awaitMove(t.Context(), errTest); err != c.want {
			t.Errorf("%s: %v", what, err)
		}
	}
	s, m, _, _ := departing(t)
	m.ended, m.goes = true, true
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.awaitMove(over, errTest); err != errTest {
		t.Errorf("the session ends before it is decided: %v", err)
	}
}

// TestGuestsThatBreakRules: a session whose guest breaks a rule, or whose bell does, ends with
// that, which is neither the server's fault nor said to be.
func TestGuestsThatBreakRules(t *testing.T) {
	for what, set := range map[string]func(g *fakeGuest){
		"its ring": func(g *fakeGuest) { g.broken = errTest },
		"its bell": func(g *fakeGuest) { g.mute = errTest },
	} {
		g, conn := newGuest(), newPausing()
		set(g)
		s := newSession(fakeCarrier{g: g}, conn, "gpu1", quietLog)
		if err := s.Run(t.Context()); !errors.Is(err, errLocal) || !errors.Is(err, errTest) || strings.Contains(err.Error(), "gpu1") || g.lastState() == remote.WorkerDead || !strings.Contains(conn.acts(), "c") {
			t.Errorf("%s: %v, state %d", what, err, g.lastState())
		}
	}
}

// TestMovesBeforeTheyAreAsked: a server that takes nothing is none to go to, and the first one
// hears nothing of it; the session can go elsewhere at once.
func TestMovesBeforeTheyAreAsked(t *testing.T) {
	s, g, one, ended := newRun(t.Context())
	g.submit(make([]byte, 64))
	one.await(func() bool { return len(one.out) == frame.HeaderSize+64 })
	for range 2 {
		two := newPausing()
		two.writes = errTest
		if _, err := s.Move(t.Context(), two, remote.Hello{}, 0, "gpu2"); !errors.Is(err, ErrServer) || two.acts() != "c" {
			t.Errorf("%v, the stream: %s", err, two.acts())
		}
	}
	if kinds, _, _ := frames(t, one.sent()); slices.Contains(kinds, frame.Leave) || slices.Contains(kinds, frame.Stay) {
		t.Errorf("the first server hears %d", kinds)
	}
	close(g.done)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestMovesCalledOffAsTheyAreAccepted: a move that is called off while the other server's answer is
// taken goes nowhere, and its program goes on where it was: nobody is left who would decide.
func TestMovesCalledOffAsTheyAreAccepted(t *testing.T) {
	s, g, one, ended := newRun(t.Context())
	g.submit(make([]byte, 64))
	one.await(func() bool { return len(one.out) == frame.HeaderSize+64 })
	x := &going{Session: s, g: g, one: one, two: newPausing(), ended: ended}
	ctx, cancel := context.WithCancel(t.Context())
	m := s.newMoving(ctx, x.two, remote.Hello{}, 0, "gpu2")
	givesUp, off := make(chan struct{}), m.cancel
	m.cancel = sync.OnceFunc(func() { // stand does so once it waits for no answer
		off()
		close(givesUp)
	})
	x.two.endless = func() { // it has been accepted, and nobody but the consumer knows yet
		cancel()
		<-givesUp
	}
	if err := s.mayMove(m); err != nil {
		t.Fatal(err)
	}
	stood := make(chan error, 1)
	go func() { stood <- m.stand(ctx) }()
	one.await(func() bool { return one.sends(frame.Leave) })
	one.say(stateEnd)
	x.two.await(func() bool { return bytes.HasSuffix(x.two.out, stateEnd) })
	x.two.say(welcome(0, ""))
	if err := <-stood; !errors.Is(err, context.Canceled) {
		t.Errorf("it goes: %v", err)
	}
	one.await(func() bool { return one.sends(frame.Stay) })
	x.goesOn(t, one)
	x.guestGoes(t)
}
