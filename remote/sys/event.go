package sys

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// NewEvent makes an eventfd that nobody waits for by reading: it does not block. The descriptor is the caller's.
func NewEvent() (int, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return -1, fmt.Errorf("eventfd: %w", err)
	}
	return fd, nil
}

// Signal wakes who waits for an eventfd, now or later.
func Signal(fd int) {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = unix.Write(fd, one[:]) // EAGAIN: the counter is full, so it is set and who waits has not looked since
}

// Drain resets an eventfd, of whichever kind, that poll has said to be set. Somebody else's read in between does no harm.
func Drain(fd int) {
	var count [8]byte
	_, _ = unix.Read(fd, count[:])
}
