package worker

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"

	"causeway/host/driver"
	"causeway/host/worker/link"
	"causeway/remote"
	"causeway/remote/frame"
	"causeway/remote/resume"
	"causeway/remote/tcp"
)

// TestMovableSoonGivesUp: who asks whether a session can move waits for a consumer that is busy no
// longer than the move is wanted; what the consumer says later is nobody's.
func TestMovableSoonGivesUp(t *testing.T) {
	for what, taken := range map[string]bool{"the consumer is about to answer": true, "the consumer has not seen it": false} {
		w := newRecorded(t).w
		w.tasks = make(chan func() error)
		ctx, cancel := context.WithCancel(t.Context())
		asked := make(chan error, 1)
		go func() { asked <- w.movableSoon(ctx) }()
		later := func() error { return nil }
		if taken {
			later = <-w.tasks
		}
		cancel()
		if err := <-asked; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", what, err)
		}
		if err := later(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// goesNot is a session that moves or does not.
type goesNot struct {
	driver.Session
	stays atomic.Bool
}

func (g *goesNot) Movable() error {
	if g.stays.Load() {
		return errors.New("it stays")
	}
	return nil
}

// leaves is a worker whose guest's end has it say what its session is made of; the test is that
// end, and has its consumer's tasks done.
type leaves struct {
	goes  *goesNot
	guest net.Conn
}

func newLeaves(t *testing.T) *leaves {
	t.Helper()
	g := &goesNot{}
	w, _ := newFake(t, func(s driver.Session) driver.Session { g.Session = s; return g })
	guest, host := net.Pipe()
	greeted := make(chan error, 1)
	go func() {
		_, err := guest.Write(framed(frame.Header{Kind: frame.Hello}, remote.FormatHello(remote.Hello{Type: remote.MsgHello, Va: 1 << 30, Size: remote.Region0Size}, "")))
		greeted <- err
	}()
	c, err := tcp.Accept(host)
	if err := errors.Join(err, <-greeted); err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			select {
			case f := <-w.tasks:
				_ = f()
			case <-w.ended:
				return
			}
		}
	}()
	s := &starter{cfg: link.Config{Migratable: true}, lasting: &resume.Conn{}, log: slog.New(slog.DiscardHandler)}
	over := make(chan struct{})
	go func() {
		defer close(over)
		s.routineLeave(w, c)
	}()
	t.Cleanup(func() {
		_ = guest.Close()
		close(w.ended)
		<-over
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return &leaves{g, guest}
}

func framed(h frame.Header, payload []byte) []byte {
	h.Len = uint32(len(payload))
	return append(h.Append(nil), payload...)
}

func (l *leaves) says(t *testing.T, h frame.Header) {
	t.Helper()
	if _, err := l.guest.Write(framed(h, nil)); err != nil {
		t.Fatal(err)
	}
}

// hears reads frames up to one that ends a round, or a state, with so many flags.
func (l *leaves) hears(t *testing.T, flags uint16) {
	t.Helper()
	for {
		b := make([]byte, frame.HeaderSize)
		if _, err := io.ReadFull(l.guest, b); err != nil {
			t.Fatal(err)
		}
		h := frame.ParseHeader(b)
		if _, err := io.CopyN(io.Discard, l.guest, int64(h.Len)); err != nil {
			t.Fatal(err)
		}
		switch {
		case h.Kind != frame.State || h.Flags != 0 && h.Flags != flags:
			t.Fatalf("frame of type %d with flags %#x", h.Kind, h.Flags)
		case h.Flags != 0:
			return
		}
	}
}

// TestRoundsBehindOneThatFailed: what goes ahead of a session begins with its first round, and goes
// on behind no round that failed.
func TestRoundsBehindOneThatFailed(t *testing.T) {
	l := newLeaves(t)
	for _, x := range []struct {
		n     uint64
		stays bool
		flags uint16
	}{{1, false, frame.Whole}, {2, false, frame.Whole}, {0, false, 0}, {1, true, frame.Refused}, {2, false, frame.Refused}, {0, false, 0}, {1, false, frame.Whole}} {
		if x.n == 0 {
			l.says(t, frame.Header{Kind: frame.Stay})
			continue
		}
		l.goes.stays.Store(x.stays)
		l.says(t, frame.Header{Kind: frame.Ahead, Arg: x.n})
		l.hears(t, x.flags)
	}
}
