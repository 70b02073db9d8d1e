//go:build !amd64

package spin

import "sync/atomic"

// Pause tells the CPU that this is a waiting loop.
func Pause() {}

// Store stores v after everything before it.
func Store(p *uint64, v uint64) { atomic.StoreUint64(p, v) }
