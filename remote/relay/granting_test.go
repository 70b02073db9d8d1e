package relay

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"

	"causeway/remote"
	"causeway/remote/frame"
)

// grantingStream is one whose server reaches memory, if it is granted.
type grantingStream struct {
	*pausing
	does    bool
	refuses error
	revoked int
}

func (g *grantingStream) Grants() bool { return g.does }
func (g *grantingStream) Grant(mem []byte) (frame.Granted, func(), error) {
	return frame.Granted{Size: uint64(len(mem))}, func() { g.revoked++ }, g.refuses
}

// exposing is memory that is exposed to whoever asks.
type exposing struct {
	guestMem
	sizes   map[uint32]int
	revokes map[uint32]func()
	fails   error
	during  func()
}

func (m *exposing) Expose(id uint32, f func(mem []byte) (func(), error)) error {
	if m.during != nil {
		m.during()
	}
	if m.fails != nil {
		return m.fails
	}
	revoke, err := f(make([]byte, m.sizes[id]))
	if err == nil {
		m.revokes[id] = revoke
	}
	return err
}

func (m *exposing) Conceal(id uint32) {
	if revoke := m.revokes[id]; revoke != nil {
		revoke()
		delete(m.revokes, id)
	}
}

// grantingSession is a session over such a stream.
func grantingSession(does bool) (*Session, *grantingStream, *exposing, *bytes.Buffer) {
	conn, log := &grantingStream{pausing: newPausing(), does: does}, &bytes.Buffer{}
	mem := &exposing{guestMem: guestMem{newGuest()}, sizes: map[uint32]int{1: 100, 2: 200, 3: mostGranted}, revokes: map[uint32]func(){}}
	s := newSession(fakeCarrier{g: mem.g}, conn, "gpu1", slog.New(slog.NewTextHandler(log, nil)))
	s.mem, s.bell = mem, mem.g.bell()
	s.grants.begin(conn, mem, s.reopen)
	return s, conn, mem, log
}

// grantsOf takes the regions whose GRANT was sent.
func (g *grantingStream) grantsOf() (list []uint64) {
	for len(g.out) >= frame.HeaderSize {
		h := frame.ParseHeader(g.out)
		if h.Kind == frame.Grant {
			list = append(list, h.Arg)
		}
		g.out = g.out[frame.HeaderSize+h.Len:]
	}
	return list
}

// TestExposingIsSeen: while a region is being granted, and not of one that is already, whoever
// waits until nothing is granted any more waits for it.
func TestExposingIsSeen(t *testing.T) {
	s, _, mem, _ := grantingSession(true)
	times := 0
	mem.during = func() {
		if times++; !s.grants.exposing {
			t.Error("it is not seen")
		}
	}
	for range 2 {
		if _, err := s.grants.expose(1); err != nil || s.grants.exposing || times != 1 {
			t.Errorf("%v, %d times, goes on: %v", err, times, s.grants.exposing)
		}
	}
	s.grants.parked = true
	if _, err := s.grants.expose(2); !errors.Is(err, remote.ErrClosed) || s.grants.exposing || times != 1 {
		t.Errorf("parked: %v, %d times", err, times)
	}
	s.grants.parked = false
	mem.fails = errTest
	if _, err := s.grants.expose(2); !errors.Is(err, errTest) || s.grants.exposing || times != 2 {
		t.Errorf("%v, %d times", err, times)
	}
}

