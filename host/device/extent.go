package device

import (
	"sync/atomic"
	"syscall"

	"causeway/remote"
	"causeway/vhostuser"
	"causeway/virtio"
)

/*
Extents: the host's hands copy between memory that a guest process names and its own regions. A READ
at FileExtent takes a region's bytes to the pages of its buffer, a WRITE brings its buffer's bytes
to the region; either is completed when it is done, which takes a moment and waits for no GPU. Only
pages in descriptors are touched, on both sides.

The guest process may die or let go of the region meanwhile: whoever completes loans calls settle
between taking them back and completing them. Who waits for QEMU's sake has copies end where they
are: one may have 4 GiB, of memory that the host has swapped out. What takes longer than QEMU waits
touches memory that was taken back by then, so each copy also holds what it touches mapped: a
guest's kernel can have a region of its memory go, and what this process mapped there next would be
the guest's to read and to write.
*/

// copyStep is how much is copied before it is looked whether to go on.
const copyStep = 256 << 10

// extent is a READ or WRITE of a region's bytes.
type extent struct {
	off  uint64 // in the file
	size int
	req  pagesRequest
	in   bool // into the region
	end  func(n int, errno syscall.Errno) bool
	cut  atomic.Bool // it is to end where it is
}

// pagesRequest is a request with pages. They are valid until it is completed, and mapped until what
// Hold returns is released.
type pagesRequest interface {
	Segments() []virtio.Segment
	Hold() *vhostuser.View
}

// copying is what an extent copies between.
type copying struct {
	pages, lent []virtio.Segment
	held        []*vhostuser.View
}

func (c *copying) hold(r pagesRequest) bool {
	v := r.Hold()
	if v != nil {
		c.held = append(c.held, v)
	}
	return v != nil
}

func (c *copying) release() {
	for _, v := range c.held {
		v.Release()
	}
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
	c := copying{}
	if !queued || !c.hold(e.req) { // its pages were taken back
		s.mu.Unlock()
		return
	}
	c.pages = e.req.Segments()
	errno := s.lentLocked(e, &c)
	s.underway[e] = struct{}{}
	s.mu.Unlock()
	n := 0
	if errno == 0 {
		n, errno = c.run(e)
	}
	c.release()
	s.mu.Lock()
	delete(s.underway, e)
	s.mu.Unlock()
	s.moved.Add(int64(n))
	e.end(n, errno)
}

// run copies. EAGAIN: it was cut.
func (c *copying) run(e *extent) (int, syscall.Errno) {
	dst, src := c.pages, c.lent
	if e.in {
		dst, src = src, dst
	}
	n := copySegments(dst, src, &e.cut)
	if e.cut.Load() {
		return 0, syscall.EAGAIN
	}
	return n, 0
}

// lentLocked finds the region's pages that an extent means. They stay lent as long as s.copying is
// held for reading. EAGAIN: not now.
func (s *session) lentLocked(e *extent, c *copying) syscall.Errno {
	id, at := extentOf(e.off)
	r := s.regions[id]
	switch {
	case s.state >= dead:
		return syscall.EPIPE
	case r == nil || id == 0 || r.ending || uint64(e.size) > r.size || at > r.size-uint64(e.size):
		return syscall.EINVAL
	case s.state != running:
		return syscall.EAGAIN
	}
	if !c.lentAt(r, at, e.size) {
		return syscall.EAGAIN
	}
	return 0
}

// lentAt lists and holds the pages at [at, at+size) of a region; false if some are not lent.
func (c *copying) lentAt(r *region, at uint64, size int) bool {
	for size > 0 {
		off, p := r.pieceAt(at)
		if p == nil || p.req == nil || !c.hold(p.req) {
			return false
		}
		n := int(min(uint64(size), p.size-(at-off)))
		c.lent = virtio.Slice(c.lent, p.req.Segments(), int(at-off), n)
		at, size = at+uint64(n), size-n
	}
	return true
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
	s.cutLocked()
	s.mu.Unlock()
	for e := range dropped {
		e.end(0, syscall.EAGAIN)
	}
	s.settle()
}

// cutLocked has copies end where they are.
func (s *session) cutLocked() {
	for e := range s.underway {
		e.cut.Store(true)
	}
}

// copySegments copies until one side is at its end, or it is cut.
func copySegments(dst, src []virtio.Segment, cut *atomic.Bool) (n int) {
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
		if cut.Load() {
			return n
		}
		k := copy(d[:min(len(d), copyStep)], s)
		d, s, n = d[k:], s[k:], n+k
	}
}

// extentOf splits a file offset of FileExtent.
func extentOf(off uint64) (id uint32, at uint64) {
	off -= remote.FileExtent
	return uint32(off >> 44), off & (1<<44 - 1)
}
