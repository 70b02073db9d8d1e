package device

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"causeway/virtio/fs"
)

/*
What a VM can lend. Each READ that lends pages keeps an entry of the guest's request queue, which
all of its programs share, from its first until the region ends. So there are only so many, counted
here: a region's as it is declared, by its size, since its READs come when it is too late to refuse;
and anew when they have come, as the guest's kernel decides how many pages each has.

The rest of the queue is for what has to come through beside them: renewals, each of which is in
flight together with the READ that it ends, doorbells, extents, control messages, and waits, of
which no more are held than leave room for the others.
*/

// errCrowded: the queue has no room for more.
var errCrowded = errors.New("the GPU may reach no more of this VM's memory")

// What a program needs to begin: its ring, its first staging memory, and a first region of pinned
// memory; and that in requests, of whatever size, for each is one at least.
const (
	firstBytes    = 8 << 20
	firstRequests = 8
)

// lendable counts requests that stay in the guest's queue.
type lendable struct {
	waits atomic.Int64 // that are held

	mu    sync.Mutex // after session.mu
	taken int        // entries that regions have, or will
}

// shares are parts of a queue.
type shares struct {
	first int // what a program gets, whatever others have, as long as kept lasts
	all   int // what regions get, together
	kept  int // of that, for programs whose first part is not taken yet
	rest  int // of the queue
}

// sharesOf cuts a queue of so many requests, of which a program needs so many to begin.
func sharesOf(requests, first int) shares {
	rest := requests / 4
	all := requests - rest
	return shares{first: first, all: all, kept: min(max(all/8, first), all/2), rest: rest}
}

// largestRead is how many bytes one READ lends, as far as is known. The tree is built before there
// is a file system.
func (d *Device) largestRead() int {
	if d.fs == nil {
		return 1 << 20
	}
	return d.fs.LargestRead()
}

// reads is how many READs lend so many bytes, as far as is known.
func (d *Device) reads(bytes uint64) int {
	largest := uint64(d.largestRead())
	return int(min((bytes+largest-1)/largest, maxPieces+1))
}

func (d *Device) shares() shares {
	return sharesOf(d.fs.MostPending(), max(d.reads(firstBytes), firstRequests))
}

// promise takes n entries for a session that has some already.
func (d *Device) promise(has, n int) error {
	c := d.shares()
	d.lendable.mu.Lock()
	defer d.lendable.mu.Unlock()
	most := c.all - c.kept
	if has+n <= c.first {
		most = c.all
	}
	if taken := d.lendable.taken; n > most-taken {
		return fmt.Errorf("%w: its programs have %d of the %d requests of its queue that may wait with memory, %d of which are for programs that begin, and %d are asked for, of up to %d KiB",
			errCrowded, taken, c.all, c.kept, n, d.largestRead()>>10)
	}
	d.lendable.taken += n
	return nil
}

// addTaken counts n entries of a VM that came here with them, or, if n is negative, gives them
// back.
func (d *Device) addTaken(n int) {
	d.lendable.mu.Lock()
	d.lendable.taken += n
	d.lendable.mu.Unlock()
}

// maySleep says whether another wait may be held: what regions do not have is for waits, but for
// half of the rest.
func (d *Device) maySleep() bool {
	requests := d.fs.MostPending()
	d.lendable.mu.Lock()
	taken := d.lendable.taken
	d.lendable.mu.Unlock()
	return d.lendable.waits.Load() < int64(max(requests-taken-sharesOf(requests, 0).rest/2, 1))
}

// promiseLocked has a region have n entries more.
func (s *session) promiseLocked(r *region, n int) error {
	if err := s.dev.promise(s.promised, n); err != nil {
		return err
	}
	r.promised += n
	s.promised += n
	return nil
}

// bringLocked notes n entries of a region that came with its VM, which has them: that is not
// refused.
func (s *session) bringLocked(r *region, n int) {
	s.dev.addTaken(n)
	r.promised += n
	s.promised += n
}

// keepLocked has a region keep n of its entries.
func (s *session) keepLocked(r *region, n int) {
	if back := r.promised - n; back > 0 {
		s.dev.addTaken(-back)
		r.promised -= back
		s.promised -= back
	}
}

// waitingLocked counts waits that are held, or, if n is negative, are not any more.
func (s *session) waitingLocked(n int) {
	s.waiting += n
	s.dev.lendable.waits.Add(int64(n))
}

// regionErrno is what the guest's library hears of a region that is refused.
func regionErrno(err error) syscall.Errno {
	if errors.Is(err, errCrowded) {
		return syscall.ENOBUFS
	}
	return syscall.EINVAL
}

// takeLocked takes a READ as a loan, and returns the one that it renews, if there is one.
func (s *session) takeLocked(r *region, off uint64, req *fs.ReadRequest) (*fs.ReadRequest, error) {
	promised := r.promised
	if r.pieces[off] == nil && len(r.pieces) >= r.promised {
		if err := s.promiseLocked(r, 1); err != nil {
			return nil, err
		}
	}
	before := len(r.pieces)
	old, err := r.lend(off, req, time.Now())
	s.pieces += len(r.pieces) - before
	switch {
	case err != nil:
		s.keepLocked(r, promised)
	case r.complete():
		s.keepLocked(r, len(r.pieces))
	}
	return old, err
}

// releaseRegion gives back what a region has, whose READs are completed.
func (s *session) releaseRegion(r *region) {
	s.mu.Lock()
	s.keepLocked(r, 0)
	s.mu.Unlock()
}

// releaseRegions does so for all regions of a session that has ended.
func (s *session) releaseRegions() {
	s.mu.Lock()
	for _, r := range s.regions {
		s.keepLocked(r, 0)
	}
	s.mu.Unlock()
}
