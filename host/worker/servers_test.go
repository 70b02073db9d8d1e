package worker_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
	"causeway/host/worker/workertest"
	"causeway/remote"
)

// divertLimit is far more than a session needs to be at another server.
const divertLimit = 2 * time.Minute

// another awaits the worker that a server has started.
func (s *gpuServer) another(t testing.TB) *spawn.Process {
	t.Helper()
	select {
	case w := <-s.workers:
		return w
	case <-time.After(time.Minute):
		t.Fatal("the server starts no worker")
		return nil
	}
}

// computing is a program with memory at its GPU, which counts in it.
type computing struct {
	*workertest.Guest
	ptr    uint64
	region uint32
	mem    []byte
	word   uint32
}

const computed = 1 << 20

func compute(t testing.TB, g *workertest.Guest) *computing {
	t.Helper()
	call(t, g, cuda.Success, &wire.PrimaryCtxRetainArgs{Ctx: 16}, nil)
	g.Ctx = 16
	var m wire.MemAllocReply
	call(t, g, cuda.Success, &wire.MemAllocArgs{Size: computed}, &m)
	region, mem, res, err := g.AddRegion(0, wire.RegionStaging, 2*computed)
	if err != nil || res != cuda.Success {
		t.Fatal(res, err)
	}
	return &computing{Guest: g, ptr: m.Ptr, region: region, mem: mem}
}

// put stores a pattern at the GPU.
func (c *computing) put(t testing.TB, with byte) {
	t.Helper()
	for i := range c.mem[:computed] {
		c.mem[i] = byte(i*7>>3) ^ with
	}
	c.word++
	if err := c.Send(&wire.MemcpyStagedArgs{Region: c.region, Size: computed, Device: c.ptr, Word: 5, Value: c.word}); err != nil {
		t.Fatal(err)
	}
	call(t, c.Guest, cuda.Success, &wire.CtxSynchronizeArgs{}, nil)
}

// is looks whether it is there.
func (c *computing) is(t testing.TB, with byte) {
	t.Helper()
	for i := range c.mem[:computed] {
		c.mem[i] = byte(i*7>>3) ^ with
	}
	clear(c.mem[computed:])
	c.word++
	if err := c.Send(&wire.MemcpyStagedArgs{Direction: 1, Region: c.region, Offset: computed, Size: computed, Device: c.ptr, Word: 6, Value: c.word}); err != nil {
		t.Fatal(err)
	}
	call(t, c.Guest, cuda.Success, &wire.CtxSynchronizeArgs{}, nil)
	if c.Word(6) != c.word || !bytes.Equal(c.mem[:computed], c.mem[computed:]) {
		t.Fatalf("word %d for %d, or other bytes than were stored", c.Word(6), c.word)
	}
}

// TestServers: a program's session goes to another GPU server, and back, with its memory at the
// addresses where it was, and the servers' workers that it leaves end; one that is called off goes
// on where it was, and the other's ends.
func TestServers(t *testing.T) {
	one, cfg := newServer(t)
	two, other := newServer(t)
	p, g, w := one.program(t, cfg)
	c := compute(t, g)
	c.put(t, 1)
	ctx, cancel := context.WithTimeout(t.Context(), divertLimit)
	defer cancel()
	turn := func(to link.Relay, s *gpuServer, goes bool) *spawn.Process {
		t.Helper()
		if err := p.Divert(ctx, to); err != nil {
			t.Fatal(err)
		}
		next := s.another(t)
		if err := p.Settle(ctx, to.Lease, goes); err != nil {
			t.Fatal(err)
		}
		return next
	}
	if err := ended(t, turn(*other.Relay, two, false)); err != nil {
		t.Error("what came in vain:", err)
	}
	c.is(t, 1)
	next := turn(*other.Relay, two, true)
	if err := ended(t, w); err != nil {
		t.Error("where it was:", err)
	}
	if one.ready.Load() != two.ready.Load() {
		t.Errorf("whether a worker that waited may have it: %v, then %v", one.ready.Load(), two.ready.Load())
	}
	c.is(t, 1)
	c.put(t, 2)
	var m wire.MemAllocReply
	call(t, g, cuda.Success, &wire.MemAllocArgs{Size: 4096}, &m)
	third, again := newServer(t)
	last := turn(*again.Relay, third, true)
	if err := ended(t, next); err != nil {
		t.Error("where it was next:", err)
	}
	c.is(t, 2)
	call(t, g, cuda.Success, &wire.MemFreeArgs{Ptr: m.Ptr}, nil)
	endsWell(t, g, p, last)
}

