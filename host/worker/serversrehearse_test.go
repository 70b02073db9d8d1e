package worker_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/soft/softtest"
	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
)

// TestServersRehearse: what a program is made of is made once at another server, while the program
// runs; what would come out another there is said by name, and the program goes elsewhere.
func TestServersRehearse(t *testing.T) {
	one, cfg := newSoftServer(t)
	two, other := newSoftServer(t)
	odd, there := newSoftServer(t)
	odd.differs.Store(true)
	p, g, w := one.program(t, cfg)
	c := fills(t, g)
	c.put(t, 1)
	if _, _, res, err := g.AddRegion(0, wire.RegionStaging, 1<<20); err != nil || res != cuda.Success {
		t.Fatal(res, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), divertLimit)
	defer cancel()
	can := func(s *gpuServer, to link.Config) {
		t.Helper()
		if err := p.Rehearse(ctx, *to.Relay); err != nil {
			t.Fatal(err)
		}
		far := s.another(t)
		if err := ended(t, far); err != nil {
			t.Error("a rehearsal ends with", err)
		}
		if !far.Rehearses() {
			t.Error("the server does not hear that it is a rehearsal")
		}
		c.is(t, 1)
	}
	can(two, other)
	can(odd, there)
	var m wire.MemAllocReply
	call(t, g, cuda.Success, &wire.MemAllocArgs{Size: softtest.Wanders}, &m)
	var cannot *spawn.Cannot
	if err := p.Rehearse(ctx, *there.Relay); !errors.As(err, &cannot) || !strings.Contains(cannot.Why, "gpu1") || !strings.Contains(cannot.Why, "comes out beside where it was") {
		t.Errorf("where memory comes out beside: %v", err)
	}
	if err := ended(t, odd.another(t)); err != nil {
		t.Error("that rehearsal ends with", err)
	}
	can(two, other)
	if err := p.Ahead(ctx, *other.Relay); err != nil {
		t.Fatal(err)
	}
	ahead(ctx, t, p)
	if err := p.Rehearse(ctx, *there.Relay); err == nil || errors.As(err, &cannot) && cannot.Why == "" {
		t.Error("it is rehearsed at one server on its way to another")
	}
	if err := p.Divert(ctx, *other.Relay); err != nil {
		t.Fatal(err)
	}
	next := two.another(t)
	if err := p.Settle(ctx, other.Relay.Lease, true); err != nil {
		t.Fatal(err)
	}
	if err := ended(t, w); err != nil {
		t.Error("where it was:", err)
	}
	c.is(t, 1)
	// By what the server says where it is now.
	if err := p.Rehearse(ctx, *there.Relay); !errors.As(err, &cannot) {
		t.Error("rehearsed from where it went:", err)
	}
	if err := ended(t, odd.another(t)); err != nil {
		t.Error("that rehearsal ends with", err)
	}
	endsWell(t, g, p, next)
}

// TestServersRehearseInVain: where it does not come to an answer nothing is said of the program,
// which goes on, and goes where it was not rehearsed.
func TestServersRehearseInVain(t *testing.T) {
	one, cfg := newSoftServer(t)
	two, other := newSoftServer(t)
	p, g, w := one.program(t, cfg)
	c := fills(t, g)
	c.put(t, 3)
	ctx, cancel := context.WithTimeout(t.Context(), divertLimit)
	defer cancel()
	unknown := func(what, want string) {
		t.Helper()
		var cannot *spawn.Cannot
		if err := p.Rehearse(ctx, *other.Relay); err == nil || errors.As(err, &cannot) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
		c.is(t, 3)
	}
	two.stays.Store(true)
	unknown("a lease that is not migratable", "it is not migratable")
	_ = ended(t, two.another(t))
	two.stays.Store(false)
	two.memory.Store(computed / 2)
	unknown("no room", "the rehearsal is not complete")
	_ = ended(t, two.another(t))
	two.memory.Store(0)

	now, over := context.WithCancel(ctx)
	over()
	if err := p.Rehearse(now, *other.Relay); !errors.Is(err, spawn.ErrSilent) {
		t.Errorf("called off at once: %v", err)
	}
	if err := p.Settle(ctx, other.Relay.Lease, true); err == nil {
		t.Error("it goes where it is rehearsed")
	}
	if err := p.Settle(ctx, other.Relay.Lease, false); err != nil {
		t.Error(err)
	}
	c.is(t, 3)
	for n := len(two.workers); n > 0; n-- {
		_ = ended(t, <-two.workers)
	}
	if err := p.Divert(ctx, *other.Relay); err != nil {
		t.Fatal(err)
	}
	if err := p.Settle(ctx, other.Relay.Lease, true); err != nil {
		t.Fatal(err)
	}
	c.is(t, 3)
	if err := ended(t, w); err != nil {
		t.Error("where it was:", err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if err := ended(t, p); err != nil {
		t.Error(err)
	}
	for n := len(two.workers); n > 0; n-- {
		_ = ended(t, <-two.workers) // what came in vain may end with an error
	}

	cfg.HostMemory = 4 << 20
	p, g, w = one.program(t, cfg)
	c = fills(t, g)
	c.put(t, 3)
	unknown("without memory for what passes", "there is no host memory left")
	endsWell(t, g, p, w)
}
