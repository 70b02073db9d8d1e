package policy

import (
	"time"
)

// grant sets all modes.
func (g *GPU) grant(now time.Time, want []*Share) {
	alone := len(want) == 1 && g.others(now, want[0]) == 0
	flight := g.flight()
	for _, s := range g.shares {
		if s != g.holder && s.recently(now) && g.interactive(s) {
			flight = FlightInteractive
		}
	}
	for _, s := range g.shares {
		if s != g.holder {
			s.set(now, g.quiet(now, s, len(want)), flight)
		}
	}
	switch h := g.holder; {
	case h == nil:
	case alone && h.cap() == 0:
		h.set(now, Free, flight)
	case h.Mode != Closed || g.beside || g.cleared(now):
		if h.Mode == Closed {
			g.sliceAt, g.sliceEnd = now, now.Add(g.quantum()) // the wait for others is not its time
		}
		h.set(now, Metered, flight)
	default:
		h.set(now, Closed, flight)
	}
}

// heldBack reports whether one is to get nothing now, whatever the others want: by its cap, for
// what the driver's account has charged, or for what it held after its turn.
func (g *GPU) heldBack(now time.Time, s *Share) bool {
	return s.throttled || g.barred(now, s) > 0 || g.indebted(now, s) > 0
}

// quiet is the mode of one that does not hold the GPU.
func (g *GPU) quiet(now time.Time, s *Share, want int) Mode {
	switch {
	case s.active || g.heldBack(now, s):
		return Closed
	case len(g.shares) == 1 && s.cap() == 0:
		return Free // nobody to share with: it need not say when it begins
	case want == 0 || g.interactive(s):
		return Metered
	}
	return Closed
}

// recently reports whether s wants the GPU, or did within Calm.
func (s *Share) recently(now time.Time) bool { return s.active || now.Sub(s.leftAt) < Calm }

// others counts those that may want the GPU any moment.
func (g *GPU) others(now time.Time, but *Share) int {
	n := 0
	for _, s := range g.shares {
		if s != but && s.recently(now) {
			n++
		}
	}
	return n
}

// cleared reports whether the GPU is done with all but the holder, or took too long.
func (g *GPU) cleared(now time.Time) bool {
	for _, s := range g.shares {
		if s != g.holder && s.active && s.opened && !s.drained && now.Sub(s.closedAt) < Patience {
			return false
		}
	}
	return true
}

func (s *Share) set(now time.Time, m Mode, budget time.Duration) {
	if m == Closed && s.Mode != Closed {
		s.closedAt = now
		s.drained = false // until it says so
	}
	if m != Closed {
		s.opened = true
	} else if s.drained {
		s.opened = false
	}
	s.Mode, s.Budget = m, budget
}

// next is when something happens that no report announces.
func (g *GPU) next(now time.Time, want []*Share) (next time.Time) {
	at := func(t time.Time) {
		if t.Before(now.Add(shortNext)) {
			t = now.Add(shortNext)
		}
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	h := g.holder
	if h != nil && len(want) > 1 {
		at(g.sliceEnd)
		if g.sliceAt.Add(g.minSlice()).After(now) {
			at(g.sliceAt.Add(g.minSlice()))
		}
	}
	for _, s := range g.shares {
		if left := g.barred(now, s); left > 0 {
			at(now.Add(left))
			for _, o := range g.shares {
				if o != s && !o.active && o.recently(now) {
					at(o.leftAt.Add(Calm)) // there may be nobody then for whose sake it is barred
				}
			}
		}
		if left := g.indebted(now, s); left > 0 && s.active {
			at(now.Add(left))
			for _, o := range g.shares {
				if o != s && !o.active && o.breathes(now) {
					at(o.leftAt.Add(breath))
				}
			}
		}
		if h != nil && h.Mode == Closed && s != h && s.active && s.opened && !s.drained {
			at(s.closedAt.Add(Patience))
		}
		if c := s.cap(); c > 0 {
			switch {
			case s.throttled && s.active:
				at(now.Add(time.Duration((g.capSlice() - s.tokens) / c)))
			case s.Mode == Metered && s.active:
				at(now.Add(time.Duration(s.tokens / (1 - c))))
			}
		}
		if h != nil && h.Mode == Metered && h.cap() == 0 && !s.active && s.recently(now) {
			at(s.leftAt.Add(Calm)) // the holder becomes free
		}
	}
	return next
}
