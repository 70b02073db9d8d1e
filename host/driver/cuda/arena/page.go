package arena

import "math/bits"

// bitmap has one bit for each unit of a page.
type bitmap [units / 64]uint64

// page is shared by small blocks.
type page struct {
	at     uint64
	taken  bitmap // units in use
	starts bitmap // of them those that a block begins with
	used   uint   // how many are in use
	room   uint   // no free run is longer
	class  int    // the list that it is in, and its place there; -1: none
	index  int
}

func get(b *bitmap, i uint) bool { return b[i/64]>>(i%64)&1 != 0 }

// span calls f for each word that n bits from first on touch, with those of them that it holds.
func span(first, n uint, f func(word int, mask uint64)) {
	for n > 0 {
		k := min(n, 64-first%64)
		f(int(first/64), ^uint64(0)>>(64-k)<<(first%64))
		first, n = first+k, n-k
	}
}

// find is where n free units begin: the first.
func (p *page) find(n uint) (uint, bool) {
	run := uint(0)
	for i, w := range p.taken {
		at := uint(i) * 64
		switch w {
		case 0:
			if run += 64; run >= n {
				return at + 64 - run, true
			}
			continue
		case ^uint64(0):
			run = 0
			continue
		}
		for bit := uint(0); bit < 64; {
			free := min(uint(bits.TrailingZeros64(w>>bit)), 64-bit)
			if run += free; run >= n {
				return at + bit + free - run, true
			}
			if bit += free; bit < 64 {
				run = 0
				bit += uint(bits.TrailingZeros64(^(w >> bit)))
			}
		}
	}
	return 0, false
}

func (p *page) isFree(first, n uint) bool {
	free := true
	span(first, n, func(i int, mask uint64) { free = free && p.taken[i]&mask == 0 })
	return free
}

// take gives out n free units.
func (p *page) take(first, n uint) {
	span(first, n, func(i int, mask uint64) { p.taken[i] |= mask })
	p.starts[first/64] |= 1 << (first % 64)
	p.used += n
}

// give ends the block that begins with a unit, and reports how long the free run is that it has
// become part of.
func (p *page) give(first uint) uint {
	end := p.ends(first+1, func(i int) uint64 { return p.starts[i] | ^p.taken[i] })
	span(first, end-first, func(i int, mask uint64) { p.taken[i] &^= mask })
	p.starts[first/64] &^= 1 << (first % 64)
	p.used -= end - first
	before, _ := last(first, func(i int) uint64 { return p.taken[i] })
	return p.ends(end, func(i int) uint64 { return p.taken[i] }) - before
}

// ends is the first unit from one on whose bit is set, or the end of the page.
func (p *page) ends(from uint, word func(int) uint64) uint {
	for from < units {
		if w := word(int(from/64)) >> (from % 64); w != 0 {
			return from + uint(bits.TrailingZeros64(w))
		}
		from = (from/64 + 1) * 64
	}
	return units
}

// last is the unit behind the last one below end whose bit is set; false, and 0, if none is.
func last(end uint, word func(int) uint64) (uint, bool) {
	for end > 0 {
		i := (end - 1) / 64
		if w := word(int(i)) << (63 - (end-1)%64); w != 0 {
			return end - uint(bits.LeadingZeros64(w)), true
		}
		end = i * 64
	}
	return 0, false
}

// start is the unit that the block begins with that a unit is of, false if it is free.
func (p *page) start(i uint) (uint, bool) {
	if !get(&p.taken, i) {
		return 0, false
	}
	behind, ok := last(i+1, func(i int) uint64 { return p.starts[i] })
	return behind - 1, ok
}