// TestGrantsOnce: each region that the server knows is granted once, up to what may be pinned, and
// again when it has ended and comes again; where none can be the log says so once, and not for what
// ends or comes later.
func TestGrantsOnce(t *testing.T) {
	tell := func(s *Session, id uint32, size uint64) {
		t.Helper()
		if err := s.told(change{id: id, size: size}); err != nil {
			t.Fatal(err)
		}
	}
	s, conn, mem, log := grantingSession(true)
	check := func(what string, want ...uint64) {
		t.Helper()
		if got := conn.grantsOf(); len(got) != len(want) || len(want) > 0 && got[0] != want[0] || len(want) > 1 && got[1] != want[1] {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	tell(s, 1, 100)
	check("one", 1)
	tell(s, 1, 1)
	check("again")
	tell(s, 2, 200)
	check("another", 2)
	if s.grants.pinned.Load() != 300 || log.Len() != 0 {
		t.Errorf("%d bytes are pinned: %s", s.grants.pinned.Load(), log)
	}
	tell(s, 3, mostGranted) // more than is left
	tell(s, 3, mostGranted)
	check("more than may be")
	if bytes.Count(log.Bytes(), []byte("\n")) != 1 || s.grants.pinned.Load() != 300 {
		t.Errorf("%d bytes are pinned: %s", s.grants.pinned.Load(), log)
	}
	tell(s, 1, 0)
	mem.revokes[1]()
	if s.grants.pinned.Load() != 200 || conn.revoked != 1 || len(s.grants.live) != 1 || s.grants.known[1] != 0 || s.grants.has[1] {
		t.Errorf("%d bytes are pinned, %d revoked", s.grants.pinned.Load(), conn.revoked)
	}
	tell(s, 1, 100)
	check("it comes again", 1)
	tell(s, 2, 0)
	mem.revokes[2]()
	tell(s, 1, 0)
	mem.revokes[1]()
	tell(s, 3, mostGranted)
	check("all that may be", 3)

	if s, conn, _, _ = grantingSession(false); s.grants.to != nil {
		t.Error("a server that reaches nothing is granted something")
	}
	tell(s, 1, 100)
	check("none")
	for _, x := range []struct {
		err  error
		logs int
	}{{errTest, 1}, {remote.ErrClosed, 0}, {remote.ErrUnknownRegion, 0}} {
		s, _, mem, log := grantingSession(true)
		mem.fails = x.err
		tell(s, 1, 100)
		tell(s, 2, 200)
		if n := bytes.Count(log.Bytes(), []byte("\n")); n != x.logs || s.grants.exposing {
			t.Errorf("%v: %s", x.err, log)
		}
	}
	s, conn, _, _ = grantingSession(true)
	conn.refuses = errTest
	tell(s, 1, 100)
	if s.grants.pinned.Load() != 0 || len(s.grants.live) != 0 {
		t.Error("what was refused is pinned")
	}
}

// TestRecalls: a park has the server let go of what it reaches, is answered once, and what it had
// is granted again when both are over: the park, and the recall.
func TestRecalls(t *testing.T) {
	s, conn, _, _ := grantingSession(true)
	s.recall(t.Context()) // of nothing
	if len(conn.sent()) != 0 || !s.grants.parked || s.grants.owed {
		t.Errorf("%d bytes are sent, owed %v", len(conn.sent()), s.grants.owed)
	}
	if err := s.told(change{id: 1, size: 100}); err != nil || len(conn.grantsOf()) != 0 {
		t.Errorf("something is granted of what is parked: %v", err)
	}
	if err := s.recalled(); !errors.Is(err, remote.ErrProtocol) {
		t.Error(err)
	}
	s.unpark()
	if !s.grants.renew.Load() || !s.pending.Load() {
		t.Error("nobody is told to grant again")
	}
	if err := s.regrant(); err != nil || len(conn.grantsOf()) != 1 {
		t.Error(err)
	}
	if err := s.regrant(); err != nil || len(conn.grantsOf()) != 0 {
		t.Errorf("granted twice: %v", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.recall(t.Context())
	}()
	conn.await(func() bool { return len(conn.out) == frame.HeaderSize })
	if h := frame.ParseHeader(conn.sent()); h.Kind != frame.Recall {
		t.Errorf("%+v", h)
	}
	conn.out = nil
	if err := s.recalled(); err != nil || s.grants.renew.Load() {
		t.Errorf("%v, granted again while it is parked: %v", err, s.grants.renew.Load())
	}
	<-done
	s.grants.mu.Lock()
	if !s.grants.closed || len(s.grants.has) != 0 {
		t.Error("the server has what it let go of")
	}
	s.grants.mu.Unlock()
	s.unpark()
	s.unpark()
	if err := s.regrant(); err != nil || s.grants.closed || len(conn.grantsOf()) != 1 {
		t.Errorf("%v, closed %v", err, s.grants.closed)
	}
	// A park that ended before the answer.
	s.grants.owed, s.grants.answer = true, make(chan struct{})
	if s.unpark(); s.grants.renew.Load() {
		t.Error("granted again before the server has let go")
	}
	if err := s.recalled(); err != nil || !s.grants.renew.Load() || s.grants.owed {
		t.Error(err)
	}
}
