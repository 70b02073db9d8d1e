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

// release ends a handle: calls going on finish, pages come back, then the owner hears Release.
func (d *Device) release(h *handle) {
	d.mu.Lock()
	delete(d.handles, h.fh)
	d.mu.Unlock()
	h.use.Lock()
	again := h.closed
	h.closed = true
	h.use.Unlock()
	if again {
		return
	}
	d.revokeHandles([]*handle{h}, func(*pending) bool { return true })
	h.ctl.Release()
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

func (d *Device) releaseAll() {
	for _, h := range d.allHandles() {
		d.release(h)
	}
}

func (d *Device) revoke(match func(*pending) bool) { d.revokeHandles(d.allHandles(), match) }

// revokeGrace is how long a Revoke that ignores its context may overrun before its pages are taken anyway. QEMU's
// main loop is blocked meanwhile, so waiting for ever would hang the guest instead of one process in it.
const revokeGrace = time.Second

// revokeHandles takes back the pages of matching requests of hs: all owners are asked at once, then what is still
// pending is completed.
func (d *Device) revokeHandles(hs []*handle, match func(*pending) bool) {
	var taken []*pending
	var wg sync.WaitGroup
	ctx, cancel := context.WithTimeout(context.Background(), d.opts.RevokeLimit)
	defer cancel()
	for _, h := range hs {
		var reqs []Request
		h.mu.Lock()
		for p := h.pending; p != nil; p = p.next {
			if match(p) {
				taken, reqs = append(taken, p), append(reqs, p.owner)
			}
		}
		h.mu.Unlock()
		if len(reqs) > 0 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				h.ctl.Revoke(ctx, reqs)
			}()
		}
	}
	if len(taken) == 0 {
		return
	}
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	t := time.NewTimer(d.opts.RevokeLimit + revokeGrace)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		d.log.Error("a control file did not give its pages back in time; they are taken", "limit", d.opts.RevokeLimit)
	}
	for _, p := range taken {
		p.cancel()
	}
}
