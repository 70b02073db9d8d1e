package worker_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

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

// TestServersAhead: memory goes to the other server while the program runs, first all of it, then
// what has changed; then the session goes there with what has changed since, and from there on to a
// third. One that is called off goes on where it was, and its memory can go ahead again.
func TestServersAhead(t *testing.T) {
	one, cfg := newSoftServer(t)
	two, other := newSoftServer(t)
	third, again := newSoftServer(t)
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

// TestServersAheadFaults: what is in the way at the other server, or is lost there, is found while
// the program runs, which goes on where it was.
func TestServersAheadFaults(t *testing.T) {
	one, cfg := newSoftServer(t)
	two, other := newSoftServer(t)
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

// TestServersAheadCannot: what cannot move is named before its memory goes, if it does not pass; a
// program whose host has no memory left for rounds moves all at once.
func TestServersAheadCannot(t *testing.T) {
	one, cfg := newSoftServer(t)
	two, other := newSoftServer(t)
	p, g, w := one.program(t, cfg)
	c := fills(t, g)
	c.put(t, 6)
	ctx, cancel := context.WithTimeout(t.Context(), divertLimit)
	defer cancel()
	const stream = 9
	captures := func() {
		t.Helper()
		call(t, g, cuda.Success, &wire.StreamBeginCaptureArgs{Stream: stream, Mode: 2}, nil)
	}
	graph := uint32(70)
	endsCapture := func() {
		t.Helper()
		graph++
		var r wire.StreamEndCaptureReply
		call(t, g, cuda.Success, &wire.StreamEndCaptureArgs{Stream: stream, Fresh: graph}, &r)
		call(t, g, cuda.Success, &wire.CtxSynchronizeArgs{}, nil)
	}
	if err := c.Send(&wire.StreamCreateArgs{Stream: stream, Flags: cuda.StreamNonBlocking}); err != nil {
		t.Fatal(err)
	}
	captures()
	if err := p.Ahead(ctx, *other.Relay); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Round(ctx); err == nil || !strings.Contains(err.Error(), "captures") {
		t.Errorf("a stream captures: %v", err)
	}
	if err := p.Settle(ctx, other.Relay.Lease, false); err != nil {
		t.Fatal(err)
	}
	_ = ended(t, two.another(t))
	if err := p.Ahead(ctx, *other.Relay); err != nil {
		t.Fatal(err)
	}
	moves := make(chan error, 1)
	go func() {
		_, err := p.Round(ctx)
		moves <- err
	}()
	endsCapture()
	if err := <-moves; err != nil {
		t.Errorf("it captures no more: %v", err)
	}
	captures()
	if err := p.Divert(ctx, *other.Relay); err == nil || !strings.Contains(err.Error(), "captures") {
		t.Errorf("a stream captures when it stands: %v", err)
	}
	if err := p.Settle(ctx, other.Relay.Lease, false); err != nil {
		t.Fatal(err)
	}
	_ = ended(t, two.another(t))
	endsCapture()
	c.is(t, 6)
	endsWell(t, g, p, w)

	cfg.HostMemory = 4 << 20
	p, g, w = one.program(t, cfg)
	c = fills(t, g)
	c.put(t, 7)
	if err := p.Ahead(ctx, *other.Relay); !errors.Is(err, spawn.ErrNoRounds) {
		t.Errorf("without memory for rounds: %v", err)
	}
	if err := p.Divert(ctx, *other.Relay); err != nil {
		t.Fatal(err)
	}
	next := two.another(t)
	if err := p.Settle(ctx, other.Relay.Lease, true); err != nil {
		t.Fatal(err)
	}
	if err := ended(t, w); err != nil {
		t.Error(err)
	}
	c.is(t, 7)
	endsWell(t, g, p, next)
}

// TestServersHeldBack: a program whose memory goes ahead is held back if its device process says
// so, from the next round on, until it stays, or has moved.
func TestServersHeldBack(t *testing.T) {
	one, cfg := newSoftServer(t)
	two, other := newSoftServer(t)
	p, g, w := one.program(t, cfg)
	c := fills(t, g)
	c.put(t, 1)
	ctx, cancel := context.WithTimeout(t.Context(), divertLimit)
	defer cancel()
	var waits atomic.Int64 // the longest of what the program does, in ns
	over, wrote := make(chan struct{}), make(chan struct{})
	go func() { // the program writes, and waits for it
		defer close(wrote)
		for {
			select {
			case <-over:
				return
			default:
			}
			began := time.Now()
			err := c.Send(&wire.MemcpyHtoDArgs{Dst: c.ptr, Src: pattern(1, 0), Stream: wire.StreamLegacy})
			if res, failed := c.Call(0, &wire.CtxSynchronizeArgs{}, nil); err != nil || failed != nil || res != cuda.Success {
				t.Error(res, err, failed)
				return
			}
			waits.Store(max(waits.Load(), int64(time.Since(began))))
		}
	}()
	for _, goes := range []bool{false, true} {
		if err := p.Ahead(ctx, *other.Relay); err != nil {
			t.Fatal(err)
		}
		ahead(ctx, t, p)
		if err := p.Send(link.Throttle{Share: link.MostThrottle}); err != nil {
			t.Fatal(err)
		}
		waits.Store(0)
		for waits.Load() < int64(time.Second) { // 20 ms of work have it wait for two seconds
			if _, err := p.Round(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if goes {
			if err := p.Divert(ctx, *other.Relay); err != nil {
				t.Fatal(err)
			}
		}
		left := two.another(t)
		if err := p.Settle(ctx, other.Relay.Lease, goes); err != nil {
			t.Fatal(err)
		}
		if goes {
			left, w = w, left
		}
		_ = ended(t, left)
	}
	close(over)
	<-wrote
	c.is(t, 1)
	endsWell(t, g, p, w)
}

// standMiB is how much memory the program of TestServersStand has; standEnv says another number.
const (
	standMiB = 64
	standEnv = "CAUSEWAY_TEST_STAND_MIB"
)

// TestServersStand: a program that changes little of much memory stands far shorter for a move
// whose memory went ahead than for one that has all of it move.
func TestServersStand(t *testing.T) {
	mib := standMiB
	if s := os.Getenv(standEnv); s != "" {
		mib, _ = strconv.Atoi(s)
	}
	one, cfg := newSoftServer(t)
	p, g, w := one.program(t, cfg)
	c := fills(t, g)
	var m wire.MemAllocReply
	call(t, g, cuda.Success, &wire.MemAllocArgs{Size: uint64(mib) << 20}, &m)
	for at := range uint64(mib) << 4 { // each block another
		if err := c.Send(&wire.MemcpyHtoDArgs{Dst: m.Ptr + at<<16, Src: pattern(byte(at), at*977), Stream: wire.StreamLegacy}); err != nil {
			t.Fatal(err)
		}
	}
	call(t, g, cuda.Success, &wire.CtxSynchronizeArgs{}, nil)
	ctx, cancel := context.WithTimeout(t.Context(), divertLimit)
	defer cancel()
	goes := func(rounds int) (stood, longest time.Duration) {
		two, other := newSoftServer(t)
		over, waited := make(chan struct{}), make(chan time.Duration)
		go func() { // the program writes a word, and waits for it
			worst := time.Duration(0)
			for {
				select {
				case <-over:
					waited <- worst
					return
				default:
				}
				began := time.Now()
				err := c.Send(&wire.MemcpyHtoDArgs{Dst: c.ptr, Src: pattern(1, uint64(began.UnixNano())), Stream: wire.StreamLegacy})
				if res, failed := c.Call(0, &wire.CtxSynchronizeArgs{}, nil); err != nil || failed != nil || res != cuda.Success {
					t.Error(res, err, failed)
				}
				worst = max(worst, time.Since(began))
			}
		}()
		if rounds > 0 {
			if err := p.Ahead(ctx, *other.Relay); err != nil {
				t.Fatal(err)
			}
		}
		for n := range rounds {
			began := time.Now()
			r, err := p.Round(ctx)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("round %d: %d MiB of %d in %v", n+1, r.Sent>>20, r.Looked>>20, time.Since(began).Round(time.Millisecond))
		}
		began := time.Now()
		if err := p.Divert(ctx, *other.Relay); err != nil {
			t.Fatal(err)
		}
		next := two.another(t)
		if err := p.Settle(ctx, other.Relay.Lease, true); err != nil {
			t.Fatal(err)
		}
		stood = time.Since(began)
		if err := ended(t, w); err != nil {
			t.Error(err)
		}
		w = next
		close(over)
		return stood, <-waited
	}
	for try := 1; ; try++ {
		all, longestAll := goes(0)
		rest, longest := goes(2)
		t.Logf("%d MiB: it stood for %v with all of its memory, and for %v with what had changed; its longest wait was %v and %v", mib, all.Round(time.Millisecond), rest.Round(time.Millisecond), longestAll.Round(time.Millisecond), longest.Round(time.Millisecond))
		if rest < all/2 {
			break
		}
		if try == 3 {
			t.Fatal("it stands no shorter")
		}
	}
	endsWell(t, g, p, w)
}
