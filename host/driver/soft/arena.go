package soft

import (
	"golang.org/x/sys/unix"
)

// commit makes the chunks around an allocation accessible. Pages get memory when they are touched.
func (ar *arena) commit(lo, size uint64) error {
	from := (lo - ar.base) &^ (chunkSize - 1)
	to := (lo - ar.base + size + chunkSize - 1) &^ (chunkSize - 1)
	if err := unix.Mprotect(ar.mem[from:to], unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return err
	}
	if size >= chunkSize {
		// Fewer page faults, where the kernel can.
		_ = unix.Madvise(ar.mem[from:to], unix.MADV_HUGEPAGE)
	}
	return nil
}

// decommitLocked gives back the memory of an allocation that is no longer among the intervals:
// chunks that nobody else uses become inaccessible, pages that nobody else uses lose their memory.
func (s *space) decommitLocked(a *allocation) {
	if a.device < 0 || a.device >= len(s.arenas) {
		return
	}
	ar := s.arenas[a.device]
	lo, hi := a.lo, a.lo+a.size
	before, after := ar.base, ar.limit // nearest neighbours
	list := *s.intervals.Load()
	i := s.firstEndingAfter(lo)
	if i < len(list) {
		after = min(after, list[i].lo)
	}
	if i > 0 {
		before = max(before, list[i-1].hi)
	}
	if from, to := within(lo, hi, before, after, pageSize); from < to {
		_ = unix.Madvise(ar.mem[from-ar.base:to-ar.base], unix.MADV_DONTNEED)
	}
	if from, to := within(lo, hi, before, after, chunkSize); from < to {
		_ = decommit(ar.mem[from-ar.base : to-ar.base])
		ar.unpublish(from, to)
	}
}

// within widens lo and hi to multiples of unit, where that stays between before and after; else it
// narrows them.
func within(lo, hi, before, after, unit uint64) (from, to uint64) {
	if from = lo &^ (unit - 1); from < before {
		from = (lo + unit - 1) &^ (unit - 1)
	}
	if to = (hi + unit - 1) &^ (unit - 1); to > after {
		to = hi &^ (unit - 1)
	}
	return from, to
}
