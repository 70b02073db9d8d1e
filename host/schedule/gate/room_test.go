package gate

import (
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/schedule/page"
	"causeway/remote/sys"
)

// TestRoomByChance: there is room for an operation as long as fewer are on their way than the budget allows, and fewer fences than there are marks for: a consumer that
// fences each must not come to wait where it does nothing else.
func TestRoomByChance(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
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
	defer unix.Close(bell)
	grant.Set(page.Open|page.Metered, time.Second)
	gauge := &fakeGauge{}
	g := &Gate{Options: Options{Gauge: gauge, Grant: grant, Usage: usage, Bell: bell}, kick: make(chan struct{}, 1)}
	g.idle.Store(true)
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
