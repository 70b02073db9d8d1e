package policy

import (
	"math/rand/v2"
	"testing"
	"time"
)

// seen is what a share's reports and modes have said: whether there may be work of it on the GPU.
type seen struct {
	drained, opened bool
	closedAt        time.Time
}

// TestNobodyOverlaps: reports by chance. GPU time is charged to those that may have work there, all
// of it and to nobody else; and who gets the GPU behind others gets it when they have said, since
// they were closed, that they are done, or had the time for that.
func TestNobodyOverlaps(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var g GPU
		now := epoch
		model := map[*Share]*seen{}
		for range 2 + rng.IntN(3) {
			model[g.Join(now, Limits{Weight: 1 + rng.Uint32N(3)})] = &seen{drained: true}
		}
		g.Decide(now)
		for s, m := range model {
			m.opened = s.Mode != Closed
		}
		for range 2000 {
			for _, s := range g.shares {
				if rng.IntN(3) > 0 {
					continue
				}
				r := Report{Active: rng.IntN(5) > 0, Drained: rng.IntN(3) == 0, Busy: time.Duration(rng.IntN(500)) * time.Microsecond}
				g.Report(s, now, r)
				model[s].drained = r.Drained || !r.Active
			}
			modes, held, on := map[*Share]Mode{}, map[*Share]time.Duration{}, 0
			for s, m := range model {
				if modes[s], held[s] = s.Mode, s.Held; s.active && (s.Mode != Closed || m.opened && !m.drained) {
					on++
				}
			}
			step := time.Duration(1+rng.IntN(3000)) * time.Microsecond
			now = now.Add(step)
			g.Decide(now)
			for s, m := range model {
				due := time.Duration(0)
				if s.active && (modes[s] != Closed || m.opened && !m.drained) {
					due = step / time.Duration(on)
				}
				if got := s.Held - held[s]; got < due-1 || got > due+1 {
					t.Fatalf("seed %d: %v of %v are charged to one of %d, %v, %+v", seed, got, step, on, modes[s], *m)
				}
			}
			for s, m := range model {
				if s.Mode == Closed && modes[s] != Closed {
					m.closedAt, m.drained = now, false
				}
			}
			if h := g.holder; h != nil && modes[h] == Closed && h.Mode == Metered && !g.beside {
				for s, m := range model {
					if s != h && s.active && m.opened && !m.drained && now.Sub(m.closedAt) < Patience && s.Mode == Closed {
						t.Fatalf("seed %d: the GPU is given on %v after another was closed, which has not said that it is done", seed, now.Sub(m.closedAt))
					}
				}
			}
			for s, m := range model {
				m.opened = s.Mode != Closed || m.opened && !m.drained
			}
		}
	}
}

// TestLedger: what the driver claims beyond what was counted is charged when it is much, and only
// what it claimed since there was credit.
func TestLedger(t *testing.T) {
	const ms = time.Millisecond
	var l ledger
	counted := time.Duration(0)
	for i, c := range []struct{ had, card, due time.Duration }{
		{0, 300 * ms, 0},                 // -225 ms of credit: little
		{400 * ms, 0, 0},                 // made good: what was short is forgotten
		{0, 500 * ms, 0},                 // 200 ms short of it
		{0, 100 * ms, 600 * ms},          // and now too much: both are due
		{0, 300 * ms, 0},                 // the account begins anew
		{time.Hour, 0, 0},                // credit, of which 2 s are kept
		{0, 2 * time.Second, 0},          // half a second of it is left
		{0, 900 * ms, 0},                 // 175 ms beyond are short
		{0, 110 * ms, 1010 * ms},         // of what came since there was credit
		{100 * ms, 133 * ms, 0},          // a quarter may be missing for ever
		{1000 * ms, 1333 * ms, 0},        // however much that is
		{100 * ms, 5000 * ms, 4900 * ms}, // but no more
	} {
		counted += c.had
		if due := l.due(counted, c.card); due != c.due {
			t.Errorf("period %d: %v is due, not %v; %+v", i, due, c.due, l)
		}
	}
}
