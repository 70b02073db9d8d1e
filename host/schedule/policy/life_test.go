package policy

import (
	"testing"
	"time"
)

// run has shares want the GPU all the time, for d, and report what they had of it. It returns when
// it ends.
func run(g *GPU, from time.Time, d time.Duration, shares ...*Share) time.Time {
	const step = 100 * time.Microsecond
	for now := from.Add(step); ; now = now.Add(step) {
		for _, s := range shares {
			busy := time.Duration(0)
			if s.Mode != Closed {
				busy = step / time.Duration(max(open(shares), 1))
			}
			g.Report(s, now, Report{Active: true, Drained: s.Mode == Closed, Busy: busy})
		}
		g.Decide(now)
		if now.Sub(from) >= d {
			return now
		}
	}
}

func open(shares []*Share) (n int) {
	for _, s := range shares {
		if s.Mode != Closed {
			n++
		}
	}
	return n
}

// TestCapAfterIdleness: who used nothing for long has saved up no more than a bucket, and who is
// throttled comes back.
func TestCapAfterIdleness(t *testing.T) {
	var g GPU
	now := epoch
	s := g.Join(now, Limits{Weight: 1, Cap: 25})
	for range 1000 { // ten seconds, in which others decide
		now = now.Add(10 * time.Millisecond)
		g.Decide(now)
	}
	began, before := now, s.BusyTotal
	for !s.Throttled() {
		if now = run(&g, now, time.Millisecond, s); now.Sub(began) > time.Second {
			break
		}
	}
	burst, took := s.BusyTotal-before, now.Sub(began)
	if most := time.Duration(g.capBurst()) + took/4 + 2*time.Millisecond; burst > most {
		t.Errorf("a burst of %v in %v, at most %v", burst, took, most)
	}
	if least := time.Duration(g.capBurst()) / 2; burst < least {
		t.Errorf("a burst of %v, at least %v", burst, least)
	}
	before = s.BusyTotal
	end := run(&g, now, 2*time.Second, s)
	if part := float64(s.BusyTotal-before) / float64(end.Sub(now)); part < 0.2 || part > 0.3 {
		t.Errorf("%.2f of the GPU's time under a cap of 25 %%", part)
	}
	s.Limits.Cap = 0
	if g.Decide(end.Add(time.Microsecond)); s.Throttled() {
		t.Error("throttled without a cap")
	}
}

// TestLateJoiner: who comes later is owed nothing for the time before, and who was away only a
// bounded part of it.
func TestLateJoiner(t *testing.T) {
	var g GPU
	a := g.Join(epoch, Limits{Weight: 1})
	now := run(&g, epoch, 10*time.Second, a)
	b := g.Join(now, Limits{Weight: 1})
	if b.virtual != a.virtual {
		t.Errorf("joins at %v, the other is at %v", time.Duration(b.virtual), time.Duration(a.virtual))
	}
	heldA, heldB := a.Held, b.Held
	now = run(&g, now, 20*Quantum, a, b)
	if d := (b.Held - heldB) - (a.Held - heldA); d > 2*Quantum || d < -2*Quantum {
		t.Errorf("in 20 slices the late one had %v more than the other", d)
	}
	g.Report(b, now, Report{})
	g.Decide(now)
	now = run(&g, now, 10*time.Second, a)
	heldA, heldB = a.Held, b.Held
	run(&g, now, 40*Quantum, a, b)
	if d := (b.Held - heldB) - (a.Held - heldA); d > g.maxLag()+2*Quantum {
		t.Errorf("one that was away for ten seconds had %v more than the other", d)
	}
}

// TestLeavers: a GPU whose holder leaves is another's at once, and nobody's grants stay.
func TestLeavers(t *testing.T) {
	var g GPU
	a, b := g.Join(epoch, Limits{Weight: 1}), g.Join(epoch, Limits{Weight: 1})
	now := run(&g, epoch, time.Second, a, b)
	for g.holder != a {
		now = run(&g, now, time.Millisecond, a, b)
	}
	g.Leave(a)
	g.Report(b, now, Report{Active: true, Drained: true})
	g.Decide(now)
	if g.Len() != 1 || b.Mode != Free {
		t.Errorf("%d are left, the other is %v", g.Len(), b.Mode)
	}
	g.Leave(b)
	if next := g.Decide(now.Add(time.Second)); g.Len() != 0 || !next.IsZero() {
		t.Errorf("%d are left, next decision at %v", g.Len(), next)
	}
}

