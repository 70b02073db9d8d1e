package soft

import "sync/atomic"

// hostState is what a session keeps for host functions and managed memory. Its zero value is ready.
type hostState struct {
	doomed atomic.Int32 // the first fault of any context, until a primary context is reset
}
