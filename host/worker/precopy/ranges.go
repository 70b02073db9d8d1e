package precopy

import (
	"slices"
	"sort"
)

// rangeList is ranges by their addresses, apart, in parts that are short enough to be moved:
// however many come, and in whichever order, each costs about the same. Pointers to them are good
// until the list changes.
type rangeList struct {
	parts [][]held // none is empty
	n     int
}

// partMost is how many ranges a part has.
const partMost = 512

// after is where the first range lies that ends behind an address; behind the last part: there is
// none.
func (l *rangeList) after(addr uint64) (part, i int) {
	part = sort.Search(len(l.parts), func(k int) bool { p := l.parts[k]; return p[len(p)-1].end() > addr })
	if part < len(l.parts) {
		p := l.parts[part]
		i = sort.Search(len(p), func(k int) bool { return p[k].end() > addr })
	}
	return part, i
}

// next is the first range that ends behind an address; nil: there is none.
func (l *rangeList) next(addr uint64) *held {
	part, i := l.after(addr)
	if part == len(l.parts) {
		return nil
	}
	return &l.parts[part][i]
}

// at is the range that holds an address; nil: none does.
func (l *rangeList) at(addr uint64) *held {
	if h := l.next(addr); h != nil && h.Addr <= addr {
		return h
	}
	return nil
}

// exactly is that very range; nil: it is none.
func (l *rangeList) exactly(r Range) *held {
	if h := l.at(r.Addr); h != nil && h.Range == r {
		return h
	}
	return nil
}

// insert adds a range that overlaps none.
func (l *rangeList) insert(h held) {
	l.n++
	part, i := l.after(h.Addr)
	switch {
	case len(l.parts) == 0:
		l.parts = append(l.parts, nil)
	case part == len(l.parts):
		part--
		i = len(l.parts[part])
	}
	p := slices.Insert(l.parts[part], i, h)
	if len(p) > partMost {
		half := len(p) / 2
		l.parts = slices.Insert(l.parts, part+1, slices.Clone(p[half:]))
		clear(p[half:])
		p = p[:half]
	}
	l.parts[part] = p
}

// remove takes the range away that holds an address.
func (l *rangeList) remove(addr uint64) {
	part, i := l.after(addr)
	l.n--
	if l.parts[part] = slices.Delete(l.parts[part], i, i+1); len(l.parts[part]) == 0 {
		l.parts = slices.Delete(l.parts, part, part+1)
	}
}
