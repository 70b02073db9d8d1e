package gate

import (
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/schedule/page"
	"causeway/remote/sys"
)

// still is a gate without goroutines, for a test that does everything itself.
func still(t *testing.T, gauge *fakeGauge) *Gate {
	t.Helper()
	usage, err := page.NewUsage(make([]byte, 4096))
	if err != nil {
		t.Fatal(err)
	}
	grant, err := page.NewGrant(make([]byte, 4096))
	if err != nil {
		t.Fatal(err)
	}
	bell, err := sys.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(bell) })
	g := &Gate{Options: Options{Gauge: gauge, Grant: grant, Usage: usage, Bell: bell, Serve: func() error { return nil }}, kick: make(chan struct{}, 1), quit: make(chan struct{})}
	g.idle.Store(true)
	return g
}

// TestFencesByChance: operations are fenced when there are enough of them, when nothing follows,
// and when the session is free no more; each once, and none while it is free.
func TestFencesByChance(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 1))
	gauge := &fakeGauge{}
	g := still(t, gauge)
	g.est = 1
	g.Grant.Set(metered, time.Second)
	// Operations behind the last fence; fences so far; whether it is free, and was.
	since, fences, free, loose := uint64(0), 0, false, false
	ops, marked := uint64(0), []uint64{0}
	fence := func() { since, fences, marked = 0, fences+1, append(marked, ops) }
	for step := range 20000 {
		switch n := rng.IntN(400); {
		case n == 0:
			free = !free
			if free {
				g.Grant.Set(page.Open, 0)
			} else {
				g.Grant.Set(metered, time.Second)
			}
		case n < 40:
			g.Rest()
			if since > 0 && g.free == 0 {
				fence()
			}
		case n < 60:
			gauge.passed.Store(uint64(fences))
		default:
			if open := uint64(fences) - gauge.passed.Load(); !free && (open > depth/2 || ops-marked[gauge.passed.Load()] > maxFlight/2) {
				gauge.passed.Store(uint64(fences)) // nothing is ever full here
				g.mu.Lock()
				g.lookLocked(time.Now())
				g.est = 1
				g.mu.Unlock()
			}
			if err := g.Before(t.Context()); err != nil {
				t.Fatal(err)
			}
			switch {
			case free:
				loose = true
			case loose: // whatever it left on the GPU
				loose = false
				fence()
				fallthrough
			default:
				since++
				ops++
			}
			segment := g.segment()
			g.After()
			if !free && since >= segment {
				fence()
			}
		}
		if gauge.fenced != fences || gauge.last() != uint64(fences) || gauge.on == (g.free != 0) && step > 400 {
			t.Fatalf("step %d: %d fences, the last of number %d, not %d; metering %v", step, gauge.fenced, gauge.last(), fences, gauge.on)
		}
		if got := g.marks[uint64(fences)%depth].ops; fences > 0 && got != marked[fences] {
			t.Fatalf("step %d: the last fence stands behind %d operations, not %d", step, got, marked[fences])
		}
	}
	if fences < 500 {
		t.Errorf("only %d fences", fences)
	}
}

// TestUsageAtTheEnd: when a session ends, nothing says any more that it wants the GPU, and the
// scheduler hears of it; when another worker has it, the usage is that one's.
func TestUsageAtTheEnd(t *testing.T) {
	for _, over := range []bool{true, false} {
		g := still(t, &fakeGauge{})
		g.Grant.Set(page.Metered, 0)
		g.Usage.Active.Store(1)
		g.Usage.Waiting.Store(1)
		g.Usage.Drained.Store(77)
		g.Close(over)
		want := [3]uint32{1, 1, 77}
		if over {
			want = [3]uint32{0, 0, uint32(g.Grant.Word())}
		}
		if got := [3]uint32{g.Usage.Active.Load(), g.Usage.Waiting.Load(), g.Usage.Drained.Load()}; got != want {
			t.Errorf("over %v: %v, not %v", over, got, want)
		}
		var b [8]byte
		if _, err := unix.Read(g.Bell, b[:]); (err == nil) != over {
			t.Errorf("over %v: the bell: %v", over, err)
		}
	}
}
