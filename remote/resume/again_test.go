package resume

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"

	"causeway/remote/frame"
)

// TestAgain: a stream whose client's end keeps what it has sent itself goes on over connections
// that another process makes for it, however much of either direction was lost.
func TestAgain(t *testing.T) {
	r := newRig(t, Limit, nil) // whose server is used, and a client of its own
	near, far := pair(t)
	made := make(chan *Conn, 1)
	go func() {
		s, err := frame.Server(context.Background(), far, r.keys.server)
		if err != nil {
			t.Error(err)
			return
		}
		c, err := newConn(s, Limit, r.budget)
		if err != nil {
			t.Error(err)
		}
		made <- c
	}()
	first, err := frame.Client(context.Background(), near, r.keys.client)
	if err != nil {
		t.Fatal(err)
	}
	server := <-made
	defer server.Close()
	var fails int
	a, err := NewAgain(first, r.clientAgain, func(context.Context, error) (net.Conn, error) {
		if fails++; fails%2 == 1 {
			return nil, errors.New("nobody listens")
		}
		near, far := pair(t)
		go func() { _ = server.Accept(far, r.serverAgain) }()
		return near, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	up, down := frames(1, 400<<10), frames(2, 400<<10)
	heard := make(chan []byte, 1)
	go func() {
		b := make([]byte, len(up))
		if _, err := io.ReadFull(server, b); err != nil {
			t.Error(err)
		}
		heard <- b
	}()
	go func() {
		if _, err := server.Write(down); err != nil {
			t.Error(err)
		}
	}()
	conn, sent := net.Conn(first), 0
	var got []byte
	for turn := 0; turn < 6; turn++ {
		n := min(sent+len(up)/6+turn*777, len(up))
		if turn == 5 {
			n = len(up)
		}
		if _, err := conn.Write(up[sent:n]); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, min(len(down)-len(got), 20_000+turn*1111))
		if _, err := io.ReadFull(conn, b); err != nil {
			t.Fatal(err)
		}
		got = append(got, b...)
		conn.(*frame.Secure).Abort()
		c, received, err := a.Connect(context.Background(), io.EOF, uint64(len(got)))
		if err != nil {
			t.Fatal(err)
		}
		conn, sent = c, int(received)
	}
	if _, err := conn.Write(up[sent:]); err != nil {
		t.Fatal(err)
	}
	if b := <-heard; !bytes.Equal(b, up) {
		t.Error("the server has other bytes than were sent")
	}
	if !bytes.HasPrefix(down, got) { // less than an acknowledgement's worth: there is none between
		t.Error("the client has other bytes than were sent")
	}
	_ = conn.Close()
}

// TestAgainEnds: it tries until its context ends, and not at all where no attempt would do.
func TestAgainEnds(t *testing.T) {
	r := newRig(t, Limit, nil)
	near, far := pair(t)
	go func() { _, _ = frame.Server(context.Background(), far, r.keys.server) }()
	first, err := frame.Client(context.Background(), near, r.keys.client)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Abort()
	why := errors.New("not there")
	ctx, cancel := context.WithCancel(context.Background())
	tries := 0
	a, err := NewAgain(first, r.clientAgain, func(context.Context, error) (net.Conn, error) {
		if tries++; tries == 3 {
			cancel()
		}
		return nil, why
	})
	if err != nil {
		t.Fatal(err)
	}
	if c, _, err := a.Connect(ctx, io.EOF, 0); c != nil || !errors.Is(err, why) || !errors.Is(err, context.Canceled) || tries != 3 {
		t.Error(c, err, tries)
	}
	why, tries = ErrGone, 3
	if c, _, err := a.Connect(context.Background(), io.EOF, 0); c != nil || !errors.Is(err, ErrGone) || tries != 4 {
		t.Error(c, err, tries)
	}
}
