package shm

import (
	"math"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// futexWakeShared is FUTEX_WAKE without the private flag: the sleeper is another process (futex(2)).
const futexWakeShared = 1

// futexWake wakes everyone who sleeps on w.
func futexWake(w *atomic.Uint32) {
	// The only errors are those of a bad address, which w is not.
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(w)), futexWakeShared, math.MaxInt32, 0, 0, 0)
}
