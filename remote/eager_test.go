package remote

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// eagerPair is two ends of a TCP connection, of which one is read eagerly on any machine.
func eagerPair(t *testing.T) (*Eager, *net.TCPConn, *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	far, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	near, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	e := NewEager(near, plentyCores)
	if e == nil {
		t.Fatal("a TCP connection is not read eagerly")
	}
	return e, near.(*net.TCPConn), far.(*net.TCPConn)
}

// TestEagerReads: what is there, what comes while it looks, and what comes while it sleeps; then
// the end.
func TestEagerReads(t *testing.T) {
	e, _, far := eagerPair(t)
	for _, spin := range []time.Duration{0, time.Hour} {
		for _, before := range []time.Duration{0, 2 * SpinMost} {
			e.spin = spin
			go func() {
				time.Sleep(before)
				_, _ = far.Write([]byte("answer"))
			}()
			b := make([]byte, 6)
			if n, err := io.ReadFull(e, b); n != 6 || string(b) != "answer" || err != nil {
				t.Fatalf("patience %v, %v later: %d bytes %q, %v", spin, before, n, b, err)
			}
			if looked := e.slept.IsZero(); spin > 0 && !looked {
				t.Errorf("with a patience of %v it slept", spin)
			}
		}
	}
	_ = far.Close()
	if n, err := e.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("at the end: %d bytes, %v", n, err)
	}
}

// endings are how a read that waits ends.
var endings = []struct {
	name string
	end  func(near, far *net.TCPConn)
	want error
}{
	{"deadline", func(near, _ *net.TCPConn) { _ = near.SetReadDeadline(time.Now()) }, os.ErrDeadlineExceeded},
	{"closed", func(near, _ *net.TCPConn) { _ = near.Close() }, net.ErrClosed},
	{"reset", func(_, far *net.TCPConn) { _, _ = far.SetLinger(0), far.Close() }, syscall.ECONNRESET},
}

// TestEagerEnds: a deadline, an end of its own and a reset have it return, from looking and from
// sleep, with errors as the connection's own.
func TestEagerEnds(t *testing.T) {
	for _, c := range endings {
		for _, spin := range []time.Duration{0, SpinMost} {
			e, near, far := eagerPair(t)
			e.spin = spin
			time.AfterFunc(SpinMost/2, func() { c.end(near, far) })
			if n, err := e.Read(make([]byte, 1)); n != 0 || !errors.Is(err, c.want) {
				t.Errorf("%s, patience %v: %d bytes, %v", c.name, spin, n, err)
			}
		}
	}
}

// TestEagerLearns: long sleeps have it look for less. That short ones have it look for longer is
// adapt's, and no matter of clocks.
func TestEagerLearns(t *testing.T) {
	e, near, far := eagerPair(t)
	for e.spin = 2 * spinLeast; e.spin == 2*spinLeast; { // until it was there to sleep
		go func() { time.Sleep(20 * time.Millisecond); _, _ = far.Write([]byte{1}) }()
		if _, err := e.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if e.spin != spinLeast {
		t.Errorf("after a long sleep: patience %v", e.spin)
	}
	if _, err := e.Read(nil); err != nil {
		t.Errorf("nothing to read: %v", err)
	}
	if NewEager(struct{ net.Conn }{near}, plentyCores) != nil {
		t.Error("a connection that hides its descriptor is read eagerly")
	}
	if NewEager(near, plentyCores-1) != nil {
		t.Error("where cores are few a connection is read eagerly")
	}
}
