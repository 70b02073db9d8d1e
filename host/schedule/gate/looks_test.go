package gate

import (
	"math"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/schedule/page"
)

// meteredGate is one without goroutines on which work may be submitted.
func meteredGate(t *testing.T, gauge *fakeGauge) *Gate {
	t.Helper()
	g := still(t, gauge)
	g.Grant.Set(metered, time.Second)
	return g
}

// TestSegments: a fence is put behind a quarter of what may be in flight, and at rest behind
// whatever there is; none while it is free.
func TestSegments(t *testing.T) {
	gauge := &fakeGauge{}
	g := meteredGate(t, gauge)
	step := func(what string, do func(), fences int) {
		t.Helper()
		if do(); gauge.fenced != fences {
			t.Errorf("%s: %d fences, not %d", what, gauge.fenced, fences)
		}
	}
	op := func() {
		if err := g.Before(t.Context()); err != nil {
			t.Fatal(err)
		}
		g.After()
	}
	step("the first", op, 0) // of 8, as long as nothing is known
	step("the second", op, 1)
	step("at rest behind a fence", g.Rest, 1)
	step("the third", op, 1)
	step("at rest", g.Rest, 2)
	step("again", g.Rest, 2)
	step("behind the fence", op, 2)
	g.Grant.Set(page.Open, 0)
	for range 4 {
		step("free", op, 2)
	}
	step("at rest, and free", g.Rest, 2)
	g.Grant.Set(metered, time.Second)
	g.est = 1
	if g.limit() != maxFlight || g.segment() != maxFlight/8 {
		t.Errorf("of operations that take no time %d are in flight, %d without a fence", g.limit(), g.segment())
	}
	g.est = float64(time.Hour)
	if g.limit() != leastOps || g.segment() != 1 {
		t.Errorf("of long ones %d are in flight, %d without a fence", g.limit(), g.segment())
	}
}

// TestLooks: what one look at the fences makes of what has passed, and of the time.
func TestLooks(t *testing.T) {
	const ms = time.Millisecond
	for what, c := range map[string]struct {
		// Operations, each fence behind the last of them, and those that passed.
		ops, fences, pass uint64
		est               time.Duration
		after             time.Duration // the look
		want              time.Duration // an operation takes
		busy              time.Duration
		idle              bool
	}{
		"nothing has passed":              {2, 1, 0, 0, ms, 0, ms, false},
		"it takes longer than was known":  {2, 1, 0, ms / 4, ms, ms / 2, ms, false},
		"not longer":                      {2, 1, 0, ms, ms, ms, ms, false},
		"than next to nothing":            {1, 1, 0, 1, ms, ms, ms, false},
		"a fence behind nothing":          {0, 1, 0, ms, ms, ms, ms, false},
		"which passes":                    {0, 1, 1, ms, ms, ms, ms, true},
		"one operation":                   {1, 1, 1, 0, ms, ms, ms, true},
		"two fences behind one":           {1, 2, 1, 0, ms, ms, ms, false},
		"both of them":                    {1, 2, 2, 0, ms, ms, ms, true},
		"within a moment":                 {1, 1, 0, 0, 1, 0, 1, false},
		"more than there are":             {1, 1, 9, 0, ms, ms, ms, true},
		"no time at all":                  {1, 1, 0, 0, 0, 0, 0, false},
		"a clock that has been set back":  {1, 1, 0, 0, -ms, 0, 0, false},
		"operations that nothing follows": {3, 0, 0, 0, ms, 0, ms, false},
	} {
		gauge := &fakeGauge{}
		g := meteredGate(t, gauge)
		g.submit()
		g.submitted.Store(c.ops)
		for range c.fences {
			g.fence()
		}
		began := g.counted
		g.moved, g.est = began, float64(c.est)
		gauge.passed.Store(c.pass)
		now := began.Add(c.after)
		g.lookLocked(now)
		if got := time.Duration(g.est); got != c.want || math.IsNaN(g.est) {
			t.Errorf("%s: an operation takes %v, not %v", what, got, c.want)
		}
		if busy := time.Duration(g.Usage.Busy.Load()); busy != c.busy || g.idle.Load() != c.idle {
			t.Errorf("%s: busy for %v, idle %v", what, busy, g.idle.Load())
		}
		if c.idle != g.quietAt.Equal(now) {
			t.Errorf("%s: quiet since %v", what, g.quietAt.Sub(began))
		}
		was := g.Usage.Busy.Load()
		if g.lookLocked(began.Add(2 * ms)); c.idle != (g.Usage.Busy.Load() == was) {
			t.Errorf("%s: at the next look it was busy for %v more", what, time.Duration(g.Usage.Busy.Load()-was))
		}
	}
	// As the consumer finds it: it fenced just as this side saw that it was idle.
	g := meteredGate(t, &fakeGauge{})
	g.fenced = 1
	if g.lookLocked(time.Now()); g.idle.Load() {
		t.Error("it is idle with a fence on its way")
	}
}

