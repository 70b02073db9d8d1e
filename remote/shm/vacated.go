package shm

import (
	"fmt"
	"slices"
)

// maxVacated bounds how many ranges of addresses stay reserved. Linux gives a process 65,530
// mappings (vm.max_map_count).
const maxVacated = 16 << 10

// vacated are addresses at which a guest's regions have lain. They stay reserved, with nothing
// behind them: a driver that was told of them, by the node of a graph that copies there for
// instance, must find nothing of this process's there later. Sorted, none touching another.
type vacated struct{ spans []span }

// from is the index of the first span that ends at addr or behind it.
func (v *vacated) from(addr uintptr) int {
	i, _ := slices.BinarySearchFunc(v.spans, addr, func(s span, at uintptr) int {
		if s.addr+s.size < at {
			return -1
		}
		return 1
	})
	return i
}

// widestGap is the most of free addresses between two vacated ranges that is reserved to make one
// of them, in bytes.
const widestGap = 64 << 30

// makeRoom reports whether s can be added. At the bound it reserves the free addresses between
// vacated ranges as well, which makes few of many: a guest may place regions there as before.
func (v *vacated) makeRoom(s span) bool {
	if v.room(s) {
		return true
	}
	for i := len(v.spans) - 1; i > 0; i-- {
		low, high := v.spans[i-1], v.spans[i]
		end := low.addr + low.size
		if high.addr-end > widestGap {
			continue
		}
		if _, err := reserve(end, high.addr-end); err != nil {
			continue // something lies there
		}
		v.spans[i-1].size = high.addr + high.size - low.addr
		v.spans = slices.Delete(v.spans, i, i+1)
	}
	return v.room(s)
}

// room reports whether s can be added to what is there.
func (v *vacated) room(s span) bool {
	i := v.from(s.addr)
	return len(v.spans) < maxVacated || i < len(v.spans) && v.spans[i].addr <= s.addr+s.size
}

// block is what drivers reserve addresses in, in bytes: behind a region there may be as much that
// none has lain at, but not all of it.
const block = 32 << 20

// nearly reports whether at+size is vacated, but for less than a block at its end.
func (v *vacated) nearly(at, size uintptr) bool {
	i := v.from(at)
	if i < len(v.spans) && v.spans[i].addr+v.spans[i].size == at {
		// It ends there, and touches no other.
		i++
	}
	if i == len(v.spans) || size == 0 || at+size < at {
		return false
	}
	s := v.spans[i]
	return s.addr <= at && at+size-min(at+size, s.addr+s.size) < block
}

// add takes over a reservation. It overlaps none that is there.
func (v *vacated) add(s span) {
	i := v.from(s.addr)
	end := i
	for ; end < len(v.spans) && v.spans[end].addr <= s.addr+s.size; end++ {
		low := min(s.addr, v.spans[end].addr)
		high := max(s.addr+s.size, v.spans[end].addr+v.spans[end].size)
		s = span{low, high - low}
	}
	v.spans = slices.Replace(v.spans, i, end, s)
}

// take reserves the addresses at+size, those that are vacated among them, which then are no longer.
func (v *vacated) take(at, size uintptr) (span, error) {
	if at+size < at {
		return span{}, fmt.Errorf("addresses %#x+%#x wrap around", at, size)
	}
	var fresh, rest []span
	next := at // what lies below is reserved
	i := v.from(at)
	end := i
	fail := func(err error) (span, error) {
		for _, s := range fresh {
			s.release()
		}
		return span{}, err
	}
	gap := func(high uintptr) error {
		if next >= high {
			return nil
		}
		s, err := reserve(next, high-next)
		if err == nil {
			fresh = append(fresh, s)
		}
		return err
	}
	for ; end < len(v.spans) && v.spans[end].addr < at+size; end++ {
		s := v.spans[end]
		if err := gap(min(s.addr, at+size)); err != nil {
			return fail(err)
		}
		if s.addr < at {
			rest = append(rest, span{s.addr, min(at, s.addr+s.size) - s.addr})
		}
		if high := s.addr + s.size; high > at+size {
			rest = append(rest, span{at + size, high - at - size})
		}
		next = max(next, s.addr+s.size)
	}
	if err := gap(at + size); err != nil {
		return fail(err)
	}
	v.spans = slices.Replace(v.spans, i, end, rest...)
	return span{at, size}, nil
}

// release gives all addresses back.
func (v *vacated) release() {
	for _, s := range v.spans {
		s.release()
	}
	v.spans = nil
}
