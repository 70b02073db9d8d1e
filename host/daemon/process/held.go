package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// HeldAt is the descriptor at which a process that is held waits.
const HeldAt = 3

// ErrNotBegun says that who started a process ended before it let it begin.
var ErrNotBegun = errors.New("who started this process ended, or gave it up, before it let it begin")

// Begin lets a process that is held begin. Of one that has ended Done tells, not Begin.
func (p *Process) Begin() error {
	_, err := p.hold.Write([]byte{1})
	if errors.Is(err, unix.EPIPE) {
		err = nil
	}
	return errors.Join(err, p.hold.Close())
}

// AwaitBegin waits, in a process that was started held, until it may begin. It takes the
// descriptor.
func AwaitBegin(ctx context.Context) error {
	var st unix.Stat_t
	err := unix.Fstat(HeldAt, &st)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFIFO {
		err = errors.New("it is no pipe")
	}
	if err == nil {
		err = unix.SetNonblock(HeldAt, true) // so that the wait can be called off
	}
	if err != nil {
		return fmt.Errorf("descriptor %d, at which a process that is held waits: %w", HeldAt, err)
	}
	f := os.NewFile(HeldAt, "held")
	defer f.Close()
	defer context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })()
	if _, err := io.ReadFull(f, make([]byte, 1)); err != nil {
		return errors.Join(ErrNotBegun, ctx.Err())
	}
	return nil
}
