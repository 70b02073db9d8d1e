package resume

import (
	"errors"
	"io"
	"testing"
	"time"
)

// TestGoodbyeBehindAWrite: an end that went on purpose while the other was sending has ended the stream, and has not lost the connection, although the
// other met the connection's end as it wrote.
func TestGoodbyeBehindAWrite(t *testing.T) {
	r := newRig(t, time.Millisecond, nil)
	r.server.patient = minute
	b := frames(1, 1<<10)
	if _, err := r.server.Write(b); err != nil { // the client does not read it: its system answers what follows by a reset
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

// TestGoodbyeBehindACopy: who ends a stream right behind much that was written has given all of it to the connection.
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

// TestUnwritable: a connection that takes nothing more, and that nobody reads, is lost after a while, and the stream goes on over another.
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
