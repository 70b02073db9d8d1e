package spawn

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/remote"
)

// diverts is what a relay is told of another GPU server for its session. Beside where the worker's
// configuration says, its connections go there.
type diverts struct {
	mu     sync.Mutex
	last   uint64                        // number of what it was told
	rounds uint64                        // and of rounds
	asked  map[uint64]chan link.Diverted // by number; each has one place, and one answer
	routes map[remote.LeaseID]*route
	left   bool // the session is not where the configuration says any more
}

// route is a lease to which a relay is connected.
type route struct {
	to    link.Relay
	calls calls
	ahead bool // memory of the session goes there, and the session has not
	// The relay is not to go there any more, and may have asked for it before it heard that.
	gone bool
}

// errLeft answers a relay that asks for a connection to where its session does not go on.
var errLeft = errors.New("the session is not at that GPU server")

// mostOwed is how many answers a relay may owe: one that was told so much, and says nothing, is
// told nothing more.
const mostOwed = 4

func newDiverts() *diverts {
	return &diverts{asked: map[uint64]chan link.Diverted{}, routes: map[remote.LeaseID]*route{}}
}

// route is where connections of a lease go, zero being that of the worker's configuration; nil:
// nowhere. gone: nowhere any more.
func (p *Process) route(id remote.LeaseID) (to *link.Relay, c *calls, gone bool) {
	p.diverts.mu.Lock()
	defer p.diverts.mu.Unlock()
	if id.IsZero() {
		return p.relay.Load(), &p.calls, p.diverts.left
	}
	if r := p.diverts.routes[id]; r != nil {
		return &r.to, &r.calls, r.gone
	}
	return nil, nil, false
}

// Divert has a relay get its session to another GPU server too, where the session goes on after
// Settle. With an error it goes on where it is, but Settle(false) has to tell the relay so if ctx
// ended.
func (p *Process) Divert(ctx context.Context, to link.Relay) error { return p.divertTo(ctx, to, false) }

// Ahead has another GPU server await a relay's session, whose memory goes there by Round, while it
// runs on, and the rest by Divert. ErrNoRounds: one of the two servers knows of none, and nothing
// has begun. Settle(false) ends it.
func (p *Process) Ahead(ctx context.Context, to link.Relay) error {
	return noRounds(p.divertTo(ctx, to, true))
}

// Rehearse has another GPU server make once what a relay's session is made of, which runs on, and
// is nowhere else afterwards. A *Cannot: it cannot be there what it is; other errors: whether it
// can is not known. If ctx ended Settle(false) has to tell the relay so.
func (p *Process) Rehearse(ctx context.Context, to link.Relay) error {
	err := p.goes(ctx, to, false, func(n uint64) link.ToWorker { return link.Rehearse{Number: n, To: to} })
	if err == nil { // nothing is there any more
		p.diverts.forgetLease(to.Lease)
	}
	var no *no
	if errors.As(err, &no) && no.errno == unix.EADDRNOTAVAIL {
		return &Cannot{no.text}
	}
	return err
}

// Cannot says what of a session cannot be at a GPU server what it is where it is.
type Cannot struct{ Why string }

// Error implements error.
func (c *Cannot) Error() string { return c.Why }

// no is what a relay answers that does not do what it is told.
type no struct {
	text  string
	errno unix.Errno
}

// Error implements error.
func (n *no) Error() string { return fmt.Sprintf("%s: %v", n.text, n.errno) }

// Unwrap implements errors.Unwrap.
func (n *no) Unwrap() error { return n.errno }

// ErrNoRounds says that memory cannot go ahead of a session between two servers, which moves all at
// once then.
var ErrNoRounds = errors.New("memory does not go ahead")

func noRounds(err error) error {
	if errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("%w: %w", ErrNoRounds, err)
	}
	return err
}

