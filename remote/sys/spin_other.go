//go:build !amd64

package sys

import "sync/atomic"

// Pause tells the CPU that this is a waiting loop.
func Pause() {}

// StoreRelease stores v after everything before it.
func StoreRelease(p *uint64, v uint64) { atomic.StoreUint64(p, v) }
