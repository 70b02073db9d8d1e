package remote

import (
	"context"
	"testing"
	"time"
)

// slowRing is an empty ring whose consumer is off its core for so long at each look.
type slowRing struct {
	Ring
	off  time.Duration
	left int // looks until there is something; 0: never
}

func (r *slowRing) Poll(int) bool {
	time.Sleep(r.off)
	r.left--
	return r.left == 0
}

func (r *slowRing) SetState(uint32) {}

type silentBell struct{ Doorbell }

func (silentBell) Wait(context.Context) error { return nil }

// TestCrowded: on few cores a consumer that was off its core for longer than polling is worth polls
// no more, and tries again after some sleeps; with many cores it does not ask.
func TestCrowded(t *testing.T) {
	for _, few := range []bool{true, false} {
		r := &slowRing{off: 2 * SpinMost}
		i := NewIdle(r, silentBell{}, func() bool { return false })
		i.spin, i.giveWay = spinFirst, few
		d := time.Duration(0) // many: polls once
		if few {
			d = time.Hour
		}
		if i.Spin(d) {
			t.Error("an empty ring has something")
		}
		if crowded := i.Patience() == 0; crowded != few {
			t.Errorf("few cores %v: patience %v", few, i.Patience())
		}
		r.off = 0
		for n := 0; i.Patience() == 0; n++ {
			if n > crowdedFor {
				t.Fatal("it never polls again")
			}
			if err := i.Sleep(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestSpin finds what comes meanwhile.
func TestSpin(t *testing.T) {
	i := NewIdle(&slowRing{left: 3}, silentBell{}, func() bool { return false })
	if !i.Spin(time.Hour) {
		t.Error("what came was not found")
	}
}

// TestFarIdle: a ring across a link is not polled where cores are few, also after sleeps that were
// short.
func TestFarIdle(t *testing.T) {
	i := NewFarIdle(&slowRing{}, silentBell{}, func() bool { return false })
	for range 3 {
		if polls := i.Patience() > 0; polls == i.giveWay {
			t.Fatalf("few cores %v: patience %v", i.giveWay, i.Patience())
		}
		if err := i.Sleep(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
