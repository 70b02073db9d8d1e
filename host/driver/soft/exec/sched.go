package exec

import "math"

// fairSlice is how many instructions a split may issue before one that waits
// for it is let past, and fairLeast how many that one may issue. Threads of a
// warp may wait for each other (independent thread scheduling, as since
// sm_70), so running by priority alone could spin for ever. Every grant that
// was needed halves the slice, down to fairLeast, until the lanes meet again:
// they probably spin on a lock.
const (
	fairSlice = 32_000
	fairLeast = 500
)

// spinCost is what an operation that programs wait with, a volatile load or a
// compare-and-swap, costs on top: whoever spins soon lets others run.
const spinCost = 100

func (w *warp) mayspin() {
	w.budget -= spinCost
	w.patience -= spinCost
}

// losePatience ends the running split's slice, or the grant of one that was
// let past.
func (w *warp) losePatience() {
	w.rotate, w.limit = !w.favoured, -1
	w.favoured = false
	w.patience = w.fair
}

// unsettle makes the warp look at its splits again, unless the running one has
// a grant of its own.
func (w *warp) unsettle() {
	if !w.favoured {
		w.limit = -1
	}
}

// reschedule parks the running split, joins splits that stand at the same
// place, and picks the one to run: the deepest call first, then the lowest
// block. It reports false when none is ready.
func (w *warp) reschedule() bool {
	if w.mask != 0 {
		w.park(split{fr: w.fr, pc: w.pc, mask: w.mask})
		w.mask = 0
	}
	w.decision++
	w.join()
	best := -1
	for i := range w.splits {
		s := &w.splits[i]
		if s.state != splitReady {
			continue
		}
		if best < 0 || w.before(s, &w.splits[best]) {
			best = i
		}
	}
	if best < 0 {
		return false
	}
	s := w.splits[best]
	last := len(w.splits) - 1
	w.splits[best] = w.splits[last]
	w.splits = w.splits[:last]
	w.setFrame(s.fr)
	w.setMask(s.mask)
	w.pc = s.pc
	w.setLimit()
	return true
}

// before reports whether a runs rather than b.
func (w *warp) before(a, b *split) bool {
	if w.rotate {
		return a.decision < b.decision
	}
	if a.fr.depth != b.fr.depth {
		return a.fr.depth > b.fr.depth
	}
	return a.pc < b.pc
}

// setLimit computes where the running split must stop for another.
func (w *warp) setLimit() {
	w.limit = math.MaxInt32
	w.favoured = w.rotate
	if w.rotate {
		w.rotate, w.patience = false, fairLeast
		w.fair = max(w.fair/2, fairLeast)
		return
	}
	if len(w.splits) == 0 {
		w.fair = fairSlice
		w.patience = w.fair
	}
	for i := range w.splits {
		if s := &w.splits[i]; s.state == splitReady && s.fr == w.fr && s.pc < w.limit {
			w.limit = s.pc
		}
	}
}

// join merges ready splits at the same block of the same frame.
func (w *warp) join() {
	for i := 0; i < len(w.splits); i++ {
		a := &w.splits[i]
		if a.state != splitReady {
			continue
		}
		for j := i + 1; j < len(w.splits); {
			b := &w.splits[j]
			if b.state == splitReady && b.fr == a.fr && b.pc == a.pc {
				a.mask |= b.mask
				a.decision = min(a.decision, b.decision)
				last := len(w.splits) - 1
				*b = w.splits[last]
				w.splits = w.splits[:last]
			} else {
				j++
			}
		}
	}
}

// sync makes the running lanes wait until all lanes named by their member
// masks stand here or have ended.
func (w *warp) sync(b *block) {
	var need uint32
	masks := &w.r[b.reg]
	for _, l := range w.act {
		need |= uint32(masks[l&31])
	}
	w.pc = b.next
	if need&w.live&^w.mask == 0 {
		return
	}
	m := w.mask
	for i := 0; i < len(w.splits); {
		s := &w.splits[i]
		if s.state == splitSync && s.fr == w.fr && s.pc == b.next {
			m |= s.mask
			need |= s.need
			last := len(w.splits) - 1
			*s = w.splits[last]
			w.splits = w.splits[:last]
		} else {
			i++
		}
	}
	s := split{fr: w.fr, pc: b.next, mask: m, need: need}
	if need&w.live&^m != 0 {
		s.state = splitSync
	}
	w.park(s)
	w.mask = 0
}

// recheckSync readies splits whose missing lanes have ended.
func (w *warp) recheckSync() {
	for i := range w.splits {
		s := &w.splits[i]
		if s.state == splitSync && s.need&w.live&^s.mask == 0 {
			s.state = splitReady
		}
	}
}

// forceSync readies splits that wait for lanes which can no longer come, as
// hardware lets lanes meet at different warp-synchronous instructions. It
// reports whether there was one.
func (w *warp) forceSync() bool {
	found := false
	for i := range w.splits {
		if s := &w.splits[i]; s.state == splitSync {
			s.state, found = splitReady, true
		}
	}
	return found
}
