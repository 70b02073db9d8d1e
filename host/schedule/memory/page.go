package memory

import (
	"fmt"
	"math"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"causeway/remote/sys"
)

// Layout, in 64-bit words. Slots follow the header.
const (
	wordLimit = 0 // 0: none
	wordSlots = 1 // how many slots were ever used: the rest need not be summed
	// How much of it there is room for now, where more is promised than there is; 0: for all of it.
	wordRoom = 2
	// What sessions hold that are suspended for others' sake: it counts for the limit, and takes no
	// room.
	wordAway = 3
	// What sessions shared and have let go of, and others have open: it counts for the limit, and
	// takes room.
	wordKept  = 4
	wordPart  = 5 // the limit of a part of it, which ReservePart counts; 0: none
	headWords = 8
	slotWords = 5
	slotHeld  = 0 // allocated
	slotGuess = 1 // what contexts take, as the worker guesses
	// What contexts and code take, as the driver says; takes the place of the guess. 0: not known.
	slotBeside = 2
	slotPeak   = 3 // most of all three
	slotPart   = 4 // the part of what is allocated that has a limit of its own

	pageBytes = 40 << 10
	// Slots is how many sessions a budget has room for.
	Slots = (pageBytes/8 - headWords) / slotWords

	// sane bounds what anybody believes of a slot.
	sane = 1 << 50
)

// Page is a budget's shared page as the process sees it that starts the workers. Its methods may be
// called from any goroutine, until Close.
type Page struct {
	fd    int
	mem   []byte
	words []uint64
	taken [Slots]atomic.Bool
	limit atomic.Uint64
	room  atomic.Uint64
	away  atomic.Uint64
	kept  atomic.Uint64
	part  atomic.Uint64
	high  atomic.Uint64 // slots that were ever taken
}

// New makes a budget; limit 0: none.
func New(limit uint64) (*Page, error) {
	fd, mem, err := sys.NewPage("memory", pageBytes, unix.F_SEAL_SEAL)
	if err != nil {
		return nil, err
	}
	p := &Page{fd: fd, mem: mem, words: sys.Words(mem)}
	p.SetLimit(limit)
	return p, nil
}

// Close gives the page back. Workers keep their mappings.
func (p *Page) Close() {
	_ = unix.Close(p.fd)
	sys.UnmapPage(p.mem)
	p.words = nil
}

// File is the page for workers to map. It stays this Page's.
func (p *Page) File() int { return p.fd }

// SetLimit changes the limit; 0: none. What is allocated stays.
func (p *Page) SetLimit(limit uint64) {
	p.limit.Store(limit)
	p.publish()
}

// Limit is the limit.
func (p *Page) Limit() uint64 { return p.limit.Load() }

// SetRoom says how many bytes may be held now, of what the limit allows; 0: all of it. Who is
// refused for that can ask for room.
func (p *Page) SetRoom(n uint64) {
	p.room.Store(n)
	p.publish()
}

// Room is what SetRoom said.
func (p *Page) Room() uint64 { return p.room.Load() }

// SetPart changes the limit of the part that ReservePart counts; 0: none.
func (p *Page) SetPart(limit uint64) {
	p.part.Store(limit)
	p.publish()
}

// Part is that limit.
func (p *Page) Part() uint64 { return p.part.Load() }

// AddAway says that sessions which hold n bytes more, or less, are suspended and count for the
// limit all the same.
func (p *Page) AddAway(n int64) {
	p.away.Add(uint64(n))
	p.publish()
}

// Away is what they hold.
func (p *Page) Away() uint64 { return p.away.Load() }

// AddKept says that sessions have n bytes open, more or less than before, which who shared them has
// let go of.
func (p *Page) AddKept(n int64) {
	p.kept.Add(uint64(n))
	p.publish()
}

// Kept is what they have so.
func (p *Page) Kept() uint64 { return p.kept.Load() }

// Used is what all sessions use.
func (p *Page) Used() uint64 { return sum(p.words, p.high.Load(), p.kept.Load()) }

// ErrFull says that all slots are taken.
var ErrFull = fmt.Errorf("more than %d sessions at once", Slots)

// Take reserves a slot, which is empty.
func (p *Page) Take() (int, error) {
	for n := range p.taken {
		if !p.taken[n].CompareAndSwap(false, true) {
			continue
		}
		p.clear(n)
		for old := p.high.Load(); old <= uint64(n); old = p.high.Load() {
			p.high.CompareAndSwap(old, uint64(n)+1)
		}
		p.publish()
		return n, nil
	}
	return 0, ErrFull
}

// publish writes what is this side's to say, which a worker may have overwritten.
func (p *Page) publish() {
	atomic.StoreUint64(&p.words[wordLimit], p.limit.Load())
	atomic.StoreUint64(&p.words[wordSlots], p.high.Load())
	atomic.StoreUint64(&p.words[wordRoom], p.room.Load())
	atomic.StoreUint64(&p.words[wordAway], p.away.Load())
	atomic.StoreUint64(&p.words[wordKept], p.kept.Load())
	atomic.StoreUint64(&p.words[wordPart], p.part.Load())
}

// Free returns a slot, and what its session held. Its worker is gone.
func (p *Page) Free(slot int) {
	p.clear(slot)
	p.taken[slot].Store(false)
}

func (p *Page) clear(slot int) {
	for i := range uint64(slotWords) {
		atomic.StoreUint64(&p.words[headWords+uint64(slot)*slotWords+i], 0)
	}
}

// Held is what a session uses, and the most that it used.
func (p *Page) Held(slot int) (now, peak uint64) {
	w := p.words[headWords+slot*slotWords:]
	now = slotSum(w)
	return now, max(now, min(atomic.LoadUint64(&w[slotPeak]), sane))
}

// Allocated is what a session has allocated, without its contexts.
func (p *Page) Allocated(slot int) uint64 {
	return min(atomic.LoadUint64(&p.words[headWords+slot*slotWords+slotHeld]), sane)
}

// SetBeside says what a session takes of the GPU beside its allocations, as the driver told; 0: not
// known.
func (p *Page) SetBeside(slot int, n uint64) {
	p.publish()
	atomic.StoreUint64(&p.words[headWords+slot*slotWords+slotBeside], n)
}

// slotSum is what a slot counts for.
func slotSum(w []uint64) uint64 {
	beside := atomic.LoadUint64(&w[slotBeside])
	if beside == 0 {
		beside = atomic.LoadUint64(&w[slotGuess])
	}
	return min(atomic.LoadUint64(&w[slotHeld]), sane) + min(beside, sane)
}

// sum is what the first n slots count for, beside what is kept.
func sum(words []uint64, n, kept uint64) uint64 {
	total := min(kept, sane)
	for i := range n {
		total += slotSum(words[headWords+i*slotWords:])
	}
	return min(total, math.MaxInt64)
}
