package fs

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"causeway/vhostuser"
	"causeway/virtio"
)

const (
	inHeaderSize  = 40
	outHeaderSize = 16
)

// pending is a request of a control file that its owner has not completed. It stays reachable by
// the owner for ever, hence it is not pooled: done makes late calls harmless.
type pending struct {
	h      *handle
	owner  Request
	queue  int
	unique uint64
	segs   []virtio.Segment // the data pages; valid while not done
	pieces int64            // of memory that its chain has

	// Guarded by h.mu.
	c          *virtio.Chain
	done       bool
	held       bool   // the queue stands: what completes it waits in late
	late       func() // nil: nothing has completed it yet
	prev, next *pending
}

// hold has requests of a queue wait for it. All of them may be done by now: their owner, which has
// said that it keeps them, is told all the same that the queue goes on.
func (h *handle) hold(list []*pending) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stands == nil {
		h.stands = map[int]bool{}
	}
	for _, p := range list {
		p.held = !p.done
		h.stands[p.queue] = true
	}
}

// unhold completes what was completed meanwhile. It reports whether the owner has kept requests of
// that queue.
func (h *handle) unhold(queue int) (kept bool) {
	var late []func()
	h.mu.Lock()
	kept = h.stands[queue]
	delete(h.stands, queue)
	for p := h.pending; p != nil; p = p.next {
		if !p.held || p.queue != queue {
			continue
		}
		p.held = false
		if p.late != nil {
			late = append(late, p.late)
		}
	}
	h.mu.Unlock()
	for _, f := range late {
		f()
	}
	return kept
}

// abandon is for requests whose queue does not go on.
func (h *handle) abandon() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for p := h.pending; p != nil; p = p.next {
		p.held, p.late = false, nil
	}
}

// holds reports whether requests wait for their queue.
func (h *handle) holds() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for p := h.pending; p != nil; p = p.next {
		if p.held {
			return true
		}
	}
	return false
}

// later keeps what completes a request for when its queue goes on; false: now will do. Only the
// first counts.
func (p *pending) later(complete func()) (held, first bool) {
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	if first = p.late == nil; p.held && first {
		p.late = complete
	}
	return p.held, first
}

// finish takes the request out of the list. It returns nil if somebody else did before.
func (p *pending) finish() *virtio.Chain {
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	if p.done {
		return nil
	}
	p.done = true
	p.h.unlinkLocked(p)
	p.h.d.parked.Add(-p.pieces)
	c := p.c
	p.c = nil
	return c
}

// hold keeps the memory of the request mapped; nil: it was completed, or cancelled.
func (p *pending) hold() *vhostuser.View {
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	if p.done {
		return nil
	}
	return p.c.Hold()
}

func (p *pending) cancel() {
	switch r := p.owner.(type) {
	case *ReadRequest:
		r.Complete(0, 0)
	case *WriteRequest:
		r.Complete(0, syscall.EAGAIN)
	}
}

// ranges lists segs, joining neighbours. A descriptor's length fits 32 bits, and so does a chain's.
func ranges(segs []virtio.Segment) []virtio.Range {
	out := make([]virtio.Range, 0, len(segs))
	for _, s := range segs {
		if k := len(out) - 1; k >= 0 && out[k].GPA+uint64(out[k].Len) == s.GPA {
			out[k].Len += uint32(len(s.Data))
			continue
		}
		out = append(out, virtio.Range{GPA: s.GPA, Len: uint32(len(s.Data))})
	}
	return out
}

// ReadRequest is a READ of a control file: a loan on guest pages.
type ReadRequest struct {
	Offset    int64
	Size      int
	LockOwner uint64 // as in Flush, or 0

	p pending
}

func (r *ReadRequest) request() *pending { return &r.p }

// Ranges names the destination pages in guest-physical memory, in file order. The slice is the
// caller's.
func (r *ReadRequest) Ranges() []virtio.Range { return ranges(r.p.segs) }

// Segments are the destination pages, mapped here, to be touched until Complete. Who is slower to
// let go of them than Revoke may take needs to Hold them as well.
func (r *ReadRequest) Segments() []virtio.Segment { return r.p.segs }

// Hold keeps the segments mapped until the view is released, also if they are taken back meanwhile,
// and what is mapped in their place would be touched; nil: they were taken back, or completed.
func (r *ReadRequest) Hold() *vhostuser.View { return r.p.hold() }

