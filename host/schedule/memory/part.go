package memory

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// ReservePart counts n bytes of the part that has a limit of its own, of what is reserved or about
// to be, if that limit allows: else false, and nothing has changed. It reserves nothing by itself.
func (b *Budget) ReservePart(n uint64) bool {
	if b.adopted.Load() {
		b.part.Add(n)
		return true
	}
	for try := range tries {
		limit := atomic.LoadUint64(&b.words[wordPart])
		if n > sane || !fits(limit, 0, n) {
			return false
		}
		atomic.AddUint64(&b.slot[slotPart], n)
		if fits(limit, 0, b.parts()) {
			return true
		}
		atomic.AddUint64(&b.slot[slotPart], -n)
		if !fits(limit, b.parts(), n) {
			return false // whoever raced: there is no room
		}
		if try > 0 {
			time.Sleep(rand.N(longWait))
		}
	}
	return false
}

// BookPart counts what there is already, limit or not.
func (b *Budget) BookPart(n uint64) {
	if b.adopted.Load() {
		b.part.Add(n)
		return
	}
	atomic.AddUint64(&b.slot[slotPart], n)
}

// ReleasePart counts n bytes no more.
func (b *Budget) ReleasePart(n uint64) {
	if b.adopted.Load() {
		b.part.Add(-n)
		return
	}
	b.drop(slotPart, n)
}

// PartLimit is the limit of that part now; 0: none.
func (b *Budget) PartLimit() uint64 { return atomic.LoadUint64(&b.words[wordPart]) }

// parts is what all sessions have of it.
func (b *Budget) parts() (total uint64) {
	for i := range min(atomic.LoadUint64(&b.words[wordSlots]), Slots) {
		total += min(atomic.LoadUint64(&b.words[headWords+i*slotWords+slotPart]), sane)
	}
	return total
}
