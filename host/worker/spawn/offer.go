package spawn

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
)

// offer keeps what a worker shares.
func (p *Process) offer(m link.Offer) {
	a := link.Answer{Request: m.Request}
	fd := m.File.FD()
	if p.shared.Offer(p, m.Token, m.Blob, fd) != nil {
		a.Errno = unix.EINVAL
	}
	if fd >= 0 {
		_ = unix.Close(fd)
	}
	_ = p.link.Send(a) // a worker that is gone needs none
}

// awaitLimit is how long a worker may wait for what another is to share, as any step of a move.
const awaitLimit = 2 * time.Minute

// redeem gives a worker what another has shared, or is about to: for that it waits aside, once at a time.
func (p *Process) redeem(m link.Redeem) error {
	if !m.Await {
		blob, fd, err := p.shared.Redeem(m.Token)
		p.redeemed(m, blob, fd, err)
		return nil
	}
	if !p.awaits.CompareAndSwap(false, true) {
		return fmt.Errorf("%w: it waits for what is shared already", errUnasked)
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), awaitLimit)
		defer cancel()
		go func() {
			select {
			case <-p.drained:
				cancel()
			case <-ctx.Done():
			}
		}()
		blob, fd, err := p.shared.Await(ctx, m.Token)
		p.awaits.Store(false)
		p.redeemed(m, blob, fd, err)
	}()
	return nil
}

// redeemed is the answer to redeem.
func (p *Process) redeemed(m link.Redeem, blob []byte, fd int, err error) {
	a := link.Answer{Request: m.Request}
	if err != nil {
		a.Errno = unix.EINVAL
	}
	a.Blob, a.File = blob, link.FileOf(fd)
	_ = p.link.Send(a)
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}
