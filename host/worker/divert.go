package worker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/remote"
	"causeway/remote/frame"
	"causeway/remote/mtls"
	"causeway/remote/relay"
	"causeway/remote/resume"
	"causeway/remote/shm"
)

// diversion is another GPU server for a relay's session.
type diversion struct {
	to     link.Relay
	ahead  bool // the session runs on, and its memory goes ahead of it; routineLink's
	tries  bool // it is only rehearsed
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{} // closed while nothing of it is under way; the rest is there then
	err    error
	moving *relay.Moving
	id     remote.SessionID
	stream *resume.Conn
	booked uint64      // host memory
	has    atomic.Bool // the other server has all of the session
	told   telling     // of what the stream goes over, once the session does
}

// rests reports whether nothing of it is under way.
func (d *diversion) rests() bool {
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

// begins has a part of it be under way, which answers when it is over.
func (d *diversion) begins(part func() (answer func())) {
	done := make(chan struct{})
	d.done = done
	go func() {
		answer := part()
		close(done) // before the parent hears of it, and asks for the next
		answer()
	}()
}

// patient has a stream to the other server that is lost on the way be given up at once, as the
// session can go on where it is, and its program stands meanwhile, or will: a worker that takes a
// session in follows nobody who brings another connection. One that the other server has is looked
// for as any.
func (d *diversion) patient(dial resume.Dialer) resume.Dialer {
	return func(ctx context.Context, why error) (net.Conn, error) {
		if !d.has.Load() && !errors.Is(why, resume.ErrFresh) {
			return nil, fmt.Errorf("%w: the connection was lost on the way: %w", resume.ErrGone, why)
		}
		return dial(ctx, why)
	}
}

// errBegins says that there is nothing yet that could go, or never will be.
var errBegins = errors.New("the session has not begun at its GPU server, or its program is the RDMA end itself")

// diverted is an answer. EBUSY: it may be another one soon. ENOSYS: it may do without rounds.
// EADDRNOTAVAIL: it was rehearsed, and cannot go there.
func diverted(number uint64, err error) link.Diverted {
	return link.Diverted{Number: number, Status: link.StatusOf(errnoOf(err), err)}
}

func errnoOf(err error) unix.Errno {
	switch {
	case errors.Is(err, errBegins):
		return unix.EBUSY
	case errors.Is(err, relay.ErrNoRounds):
		return unix.ENOSYS
	case errors.Is(err, relay.ErrCannot):
		return unix.EADDRNOTAVAIL
	}
	return unix.EOPNOTSUPP
}

// divert has another server get the session, or await it, or (tries) rehearse it, beside the link's
// goroutine, which answers.
func (p *passer) divert(m link.Divert, tries bool) error {
	session := p.session.Load()
	// One that came to nothing, or was to.
	if d := p.diversion; d != nil && d.rests() && (d.tries || d.ahead && d.err != nil) {
		d.cancel()
		p.diversion = nil
	}
	d := p.diversion
	goesOn := d != nil && d.ahead && !m.Ahead && !tries && d.to.Lease == m.To.Lease && d.rests() && d.err == nil
	switch {
	case goesOn:
		d.ahead = false
	case d != nil || p.settling.Load() != 0:
		return p.link.Send(diverted(m.Number, relay.ErrMoving))
	case session == nil:
		return p.link.Send(diverted(m.Number, errBegins))
	default:
		d = &diversion{to: m.To, ahead: m.Ahead, tries: tries, told: telling{s: p.starter, later: true}}
		d.ctx, d.cancel = context.WithCancel(context.Background())
		p.diversion, p.held = d, 0
	}
	d.begins(func() func() {
		switch {
		case goesOn:
			d.err = p.goesOn(d)
		case d.tries:
			d.err = p.rehearse(d.ctx, d, session)
		default:
			d.err = p.reach(d.ctx, d, session)
		}
		switch {
		case d.tries:
			p.log.Info("the session has been rehearsed at another GPU server", "server", d.to.Server, "error", d.err)
		case d.err != nil:
			p.log.Warn("the session does not go to another GPU server", "server", d.to.Server, "error", d.err)
		}
		if d.tries || d.err != nil {
			p.unbook(d)
		}
		said := diverted(m.Number, d.err)
		return func() { _ = p.link.Send(said) } // a parent that is gone asks nothing
	})
	return nil
}

// goesOn has another server get the rest of a session whose memory went ahead.
func (p *passer) goesOn(d *diversion) error {
	if err := d.moving.Stand(d.ctx); err != nil {
		d.moving = nil
		return err
	}
	return d.all()
}

// copy has a round of the session's memory go to the server that awaits it.
func (p *passer) copy(m link.Copy) error {
	d := p.diversion
	if d == nil || !d.ahead || m.Rehearsal || !d.rests() || d.err != nil {
		return p.link.Send(link.Copied{Number: m.Number, Status: link.StatusOf(unix.EOPNOTSUPP, errElsewhere)})
	}
	held := p.held
	d.begins(func() func() {
		r, err := d.moving.Round(d.ctx, held)
		said := link.Copied{Number: m.Number, Looked: r.Looked, Sent: r.Sent, Cut: r.Cut, Status: link.StatusOf(errnoOf(err), err)}
		return func() { _ = p.link.Send(said) }
	})
	return nil
}

// reach has another server get the session, or, ahead, await it.
func (p *passer) reach(ctx context.Context, d *diversion, session *relay.Session) error {
	if err := session.Movable(); err != nil {
		return err
	}
	if d.ahead {
		if err := p.mayAhead(d, session.Rounds(), relay.ErrNoRounds); err != nil {
			return err
		}
	}
	hello, err := p.opens(ctx, d, session)
	if err != nil {
		return err
	}
	if d.ahead {
		d.moving, err = session.Ahead(ctx, d.stream, hello, p.cfg.Branches, d.to.Server)
		return err
	}
	if d.moving, err = session.Move(ctx, d.stream, hello, p.cfg.Branches, d.to.Server); err != nil {
		return err
	}
	return d.all()
}

// rehearse has another server make once what the session is made of.
func (p *passer) rehearse(ctx context.Context, d *diversion, session *relay.Session) error {
	if err := session.Movable(); err != nil {
		return err
	}
	if err := p.mayAhead(d, session.Rehearses(), relay.ErrNoRehearsal); err != nil {
		return err
	}
	hello, err := p.opens(ctx, d, session)
	if err != nil {
		return err
	}
	return session.Rehearse(ctx, d.stream, hello, d.to.Server)
}

// opens makes the stream to the other server, where the session says hello.
func (p *passer) opens(ctx context.Context, d *diversion, session *relay.Session) (remote.Hello, error) {
	rdma := p.cfg.RDMA != "" && !d.tries
	cfg, err := d.to.Identity.Client(mtls.SessionProtocols(rdma)...)
	if err != nil {
		return remote.Hello{}, err
	}
	again, err := d.to.Identity.Client(mtls.ResumeProtocol)
	if err != nil {
		return remote.Hello{}, err
	}
	hello, ready := remote.Hello{}, p.cfg.Spare
	if u, ok := session.Local().(*shm.Unix); ok {
		hello.Pid, hello.Flags = u.PID(), u.Env()
		ready = link.Fits(hello, leaseDevices)
	}
	d.id = remote.NewSessionID()
	// As the session began: the program does not stand while a driver starts.
	ask := link.Connect{Session: d.id, Lease: d.to.Lease, Ready: ready}
	var first *frame.Secure
	if first, err = p.begins(ctx, &d.to, cfg, ask); err != nil {
		return hello, err
	}
	lifted, err := p.overTold(ctx, first, true, &d.told)
	if err != nil {
		return hello, fmt.Errorf("gpu server %s: %w", d.to.Server, err)
	}
	ask.Again, ask.Ready = true, false
	d.stream, err = resume.NewClientOver(first, lifted, again, d.patient(p.anotherTo(d.to.Server, ask)), replayed{p.hostMemory()})
	return hello, err
}

// mayAhead books what rounds take, of a session whose server makes them; none says that there are
// none.
func (p *passer) mayAhead(d *diversion, does bool, none error) error {
	switch {
	case !does:
		return fmt.Errorf("gpu server %s: %w", p.cfg.Relay.Server, none)
	case !p.hostMemory().reserve(relay.AheadMemory):
		return fmt.Errorf("%w: there is no host memory left for that", none)
	}
	d.booked = relay.AheadMemory
	return nil
}

// unbook gives back what mayAhead has booked.
func (p *passer) unbook(d *diversion) {
	p.hostMemory().release(d.booked)
	d.booked = 0
}

// all notes that the other server has all of the session.
func (d *diversion) all() error {
	d.has.Store(true)
	err := d.stream.Ready(d.ctx)
	if err != nil { // it was given up a moment ago
		err = errors.Join(fmt.Errorf("gpu server %s: %w", d.to.Server, err), d.moving.Decide(false))
		d.moving = nil
	}
	return err
}

// settle has the session go on at the other server, or where it was, and answers, beside the link's
// goroutine.
func (p *passer) settle(m link.Settle) {
	d := p.diversion
	p.diversion = nil
	if d == nil {
		err := error(nil)
		if m.Goes {
			err = errors.New("no other GPU server has the session")
		}
		_ = p.link.Send(diverted(m.Number, err))
		return
	}
	if !m.Goes {
		d.cancel()
	}
	p.settling.Add(1)
	go func() {
		defer d.cancel()
		<-d.done
		err := p.goOver(d, m.Goes)
		p.unbook(d)
		p.settling.Add(-1)
		_ = p.link.Send(diverted(m.Number, err))
	}()
}

// goOver is settle's part that waits.
func (p *passer) goOver(d *diversion, goes bool) error {
	switch {
	case d.moving == nil && !goes:
		return nil
	case d.tries:
		return errors.New("the session was only rehearsed there")
	case d.moving == nil:
		return d.err
	case d.ahead && goes:
		return errors.Join(errors.New("no other GPU server has all of the session"), d.moving.Decide(false))
	}
	if err := d.moving.Decide(goes); err != nil {
		return fmt.Errorf("gpu server %s: %w", d.to.Server, err)
	}
	if !goes {
		return nil
	}
	p.way.Lock()
	defer p.way.Unlock()
	p.log.Info("the session goes on at another GPU server", "server", d.to.Server, "lease", d.to.Lease)
	p.cfg.Relay, p.id, p.stream = &d.to, d.id, d.stream
	return d.told.now()
}
