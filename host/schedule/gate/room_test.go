package gate

import (
	"math/rand/v2"
	"testing"
	"time"

	"causeway/host/schedule/page"
)

// TestRoomByChance: there is room for an operation as long as fewer are on their way than the
// budget allows, and fewer fences than there are marks for: a consumer that fences each must not
// come to wait where it does nothing else.
func TestRoomByChance(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	gauge := &fakeGauge{}
	g := still(t, gauge)
	g.Grant.Set(page.Open|page.Metered, time.Second)
	g.est = 1            // a billion fit the budget: the bounds count
	marks := []uint64{0} // operations ahead of each fence
	submitted, deepest, most := uint64(0), uint64(0), uint64(0)
	for step := range 6000 {
		fences, passed := uint64(len(marks)-1), gauge.passed.Load()
		going, open := submitted-marks[passed], fences-passed
		limit := g.limit()
		want := going < limit && open < depth || going == 0 && open == 0
		if got := g.room(); got != want {
			t.Fatalf("step %d: room %v with %d of %d operations and %d fences on their way", step, got, going, limit, open)
		}
		deepest, most = max(deepest, open), max(most, going)
		phase := step / 1000 % 3 // fences at every operation, few, and many that pass
		switch {
		case want && rng.IntN(4) > 0:
			g.submit()
			submitted++
			if phase == 0 || rng.IntN(200) == 0 {
				g.fence()
				marks = append(marks, submitted)
			}
		case open > 0 && (phase == 2 || rng.IntN(400) == 0):
			gauge.passed.Store(passed + 1 + rng.Uint64N(open))
		}
		if open == 0 && going > 0 && rng.IntN(50) == 0 {
			g.fence()
			marks = append(marks, submitted)
		}
	}
	if deepest < depth || most < 100 {
		t.Errorf("only %d fences and %d operations were on their way", deepest, most)
	}
}
