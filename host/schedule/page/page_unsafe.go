package page

import (
	"errors"
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"causeway/remote/sys"
)

// Word is what a grant says. The lower bits are flags; the rest counts changes, so that each grant
// is another word.
type Word uint32

// Flags of a Word.
const (
	Open Word = 1 << iota // work may be submitted
	// Work is fenced and counted; without it, and Open, nothing is: the session has the GPU to
	// itself.
	Metered
	flags = Open | Metered
)

// Free reports whether the session may do as it likes.
func (w Word) Free() bool { return w&flags == Open }

// Flags is w without its count.
func (w Word) Flags() Word { return w & flags }

// Next is a word that differs from w and says f.
func (w Word) Next(f Word) Word { return (w | flags) + 1 | f&flags }

// GrantSize and UsageSize are what of a page is used, in bytes.
const (
	GrantSize = 64
	UsageSize = 128
)

// ErrSize says that memory is no page.
var ErrSize = errors.New("memory is too small for a page of the scheduler's")

// Grant is what a session may do. One process writes it: the scheduler, or while there is none the
// device process.
type Grant struct {
	word   *atomic.Uint32
	budget *atomic.Uint32 // microseconds of work that may be in flight, while metered
}

// NewGrant reads mapped memory as a Grant.
func NewGrant(mem []byte) (Grant, error) {
	if len(mem) < GrantSize {
		return Grant{}, ErrSize
	}
	return Grant{word32(mem, 0), word32(mem, 4)}, nil
}

// Word is what is granted now.
func (g Grant) Word() Word { return Word(g.word.Load()) }

// Budget is how much work may be in flight while metered.
func (g Grant) Budget() time.Duration { return time.Duration(g.budget.Load()) * time.Microsecond }

// Set grants f, with a budget, and wakes whoever waits for a change. It reports whether anything
// changed.
func (g Grant) Set(f Word, budget time.Duration) bool {
	us := uint32(min(max(budget.Microseconds(), 0), math.MaxUint32))
	if g.budget.Load() != us {
		g.budget.Store(us)
	}
	old := g.Word()
	if old.Flags() == f.Flags() && old != 0 {
		return false
	}
	g.word.Store(uint32(old.Next(f)))
	g.Wake()
	return true
}

// Wake wakes whoever sleeps in Await, here or in another process, although nothing changed.
func (g Grant) Wake() { sys.FutexWake(g.word) }

// Await sleeps while the word is old, at most for d; 0: for ever. It may return early. It blocks
// its thread.
func (g Grant) Await(old Word, d time.Duration) { sys.FutexWait(g.word, uint32(old), d) }

// Usage is what a session says of itself. Its worker writes it.
type Usage struct {
	Active  *atomic.Uint32 // 1: has work on the GPU, or wants to submit some
	Drained *atomic.Uint32 // the last closed Word for which nothing was left on the GPU
	// Nanoseconds in which work of the session was unfinished; not counted while free.
	Busy *atomic.Uint64
	// Nanoseconds in which the session's ring stood still for want of a grant.
	Waited  *atomic.Uint64
	Waits   *atomic.Uint64 // how often it did
	Waiting *atomic.Uint32 // 1: it does now
}

// NewUsage reads mapped memory as a Usage.
func NewUsage(mem []byte) (Usage, error) {
	if len(mem) < UsageSize {
		return Usage{}, ErrSize
	}
	return Usage{
		Active: word32(mem, 0), Drained: word32(mem, 4), Waiting: word32(mem, 8),
		Busy: word64(mem, 16), Waited: word64(mem, 24), Waits: word64(mem, 32),
	}, nil
}

func word32(mem []byte, off int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&mem[off : off+4][0]))
}
func word64(mem []byte, off int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&mem[off : off+8][0]))
}