// CopyIn writes b to the destination at byte off, and returns how much fitted: nothing once the
// request was completed or cancelled, when the pages may be gone with the guest.
func (r *ReadRequest) CopyIn(b []byte, off int) int {
	r.p.h.mu.Lock()
	defer r.p.h.mu.Unlock()
	if r.p.done || r.p.held {
		return 0
	}
	return virtio.CopyTo(r.p.segs, off, b)
}

// Complete ends the READ with n bytes that the caller placed in the pages, or with an error. n = 0
// leaves the pages as they are: nothing is copied in the guest either. It returns false, and does
// nothing, if the request was completed or cancelled before. Whoever may touch the pages must have
// stopped.
func (r *ReadRequest) Complete(n int, errno syscall.Errno) bool {
	if held, first := r.p.later(func() { r.Complete(n, errno) }); held {
		return first
	}
	c := r.p.finish()
	if c == nil {
		return false
	}
	mem := r.p.h.d.mem
	if mem.Logging() {
		// The pages were shared for the whole term: anything may have changed.
		for _, s := range r.p.segs {
			mem.MarkDirty(s.GPA, uint64(len(s.Data)))
		}
	}
	if n < 0 || n > r.Size {
		n, errno = 0, syscall.EIO
	}
	if errno != 0 {
		n = 0
	}
	answer(c, r.p.unique, errno, nil, n)
	return true
}

// WriteRequest is a WRITE of a control file.
type WriteRequest struct {
	Offset    int64
	Size      int
	LockOwner uint64 // as in Flush, or 0

	p    pending
	data []byte
}

func (w *WriteRequest) request() *pending { return &w.p }

// Ranges names the source pages in guest-physical memory, in file order. The slice is the caller's.
func (w *WriteRequest) Ranges() []virtio.Range { return ranges(w.p.segs) }

// Segments are the source pages, mapped here, to be read until Complete. The guest may change them
// at any time: read each byte once.
func (w *WriteRequest) Segments() []virtio.Segment { return w.p.segs }

// Hold is as of a ReadRequest.
func (w *WriteRequest) Hold() *vhostuser.View { return w.p.hold() }

// Data is a private copy of the data, made by the first call: empty if the request was completed or
// cancelled before that. Calls must not overlap.
func (w *WriteRequest) Data() []byte {
	w.p.h.mu.Lock()
	defer w.p.h.mu.Unlock()
	if w.data == nil && !w.p.done {
		w.data = make([]byte, w.Size) // not pooled: a cancelled request's owner may still read it
		w.data = w.data[:virtio.CopyFrom(w.data, w.p.segs, 0)]
	}
	return w.data
}

// Complete ends the WRITE: n bytes were taken, or an error. It returns false, and does nothing, if
// the request was completed or cancelled before.
func (w *WriteRequest) Complete(n int, errno syscall.Errno) bool {
	if held, first := w.p.later(func() { w.Complete(n, errno) }); held {
		return first
	}
	c := w.p.finish()
	if c == nil {
		return false
	}
	if n < 0 || n > w.Size {
		n, errno = 0, syscall.EIO
	}
	if errno != 0 {
		answer(c, w.p.unique, errno, nil, 0)
	} else {
		out := fuse.WriteOut{Size: uint32(n)}
		answer(c, w.p.unique, 0, image(&out), 0)
	}
	return true
}

// answer completes a chain with a header, payload, and extra bytes that are already in place behind
// it. The used length is the header's: Linux 7.1 and newer compare them.
func answer(c *virtio.Chain, unique uint64, errno syscall.Errno, payload []byte, extra int) {
	if !c.Live() {
		c.Complete(0)
		return
	}
	h := fuse.OutHeader{Unique: unique}
	total := outHeaderSize
	if errno != 0 {
		h.Status = -int32(errno)
	} else {
		total += len(payload) + extra
	}
	switch room := c.WritableLen(); {
	case room < outHeaderSize:
		c.Complete(0) // a request without room for an answer wants none
		return
	case room < total:
		h.Status, total, payload = -int32(syscall.EIO), outHeaderSize, nil
	}
	if h.Status == 0 {
		c.WriteAt(payload, outHeaderSize)
	}
	h.Length = uint32(total)
	c.WriteAt(image(&h), 0)
	c.Complete(h.Length)
}
