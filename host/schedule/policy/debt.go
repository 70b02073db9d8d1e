package policy

import (
	"math"
	"time"
)

/*
A kernel that takes longer than a slice is paid back by the slices of others. But those pause, for
as little as a moment between two of their kernels, and who is alone in wanting the GPU then has it:
with a kernel of 10 ms in each pause of 70 us one with a tenth of a GPU had two thirds. So who held
the GPU after its turn, while others wanted it, is in their debt: it waits through their pauses too,
up to breath, until they could have had what is theirs of it.
*/
const (
	// breath is how long one that became quiet keeps the GPU from those in its debt: longer than
	// between two kernels of one program, and little of what a program computes without a GPU.
	breath = 2 * time.Millisecond
	// mostDebt is how much of the time after its turn counts.
	mostDebt = time.Second
)

// breathes reports whether s wants the GPU, or did a moment ago.
func (s *Share) breathes(now time.Time) bool {
	return !s.throttled && (s.active || now.Sub(s.leftAt) < breath)
}

// owe adds to the debt of one that had the GPU for held after its turn, or lets the time dt take
// from it.
func (g *GPU) owe(now time.Time, s *Share, held, dt time.Duration) {
	if s.debt == 0 && (held <= 0 || s.Mode != Closed) {
		return // nothing comes of it, and most are so, each time
	}
	w, wanted, there := 0.0, false, false
	for _, o := range g.shares {
		if o == s {
			continue
		}
		there = there || o.recently(now)
		if o.breathes(now) {
			w, wanted = w+o.weight(), wanted || o.active
		}
	}
	switch {
	case !there:
		s.debt = 0
	// What was in flight is its due.
	case held > 0 && s.Mode == Closed && wanted && now.Sub(s.closedAt) > g.flight():
		s.debt = min(s.debt+float64(held)/s.weight(), float64(mostDebt)/s.weight())
	case s.debt > 0 && w > 0 && s.Mode == Closed:
		s.debt = max(s.debt-float64(dt)/w, 0)
	}
}

// indebted is for how long yet one gets nothing for the sake of others, who are in nobody's debt.
// 0: it is not.
func (g *GPU) indebted(now time.Time, s *Share) time.Duration {
	w, creditor := 0.0, false
	if s.debt <= 0 {
		return 0
	}
	for _, o := range g.shares {
		if o != s && o.breathes(now) {
			w, creditor = w+o.weight(), creditor || o.debt <= 0
		}
	}
	if !creditor {
		return 0
	}
	return time.Duration(math.Ceil(s.debt * w))
}
