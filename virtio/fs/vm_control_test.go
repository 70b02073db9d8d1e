package fs_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"causeway/virtio/fs"
)

// Scenarios of testdata/guest/guest.h.
const (
	scShared = 1
	scLater  = 2
	scMany   = 3
	scKill   = 4
	scStay   = 5
	scPing   = 6

	guestMany  = 40
	guestPings = 2000
)

// vmControl is the host's side of the guest's loan tests.
type vmControl struct {
	mu       sync.Mutex
	many     []*fs.ReadRequest
	errs     []string
	revoked  int           // requests taken back
	stayed   int           // READs that were left behind
	killed   time.Time     // when the killed process's READ was completed
	released time.Duration // from then to RELEASE
	open     int
}

func (c *vmControl) fail(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errs = append(c.errs, fmt.Sprintf(format, args...))
}

type vmHandle struct {
	c      *vmControl
	killed atomic.Bool
}

func (c *vmControl) Open(fs.Caller) (fs.ControlHandle, syscall.Errno) {
	c.mu.Lock()
	c.open++
	c.mu.Unlock()
	return &vmHandle{c: c}, 0
}

func (h *vmHandle) Flush(uint64) {}

func (h *vmHandle) Release() {
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	h.c.open--
	if h.killed.Load() {
		h.c.released = time.Since(h.c.killed)
	}
}

func (h *vmHandle) Revoke(_ context.Context, p []fs.Request) {
	h.c.mu.Lock()
	h.c.revoked += len(p)
	h.c.mu.Unlock()
}

func (h *vmHandle) Write(w *fs.WriteRequest) {
	if string(w.Data()) != "ping" {
		h.c.fail("WRITE of %q", w.Data())
	}
	w.Complete(w.Size, 0)
}

func (h *vmHandle) Read(r *fs.ReadRequest) {
	switch r.Offset >> 32 {
	case scShared:
		go h.shared(r)
	case scPing:
		go h.ping(r)
	case scLater:
		time.AfterFunc(300*time.Millisecond, func() {
			r.CopyIn([]byte("done"), 0)
			r.Complete(4, 0)
		})
	case scMany:
		h.c.mu.Lock()
		h.c.many = append(h.c.many, r)
		full := h.c.many
		h.c.mu.Unlock()
		if len(full) == guestMany {
			for _, r := range full {
				r.Complete(1, 0)
			}
		}
	case scKill:
		h.killed.Store(true)
		time.AfterFunc(700*time.Millisecond, func() {
			h.c.mu.Lock()
			h.c.killed = time.Now()
			h.c.mu.Unlock()
			r.Complete(0, 0)
		})
	case scStay:
		h.c.mu.Lock()
		h.c.stayed++
		h.c.mu.Unlock()
	default:
		h.c.fail("READ at %#x", r.Offset)
		r.Complete(0, syscall.EINVAL)
	}
}

// shared puts a mark in each page and waits for the guest's.
func (h *vmHandle) shared(r *fs.ReadRequest) {
	defer r.Complete(0, 0)
	segs := pagesOf(r.Segments())
	if r.Size != 1<<20 || len(segs) != 256 {
		h.c.fail("a READ of 1 MiB came as %d bytes, %d pages", r.Size, len(segs))
		return
	}
	time.Sleep(100 * time.Millisecond)
	for i, p := range segs {
		storeWord(p, 0, uint32(1000+i))
	}
	for i, p := range segs {
		if !awaitWord(p, 1, uint32(2000+i)) {
			h.c.fail("page %d: the guest's mark did not come", i)
			return
		}
	}
}

func (h *vmHandle) ping(r *fs.ReadRequest) {
	defer r.Complete(0, 0)
	p := r.Segments()[0].Data
	for i := uint32(1); i <= guestPings; i++ {
		if !awaitWord(p, 0, i) {
			h.c.fail("ping %d did not come", i)
			return
		}
		storeWord(p, 1, i)
	}
}

// bootFile tells the guest which boot this is: each opens it once.
type bootFile struct{ boots atomic.Int32 }

func (b *bootFile) Open(fs.Caller) (fs.ControlHandle, syscall.Errno) {
	b.boots.Add(1)
	return bootHandle{b}, 0
}

type bootHandle struct{ b *bootFile }

func (h bootHandle) Read(r *fs.ReadRequest) {
	r.Complete(r.CopyIn([]byte{byte('0' + min(9, h.b.boots.Load()))}, 0), 0)
}
func (bootHandle) Write(w *fs.WriteRequest)             { w.Complete(0, syscall.EINVAL) }
func (bootHandle) Flush(uint64)                         {}
func (bootHandle) Release()                             {}
func (bootHandle) Revoke(context.Context, []fs.Request) {}
