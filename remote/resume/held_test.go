package resume

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"causeway/remote"
	"causeway/remote/frame"
)

// dial makes another connection of a rig's stream.
func (r *rig) dial(t testing.TB) Dialer {
	return func(context.Context, error) (net.Conn, error) {
		near, far := pair(t)
		go func() { _ = r.server.Accept(far, r.serverAgain) }()
		return near, nil
	}
}

// read reads what is to come.
func read(t testing.TB, c *Conn, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%d bytes come, or others: %v", len(want), err)
	}
}

func write(t testing.TB, c *Conn, p []byte) {
	t.Helper()
	if _, err := c.Write(p); err != nil {
		t.Fatal(err)
	}
}

// TestHeld: a client's end goes from process to process, in the middle of what comes and with what
// was written meanwhile; nothing is lost, and nothing comes twice. The one that was left cannot go
// on.
func TestHeld(t *testing.T) {
	r := newRig(t, minute, nil)
	client := r.client
	up, down := frames(1, 400_000), frames(2, 400_000)
	write(t, r.server, down)
	begin, end := 0, 100_003
	for round := range 3 {
		read(t, client, down[begin:end]) // within a frame
		p := frame.Header{Kind: frame.Ring, Len: 5, Arg: uint64(round)}.Append(nil)
		p = append(p, "bytes"...)
		write(t, client, up)
		began := time.Now()
		if err := client.Hold(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took >= holdPeriod {
			t.Errorf("it is held after %v", took) // somebody was not woken
		}
		if _, err := client.Read(make([]byte, 1)); !errors.Is(err, ErrHeld) {
			t.Errorf("read: %v", err)
		}
		write(t, client, p)
		st, err := client.Export()
		if err != nil {
			t.Fatal(err)
		}
		next, err := Import(st, r.clientAgain, r.dial(t), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer next.Close()
		next.Release()
		read(t, r.server, up)
		read(t, r.server, p)
		begin, end = end, end+90_001
		if round == 1 { // what was left is closed, in order
			if err := client.Close(); err != nil {
				t.Error(err)
			}
		} else { // or wants to go on
			client.mu.Lock()
			client.now = 50 * time.Millisecond
			client.mu.Unlock()
			client.Release()
			if _, err := client.Read(make([]byte, 1)); !errors.Is(err, ErrLost) {
				t.Errorf("the one that was left: %v", err)
			}
		}
		client = next
	}
	read(t, client, down[begin:])
}

// TestHeldStays: a stream that is held, and described, goes on where it is if nobody else took it.
func TestHeldStays(t *testing.T) {
	r := newRig(t, minute, nil)
	b := frames(3, 50_000)
	for range 3 {
		if err := r.client.Hold(); err != nil {
			t.Fatal(err)
		}
		write(t, r.client, b)
		write(t, r.server, b)
		if _, err := r.client.Export(); err != nil {
			t.Fatal(err)
		}
		r.client.Release()
		read(t, r.server, b)
		read(t, r.client, b)
	}
	if _, err := r.client.Export(); err == nil {
		t.Error("a stream that is not held is described")
	}
	exchange(t, r.client, r.server, 1<<20)
}

// TestHeldLonger: a server whose client said that the stream is held waits for longer than for a
// connection that is lost, until there is one; no server says so.
func TestHeldLonger(t *testing.T) {
	r := newRig(t, minute, nil)
	if err := r.client.Hold(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = r.server.Read(make([]byte, 1))
	}()
	limit := func() time.Duration {
		r.server.mu.Lock()
		defer r.server.mu.Unlock()
		return r.server.now
	}
	for limit() != HoldLimit {
		time.Sleep(time.Millisecond)
	}
	r.client.Release()
	for limit() != minute {
		time.Sleep(time.Millisecond)
	}
	_ = r.server.Close()
	<-done
	for _, h := range []frame.Header{{Kind: frame.Hold, Len: 1}, {Kind: frame.Hold, Flags: 1}, {Kind: frame.Hold, Arg: 1}} {
		if err := r.server.longer(h); !errors.Is(err, remote.ErrProtocol) {
			t.Errorf("%+v: %v", h, err)
		}
	}
	if err := r.client.longer(frame.Header{Kind: frame.Hold}); !errors.Is(err, remote.ErrProtocol) {
		t.Error(err)
	}
}

// TestImportRefuses: what cannot be a stream is none.
func TestImportRefuses(t *testing.T) {
	for name, s := range map[string]State{
		"too much kept":    {Kept: make([]byte, MostKept+1)},
		"beyond the end":   {Start: ^uint64(0), Kept: []byte{1, 2}, Reached: ^uint64(0)},
		"sent too much":    {Start: 5, Kept: []byte{1, 2}, Reached: 8},
		"sent too little":  {Start: 5, Kept: []byte{1, 2}, Reached: 4},
		"a whole header":   {Head: make([]byte, frame.HeaderSize)},
		"a long frame":     {Left: frame.Max + 1},
		"to send a longer": {Kept: frame.Header{Len: frame.Max + 1}.Append(nil)},
		"two frames":       {Head: []byte{1}, Left: 1},
		"no more attempt":  {Attempt: mostMoves << moveShift},
		"many branches":    {Branches: make([]State, MostBranches+1)},
		"a branch's":       {Branches: []State{{Branches: make([]State, 1)}}},
		"much of a branch": {Branches: []State{{Kept: make([]byte, MostBranchKept+1), Reached: MostBranchKept + 1}}},
	} {
		if c, err := Import(s, nil, nil, nil); !errors.Is(err, ErrState) {
			t.Errorf("%s: %v, %v", name, c, err)
		}
	}
}
