package gate

import (
	"testing"
	"time"

	"causeway/host/schedule/page"
)

// TestEstimate: what an operation takes is learnt from the time between fences, busy time is all
// the time that something was on the GPU, and both begin anew behind a time without work.
func TestEstimate(t *testing.T) {
	usage, err := page.NewUsage(make([]byte, 4096))
	if err != nil {
		t.Fatal(err)
	}
	const ms = time.Millisecond
	gauge := &fakeGauge{}
	g := &Gate{Options: Options{Gauge: gauge, Usage: usage}, kick: make(chan struct{}, 1)}
	now := time.Now()
	g.counted, g.moved = now, now
	step := func(what string, ops, passes uint64, took, est, busy time.Duration, idle bool) {
		t.Helper()
		if g.submitted.Add(ops); ops > 0 {
			g.fence()
		}
		gauge.passed.Add(passes)
		now = now.Add(took)
		g.lookLocked(now)
		if got := time.Duration(g.est); got != est || time.Duration(usage.Busy.Load()) != busy || g.idle.Load() != idle {
			t.Errorf("%s: %v an operation, busy for %v, idle %v; not %v, %v, %v", what, got, time.Duration(usage.Busy.Load()), g.idle.Load(), est, busy, idle)
		}
	}
	step("four, and four that have passed", 4, 1, 4*ms, ms, 4*ms, true)
	g.idle.Store(false)
	g.counted, g.moved = now, now
	step("the same again", 4, 1, 4*ms, ms, 8*ms, true)
	g.idle.Store(false)
	g.counted, g.moved = now, now
	step("two of three pass", 2, 1, 2*ms, ms, 10*ms, true)
	g.idle.Store(false)
	g.counted, g.moved = now, now
	step("the first half", 4, 0, 2*ms, ms, 12*ms, false)
	step("it passes, and there is more", 4, 1, 2*ms, ms, 14*ms, false)
	step("the second half as fast", 0, 1, 4*ms, ms, 18*ms, true)
	now = now.Add(time.Hour)
	g.lookLocked(now)
	if busy := time.Duration(usage.Busy.Load()); busy != 18*ms {
		t.Errorf("busy for %v, an hour of it at rest", busy)
	}
	g.submitted.Add(1)
	step("found at work", 0, 0, ms, ms, 18*ms, false)
	step("it takes longer than was thought", 0, 0, 8*ms, 8*ms, 26*ms, false)
}

// TestNothingIsLeftOpen: whoever stands, or waits for room, has a fence behind what was let through
// before, without which nobody would see its end.
func TestNothingIsLeftOpen(t *testing.T) {
	r := newRig(t, &fakeGauge{tells: true})
	r.grant.Set(metered, time.Hour)
	if err := r.Before(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.grant.Set(page.Metered, time.Hour)
	done := make(chan error, 1)
	go func() { done <- r.Before(t.Context()) }()
	r.until("a fence", func() bool { return r.gauge.last() == 1 })
	r.gauge.pass(1)
	r.until("drained", r.drained)
	r.grant.Set(metered, time.Hour)
	if err := <-done; err != nil {
		t.Error(err)
	}
}
