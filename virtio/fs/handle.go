package fs

import (
	"context"
	"sync"
	"syscall"
	"time"
)

// handle is an open control file.
type handle struct {
	d      *Device
	fh     uint64
	node   *node
	caller Caller
	ctl    ControlHandle

	use    sync.RWMutex // read: a call to ctl is going on; write: Release begins. Taken before mu
	closed bool         // guarded by use

	mu      sync.Mutex // guards the list and the done flags of its members
	pending *pending
	stands  map[int]bool // queues of which its owner keeps requests while they stand; nil: of none
}

func (h *handle) linkLocked(p *pending) {
	p.next = h.pending
	if h.pending != nil {
		h.pending.prev = p
	}
	h.pending = p
}

func (h *handle) unlinkLocked(p *pending) {
	if p.prev != nil {
		p.prev.next = p.next
	} else {
		h.pending = p.next
	}
	if p.next != nil {
		p.next.prev = p.prev
	}
	p.prev, p.next = nil, nil
}

// open makes a handle for n. A zero errno is success.
func (d *Device) open(n *node, c Caller) (uint64, syscall.Errno) {
	d.mu.Lock()
	full := len(d.handles) >= d.opts.MaxHandles
	d.mu.Unlock()
	if full {
		return 0, syscall.ENFILE
	}
	ctl, errno := n.control.Open(c)
	if errno != 0 {
		return 0, errno
	}
	h := &handle{d: d, node: n, caller: c, ctl: ctl}
	d.mu.Lock()
	d.lastFH++
	h.fh = d.lastFH
	d.handles[h.fh] = h
	d.mu.Unlock()
	return h.fh, 0
}

// handle looks an open file up by the guest's numbers.
func (d *Device) handle(fh, nodeID uint64) *handle {
	d.mu.Lock()
	defer d.mu.Unlock()
	if h := d.handles[fh]; h != nil && h.node.id == nodeID {
		return h
	}
	return nil
}

// begin admits a call to h.ctl; the caller ends it with h.use.RUnlock.
func (h *handle) begin() bool {
	h.use.RLock()
	if h.closed {
		h.use.RUnlock()
		return false
	}
	return true
}

// release ends handles: calls going on finish, pages come back, then the owners hear Release. Those
// of all come back at once: QEMU may be waiting, and each may take its time.
func (d *Device) release(hs ...*handle) {
	var open []*handle
	for _, h := range hs {
		if d.shut(h) {
			h.abandon()
			open = append(open, h)
		}
	}
	d.revokeHandles(open, func(*pending) bool { return true })
	for _, h := range open {
		h.ctl.Release()
	}
}

// shut has no more calls begin. It reports whether they could before.
func (d *Device) shut(h *handle) bool {
	d.mu.Lock()
	delete(d.handles, h.fh)
	d.mu.Unlock()
	h.use.Lock()
	defer h.use.Unlock()
	was := !h.closed
	h.closed = true
	return was
}

func (d *Device) allHandles() []*handle {
	d.mu.Lock()
	defer d.mu.Unlock()
	hs := make([]*handle, 0, len(d.handles))
	for _, h := range d.handles {
		hs = append(hs, h)
	}
	return hs
}

func (d *Device) releaseAll() { d.release(d.allHandles()...) }

func (d *Device) revoke(match func(*pending) bool) { d.revokeHandles(d.allHandles(), match) }

// revokeGrace is how long a handle that ignores its context may overrun before its pages are taken
// anyway. QEMU's main loop is blocked meanwhile, so waiting for ever would hang the guest instead
// of one process in it.
const revokeGrace = time.Second

// revokeHandles takes back the pages of matching requests of hs.
func (d *Device) revokeHandles(hs []*handle, match func(*pending) bool) {
	d.ask(hs, match, d.opts.RevokeLimit, func(ctx context.Context, h *handle, reqs []Request) bool {
		h.ctl.Revoke(ctx, reqs)
		return false
	})
}

// ask asks the owners of matching requests of hs for their pages, all at once, then completes what
// is still pending, but for those of handles that keep them. It reports whether one does.
func (d *Device) ask(hs []*handle, match func(*pending) bool, limit time.Duration, owner func(context.Context, *handle, []Request) bool) bool {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	taken := map[*handle][]*pending{}
	type answer struct {
		h    *handle
		keep bool
	}
	answers := make(chan answer, len(hs))
	for _, h := range hs {
		var reqs []Request
		h.mu.Lock()
		for p := h.pending; p != nil; p = p.next {
			if match(p) {
				taken[h], reqs = append(taken[h], p), append(reqs, p.owner)
			}
		}
		h.mu.Unlock()
		if len(reqs) > 0 {
			go func() { answers <- answer{h, owner(ctx, h, reqs)} }()
		}
	}
	kept := false
	late := time.NewTimer(limit + revokeGrace)
	defer late.Stop()
	for left := len(taken); left > 0; left-- {
		select {
		case a := <-answers:
			if a.keep {
				kept = true
				a.h.hold(taken[a.h])
				delete(taken, a.h)
			}
			continue
		case <-late.C:
			d.log.Error("a control file did not give its pages back in time; they are taken", "limit", limit)
		}
		break
	}
	for _, list := range taken {
		for _, p := range list {
			p.cancel()
		}
	}
	return kept
}