// TestFencesWait: where as many fences are on their way as can be told apart, one more waits until
// some have passed.
func TestFencesWait(t *testing.T) {
	gauge := &fakeGauge{}
	g := meteredGate(t, gauge)
	g.submit()
	for range depth {
		g.fence()
	}
	looks := 0
	gauge.asked = func() {
		if looks++; looks == 3 {
			gauge.passed.Store(5)
		}
	}
	began := time.Now()
	if g.fence(); looks != 3 || g.fenced != depth+1 || g.passed != 5 || gauge.last() != depth+1 {
		t.Errorf("after %d looks %d are given, of which %d have passed", looks, g.fenced, g.passed)
	}
	if took := time.Since(began); took < 2*napLeast {
		t.Errorf("it looks all the time, for %v", took)
	}
	if g.fence(); looks != 3 {
		t.Error("the next one, for which there is room, looks")
	}
}

// TestRoomIsLookedFor: before there is no room for an operation it is looked whether something has
// passed.
func TestRoomIsLookedFor(t *testing.T) {
	gauge := &fakeGauge{}
	g := meteredGate(t, gauge)
	for range firstOps {
		g.submit()
		g.fence()
	}
	looks := 0
	gauge.asked = func() { looks++ }
	if g.room() || looks != 1 {
		t.Errorf("there is room, after %d looks", looks)
	}
	if gauge.passed.Store(1); !g.room() || looks != 2 {
		t.Errorf("there is none, after %d looks", looks)
	}
	if !g.room() || looks != 2 {
		t.Errorf("what is known is looked for: %d looks", looks)
	}
}

// TestLackOfRoom: who waits for marks to pass sleeps: on the gauge's word where that gives it, and
// says so, else for a moment that is as short as the kernel can.
func TestLackOfRoom(t *testing.T) {
	runtime.LockOSThread() // of which the naps' exactness is
	defer runtime.UnlockOSThread()
	slack := func() int {
		n, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	was := slack()
	defer func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(was), 0, 0, 0) }()
	g := meteredGate(t, &fakeGauge{})
	for i, want := range []int{1000, 40000} { // only the first makes them exact
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 40000, 0, 0, 0)
		began := time.Now()
		g.lack()
		if took := time.Since(began); took < napLeast || slack() != want || !g.sharp {
			t.Errorf("nap %d: %v, slack %d", i, took, slack())
		}
	}

	gauge := &fakeGauge{tells: true}
	g = meteredGate(t, gauge)
	g.tells = true
	for range firstOps {
		g.submit()
		g.fence()
	}
	lacking, looks, meets := false, 0, func() {}
	gauge.asked = func() {
		looks++
		lacking = g.lacking.Load()
		meets()
	}
	slept := false
	for range 10 { // a signal may end a sleep early
		began := time.Now()
		g.lack()
		slept = slept || time.Since(began) >= stand
	}
	if !slept || !lacking || g.lacking.Load() || looks != 10 || g.sharp {
		t.Errorf("slept %v, as one that lacks room %v, and still %v, %d looks", slept, lacking, g.lacking.Load(), looks)
	}
	soon := false
	meets = g.pass // between the look and the sleep
	for range 50 {
		began := time.Now()
		g.lack()
		soon = soon || time.Since(began) < stand
	}
	if !soon {
		t.Error("it sleeps through what passes just before")
	}
	gauge.passed.Store(1)
	meets, soon = func() {}, false
	for range 50 {
		began := time.Now()
		g.lack()
		soon = soon || time.Since(began) < stand
	}
	if !soon {
		t.Error("it sleeps though there is room")
	}
}

// TestCloseAwaits: a gate is closed when nothing of it runs any more; then the session's usage says
// that there is nothing, unless another worker has it.
func TestCloseAwaits(t *testing.T) {
	for _, over := range []bool{false, true} {
		g := meteredGate(t, &fakeGauge{})
		g.Usage.Active.Store(1)
		g.Usage.Waiting.Store(1)
		ended := false
		g.group.Go(func() {
			<-g.quit
			time.Sleep(3 * time.Millisecond)
			ended = true
		})
		if g.Close(over); !ended {
			t.Error("closed before its goroutines have ended")
		}
		if told := g.Usage.Active.Load() == 0 && g.Usage.Waiting.Load() == 0 && page.Word(g.Usage.Drained.Load()) == g.Grant.Word(); told != over || g.Usage.Active.Load() != g.Usage.Waiting.Load() {
			t.Errorf("over %v: %+v", over, told)
		}
		var b [8]byte
		if _, err := unix.Read(g.Bell, b[:]); (err == nil) != over {
			t.Errorf("over %v: the bell rings %v", over, err == nil)
		}
	}
}
