package device

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"causeway/host/worker/link"
	"causeway/host/worker/precopy"
)

// TestThrottleSteps: who changes memory as fast as it is sent is held back more with each such round, until rounds fall, or nothing more can be done; but only if that was asked for.
func TestThrottleSteps(t *testing.T) {
	const second = time.Second
	run := func(asked bool, rounds ...uint64) (steps []int, ready, stuck bool) {
		o := &copyOut{d: &Device{log: slog.New(slog.DiscardHandler)}, opt: CopyOptions{Throttle: asked}, streams: map[*session]*outStream{}}
		pace := precopy.Pace{Pause: second / 2}
		for _, sent := range rounds {
			o.counted(precopy.Round{Looked: 1000, Sent: sent}, time.Duration(sent)*time.Millisecond, &pace)
			if steps = append(steps, o.st.Throttled); o.st.Ready {
				break
			}
		}
		return steps, o.st.Ready, o.st.Stuck
	}
	same := slices.Repeat([]uint64{1000}, 30)
	if steps, ready, stuck := run(false, same...); !ready || !stuck || slices.Max(steps) != 0 || len(steps) != 4 {
		t.Errorf("not asked: %v, ready %v, stuck %v", steps, ready, stuck)
	}
	if steps, ready, stuck := run(true, same...); !ready || !stuck || !slices.Equal(steps, []int{0, 0, 0, 20, 20, 30, 30, 40, 40, 50, 50, 60, 60, 70, 70, 80, 80, 90, 90, link.MostThrottle, link.MostThrottle, link.MostThrottle}) {
		t.Errorf("always as much: %v, ready %v, stuck %v", steps, ready, stuck)
	}
	if steps, ready, stuck := run(true, 1000, 1000, 1000, 1000, 1000, 1000, 800, 600, 400); !ready || stuck || !slices.Equal(steps, []int{0, 0, 0, 20, 20, 30, 30, 30, 30}) {
		t.Errorf("it helps: %v, ready %v, stuck %v", steps, ready, stuck)
	}
}
