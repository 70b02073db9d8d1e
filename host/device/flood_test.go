package device

import (
	"errors"
	"testing"
	"time"
)

// TestDoor: a burst at once, then a bounded rate, with so many in wait; time brings the burst back.
func TestDoor(t *testing.T) {
	d := newDoor()
	now := time.Now()
	for i := range openBurst {
		if wait, err := d.enter(now); wait != 0 || err != nil {
			t.Fatalf("%d of the burst: %v, %v", i, wait, err)
		}
	}
	last := time.Duration(0)
	waiting := 0
	for {
		wait, err := d.enter(now)
		if err != nil {
			if !errors.Is(err, errTooFast) {
				t.Fatal(err)
			}
			break
		}
		if wait <= last || wait > openPatience {
			t.Fatalf("waits %v after one that waits %v", wait, last)
		}
		last = wait
		waiting++
	}
	if want := int(openPatience.Seconds() * openRate); waiting != want {
		t.Errorf("%d wait, want %d", waiting, want)
	}
	if _, err := d.enter(now.Add(time.Second / openRate)); err != nil {
		t.Errorf("after a token's time: %v", err)
	}
	if wait, err := d.enter(now.Add(time.Hour)); wait != 0 || err != nil {
		t.Errorf("an hour later: %v, %v", wait, err)
	}
	for range openBurst - 1 {
		if wait, err := d.enter(now.Add(time.Hour)); wait != 0 || err != nil {
			t.Fatalf("another burst: %v, %v", wait, err)
		}
	}
	if wait, _ := d.enter(now); wait <= 0 { // a clock that goes back
		t.Errorf("waits %v", wait)
	}
}
