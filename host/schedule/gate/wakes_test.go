package gate

import (
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/schedule/page"
)

// kicked reports whether the monitor was woken since.
func kicked(g *Gate) bool {
	select {
	case <-g.kick:
		return true
	default:
		return false
	}
}

// TestWhoWakesTheMonitor: it hears of all that it has to follow: the first operation, each fence,
// each mark that passes, and the end of the free time.
func TestWhoWakesTheMonitor(t *testing.T) {
	g := still(t, &fakeGauge{})
	g.Grant.Set(metered, time.Second)
	for _, step := range []struct {
		what string
		do   func()
		want bool
	}{
		{"the first operation", g.submit, true},
		{"the second", g.submit, false},
		{"a fence", g.fence, true},
		{"a mark that passes", g.pass, true},
		{"free", func() { g.become(page.Open) }, false},
		{"free no more", func() { g.become(0) }, true},
		{"metered as before", func() { g.become(0) }, false},
	} {
		step.do()
		if got := kicked(g); got != step.want {
			t.Errorf("%s: woken %v", step.what, got)
		}
	}
	g.Gauge = nil
	if g.fence(); kicked(g) {
		t.Error("a fence where there is no gauge")
	}
}

// TestAGaugeThatTells is asked to, and then nobody sleeps for a time to ask it.
func TestAGaugeThatTells(t *testing.T) {
	for _, tells := range []bool{false, true} {
		r := newRig(t, &fakeGauge{tells: tells})
		if r.Gate.tells != tells || (r.gauge.tell != nil) != tells {
			t.Errorf("tells %v: %v, asked %v", tells, r.Gate.tells, r.gauge.tell != nil)
		}
		g := still(t, &fakeGauge{})
		g.Grant.Set(metered, time.Second)
		g.tells = tells
		g.submit()
		now := g.moved
		for _, c := range []struct{ since, nap time.Duration }{{0, napLeast}, {32 * 100 * time.Microsecond, 100 * time.Microsecond}, {time.Hour, napMost}} {
			if tells {
				c.nap = napTold
			}
			if rest, again := g.reportLocked(g.Grant.Word(), now.Add(c.since)); rest || again != c.nap {
				t.Errorf("tells %v: %v after the last mark it rests %v, else looks after %v", tells, c.since, rest, again)
			}
		}
	}
}

// TestReports: that a closed session has drained is told once for each grant; that it is quiet,
// once it has been for a while, and not while it stands at the gate.
func TestReports(t *testing.T) {
	g := still(t, &fakeGauge{})
	rang := func() bool {
		var b [8]byte
		_, err := unix.Read(g.Bell, b[:])
		return err == nil
	}
	now := time.Now()
	step := func(what string, after time.Duration, rest bool, again time.Duration, rings bool) {
		t.Helper()
		now = now.Add(after)
		r, a := g.reportLocked(g.Grant.Word(), now)
		if r != rest || a != again {
			t.Errorf("%s: rests %v, looks again after %v", what, r, a)
		}
		if rang() != rings {
			t.Errorf("%s: the bell rings: %v", what, !rings)
		}
	}
	g.Grant.Set(metered, time.Second)
	step("one that never had anything", 0, true, 0, false)
	g.announce()
	if !rang() || g.Usage.Active.Load() != 1 {
		t.Error("the first word is not told")
	}
	g.announce()
	if rang() {
		t.Error("the second word rings")
	}
	step("quiet", 0, false, grace, false)
	step("for a while", grace/4, false, grace*3/4, false)
	g.announce()
	step("it had something meanwhile: quiet anew", grace, false, grace, false)
	g.Usage.Waiting.Store(1)
	step("one that stands", grace, true, 0, false)
	g.Usage.Waiting.Store(0)
	g.loose.Store(true)
	step("one of which nobody knows what it has left", 0, true, 0, false)
	g.loose.Store(false)
	step("for long enough", 0, true, 0, true)
	if g.Usage.Active.Load() != 0 || g.active {
		t.Error("it is not told to be quiet")
	}
	step("once", time.Hour, true, 0, false)
	g.Grant.Set(page.Metered, 0)
	step("closed", 0, true, 0, true)
	if page.Word(g.Usage.Drained.Load()) != g.Grant.Word() {
		t.Error("it is not told to have drained")
	}
	step("closed as before", 0, true, 0, false)
	g.Grant.Set(metered, time.Second)
	step("open", 0, true, 0, false)
	g.Grant.Set(page.Metered, 0)
	step("closed again", 0, true, 0, true)
}

// TestEstimateFollows: what an operation takes is followed by a quarter of what it differs each
// time.
func TestEstimateFollows(t *testing.T) {
	const ms = time.Millisecond
	gauge := &fakeGauge{}
	g := still(t, gauge)
	now := time.Now()
	for i, c := range []struct{ took, est time.Duration }{{2 * ms, ms}, {10 * ms, 2 * ms}, {4 * ms, 2 * ms}, {1200 * time.Microsecond, 1650 * time.Microsecond}} {
		g.idle.Store(false)
		g.counted, g.moved = now, now
		g.submitted.Add(2)
		g.fence()
		now = now.Add(c.took)
		gauge.passed.Store(uint64(i + 1))
		g.lookLocked(now)
		if got := time.Duration(g.est); got != c.est {
			t.Errorf("two in %v: an operation takes %v, not %v", c.took, got, c.est)
		}
	}
}

// TestWhoStandsIsSeen: a session that had gone quiet and stands before a closed gate has the
// scheduler told that it wants the GPU, before it waits for anything.
func TestWhoStandsIsSeen(t *testing.T) {
	g := still(t, &fakeGauge{})
	g.Grant.Set(page.Metered, 0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // it waits for nothing
	if err := g.stand(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	var b [8]byte
	if _, err := unix.Read(g.Bell, b[:]); err != nil || g.Usage.Active.Load() != 1 || !g.active {
		t.Errorf("the bell: %v, active %d", err, g.Usage.Active.Load())
	}
	if g.Usage.Waiting.Load() != 0 || g.Usage.Waits.Load() != 1 {
		t.Errorf("waits %d, waited %d times", g.Usage.Waiting.Load(), g.Usage.Waits.Load())
	}
}
