package gate

import (
	"testing"
	"time"

	"causeway/host/schedule/page"
)

// TestClockBegins: the first operation of an idle session begins its time on the GPU at once, and
// so does the fence behind what it was given while it was free; a second one begins nothing.
func TestClockBegins(t *testing.T) {
	for what, first := range map[string]func(g *Gate) error{
		"an operation": func(g *Gate) error {
			g.Grant.Set(metered, time.Second)
			return g.Before(t.Context())
		},
		"a fence": func(g *Gate) error {
			g.Grant.Set(page.Open, 0)
			err := g.Before(t.Context())
			g.Grant.Set(metered, time.Second)
			g.become(0)
			return err
		},
	} {
		g := still(t, &fakeGauge{})
		g.idle.Store(true)
		began := time.Now()
		if err := first(g); err != nil {
			t.Fatal(err)
		}
		at := g.counted
		if g.idle.Load() || at.Before(began) || g.moved != at {
			t.Errorf("%s: idle %v, counted since %v, %v", what, g.idle.Load(), at.Sub(began), g.moved.Sub(began))
		}
		if err := g.Before(t.Context()); err != nil || g.counted != at {
			t.Errorf("%s: the clock begins again: %v", what, err)
		}
	}
}

// TestFreeTimeIsNotCounted: of work that was on the GPU when the session became free, whether it
// gave it more then or not, the free time is no busy time once it is metered again, and says
// nothing of how long operations take.
func TestFreeTimeIsNotCounted(t *testing.T) {
	const free = time.Hour
	for _, more := range []bool{false, true} {
		gauge := &fakeGauge{}
		g := still(t, gauge)
		g.Grant.Set(metered, time.Second)
		if err := g.Before(t.Context()); err != nil {
			t.Fatal(err)
		}
		g.Rest()
		g.Grant.Set(page.Open, 0)
		if !g.follow() {
			t.Fatal("the gate is closed for good")
		}
		if more {
			if err := g.Before(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		g.counted, g.moved = g.counted.Add(-free), g.moved.Add(-free)
		gauge.passed.Store(1)
		g.Grant.Set(metered, time.Second)
		g.become(0)
		gauge.passed.Store(g.fenced)
		g.mu.Lock()
		g.lookLocked(time.Now())
		g.mu.Unlock()
		if busy := time.Duration(g.Usage.Busy.Load()); busy >= free || !g.idle.Load() || g.est >= float64(time.Minute) {
			t.Errorf("more then %v: busy for %v, idle %v, an operation takes %v", more, busy, g.idle.Load(), time.Duration(g.est))
		}
	}
}

// TestAsksOnce: while the consumer is asked to fence what it submitted, it is not asked again;
// later it is.
func TestAsksOnce(t *testing.T) {
	g := still(t, &fakeGauge{})
	asked, answer := make(chan struct{}, 8), make(chan struct{}, 8)
	g.OnConsumer = func(func() error) error {
		asked <- struct{}{}
		<-answer
		return nil
	}
	g.settle() // there is nothing to fence
	g.loose.Store(true)
	for range 3 {
		g.settle()
	}
	for range 3 {
		answer <- struct{}{}
	}
	g.group.Wait()
	if len(asked) != 1 {
		t.Fatalf("asked %d times", len(asked))
	}
	g.settle()
	g.group.Wait()
	if len(asked) != 2 {
		t.Errorf("asked %d times, of which once later", len(asked))
	}
}
