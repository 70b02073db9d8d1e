package worker

import (
	"context"
	"slices"
	"testing"
	"time"

	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/remote"
)

// TestLongPoll: behind a request that the GPU answers a consumer polls for longer than elsewhere,
// where cores are plenty; for twice as long after a poll that was worth it, for half as long after
// one in vain, in bounds.
func TestLongPoll(t *testing.T) {
	for cores, want := range map[int]longPoll{1: 0, plentyCores - 1: 0, plentyCores: longPoll(longPollMost), 64: longPoll(longPollMost)} {
		if got := longPollOn(cores); got != want {
			t.Errorf("%d cores: %v", cores, got)
		}
	}
	const would = time.Millisecond
	for _, x := range []struct {
		p     longPoll
		waits bool
		d     time.Duration
		long  bool
	}{
		{longPoll(2 * would), true, 2 * would, true}, {longPoll(2 * would), false, would, false}, {longPoll(would), true, would, false}, {longPoll(would + 1), true, would + 1, true},
		{longPoll(would / 2), true, would, false}, {0, true, would, false},
	} {
		if d, long := x.p.spin(would, x.waits); d != x.d || long != x.long {
			t.Errorf("%+v: %v, long %v", x, d, long)
		}
	}
	const least = longPoll(2 * remote.SpinMost)
	for _, x := range []struct {
		p, more, less longPoll
	}{
		{least, 2 * least, least}, {4 * least, 8 * least, 2 * least}, {3 * least / 2, 3 * least, least},
		{longPoll(longPollMost), longPoll(longPollMost), longPoll(longPollMost / 2)}, {longPoll(longPollMost - 1), longPoll(longPollMost), longPoll((longPollMost - 1) / 2)},
	} {
		more, less := x.p, x.p
		more.learn(true)
		less.learn(false)
		if more != x.more || less != x.less {
			t.Errorf("%+v: %v where something came, %v where nothing did", x, more, less)
		}
	}
}

// hookedGPU has a test look before each operation.
type hookedGPU struct {
	driver.Session
	look func()
}

func (g *hookedGPU) Before(wire.Op, bool) { g.look() }

// TestLoopPolls: a consumer learns from its long polls alone, and what comes while it polls finds
// it awake.
func TestLoopPolls(t *testing.T) {
	const begins = longPoll(4 * remote.SpinMost)
	for name, x := range map[string]struct {
		waits, comes bool
		want         longPoll
	}{
		"something comes": {true, true, 2 * begins}, "nothing comes": {true, false, begins / 2},
		"something comes, nobody waits": {false, true, begins}, "nothing comes, nobody waits": {false, false, begins},
	} {
		w, c := newFake(t, nil)
		w.longPoll, w.waits = begins, x.waits
		learnt, slept, looks := longPoll(0), false, 0
		w.ordered = &hookedGPU{w.session, func() { learnt, slept = w.longPoll, slices.Contains(c.states, remote.WorkerSleeping) }}
		c.onPoll = func() { // the first look of a poll finds something
			if looks++; looks == 1 && x.comes {
				c.put(t, wire.Header{}, &wire.MemFreeArgs{Ptr: 1})
			}
		}
		c.onWait = func() error {
			if !x.comes {
				learnt, slept = w.longPoll, slices.Contains(c.states, remote.WorkerSleeping)
			}
			return context.Canceled
		}
		if err := w.loop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if learnt != x.want {
			t.Errorf("%s: it polls for %v next, want %v", name, time.Duration(learnt), time.Duration(x.want))
		}
		if slept == x.comes {
			t.Errorf("%s: it has slept: %v", name, slept)
		}
	}
}
