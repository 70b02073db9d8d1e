package resume

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"
)

// TestGoodbyeBehindAWrite: an end that went on purpose while the other was sending has ended the
// stream, and has not lost the connection, although the other met the connection's end as it wrote.
func TestGoodbyeBehindAWrite(t *testing.T) {
	r := newRig(t, time.Millisecond, nil)
	r.server.patient = minute
	b := frames(1, 1<<10)
	if _, err := r.server.Write(b); err != nil {
		// The client does not read it: its system answers what follows by a reset.
		t.Fatal(err)
	}
	if err := r.client.Close(); err != nil {
		t.Fatal(err)
	}
	mute := func() bool {
		r.server.mu.Lock()
		defer r.server.mu.Unlock()
		return r.server.mute != nil
	}
	for begin := time.Now(); !mute(); {
		if _, err := r.server.Write(b); err != nil {
			t.Fatal(err)
		}
		if time.Since(begin) > minute {
			t.Fatal("the connection takes all that is written")
		}
	}
	if n, err := r.server.Read(make([]byte, 100)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("%d bytes, %v; want the stream's end", n, err)
	}
}

// TestGoodbyeBehindACopy: who ends a stream right behind much that was written has given all of it
// to the connection.
func TestGoodbyeBehindACopy(t *testing.T) {
	r := newRig(t, minute, nil)
	go func() { _, _ = io.Copy(io.Discard, r.server) }()
	if _, err := r.client.Write(frames(5, 3*ahead)); err != nil {
		t.Fatal(err)
	}
	if err := r.client.Close(); err != nil {
		t.Fatal(err)
	}
	r.client.mu.Lock()
	defer r.client.mu.Unlock()
	if r.client.sent != r.client.kept.end {
		t.Errorf("%d bytes were sent of %d", r.client.sent, r.client.kept.end)
	}
}

// TestUnwritable: a connection that takes nothing more, and that nobody reads, is lost after a
// while, and the stream goes on over another.
func TestUnwritable(t *testing.T) {
	r := newRig(t, minute, nil)
	r.client.mu.Lock()
	up := r.client.up
	r.client.patient = time.Millisecond
	r.client.mu.Unlock()
	r.client.unwritable(up, io.ErrClosedPipe)
	r.client.unwritable(up, io.ErrClosedPipe)
	b := frames(1, 1<<10)
	if _, err := r.client.Write(b); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(b))
	if _, err := io.ReadFull(r.server, got); err != nil || string(got) != string(b) {
		t.Errorf("what is sent meanwhile does not come: %v", err)
	}
	if r.dials.Load() != 1 {
		t.Errorf("%d other connections, want one", r.dials.Load())
	}
}

// TestGoodbyeBetweenConnections: a client that ends while it has no connection makes one to say so.
func TestGoodbyeBetweenConnections(t *testing.T) {
	r := newRig(t, minute, nil)
	r.client.mu.Lock()
	up := r.client.up
	r.client.mu.Unlock()
	r.client.broken(up, io.ErrClosedPipe)
	if err := r.client.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := r.server.Read(make([]byte, 100)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("%d bytes, %v; want the stream's end", n, err)
	}
}

// gated is a connection that can be made to stand in its next write, once.
type gated struct {
	net.Conn
	armed   atomic.Bool
	stands  chan struct{}
	release chan struct{}
}

func (g *gated) Write(p []byte) (int, error) {
	if g.armed.CompareAndSwap(true, false) {
		close(g.stands)
		<-g.release
	}
	return g.Conn.Write(p)
}

// TestBehindAnother: what is written while another's bytes leave leaves with nobody's help behind
// them.
func TestBehindAnother(t *testing.T) {
	var g *gated
	r := newRig(t, minute, func(n int, c net.Conn, server bool) net.Conn {
		if n != 0 || server {
			return c
		}
		g = &gated{Conn: c, stands: make(chan struct{}), release: make(chan struct{})}
		return g
	})
	b := frames(5, 3<<10)
	g.armed.Store(true)
	first := make(chan error, 1)
	go func() {
		_, err := r.client.Write(b[:1<<10])
		first <- err
	}()
	<-g.stands
	if _, err := r.client.Write(b[1<<10:]); err != nil {
		t.Error(err)
	}
	close(g.release)
	_ = r.server.SetReadDeadline(time.Now().Add(minute))
	got := make([]byte, len(b))
	if n, err := io.ReadFull(r.server, got); err != nil || string(got) != string(b) {
		t.Errorf("%d bytes of %d came: %v", n, len(b), err)
	}
	if err := <-first; err != nil {
		t.Error(err)
	}
}
