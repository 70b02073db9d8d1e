package worker

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"causeway/host/schedule/memory"
	"causeway/remote/resume"
)

// hostMemory is the budget of the host's memory that a session makes its worker hold: bytes that
// are sent ahead, what is recorded for a rebuild, images and what drivers make of them, replies
// that wait to be fetched. What is about to be held is reserved before it is there, so a request
// that does not fit is refused and nothing of it is kept.
//
// The session has a limit of its own, and shares a budget with the other sessions of its virtual
// GPU, from which it takes and to which it returns whole units: requests are many, and the shared
// page is everybody's. A nil budget has no limit. Any goroutine.
type hostMemory struct {
	limit   uint64         // of the session; 0: none
	all     *memory.Budget // of the virtual GPU; nil: none
	log     *slog.Logger
	refused func() // counts a refusal; may be nil

	mu    sync.Mutex
	used  uint64
	taken uint64 // of all: a multiple of hostUnit, not below used
	// A session is being taken over: what it holds is held already, and nothing is refused.
	moving bool
}

const hostUnit = 1 << 20

// reserve books n bytes. False: they are more than the session or its virtual GPU may hold, and
// nothing has changed.
func (h *hostMemory) reserve(n uint64) bool {
	if h == nil || n == 0 {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch h.tryLocked(n) {
	case errOfSession:
		h.refuse("session", h.limit, h.used, n)
		return false
	case errOfAll:
		h.refuse("virtual GPU", h.all.Limit(), h.all.Used(), n)
		return false
	}
	return true
}

// reserveInPlace is reserve for memory that lies on the host in place of the VM's own, of which all
// sessions of the virtual GPU together have as much as the VM has memory, whatever else they may.
func (h *hostMemory) reserveInPlace(n uint64) bool {
	if h == nil || h.all == nil {
		return h.reserve(n)
	}
	if h.isMoving() {
		h.all.BookPart(n)
	} else if !h.all.ReservePart(n) {
		h.refuse("virtual GPU, in place of its VM's memory", h.all.PartLimit(), h.all.Used(), n)
		return false
	}
	if !h.reserve(n) {
		h.all.ReleasePart(n)
		return false
	}
	return true
}

// releaseInPlace gives it back.
func (h *hostMemory) releaseInPlace(n uint64) {
	if h != nil && h.all != nil {
		h.all.ReleasePart(n)
	}
	h.release(n)
}

func (h *hostMemory) isMoving() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.moving
}

// Which budget is exhausted.
var (
	errOfSession = errors.New("the session's budget of host memory is exhausted")
	errOfAll     = errors.New("the virtual GPU's budget of host memory is exhausted")
)

// tryLocked is reserve without saying anything. mu is held.
func (h *hostMemory) tryLocked(n uint64) error {
	if h.moving {
		h.bookLocked(n)
		return nil
	}
	if h.limit != 0 && (n > h.limit || h.used > h.limit-n) {
		return errOfSession
	}
	if want := units(h.used + n); want > h.taken {
		if h.all != nil && !h.all.Reserve(want-h.taken) {
			return errOfAll
		}
		h.taken = want
	}
	h.used += n
	return nil
}

// book books what is held already, whatever the limits.
func (h *hostMemory) book(n uint64) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bookLocked(n)
}

func (h *hostMemory) bookLocked(n uint64) {
	h.used += n
	if want := units(h.used); want > h.taken {
		if h.all != nil {
			h.all.Book(want - h.taken)
		}
		h.taken = want
	}
}

// release gives back what was reserved or booked. One unit beyond what is in use stays taken, so
// that a session does not go to and fro at its edge.
func (h *hostMemory) release(n uint64) {
	if h == nil || n == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.used -= min(n, h.used)
	if keep := units(h.used) + hostUnit; h.taken > keep {
		if h.all != nil {
			h.all.Release(h.taken - keep)
		}
		h.taken = keep
	}
}

// fits says by how much what is booked exceeds a limit; nil: not at all.
func (h *hostMemory) fits() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.limit != 0 && h.used > h.limit {
		return fmt.Errorf("it holds %d bytes of host memory, and may hold %d (--host-memory)", h.used, h.limit)
	}
	if h.all != nil && h.all.Limit() != 0 && h.all.Used() > h.all.Limit() {
		return fmt.Errorf("the virtual GPU would hold %d bytes of host memory, and may hold %d (--host-memory)", h.all.Used(), h.all.Limit())
	}
	return nil
}

// move begins a takeover, or ends it.
func (h *hostMemory) move(begin bool) {
	if h == nil {
		return
	}
	h.mu.Lock()
	h.moving = begin
	h.mu.Unlock()
}

// refuse says which budget is exhausted.
func (h *hostMemory) refuse(whose string, limit, used, n uint64) {
	if h.refused != nil {
		h.refused()
	}
	if h.log != nil {
		h.log.Warn("request refused: the budget of host memory is exhausted (--host-memory)", "budget", whose, "limit", limit, "used", used, "wanted", n)
	}
}

// units is n rounded up to whole units. What is near the largest number is not rounded: no limit
// allows it.
func units(n uint64) uint64 {
	if n > 1<<62 {
		return n
	}
	return (n + hostUnit - 1) &^ (hostUnit - 1)
}

// replayed has what a stream keeps to be sent again booked as the session's. It waits where a
// request is refused, so a refusal is nobody's.
type replayed struct{ *hostMemory }

var _ resume.Budget = replayed{}

// Reserve implements resume.Budget.
func (r replayed) Reserve(n uint64) bool {
	if r.fits() != nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tryLocked(n) == nil
}

// Book implements resume.Budget.
func (r replayed) Book(n uint64) { r.book(n) }

// Release implements resume.Budget.
func (r replayed) Release(n uint64) { r.release(n) }
