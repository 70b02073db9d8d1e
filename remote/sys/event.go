package sys

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// NewEvent makes an eventfd that nobody waits for by reading: it does not block. The descriptor is
// the caller's.
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
	// EAGAIN: the counter is full, so it is set and who waits has not looked since
	_, _ = unix.Write(fd, one[:])
}

// Drain resets an eventfd, of whichever kind, that poll has said to be set. Somebody else's read in
// between does no harm: it never waits, whatever that one does to the file, but on kernels that
// cannot be told so (before 5.8).
func Drain(fd int) error {
	var count [8]byte
	_, err := unix.Preadv2(fd, [][]byte{count[:]}, -1, unix.RWF_NOWAIT)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		_, err = unix.Read(fd, count[:])
	}
	if err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("read an eventfd: %w", err)
	}
	return nil
}

// ErrNotEvent says that a descriptor is no eventfd.
var ErrNotEvent = errors.New("no eventfd")

// CheckEvent refuses what somebody passed as an eventfd and has a kind: files, pipes, sockets. What
// else has none as well fails when it is read.
func CheckEvent(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != 0 {
		return errors.Join(ErrNotEvent, err)
	}
	return nil
}
