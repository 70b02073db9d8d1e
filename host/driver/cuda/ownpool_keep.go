package cuda

import (
	"slices"
)

// What a pool of the session's ranges keeps back, and when that may be taken away.

// passed reports whether the work is done behind which a block is free. With asked the driver is,
// once for each stream.
func (s *session) passed(b *keptBlock, asked map[*stream]bool) bool {
	st := b.st
	switch {
	case st == nil:
		return true
	case st.nonBlocking && st.reached(b.n):
		return true
	case !st.nonBlocking && st.green == 0 && s.blockingIdle(st.ctx):
		return true
	case asked == nil:
		return false
	}
	done, known := asked[st]
	if !known {
		done = s.everythingBefore(st)
		asked[st] = done
	}
	return done
}

// blockingIdle reports whether a context's blocking streams are known to have nothing to do: they
// wait for each other by the legacy stream.
func (s *session) blockingIdle(ctx uint32) bool {
	if legacy := s.legacy[ctx]; legacy != nil && legacy.busy() {
		return false
	}
	return !s.anyBusy(ctx, func(o *stream) bool { return !o.nonBlocking })
}

// everythingBefore asks the driver whether a stream has work, or others that it waits for by
// itself.
func (s *session) everythingBefore(st *stream) bool {
	for o := range s.everyStream() {
		if o != st && (st.nonBlocking || o.nonBlocking && st.green == 0) {
			continue
		}
		if s.settleStream(o); !s.finished(o) {
			return false
		}
	}
	return true
}

// takeAway ends what a pool keeps back and nothing can use any more, until it holds no more than
// keep bytes.
func (s *session) takeAway(p *ownPool, keep uint64, ask bool) {
	if p.idle == 0 || p.held <= keep || s.capturing() {
		return
	}
	r := s.arenas.ranges[p.dev]
	if r == nil {
		return
	}
	var asked map[*stream]bool
	if ask {
		asked = map[*stream]bool{}
		defer s.returnTo(s.current)
	}
	s.dropKept(p, func(all uint64, b *keptBlock) bool {
		if p.held <= keep || !s.passed(b, asked) {
			return false
		}
		r.Free(b.ptr)
		return true
	})
}

// returnTo makes a context current that was.
func (s *session) returnTo(ctx uint32) {
	if ctx != s.current && ctx != 0 {
		s.useContext(ctx)
	}
}

// dropKept ends the account of blocks that a pool has kept back and keeps no longer.
func (s *session) dropKept(p *ownPool, which func(all uint64, b *keptBlock) bool) {
	for all, list := range p.kept {
		list = slices.DeleteFunc(list, func(b keptBlock) bool {
			if !which(all, &b) {
				return false
			}
			p.idle -= all
			p.held -= all
			s.pooling.spare -= b.booked
			s.budget.Release(b.booked)
			return true
		})
		if p.kept[all] = list; len(list) == 0 {
			delete(p.kept, all)
		}
	}
}

// takeAwayAll does so for all pools: down to their thresholds, or all that they keep back.
func (s *session) takeAwayAll(thresholds, ask bool) {
	for _, p := range s.pooling.all {
		keep := uint64(0)
		if thresholds {
			keep = p.threshold
		}
		s.takeAway(p, keep, ask)
	}
	s.dropEnded()
}

// surrender waits for what is kept back and takes it away: there is no room otherwise. False: there
// was nothing, or it cannot be waited for.
func (s *session) surrender() bool {
	any := false
	for _, p := range s.pooling.all {
		any = any || p.idle > 0
		s.condemn(p, func(*keptBlock) bool { return true })
	}
	if s.dropEnded(); !any || s.capturing() || len(s.lingering) > 0 {
		return false
	}
	s.reclaim()
	for _, r := range s.arenas.ranges {
		r.Trim()
	}
	return true
}

// condemn has blocks that a pool keeps back end when all work of the session is done.
func (s *session) condemn(p *ownPool, which func(*keptBlock) bool) {
	s.dropKept(p, func(all uint64, b *keptBlock) bool {
		if !which(b) {
			return false
		}
		s.arenas.dying = append(s.arenas.dying, b.ptr)
		s.arenas.waits += all
		return true
	})
}

// leaveStream lets go of a stream that ends: its work goes on, and nobody can ask for it any more.
func (s *session) leaveStream(st *stream) {
	if !s.arenas.on {
		return
	}
	for _, p := range s.pooling.all {
		s.condemn(p, func(b *keptBlock) bool { return b.st == st && (!st.nonBlocking && st.busy() || !s.passed(b, nil)) })
		p.free(func(o *stream) bool { return o == st })
	}
	if st.busy() {
		if s.arenas.left == nil {
			s.arenas.left = map[uint32]bool{}
		}
		s.arenas.left[st.ctx] = true
	}
}

// leaveContext does so for the streams of a context. Its work has ended with it, unless it lingers.
func (s *session) leaveContext(id uint32, lingers bool) {
	delete(s.arenas.left, id)
	for _, p := range s.pooling.all {
		if lingers {
			s.condemn(p, func(b *keptBlock) bool { return b.st != nil && b.st.ctx == id })
		}
		p.free(func(o *stream) bool { return o.ctx == id })
	}
}

// free has blocks be for all that were freed on some streams.
func (p *ownPool) free(on func(*stream) bool) {
	for _, list := range p.kept {
		for i := range list {
			if list[i].st != nil && on(list[i].st) {
				list[i].st = nil
			}
		}
	}
}

// resetOwn ends the memory of pools: the primary context of their device was reset.
func (s *session) resetOwn() {
	for ptr, m := range s.allocs {
		if m.pool == nil {
			continue
		}
		s.arenas.running.ends(ptr)
		s.arenas.dying = append(s.arenas.dying, ptr)
		s.arenas.waits += m.size
		delete(s.allocs, ptr)
		s.unshareMemory(ptr)
		s.forgetOwn(m)
	}
	s.surrender()
	s.reclaim()
}
