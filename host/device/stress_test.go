package device_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// TestWakeUps has both sides fall asleep at all kinds of moments. A wake-up that got lost shows as
// a call that takes as long as the watchdogs do (a second), or for ever. On a crowded machine some
// take as long for no fault of ours: then it is tried again.
func TestWakeUps(t *testing.T) {
	v := boot(t)
	_, g := start(t, v)
	const tries = 5
	for try := 1; ; try++ {
		worst, slow := time.Duration(0), 0
		for range 600 {
			time.Sleep(time.Duration(rand.IntN(400)) * time.Microsecond)
			begin := time.Now()
			if res, err := g.Call(0, &wire.CtxSynchronizeArgs{}, nil); err != nil || res != cuda.Success {
				t.Fatal(res, err)
			}
			took := time.Since(begin)
			if worst = max(worst, took); took > 900*time.Millisecond {
				if slow++; slow > 2 {
					break
				}
			}
		}
		t.Logf("slowest call: %v", worst)
		if slow <= 2 {
			break
		}
		if try == tries {
			t.Errorf("%d times more than 2 of 600 calls waited for a watchdog: the slowest took %v", tries, worst)
			break
		}
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}
