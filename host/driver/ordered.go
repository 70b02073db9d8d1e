package driver

import (
	"sync/atomic"

	"causeway/cuda/wire"
)

// Ordered is a Session that issues some operations from threads of its own.
type Ordered interface {
	// Before is called before each operation, on the worker goroutine, which thereby says that
	// everything submitted earlier must be issued first unless the session knows better of op.
	// behind: the operation waited in the ring, so the worker is what holds the guest up.
	Before(op wire.Op, behind bool)
}

// Capturer is a Session that knows cheaply whether anything captures.
type Capturer interface {
	// Captures counts the streams that capture. The session changes it only in operations.
	Captures() *atomic.Int32
}
