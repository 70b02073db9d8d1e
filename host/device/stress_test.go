package device_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// TestWakeUps has both sides fall asleep at all kinds of moments. A wake-up that got lost shows as a call that takes as long as
// the watchdogs do (a second), or for ever.
func TestWakeUps(t *testing.T) {
	v := boot(t)
	_, g := start(t, v)
	worst := time.Duration(0)
	for range 600 {
		time.Sleep(time.Duration(rand.IntN(400)) * time.Microsecond)
		begin := time.Now()
		if res, err := g.Call(0, &wire.CtxSynchronizeArgs{}, nil); err != nil || res != cuda.Success {
			t.Fatal(res, err)
		}
		worst = max(worst, time.Since(begin))
	}
	if worst > 900*time.Millisecond {
		t.Errorf("a call took %v", worst)
	}
	t.Logf("slowest call: %v", worst)
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}
