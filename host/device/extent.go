package device

import (
	"syscall"

	"causeway/remote"
	"causeway/virtio"
)

/*
Extents: the host's hands copy between memory that a guest process names and its own regions. A READ
at FileExtent takes a region's bytes to the pages of its buffer, a WRITE brings its buffer's bytes
to the region; either is completed when it is done, which takes a moment and waits for no GPU. Only
pages in descriptors are touched, on both sides.

The guest process may die or let go of the region meanwhile: whoever completes loans calls settle
between taking them back and completing them.
*/

// extent is a READ or WRITE of a region's bytes.
type extent struct {
	off   uint64 // in the file
	size  int
	pages []virtio.Segment // the request's, valid until it is completed
	in    bool             // into the region
	end   func(n int, errno syscall.Errno) bool
}

// copyHands is how many extents of a VM are copied at once on a host with so many processors.
func copyHands(cpus int) int { return min(max(cpus/2, 1), 6) }

// queueExtent has an extent copied by one of the device's hands.
func (s *session) queueExtent(e *extent) {
	s.mu.Lock()
	s.extents[e] = struct{}{}
	s.mu.Unlock()
	go s.routineExtent(e)
}

func (s *session) routineExtent(e *extent) {
	s.dev.hands <- struct{}{}
	defer func() { <-s.dev.hands }()
	s.copying.RLock()
	defer s.copying.RUnlock()
	s.mu.Lock()
	_, queued := s.extents[e]
	delete(s.extents, e)
	lent, errno := s.lentLocked(e)
	s.mu.Unlock()
	switch {
	case !queued: // its pages were taken back
	case errno != 0:
		e.end(0, errno)
	case e.in:
		s.copied(e, copySegments(lent, e.pages))
	default:
		s.copied(e, copySegments(e.pages, lent))
	}
}

// copied completes an extent.
func (s *session) copied(e *extent, n int) {
	s.moved.Add(int64(n))
	e.end(n, 0)
}

// lentLocked finds the region's pages that an extent means. They stay lent as long as copying is
// held for reading. EAGAIN: not now.
func (s *session) lentLocked(e *extent) ([]virtio.Segment, syscall.Errno) {
	id, at := extentOf(e.off)
	r := s.regions[id]
	switch {
	case s.state >= dead:
		return nil, syscall.EPIPE
	case r == nil || id == 0 || r.ending || uint64(e.size) > r.size || at > r.size-uint64(e.size):
		return nil, syscall.EINVAL
	case s.state != running:
		return nil, syscall.EAGAIN
	}
	segs := r.lentAt(at, e.size)
	if segs == nil && e.size > 0 {
		return nil, syscall.EAGAIN
	}
	return segs, 0
}

// lentAt lists the pages at [at, at+size) of a region; nil if some are not lent.
func (r *region) lentAt(at uint64, size int) (segs []virtio.Segment) {
	for size > 0 {
		off, p := r.pieceAt(at)
		if p == nil || p.req == nil {
			return nil
		}
		n := int(min(uint64(size), p.size-(at-off)))
		segs = virtio.Slice(segs, p.req.Segments(), int(at-off), n)
		at, size = at+uint64(n), size-n
	}
	return segs
}

// pieceAt finds the piece that holds a byte.
func (r *region) pieceAt(at uint64) (uint64, *piece) {
	if p := r.pieces[at]; p != nil {
		return at, p
	}
	for off, p := range r.pieces {
		if at-off < p.size { // which is far more where it begins behind that byte
			return off, p
		}
	}
	return 0, nil
}

// settle returns when no extent is being copied that began before.
func (s *session) settle() {
	s.copying.Lock()
	defer s.copying.Unlock()
}

// dropExtents takes back the pages of all extents.
func (s *session) dropExtents() {
	s.mu.Lock()
	dropped := s.extents
	s.extents = map[*extent]struct{}{}
	s.mu.Unlock()
	for e := range dropped {
		e.end(0, syscall.EAGAIN)
	}
	s.settle()
}

// copySegments copies until one side is at its end.
func copySegments(dst, src []virtio.Segment) (n int) {
	var d, s []byte
	for {
		for len(d) == 0 {
			if len(dst) == 0 {
				return n
			}
			d, dst = dst[0].Data, dst[1:]
		}
		for len(s) == 0 {
			if len(src) == 0 {
				return n
			}
			s, src = src[0].Data, src[1:]
		}
		k := copy(d, s)
		d, s, n = d[k:], s[k:], n+k
	}
}

// extentOf splits a file offset of FileExtent.
func extentOf(off uint64) (id uint32, at uint64) {
	off -= remote.FileExtent
	return uint32(off >> 44), off & (1<<44 - 1)
}
