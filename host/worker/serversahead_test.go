package worker_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
	"causeway/host/worker/workertest"
)

// filled is a program with memory at a software GPU.
type filled struct {
	*workertest.Guest
	ptr uint64
}

// filledPart is what one call copies.
const filledPart = 16 << 10

func fills(t *testing.T, g *workertest.Guest) *filled {
	t.Helper()
	call(t, g, cuda.Success, &wire.PrimaryCtxRetainArgs{Ctx: 16}, nil)
	g.Ctx = 16
	var m wire.MemAllocReply
	call(t, g, cuda.Success, &wire.MemAllocArgs{Size: computed}, &m)
	return &filled{g, m.Ptr}
}

func pattern(with byte, at uint64) []byte {
	b := make([]byte, filledPart)
	for i := range b {
		b[i] = byte((uint64(i)+at)*7>>3) ^ with<<1 | 1
	}
	return b
}

// put stores a pattern at the GPU.
func (c *filled) put(t *testing.T, with byte) {
	t.Helper()
	for at := uint64(0); at < computed; at += filledPart {
		if err := c.Send(&wire.MemcpyHtoDArgs{Dst: c.ptr + at, Src: pattern(with, at), Stream: wire.StreamLegacy}); err != nil {
			t.Fatal(err)
		}
	}
	call(t, c.Guest, cuda.Success, &wire.CtxSynchronizeArgs{}, nil)
}

// is looks whether it is there.
func (c *filled) is(t *testing.T, with byte) {
	t.Helper()
	const part = 1 << 10
	for at := uint64(0); at < computed; at += filledPart {
		var r wire.MemcpyDtoHReply
		call(t, c.Guest, cuda.Success, &wire.MemcpyDtoHArgs{Src: c.ptr + at, Size: part, Stream: wire.StreamLegacy}, &r)
		if !bytes.Equal(r.Dst, pattern(with, at)[:part]) {
			t.Fatalf("other bytes at %#x than were stored", at)
		}
	}
}

// ahead has a first round of memory go to the server that awaits the session.
func ahead(ctx context.Context, t *testing.T, p *spawn.Process) {
	t.Helper()
	r, err := p.Round(ctx)
	if err != nil || r.Sent < computed || r.Looked < r.Sent || r.Cut {
		t.Fatalf("the first round: %+v, %v", r, err)
	}
}

// TestServersAhead: memory goes to the other server while the program runs, first all of it, then what has changed; then the session goes there with what has changed since, and from there on to a third. One that is called off goes on where it was, and its memory can go ahead again.
func TestServersAhead(t *testing.T) {
	one, cfg := newServer(t)
	two, other := newServer(t)
	third, again := newServer(t)
	for _, s := range []*gpuServer{one, two, third} {
		s.soft.Store(true)
	}
	p, g, w := one.program(t, cfg)
	c := fills(t, g)
	c.put(t, 1)
	ctx, cancel := context.WithTimeout(t.Context(), divertLimit)
	defer cancel()
	if err := p.Ahead(ctx, *other.Relay); err != nil {
		t.Fatal(err)
	}
	ahead(ctx, t, p)
	c.put(t, 2)
	if err := p.Settle(ctx, other.Relay.Lease, false); err != nil {
		t.Fatal(err)
	}
	if err := ended(t, two.another(t)); err == nil {
		t.Error("half a session ends well")
	}
	c.is(t, 2)
	last := byte(2)
	for _, to := range []struct {
		s     *gpuServer
		relay *link.Relay
	}{{two, other.Relay}, {third, again.Relay}} {
		relay := to.relay
		if err := p.Ahead(ctx, *relay); err != nil {
			t.Fatal(err)
		}
		ahead(ctx, t, p)
		if r, err := p.Round(ctx); err != nil || r.Sent != 0 {
			t.Errorf("a round in which nothing has changed: %+v, %v", r, err)
		}
		last++
		c.put(t, last)
		if r, err := p.Round(ctx); err != nil || r.Sent != computed {
			t.Errorf("a round in which something has changed: %+v, %v", r, err)
		}
		last++
		c.put(t, last) // which only those who stand see
		var m wire.MemAllocReply
		call(t, g, cuda.Success, &wire.MemAllocArgs{Size: 4096}, &m)
		if err := p.Divert(ctx, *relay); err != nil {
			t.Fatal(err)
		}
		next := to.s.another(t)
		if err := p.Settle(ctx, relay.Lease, true); err != nil {
			t.Fatal(err)
		}
		if err := ended(t, w); err != nil {
			t.Error("where it was:", err)
		}
		w = next
		c.is(t, last)
		call(t, g, cuda.Success, &wire.MemFreeArgs{Ptr: m.Ptr}, nil)
	}
	endsWell(t, g, p, w)
}

// TestServersAheadFaults: what is in the way at the other server, or is lost there, is found while the program runs, which goes on where it was.
func TestServersAheadFaults(t *testing.T) {
	one, cfg := newServer(t)
	two, other := newServer(t)
	one.soft.Store(true)
	two.soft.Store(true)
	p, g, w := one.program(t, cfg)
	c := fills(t, g)
	c.put(t, 4)
	ctx, cancel := context.WithTimeout(t.Context(), divertLimit)
	defer cancel()
	if _, err := p.Round(ctx); err == nil {
		t.Error("a round to nowhere")
	}
	fails := func(what, want string) {
		t.Helper()
		var err error
		for err == nil {
			_, err = p.Round(ctx)
		}
		if !strings.Contains(err.Error(), want) || errors.Is(err, spawn.ErrNoRounds) {
			t.Errorf("%s: %v", what, err)
		}
		c.put(t, 5)
		if err := p.Divert(ctx, *other.Relay); err == nil {
			t.Errorf("%s: and it goes there", what)
		}
		if err := p.Settle(ctx, other.Relay.Lease, false); err != nil {
			t.Error(err)
		}
		c.is(t, 5)
	}
	begins := func() *spawn.Process {
		t.Helper()
		if err := p.Ahead(ctx, *other.Relay); err != nil {
			t.Fatal(err)
		}
		return two.another(t)
	}
	two.memory.Store(computed / 2)
	far := begins()
	fails("where there is no room", "a session from another server: ")
	_ = ended(t, far)
	two.memory.Store(0)
	far = begins()
	ahead(ctx, t, p)
	far.Kill()
	_ = ended(t, far)
	fails("where its worker was killed", "gpu server")

	far = begins() // and from the beginning to the end
	ahead(ctx, t, p)
	if err := p.Divert(ctx, *other.Relay); err != nil {
		t.Fatal(err)
	}
	w.Kill() // the other server has all of it
	_ = ended(t, w)
	if err := p.Settle(ctx, other.Relay.Lease, true); err != nil {
		t.Fatal(err)
	}
	c.is(t, 5)
	endsWell(t, g, p, far)
}