// Round has a round of the session's memory go where Ahead said. One goroutine asks, and nothing
// else has the relay's answers to link.Copy.
func (p *Process) Round(ctx context.Context) (link.Copied, error) {
	p.diverts.mu.Lock()
	p.diverts.rounds++
	n := p.diverts.rounds
	p.diverts.mu.Unlock()
	if err := p.Send(link.Copy{Number: n}); err != nil {
		return link.Copied{}, fmt.Errorf("%w: %w", ErrEnded, err)
	}
	for {
		m, err := await(ctx, p, p.copied)
		if err == nil && m.Number != n {
			continue // of one that nobody waits for any more
		}
		if err == nil && m.Errno != 0 {
			err = fmt.Errorf("%s: %w", m.Text, m.Errno)
		}
		return m, err
	}
}

func (p *Process) divertTo(ctx context.Context, to link.Relay, ahead bool) error {
	return p.goes(ctx, to, ahead, func(n uint64) link.ToWorker { return link.Divert{Number: n, Ahead: ahead, To: to} })
}

// goes has connections of a relay go to another server, and tells the relay so.
func (p *Process) goes(ctx context.Context, to link.Relay, ahead bool, message func(n uint64) link.ToWorker) error {
	first := p.relay.Load()
	if first == nil {
		return errors.New("its session runs on this host")
	}
	p.diverts.mu.Lock()
	r := p.diverts.routes[to.Lease]
	known := r != nil && !r.gone || first.Lease == to.Lease && !p.diverts.left
	if known && r != nil && r.ahead && !ahead {
		known, r.ahead = false, false // which goes on
	} else if !known {
		p.diverts.routes[to.Lease] = &route{to: to, ahead: ahead}
	}
	p.diverts.mu.Unlock()
	if known {
		return fmt.Errorf("its session has the lease %v already", to.Lease)
	}
	err := p.divert(ctx, message)
	if err != nil && !errors.Is(err, ErrSilent) {
		p.diverts.forgetLease(to.Lease)
	}
	return err
}

// Settle has the session go on at the server of a lease, where Divert has got it, or (false) where
// it was.
func (p *Process) Settle(ctx context.Context, lease remote.LeaseID, goes bool) error {
	err := p.divert(ctx, func(n uint64) link.ToWorker { return link.Settle{Number: n, Goes: goes} })
	if err == nil && goes {
		p.diverts.forget(func(id remote.LeaseID) bool { return id != lease })
		p.diverts.mu.Lock()
		p.diverts.left = true
		p.diverts.mu.Unlock()
	} else if !goes {
		p.diverts.forgetLease(lease)
	}
	return err
}

func (d *diverts) forgetLease(lease remote.LeaseID) {
	d.forget(func(id remote.LeaseID) bool { return id == lease })
}

func (d *diverts) forget(gone func(remote.LeaseID) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, r := range d.routes {
		r.gone = r.gone || gone(id)
	}
}

// divert sends what it makes of a number, and returns what is answered to that. What comes when
// nobody waits for it any more is forgotten.
func (p *Process) divert(ctx context.Context, message func(n uint64) link.ToWorker) error {
	n, answer, err := p.diverts.ask()
	if err != nil {
		return err
	}
	if err := p.Send(message(n)); err != nil {
		return fmt.Errorf("%w: %w", ErrEnded, err)
	}
	m, err := await(ctx, p, answer)
	if err == nil && m.Errno != 0 {
		err = &no{m.Text, m.Errno}
	}
	return err
}

// ask is the number of what the relay is told next, and where the answer to it comes. ErrSilent: it
// owes too many.
func (d *diverts) ask() (n uint64, answer <-chan link.Diverted, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.asked) == mostOwed {
		return 0, nil, ErrSilent
	}
	d.last++
	c := make(chan link.Diverted, 1)
	d.asked[d.last] = c
	return d.last, c, nil
}

// keep has who asked find an answer.
func (d *diverts) keep(m link.Diverted) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.asked[m.Number]
	if c == nil {
		return fmt.Errorf("%w: %s", errUnasked, link.Name(m))
	}
	delete(d.asked, m.Number)
	c <- m
	return nil
}