// TestServersRefused: a server that is not there, and a settlement of nothing, change nothing.
func TestServersRefused(t *testing.T) {
	one, cfg := newServer(t)
	p, g, w := one.program(t, cfg)
	c := compute(t, g)
	c.put(t, 3)
	ctx, cancel := context.WithTimeout(t.Context(), divertLimit)
	defer cancel()
	nowhere := *cfg.Relay
	nowhere.Server, nowhere.Addresses, nowhere.Lease = "gone", []string{"127.0.0.1:1"}, remote.NewLeaseID()
	if err := p.Divert(ctx, nowhere); err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("a server that is not there: %v", err)
	}
	if err := p.Settle(ctx, nowhere.Lease, true); err == nil {
		t.Error("it goes where nothing is")
	}
	if err := p.Settle(ctx, nowhere.Lease, false); err != nil {
		t.Error(err)
	}
	c.is(t, 3)
	endsWell(t, g, p, w)
}

// TestServersFaults: whatever fails while a session is at two servers, it goes on at one of them: a
// server that has no room for it, and one whose worker is killed, leave it where it was; when the
// first one's is killed it goes on at the other.
func TestServersFaults(t *testing.T) {
	one, cfg := newServer(t)
	two, other := newServer(t)
	p, g, w := one.program(t, cfg)
	c := compute(t, g)
	c.put(t, 4)
	ctx, cancel := context.WithTimeout(t.Context(), divertLimit)
	defer cancel()
	two.memory.Store(computed / 2)
	if err := p.Divert(ctx, *other.Relay); err == nil || !strings.Contains(err.Error(), "a session from another server: ") {
		t.Errorf("where there is no room: %v", err)
	}
	if err := p.Settle(ctx, other.Relay.Lease, false); err != nil {
		t.Error(err)
	}
	if err := ended(t, two.another(t)); err == nil {
		t.Error("the worker without room ends well")
	}
	c.is(t, 4)

	two.memory.Store(0)
	if err := p.Divert(ctx, *other.Relay); err != nil {
		t.Fatal(err)
	}
	killed := two.another(t)
	killed.Kill()
	if err := p.Settle(ctx, other.Relay.Lease, false); err != nil {
		t.Error(err)
	}
	_ = ended(t, killed)
	c.is(t, 4)

	if err := p.Divert(ctx, *other.Relay); err != nil {
		t.Fatal(err)
	}
	next := two.another(t)
	w.Kill()
	_ = ended(t, w)
	if err := p.Settle(ctx, other.Relay.Lease, true); err != nil {
		t.Fatal(err)
	}
	c.is(t, 4)
	c.put(t, 5)
	c.is(t, 5)
	endsWell(t, g, p, next)
}

// TestServersCalledOff: a parent that waits no longer has the session where it was, whether it had
// been at the other server by then or not; and its connections go there no more.
func TestServersCalledOff(t *testing.T) {
	one, cfg := newServer(t)
	two, other := newServer(t)
	p, g, w := one.program(t, cfg)
	c := compute(t, g)
	c.put(t, 6)
	ctx, cancel := context.WithTimeout(t.Context(), divertLimit)
	defer cancel()
	now, over := context.WithCancel(ctx)
	over()
	if err := p.Divert(now, *other.Relay); !errors.Is(err, spawn.ErrSilent) {
		t.Errorf("called off at once: %v", err)
	}
	if err := p.Settle(ctx, other.Relay.Lease, false); err != nil {
		t.Error(err)
	}
	c.is(t, 6)
	if err := p.Divert(ctx, *other.Relay); err != nil { // which may have begun before
		t.Fatal(err)
	}
	if err := p.Settle(ctx, other.Relay.Lease, true); err != nil {
		t.Fatal(err)
	}
	if err := ended(t, w); err != nil {
		t.Error(err)
	}
	c.is(t, 6)
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if err := ended(t, p); err != nil {
		t.Error(err)
	}
	for n := len(two.workers); n > 0; n-- {
		_ = ended(t, <-two.workers) // what came in vain may end with an error
	}
}

// TestServersStay: a lease that is not migratable, as those on real GPUs are unless that is asked
// for, has no session described, and none made of what a host's end says.
func TestServersStay(t *testing.T) {
	for name, stays := range map[string]int{"where it was": 0, "where it would go": 1} {
		t.Run(name, func(t *testing.T) {
			one, cfg := newServer(t)
			two, other := newServer(t)
			[]*gpuServer{one, two}[stays].stays.Store(true)
			p, g, w := one.program(t, cfg)
			c := compute(t, g)
			c.put(t, 7)
			ctx, cancel := context.WithTimeout(t.Context(), divertLimit)
			defer cancel()
			if err := p.Divert(ctx, *other.Relay); err == nil || !strings.Contains(err.Error(), "it is not migratable") {
				t.Error(err)
			}
			if err := p.Settle(ctx, other.Relay.Lease, false); err != nil {
				t.Error(err)
			}
			c.is(t, 7)
			endsWell(t, g, p, w)
			for n := len(two.workers); n > 0; n-- {
				_ = ended(t, <-two.workers) // what came in vain ends with an error
			}
		})
	}
}
