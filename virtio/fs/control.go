package fs

import (
	"context"
	"syscall"
)

// Caller is who issued a request, as the guest kernel says.
type Caller struct{ UID, GID, PID uint32 }

// A ControlFile answers each open(2) of a control file with a handle of its own.
type ControlFile interface {
	// Open must not block: long work (starting a worker) goes on behind the handle. A zero Errno is
	// success.
	Open(c Caller) (ControlHandle, syscall.Errno)
}

// A ControlHandle is one open file description. Forked processes share it. Its methods are called
// from queue goroutines, possibly several at once, and must not block, except Revoke within its
// context.
type ControlHandle interface {
	// Read lends the request's pages until r.Complete, which may come later and from any goroutine.
	// The guest process cannot exit before it.
	Read(r *ReadRequest)

	// Write hands over data until w.Complete, which may come later and from any goroutine.
	Write(w *WriteRequest)

	// Flush is one close(2) of one of the descriptors.
	Flush(lockOwner uint64)

	// Release is the last close; no other call follows. Requests that are still pending were
	// revoked before.
	Release()

	// Revoke asks for the pages of pending requests. When it returns, neither this process nor any
	// worker or GPU touches them any more. The handle may complete some itself; the device
	// completes the rest. It must return before ctx ends: QEMU, and with it the whole guest, waits.
	Revoke(ctx context.Context, pending []Request)
}

// A Pauser is a ControlHandle that may keep its pages while its queue stands, as with a VM that is
// paused.
type Pauser interface {
	ControlHandle
	// Pause asks for the pages of pending requests. With keep they stay, and what is completed
	// reaches the guest after Resume: it need not be held back. It must return before ctx ends.
	Pause(ctx context.Context, pending []Request) (keep bool)
	// Resume follows a Pause that kept pages: the queue goes on where it stood, or another takes
	// its place, whose requests are new.
	Resume()
}

// Request is a *ReadRequest or *WriteRequest.
type Request interface{ request() *pending }
