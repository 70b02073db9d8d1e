package intake

import (
	"maps"
	"math/rand/v2"
	"testing"
)

// TestBoundsByChance: connections come and go. Each bound holds to the last, of all and of one, and
// whoever goes leaves a place, and nothing else.
func TestBoundsByChance(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for what, c := range map[string]struct {
		enter     func(i *Intake, who string) bool
		leave     func(i *Intake, who string)
		state     func(i *Intake) (int, map[string]int)
		most, one int
	}{
		"waiting": {(*Intake).enter, (*Intake).leave, func(i *Intake) (int, map[string]int) { return i.waiting, i.from }, mostWaiting, mostFromOne},
		"hosts":   {(*Intake).enterHost, (*Intake).leaveHost, func(i *Intake) (int, map[string]int) { return i.controls, i.hosts }, mostControls, mostOfOneHost},
	} {
		i, all, of := &Intake{}, 0, map[string]int{}
		for n := range 12000 {
			who := string(rune('a' + rng.IntN(20)))
			if leaving := n/2000%2 == 1; rng.IntN(4) > 0 == leaving {
				// They fill up, then most leave.
				if of[who] > 0 {
					c.leave(i, who)
					if all, of[who] = all-1, of[who]-1; of[who] == 0 {
						delete(of, who)
					}
				}
			} else if in := all < c.most && of[who] < c.one; c.enter(i, who) != in {
				t.Fatalf("%s: %d of %d are in, %d of %d of that one: the next is let in: %v", what, all, c.most, of[who], c.one, !in)
			} else if in {
				all, of[who] = all+1, of[who]+1
			}
			if got, each := c.state(i); got != all || !maps.Equal(each, of) && n > 0 {
				t.Fatalf("%s: %d, %v, not %d, %v", what, got, each, all, of)
			}
		}
	}
}
