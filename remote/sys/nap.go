package sys

import (
	"time"

	"golang.org/x/sys/unix"
)

// Nap sleeps on the caller's own thread: the runtime's timers may round up to a millisecond, and
// have another thread woken.
func Nap(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&t, nil)
}

// Sharpen makes waits of the caller's thread exact, which is locked: else the kernel may stretch
// each by 50 us (prctl(2), PR_SET_TIMERSLACK).
func Sharpen() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1000, 0, 0, 0) }
