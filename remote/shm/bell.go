package shm

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"causeway/remote"
	"causeway/remote/sys"
)

// Bell is a remote.Doorbell over an eventfd that the guest, or whoever forwards for it, writes to.
type Bell struct {
	fd   int // the guest's; blocking or not, it is only read after poll said so
	self int // ours: Ring and ended contexts
	wake func(slot uint32)
}

var _ remote.Doorbell = (*Bell)(nil)

// NewBell takes over fd. wake is called by Wake.
func NewBell(fd int, wake func(slot uint32)) (*Bell, error) {
	self, err := sys.NewEvent()
	if err != nil {
		return nil, err
	}
	return &Bell{fd: fd, self: self, wake: wake}, nil
}

// FutexBell is NewBell for a ring whose memory the sleeper maps as well.
func FutexBell(fd int, r *Ring) (*Bell, error) {
	return NewBell(fd, func(slot uint32) { sys.FutexWake(r.waitWord(slot)) })
}

// Wait implements remote.Doorbell. It blocks its thread, not just its goroutine: a wake-up costs no
// scheduling.
func (b *Bell) Wait(ctx context.Context) error {
	stop := context.AfterFunc(ctx, b.Ring)
	defer stop()
	fds := []unix.PollFd{
		{Fd: int32(b.fd), Events: unix.POLLIN},
		{Fd: int32(b.self), Events: unix.POLLIN},
	}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		_, err := unix.Poll(fds, -1)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("poll the doorbell: %w", err)
		}
		break
	}
	for _, f := range fds {
		if f.Revents&unix.POLLIN != 0 {
			if err := sys.Drain(int(f.Fd)); err != nil {
				return fmt.Errorf("doorbell: %w", err)
			}
		} else if f.Revents != 0 {
			return fmt.Errorf("doorbell: poll event %#x: %w", f.Revents, remote.ErrClosed)
		}
	}
	return ctx.Err()
}

// Ring implements remote.Doorbell.
func (b *Bell) Ring() { sys.Signal(b.self) }

// Wake implements remote.Doorbell.
func (b *Bell) Wake(slot uint32) { b.wake(slot) }

// FD is the guest's eventfd, for another process to take the session over.
func (b *Bell) FD() int { return b.fd }

// Close ends the doorbell. No Wait may run.
func (b *Bell) Close() error {
	return errors.Join(unix.Close(b.fd), unix.Close(b.self))
}
