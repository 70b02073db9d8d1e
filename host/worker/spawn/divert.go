package spawn

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"causeway/host/worker/link"
	"causeway/remote"
)

// diverts is what a relay is told of another GPU server for its session. Beside where the worker's configuration says, its connections go there.
type diverts struct {
	question[link.Diverted]
	owed int // answers; of who asks

	mu     sync.Mutex
	routes map[remote.LeaseID]*route
}

// route is a lease to which a relay is connected.
type route struct {
	to    link.Relay
	calls calls
	gone  bool // the relay is not to go there any more, and may have asked for it before it heard that
}

// errLeft answers a relay that asks for a connection to where its session does not go on.
var errLeft = errors.New("the session is not at that GPU server")

// mostOwed is how many answers a relay may owe: what it does it does one at a time.
const mostOwed = 2

func newDiverts() *diverts {
	d := &diverts{question: newQuestion[link.Diverted](), routes: map[remote.LeaseID]*route{}}
	d.answer = make(chan link.Diverted, mostOwed)
	return d
}

// route is where connections of a lease go, zero being that of the worker's configuration; nil: nowhere. gone: nowhere any more.
func (p *Process) route(id remote.LeaseID) (to *link.Relay, c *calls, gone bool) {
	if id.IsZero() {
		return p.relay.Load(), &p.calls, false
	}
	p.diverts.mu.Lock()
	defer p.diverts.mu.Unlock()
	if r := p.diverts.routes[id]; r != nil {
		return &r.to, &r.calls, r.gone
	}
	return nil, nil, false
}

// Divert has a relay get its session to another GPU server too, where the session goes on after Settle. With an error it goes on where it is, but Settle(false) has to tell the relay so if ctx ended.
func (p *Process) Divert(ctx context.Context, to link.Relay) error {
	if p.relay.Load() == nil {
		return errors.New("its session runs on this host")
	}
	p.diverts.mu.Lock()
	r := p.diverts.routes[to.Lease]
	known := r != nil && !r.gone
	if !known {
		p.diverts.routes[to.Lease] = &route{to: to}
	}
	p.diverts.mu.Unlock()
	if known {
		return fmt.Errorf("its session has the lease %v already", to.Lease)
	}
	err := p.divert(ctx, link.Divert{To: to})
	if err != nil && !errors.Is(err, ErrSilent) {
		p.diverts.forget(func(id remote.LeaseID) bool { return id == to.Lease })
	}
	return err
}

// Settle has the session go on at the server of a lease, where Divert has got it, or (false) where it was.
func (p *Process) Settle(ctx context.Context, lease remote.LeaseID, goes bool) error {
	err := p.divert(ctx, link.Settle{Goes: goes})
	if err == nil && goes {
		p.diverts.forget(func(id remote.LeaseID) bool { return id != lease })
	} else if !goes {
		p.diverts.forget(func(id remote.LeaseID) bool { return id == lease })
	}
	return err
}

func (d *diverts) forget(gone func(remote.LeaseID) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, r := range d.routes {
		r.gone = r.gone || gone(id)
	}
}

// divert sends a message, and returns what is answered to it: not what is answered late to one before.
func (p *Process) divert(ctx context.Context, m link.ToWorker) error {
	d := p.diverts
	end, err := d.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	if d.owed == mostOwed {
		return ErrSilent
	}
	if err := p.link.Send(m); err != nil {
		return err
	}
	d.owed++
	for {
		answer, err := d.await(ctx, p)
		if err != nil {
			return err
		}
		if d.owed--; d.owed > 0 {
			continue
		}
		if answer.Errno != 0 {
			return fmt.Errorf("%s: %w", answer.Text, answer.Errno)
		}
		return nil
	}
}

// keep has who asked find an answer.
func (d *diverts) keep(m link.Diverted) error {
	select {
	case d.answer <- m:
		return nil
	default:
		return fmt.Errorf("%w: %s", errUnasked, link.Name(m))
	}
}
