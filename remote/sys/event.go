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

// Bell is rung at one end and heard at the other, which somebody else may have. An eventfd is not
// for that: its flags are all holders', and who clears O_NONBLOCK and fills the counter has Signal
// wait for ever. Of a pipe each end has flags of its own.
type Bell struct{ ring, hear int }

// NewBell makes one.
func NewBell() (*Bell, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, fmt.Errorf("pipe: %w", err)
	}
	return &Bell{ring: fds[1], hear: fds[0]}, nil
}

// Ring wakes who hears, now or later.
func (b *Bell) Ring() { Signal(b.ring) }

// Hear is the descriptor to poll and to Drain, as of an eventfd. It stays the bell's.
func (b *Bell) Hear() int { return b.hear }

// Close ends a bell; nil: there is none.
func (b *Bell) Close() {
	if b != nil {
		CloseAll([]int{b.ring, b.hear})
	}
}

// Drain resets an eventfd, of whichever kind, or a Bell, that poll has said to be set. Somebody
// else's read in between does no harm: it never waits, whatever that one does to the file, but on
// kernels that cannot be told so (before 5.8).
func Drain(fd int) error {
	var count [64]byte // of a bell several rings
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