// TestClaimsOfBusyTime: what a worker says is worth no more than the time that it was charged for.
func TestClaimsOfBusyTime(t *testing.T) {
	var g GPU
	a := g.Join(epoch, Limits{Weight: 1, Cap: 50})
	now := run(&g, epoch, 100*time.Millisecond, a)
	for range 10 { // it holds the GPU, of which most is long past in the end
		now = now.Add(g.maxSlack())
		g.Report(a, now, Report{Active: true})
		g.Decide(now)
	}
	before := a.BusyTotal
	g.Report(a, now, Report{Active: true, Busy: time.Hour})
	if d := a.BusyTotal - before; d > g.maxSlack() {
		t.Errorf("an hour counts as %v", d)
	}
	before = a.BusyTotal
	g.Report(a, now, Report{Active: true, Busy: -time.Hour})
	if a.BusyTotal != before {
		t.Errorf("negative time counts: %v", a.BusyTotal-before)
	}
	held, virtual, tokens := a.Held, a.virtual, a.tokens
	g.Decide(now.Add(-time.Second)) // a clock that steps back
	if a.Held != held || a.virtual != virtual || a.tokens != tokens {
		t.Errorf("time that went back changed %v to %v", held, a.Held)
	}
}

// TestSlicesEnd: while others want the GPU nobody holds it for longer than a slice, and everybody
// has it in turn.
func TestSlicesEnd(t *testing.T) {
	var g GPU
	shares := []*Share{g.Join(epoch, Limits{Weight: 1}), g.Join(epoch, Limits{Weight: 1}), g.Join(epoch, Limits{Weight: 1})}
	now := run(&g, epoch, time.Second, shares...)
	began, holder, longest, turns := now, g.holder, time.Duration(0), 0
	for end := now.Add(time.Second); now.Before(end); {
		now = run(&g, now, 100*time.Microsecond, shares...)
		if g.holder != holder {
			holder, began, turns = g.holder, now, turns+1
		}
		longest = max(longest, now.Sub(began))
	}
	if longest > Quantum+time.Millisecond || turns < int(time.Second/Quantum)*3/4 {
		t.Errorf("a slice of %v, %d turns in a second", longest, turns)
	}
}

// TestSlicesGiveBack: of each slice is given back what passed without work in it, up to the grace,
// whatever was in those before.
func TestSlicesGiveBack(t *testing.T) {
	const ms = time.Millisecond
	var g GPU
	s := g.Join(epoch, Limits{Weight: 2})
	for i, c := range []struct{ held, busy, back time.Duration }{
		{10 * ms, 10 * ms, 0}, {ms, 0, min(ms, g.grace())}, {ms, ms / 2, min(ms/2, g.grace())}, {ms, 3 * ms, 0}, {time.Hour, ms, g.grace()}, {0, 0, 0},
	} {
		before, virtual := s.returned, s.virtual
		s.sliceHeld += c.held
		s.sliceBusy += c.busy
		s.settle(&g)
		if s.returned-before != c.back || virtual-s.virtual != float64(c.back)/s.weight() {
			t.Errorf("slice %d: %v are given back, not %v", i, s.returned-before, c.back)
		}
	}
}

// TestRecently: who was active counts as about to come back for a while, from its last moment on,
// and not from when it came.
func TestRecently(t *testing.T) {
	var g GPU
	a := g.Join(epoch, Limits{Weight: 1})
	if a.recently(epoch) {
		t.Error("one that never was active")
	}
	now := run(&g, epoch, 10*Calm, a)
	g.Report(a, now, Report{Drained: true})
	for _, c := range []struct {
		after time.Duration
		want  bool
	}{{0, true}, {Calm - 1, true}, {Calm, false}} {
		if a.recently(now.Add(c.after)) != c.want {
			t.Errorf("%v after its end: %v", c.after, !c.want)
		}
	}
}
