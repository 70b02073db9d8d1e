package precopy

import (
	"testing"
	"time"
)

func TestPace(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		most  int
		sent  []uint64
		took  []time.Duration
		next  []bool
		stuck bool
	}{
		"fits":          {0, []uint64{1000, 100}, []time.Duration{900 * ms, 90 * ms}, []bool{true, false}, false},
		"at once":       {0, []uint64{10}, []time.Duration{100 * ms}, []bool{false}, false},
		"bounded":       {2, []uint64{1000, 500}, []time.Duration{900 * ms, 450 * ms}, []bool{true, false}, false},
		"no headway":    {0, []uint64{1000, 990, 950, 960}, []time.Duration{900 * ms, 900 * ms, 900 * ms, 900 * ms}, []bool{true, true, true, false}, true},
		"only looked":   {0, []uint64{1000, 0}, []time.Duration{900 * ms, 600 * ms}, []bool{true, false}, false},
		"mostly looked": {0, []uint64{1000, 200, 100}, []time.Duration{900 * ms, 700 * ms, 650 * ms}, []bool{true, true, false}, false},
		"in buffers":    {0, []uint64{1000, 10, 300}, []time.Duration{900 * ms, 101 * ms, 400 * ms}, []bool{true, false, true}, false},
		"a dip":         {0, []uint64{1000, 990, 950, 500, 490}, []time.Duration{900 * ms, 900 * ms, 900 * ms, 450 * ms, 440 * ms}, []bool{true, true, true, true, true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := Pace{Pause: 100 * ms, Most: c.most}
			for i, want := range c.next {
				if next := p.Next(Round{Sent: c.sent[i]}, c.took[i]); next != want {
					t.Errorf("round %d: %v", i, next)
				}
			}
			if p.Stuck() != c.stuck {
				t.Errorf("stuck %v", p.Stuck())
			}
			if !c.stuck {
				return
			}
			p.Again() // what was done shows in the round after the next
			for i, want := range []bool{true, false} {
				if next := p.Next(Round{Sent: 960}, 900*ms); next != want || p.Stuck() == want {
					t.Errorf("round %d once it goes on: %v, stuck %v", i, next, p.Stuck())
				}
			}
		})
	}
}
