package sys

import (
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Operations of futex(2) without the private flag: who sleeps and who wakes are different
// processes.
const (
	futexWait = 0
	futexWake = 1
)

// FutexWake wakes everyone who sleeps on w, in whichever process.
func FutexWake(w *atomic.Uint32) { FutexWakeSome(w, math.MaxInt32) }

// FutexWakeSome wakes as many of those as n says, or all.
func FutexWakeSome(w *atomic.Uint32, n int32) {
	// The only errors are those of a bad address, which w is not.
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(w)), futexWake, uintptr(n), 0, 0, 0)
}

// FutexWait sleeps while w is old, at most for d; 0: for ever. It may return early. It blocks its
// thread.
func FutexWait(w *atomic.Uint32, old uint32, d time.Duration) {
	var limit *unix.Timespec
	if d > 0 {
		t := unix.NsecToTimespec(int64(d))
		limit = &t
	}
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(w)), futexWait, uintptr(old), uintptr(unsafe.Pointer(limit)), 0, 0)
}
