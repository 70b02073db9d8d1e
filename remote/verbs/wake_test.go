package verbs_test

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"causeway/remote/remotetest"
	"causeway/remote/verbs"
	"causeway/remote/verbs/verbstest"
)

// sleeping waits until somebody takes completions of a connection's, of which none come.
func sleeping(c *verbs.Conn) {
	for !c.Sleeps() {
		time.Sleep(100 * time.Microsecond)
	}
}

// soon is what a goroutine ends with, which nothing but this test wakes.
func soon(t *testing.T, what string, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(time.Minute):
		t.Fatalf("%s waits for ever", what)
		return nil
	}
}

// TestPieceWakes: who waits for a piece is woken by who puts one back, also if it is the one that
// takes completions, and no more of these come.
func TestPieceWakes(t *testing.T) {
	e := open(t)
	mem, g, revoke := granted(t, e, 4096)
	far := e.far.(*verbs.Conn)
	var puts []func()
	for range verbs.Pieces {
		put, err := far.TakePiece()
		if err != nil {
			t.Fatal(err)
		}
		puts = append(puts, put)
	}
	for name, use := range map[string]func([]byte) error{
		"Fetch": func(p []byte) error { return far.Fetch(p, g, 0) },
		"Store": func(p []byte) error { return errors.Join(far.Store(p, g, 0), far.Settle()) },
	} {
		done := make(chan error, 1)
		go func() { done <- use([]byte{7}) }()
		sleeping(far)
		puts[0]()
		if err := soon(t, name, done); err != nil {
			t.Error(name, err)
		}
		var err error
		if puts[0], err = far.TakePiece(); err != nil {
			t.Fatal(err)
		}
	}
	if mem[0] != 7 {
		t.Error("nothing was stored")
	}
	for _, put := range puts {
		put()
	}
	revoke()
	e.end(t)
}

// TestFailedPostWakes: who reads hears of a connection that failed under who writes, though the
// adapter says nothing.
func TestFailedPostWakes(t *testing.T) {
	e := open(t)
	done := make(chan error, 1)
	go func() { done <- second(e.near.Read(make([]byte, 1))) }()
	sleeping(e.near.(*verbs.Conn))
	e.Refuse("the adapter is gone")
	_, err := e.near.Write([]byte{1})
	if err == nil {
		t.Error("bytes left by an adapter that is gone")
	}
	if got := soon(t, "Read", done); !errors.Is(got, err) {
		t.Errorf("who reads: %v; who writes: %v", got, err)
	}
	e.Heal()
	e.end(t)
}

// TestCreditLater: credit for which there was no room in the send queue goes when there is room,
// though nothing else comes: the peer may have nothing that it may send.
func TestCreditLater(t *testing.T) {
	f := verbstest.New()
	near, far := f.Adapter("near", here), f.Adapter("far", here)
	p, c := againstOn(t, near, far)
	f.Stick(far)
	var came atomic.Int64
	ended := make(chan error, 1)
	go func() {
		for {
			n, err := c.Read(make([]byte, 64))
			if err != nil {
				ended <- err
				return
			}
			came.Add(int64(n))
		}
	}()
	// Credit for each, of which at most 255 are posted; what is not is for as many messages as a
	// peer may have under way.
	const batch, batches = 32, 258
	for i := range batches {
		for range batch {
			write(t, p, 1)
		}
		for start := time.Now(); came.Load() < batch*int64(i+1); runtime.Gosched() {
			if time.Since(start) > time.Minute {
				t.Fatalf("%d of %d bytes came", came.Load(), batch*(i+1))
			}
		}
		if err := p.Credited(0); err != nil {
			t.Fatal(err)
		}
	}
	f.Stick(nil)
	credited := make(chan error, 1)
	go func() { credited <- p.Credited(batch * batches) }()
	if err := soon(t, "the peer", credited); err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// TestShortEnd: a peer that says that it has written more than comes, and is gone, has said a lie,
// or its link has gone: who reads does not wait for the rest.
func TestShortEnd(t *testing.T) {
	near, far, err := remotetest.PairTCP()
	if err != nil {
		t.Fatal(err)
	}
	f := verbstest.New()
	p, c, err := verbstest.Against(near, far, f.Adapter("near", here), f.Adapter("far", here), here)
	if err != nil {
		t.Fatal(err)
	}
	write(t, p, 5)
	got := make([]byte, 100)
	done := make(chan error, 1)
	go func() {
		n, err := io.ReadFull(c, got)
		if n != 5 {
			t.Errorf("%d bytes came", n)
		}
		done <- err
	}()
	sleeping(c.(*verbs.Conn))
	end := binary.LittleEndian.AppendUint64([]byte("CWVBYE\x00\x01"), 16+5+1)
	_, err = near.Write(end)
	var word [16]byte
	if err == nil {
		_, err = io.ReadFull(near, word[:]) // it is heard
	}
	if err := errors.Join(err, near.Close()); err != nil {
		t.Fatal(err)
	}
	if err := soon(t, "Read", done); !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), "after 21") {
		t.Error(err)
	}
	c.(*verbs.Conn).Abort()
}
