package device

import (
	"time"

	"golang.org/x/sys/unix"

	"causeway/remote"
	"causeway/virtio/fs"
)

// Read implements fs.ControlHandle.
func (s *session) Read(req *fs.ReadRequest) {
	off := uint64(req.Offset)
	switch {
	case off >= remote.FileExtent:
		s.queueExtent(&extent{off: off, size: req.Size, req: req, end: req.Complete})
	case off >= remote.FileWait:
		s.await(req, uint32(min((off-remote.FileWait)>>12, uint64(remote.SlotCount)+1)))
	case off >= remote.FileLoan:
		s.lend(req)
	case off == remote.FileDirect:
		s.readDirect(req)
	case off == remote.FileError:
		s.mu.Lock()
		why := s.why
		s.mu.Unlock()
		req.Complete(req.CopyIn([]byte(why[:min(len(why), req.Size)]), 0), 0)
	default:
		req.Complete(0, unix.EINVAL)
	}
}

// await keeps a READ until its slot is answered. A wake-up that came first is waiting for it.
func (s *session) await(req *fs.ReadRequest, slot uint32) {
	s.mu.Lock()
	errno := unix.Errno(0)
	switch {
	case s.state >= dead:
		errno = unix.EPIPE
	case slot > remote.SlotCount || s.waiting >= maxWaits:
		errno = unix.EINVAL
	case s.tokens[slot]:
		delete(s.tokens, slot)
	case !s.dev.maySleep(): // it looks again
	default:
		s.waits[slot] = append(s.waits[slot], wait{req, time.Now()})
		s.waitingLocked(1)
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	req.Complete(0, errno)
}

// wake ends the waits of a slot, or of those for room in the ring (remote.SlotCount). The worker
// calls it, through its link, which has checked the number.
func (s *session) wake(slot uint32) {
	s.mu.Lock()
	list := s.waits[slot]
	if len(list) == 0 {
		s.tokens[slot] = true
	}
	delete(s.waits, slot)
	s.waitingLocked(-len(list))
	s.mu.Unlock()
	for _, w := range list {
		w.req.Complete(0, 0)
	}
}

// endWaits ends waits that are a second old: the guest looks again, and a killed process can exit.
func (s *session) endWaits(now time.Time) {
	var due []*fs.ReadRequest
	s.mu.Lock()
	for slot, list := range s.waits {
		keep := list[:0]
		for _, w := range list {
			if now.Sub(w.since) >= waitTerm {
				due = append(due, w.req)
			} else {
				keep = append(keep, w)
			}
		}
		if len(keep) == 0 {
			delete(s.waits, slot)
		} else {
			s.waits[slot] = keep
		}
	}
	s.waitingLocked(-len(due))
	s.mu.Unlock()
	completeAll(due, 0)
}

func (s *session) takeWaitsLocked() []*fs.ReadRequest {
	var reqs []*fs.ReadRequest
	for slot, list := range s.waits {
		for _, w := range list {
			reqs = append(reqs, w.req)
		}
		delete(s.waits, slot)
	}
	s.waitingLocked(-s.waiting)
	return reqs
}
