package device

import (
	"errors"
	"math/rand/v2"
	"testing"

	"causeway/host/api"
)

// TestAwayByChance: what a session held that left the GPU for others counts as theirs until it is
// back, also when it could not come back at first; one that is back needs nothing.
func TestAwayByChance(t *testing.T) {
	inKernel(t, func(k *kernel) {
		rng := rand.New(rand.NewPCG(8, 1))
		k.d.opts.Swap = true
		k.d.budget.SetRoom(1 << 30)
		zero := k.begin()
		var counts api.Swaps
		// Whether it is suspended, and for others; with what, and what of that counts.
		out, forOthers, held, away := false, false, uint64(0), uint64(0)
		for step := range 60 {
			s := k.session()
			switch {
			case !out:
				what := Suspension{Away: rng.IntN(3) > 0}
				held = rng.Uint64N(1 << 20)
				k.d.budget.SetBeside(s.res.slot, held)
				if did, err := k.d.Suspend(t.Context(), what); err != nil || did.Sessions != 1 {
					t.Fatalf("step %d: %+v, %v", step, did, err)
				}
				if out, forOthers = true, what.Away; forOthers {
					away = held
					counts.Out, counts.OutBytes = counts.Out+1, counts.OutBytes+held
				}
			case rng.IntN(2) == 0:
				k.workers.refusesAll(errHangs)
				if _, err := k.d.Resume(t.Context(), Suspension{}); !errors.Is(err, errHangs) {
					t.Fatalf("step %d: %v", step, err)
				}
				k.workers.refusesAll(nil)
			default:
				k.d.addNeed(&need{s: s, bytes: 1 << 40}) // as of one that found no room
				if did, err := k.d.Resume(t.Context(), Suspension{}); err != nil || did.Sessions != 1 {
					t.Fatalf("step %d: %+v, %v", step, did, err)
				}
				if out = false; forOthers {
					counts.In, counts.InBytes = counts.In+1, counts.InBytes+held
				}
				away = 0
				k.settle()
				k.lend(loanAt(0, 0), zero)
				k.settle()
			}
			k.settle()
			st := k.d.RoomStatus()
			if st.Away != away || len(st.Needs) != 0 || k.d.rooms.counts != counts {
				t.Fatalf("step %d: %d away, not %d; %d needs; %+v, not %+v", step, st.Away, away, len(st.Needs), k.d.rooms.counts, counts)
			}
			if s.state != running && !out || s.state != suspended && out {
				t.Fatalf("step %d: it is %v", step, s.state)
			}
		}
	})
}
