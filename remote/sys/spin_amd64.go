package sys

// Pause tells the CPU that this is a waiting loop: it saves power and leaves the sibling thread its
// share.
func Pause()

// StoreRelease stores v after everything before it, without waiting until others see it:
// sync/atomic's store does wait. A load that follows may be done earlier.
//
//go:noescape
func StoreRelease(p *uint64, v uint64)
