package relay

import (
	"context"
	"sync/atomic"
	"time"

	"causeway/remote"
)

/*
A session that changes its memory as fast as that goes ahead to another server is held back, if
whoever asks for rounds says so: the consumer takes records for a slice of time, and then none for
as long as the share says. What it has not taken goes to the other server with the guest's memory;
had the first server it, that would have to do it before the session stands, and all that it writes
would go then. How long the GPU works on what was taken is not known here: so the more a session is
held back the less is taken at a time.
*/

// held is how much a session is held back. All but share is the consumer's.
type held struct {
	share atomic.Uint32 // hundredths of the time, 0: not at all
	since time.Time     // the slice's beginning; zero: none has begun
	took  uint64        // bytes of records in it
	until time.Time     // no record is taken before
}

const (
	heldBytes = 64 << 10 // of records in a slice, by what is left of the time
	heldShare = 99
)

// hold has the session be held back from now on, or (0) no more.
func (s *Session) hold(share uint32) {
	if share = min(share, heldShare); s.held.share.Swap(share) > share {
		s.poke() // who waits may do so for less
	}
}

// most is how many bytes of records are taken at once.
func (h *held) most() uint64 {
	if share := h.share.Load(); share > 0 {
		return heldBytes * uint64(100-share) / 100
	}
	return batchMost
}

// passed notes that so many bytes of records have gone. The clock is asked only if that matters.
func (h *held) passed(n uint64, clock func() time.Time) {
	share := h.share.Load()
	if share == 0 {
		h.since, h.took, h.until = time.Time{}, 0, time.Time{}
		return
	}
	now := clock()
	if h.since.IsZero() {
		h.since = now
	}
	h.took += n
	worked := now.Sub(h.since)
	if worked < remote.HeldSlice && h.took < h.most() {
		return
	}
	wait := remote.HeldFor(max(worked, remote.HeldSlice), share)
	h.since, h.took, h.until = time.Time{}, 0, now.Add(wait)
}

// rest is how long no record is taken.
func (h *held) rest(now time.Time) time.Duration {
	if h.share.Load() == 0 {
		return 0
	}
	return h.until.Sub(now)
}

// awaitTurn waits for so long, or until there is something else to do.
func (s *Session) awaitTurn(ctx context.Context, rest time.Duration) error {
	t := time.NewTimer(rest)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.poked:
	case <-ctx.Done():
	}
	return ctx.Err()
}
