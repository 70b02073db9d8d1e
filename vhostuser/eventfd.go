package vhostuser

import (
	"encoding/binary"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// EventFD is an eventfd received from the front end. It is used through the Go poller, so that Wait
// blocks a goroutine, not a thread, and Close wakes it.
//
// The descriptor stays non-blocking for ever: O_NONBLOCK belongs to the open file description,
// which the front end shares, and QEMU drains the same eventfd under its main lock. os.File.Fd
// would clear the flag: it must not be called.
type EventFD struct{ f *os.File }

// newEventFD takes over fd, also when it fails.
func newEventFD(fd int, name string) (*EventFD, error) {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err == nil && flags&unix.O_NONBLOCK == 0 {
		// Setting the flag is harmless to a front end that only writes; clearing it is what hangs.
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("%s eventfd: %w", name, err)
	}
	return &EventFD{f: os.NewFile(uintptr(fd), name)}, nil
}

// DupEventFD makes an EventFD of a duplicate of fd, for users without a Server.
func DupEventFD(fd int, name string) (*EventFD, error) {
	d, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("%s eventfd: %w", name, err)
	}
	return newEventFD(d, name)
}

// Wait blocks until the other side signals. It fails with os.ErrDeadlineExceeded after Interrupt
// and with os.ErrClosed after Close.
func (e *EventFD) Wait() error {
	var buf [8]byte
	_, err := e.f.Read(buf[:])
	return err
}

// Signal wakes the other side. A nil EventFD ignores it.
func (e *EventFD) Signal() {
	if e == nil {
		return
	}
	var buf [8]byte
	binary.NativeEndian.PutUint64(buf[:], 1)
	// The only errors are a closed file (the ring is being stopped) and a counter at 2^64-2.
	_, _ = e.f.Write(buf[:])
}

// Interrupt makes Wait fail, now and later, until Rearm.
func (e *EventFD) Interrupt() { _ = e.f.SetReadDeadline(time.Unix(1, 0)) }

// Rearm ends Interrupt.
func (e *EventFD) Rearm() { _ = e.f.SetReadDeadline(time.Time{}) }

// Close ends Wait. A nil EventFD ignores it.
func (e *EventFD) Close() {
	if e != nil {
		_ = e.f.Close()
	}
}
