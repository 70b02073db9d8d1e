package memory

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"causeway/remote/sys"
)

// Budget is one session's end of a virtual GPU's budget. Its methods may be called from any
// goroutine, except Adopt and Settle.
type Budget struct {
	words []uint64
	slot  []uint64
	// context is what a context is guessed to take.
	context uint64
	adopted atomic.Bool   // what is reserved is the predecessor's, still in the slot
	moving  atomic.Uint64 // reserved since Adopt
	part    atomic.Uint64 // the part of it
	brings  atomic.Bool   // what is reserved comes with a session, and waits for no room
	short   atomic.Uint64 // the most that was refused for lack of room since Short
}

// Open uses a slot of a mapped page, which stays mapped as long as the budget is used. context is
// what a context takes beside allocations, as far as anybody knows.
func Open(mem []byte, slot int, context uint64) (*Budget, error) {
	if len(mem) < pageBytes || slot < 0 || slot >= Slots {
		return nil, fmt.Errorf("slot %d of a memory budget of %d bytes: %w", slot, len(mem), sys.ErrPage)
	}
	words := sys.Words(mem)
	return &Budget{words: words, slot: words[headWords+slot*slotWords:][:slotWords], context: context}, nil
}

// Tries of a session that sees no room while others reserve.
const (
	tries    = 8
	longWait = 200 * time.Microsecond
)

// Reserve books n bytes if the limit allows: else false, and nothing has changed.
func (b *Budget) Reserve(n uint64) bool {
	if b.adopted.Load() {
		b.moving.Add(n)
		return true
	}
	return b.add(slotHeld, n)
}

// add adds n to a word of the slot, if the limit allows.
func (b *Budget) add(word int, n uint64) bool {
	for try := range tries {
		limit, room, away := b.Limit(), b.room(), atomic.LoadUint64(&b.words[wordAway])
		if n > sane || !fits(limit, away, n) {
			return false
		}
		atomic.AddUint64(&b.slot[word], n)
		used := b.held()
		if fits(limit, away, used) && fits(room, 0, used) {
			b.note()
			return true
		}
		atomic.AddUint64(&b.slot[word], -n)
		switch used := b.held(); {
		case !fits(limit, used+min(away, sane), n):
			return false // whoever raced: there is no room
		case !fits(room, used, n):
			b.wantMore(n)
			return false
		}
		if try > 0 {
			time.Sleep(rand.N(longWait))
		}
	}
	return false
}

// Bring says whether what is reserved from now on comes with a session from another host: it is
// there, and takes what the limit allows. Others make room for it afterwards.
func (b *Budget) Bring(yes bool) { b.brings.Store(yes) }

func (b *Budget) room() uint64 {
	if b.brings.Load() {
		return 0
	}
	return atomic.LoadUint64(&b.words[wordRoom])
}

// fits says whether a bound, 0: none, holds n beside what is there.
func fits(bound, there, n uint64) bool { return bound == 0 || there <= bound && n <= bound-there }

func (b *Budget) wantMore(n uint64) {
	for old := b.short.Load(); old < n && !b.short.CompareAndSwap(old, n); old = b.short.Load() {
	}
}

// Short is the most bytes that the limit allows and that were refused for lack of room since it was
// asked last; 0: none were.
func (b *Budget) Short() uint64 {
	// Asked after each operation: an exchange waits for all that this has stored.
	if b.short.Load() == 0 {
		return 0
	}
	return b.short.Swap(0)
}

// Book books what is taken already, limit or not.
func (b *Budget) Book(n uint64) {
	if b.adopted.Load() {
		b.moving.Add(n)
		return
	}
	atomic.AddUint64(&b.slot[slotHeld], n)
	b.note()
}

// Release gives n bytes back, which were reserved or booked.
func (b *Budget) Release(n uint64) {
	if b.adopted.Load() {
		b.moving.Add(-n)
		return
	}
	b.drop(slotHeld, n)
}

// drop takes n bytes from a word of the slot, or all that it has.
func (b *Budget) drop(word int, n uint64) {
	for {
		held := atomic.LoadUint64(&b.slot[word])
		if atomic.CompareAndSwapUint64(&b.slot[word], held, held-min(held, n)) {
			return
		}
	}
}

// Enter books a context that is about to be made, if the limit allows.
func (b *Budget) Enter() bool {
	if b.adopted.Load() {
		return true
	}
	return b.add(slotGuess, b.context)
}

// Leave is the end of a context, or of making it.
func (b *Budget) Leave() { b.drop(slotGuess, b.context) }

// Limit is the limit of now; 0: none.
func (b *Budget) Limit() uint64 { return atomic.LoadUint64(&b.words[wordLimit]) }

// Used is what all sessions use, and hold while they are suspended for others' sake.
func (b *Budget) Used() uint64 {
	return b.held() + min(atomic.LoadUint64(&b.words[wordAway]), sane)
}

// held is what takes room.
func (b *Budget) held() uint64 {
	return sum(b.words, min(atomic.LoadUint64(&b.words[wordSlots]), Slots), atomic.LoadUint64(&b.words[wordKept]))
}

// note keeps the peak. Two goroutines may lose one of two near values.
func (b *Budget) note() {
	if n := slotSum(b.slot); n > atomic.LoadUint64(&b.slot[slotPeak]) {
		atomic.StoreUint64(&b.slot[slotPeak], n)
	}
}

// Adopt begins the takeover of a session whose predecessor has booked what is now booked again:
// until Settle the slot stays as it is, and nothing is refused.
func (b *Budget) Adopt() {
	b.moving.Store(0)
	b.part.Store(0)
	b.adopted.Store(true)
}

// Settle ends a takeover: the predecessor has let go.
func (b *Budget) Settle() {
	atomic.StoreUint64(&b.slot[slotHeld], b.moving.Load())
	atomic.StoreUint64(&b.slot[slotPart], b.part.Load())
	b.adopted.Store(false)
	b.note()
}
