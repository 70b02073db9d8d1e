package spawn

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/host/worker/offer"
)

// offer keeps what a worker shares. A token that another has is awaited: that one is on its way out
// where a VM comes back soon.
func (p *Process) offer(m link.Offer) error {
	err := p.shared.Offer(p, m.Token, m.Blob, m.File.FD(), m.Memory)
	if !errors.Is(err, offer.ErrTaken) || p.shared.Has(p, m.Token) {
		p.offered(m, err)
		return nil
	}
	return p.await(func(ctx context.Context) {
		err := p.shared.OfferAgain(ctx, p, m.Token, m.Blob, m.File.FD(), m.Memory)
		p.awaits.Store(false)
		p.offered(m, err)
		<-p.drained // what was offered behind the worker's end is nobody's either
		p.shared.Withdraw(p, m.Token)
	})
}

// offered is the answer to offer.
func (p *Process) offered(m link.Offer, err error) {
	a := link.Answer{Request: m.Request}
	if err != nil {
		a.Errno = unix.EINVAL
	}
	if fd := m.File.FD(); fd >= 0 {
		_ = unix.Close(fd)
	}
	_ = p.Send(a) // a worker that is gone needs none
}

// awaitLimit is how long a worker may wait for others, as any step of a move.
const awaitLimit = 2 * time.Minute

// await runs what waits for others, aside and once at a time: that ends p.awaits when it answers.
// It is cut when the worker has ended.
func (p *Process) await(wait func(context.Context)) error {
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
		wait(ctx)
	}()
	return nil
}

// redeem gives a worker what another has shared, or is about to: for that it waits aside, once at a
// time.
func (p *Process) redeem(m link.Redeem) error {
	if m.Look {
		var err error
		if !p.shared.Owned(m.Token) {
			err = offer.ErrUnknown
		}
		p.redeemed(m, nil, -1, err)
		return nil
	}
	if !m.Await {
		blob, fd, err := p.shared.Redeem(p, m.Token)
		p.redeemed(m, blob, fd, err)
		return nil
	}
	return p.await(func(ctx context.Context) {
		blob, fd, err := p.shared.Await(ctx, p, m.Token)
		select {
		case <-p.drained: // it has nothing open any more
			p.shared.Gone(p)
		default:
		}
		p.awaits.Store(false)
		p.redeemed(m, blob, fd, err)
	})
}

// withdraw takes back what a worker shares, letGo what it has open of others: in both cases it
// counts first what is left.
func (p *Process) withdraw(m link.Withdraw) {
	p.shared.Withdraw(p, m.Token)
	_ = p.Send(link.Answer{Request: m.Request})
}

func (p *Process) letGo(m link.LetGo) {
	p.shared.LetGo(p, m.Token)
	_ = p.Send(link.Answer{Request: m.Request})
}

// redeemed is the answer to redeem.
func (p *Process) redeemed(m link.Redeem, blob []byte, fd int, err error) {
	a := link.Answer{Request: m.Request}
	if err != nil {
		a.Errno = unix.EINVAL
	}
	a.Blob, a.File = blob, link.FileOf(fd)
	_ = p.Send(a)
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}
