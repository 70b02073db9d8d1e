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
	number uint64 // of Divert
	to     link.Relay
	cancel context.CancelFunc
	done   chan struct{} // closed when that is had, or not; the rest is there then
	err    error
	moving *relay.Moving
	id     remote.SessionID
	stream *resume.Conn
	has    atomic.Bool // the other server has all of the session
}

// patient has a stream to the other server that is lost on the way be given up at once, as the session can go on where it is, and its program stands meanwhile. One that the other server has is looked for as any.
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

// diverted is an answer. EBUSY: it may be another one soon.
func diverted(number uint64, err error) link.Diverted {
	errno := unix.EOPNOTSUPP
	if errors.Is(err, errBegins) {
		errno = unix.EBUSY
	}
	return link.Diverted{Number: number, Status: link.StatusOf(errno, err)}
}

// divert has another server get the session, beside the link's goroutine, which answers.
func (p *passer) divert(m link.Divert) error {
	session := p.session.Load()
	switch {
	case p.diversion != nil || p.settling.Load() != 0:
		return p.link.Send(diverted(m.Number, relay.ErrMoving))
	case session == nil:
		return p.link.Send(diverted(m.Number, errBegins))
	}
	ctx, cancel := context.WithCancel(context.Background())
	d := &diversion{number: m.Number, to: m.To, cancel: cancel, done: make(chan struct{})}
	p.diversion = d
	go func() {
		d.err = p.reach(ctx, d, session)
		if d.err != nil {
			p.log.Warn("the session does not go to another GPU server", "server", d.to.Server, "error", d.err)
		}
		_ = p.link.Send(diverted(d.number, d.err)) // a parent that is gone asks nothing
		close(d.done)
	}()
	return nil
}

// reach has another server get the session.
func (p *passer) reach(ctx context.Context, d *diversion, session *relay.Session) error {
	if err := session.Movable(); err != nil {
		return err
	}
	cfg, err := d.to.Identity.Client(mtls.SessionProtocols(false)...)
	if err != nil {
		return err
	}
	again, err := d.to.Identity.Client(mtls.ResumeProtocol)
	if err != nil {
		return err
	}
	hello, ready := remote.Hello{}, p.cfg.Spare
	if u, ok := session.Local().(*shm.Unix); ok {
		hello.Pid, hello.Flags = u.PID(), u.Env()
		ready = link.Fits(hello, leaseDevices)
	}
	d.id = remote.NewSessionID()
	ask := link.Connect{Session: d.id, Lease: d.to.Lease, Ready: ready} // as the session began: the program does not stand while a driver starts
	var first *frame.Secure
	if first, err = p.begins(ctx, &d.to, cfg, ask); err != nil {
		return err
	}
	ask.Again, ask.Ready = true, false
	if d.stream, err = resume.NewClient(first, again, d.patient(p.anotherTo(d.to.Server, ask)), replayed{p.hostMemory()}); err != nil {
		return err
	}
	if d.moving, err = session.Move(ctx, d.stream, hello, p.cfg.Branches, d.to.Server); err != nil {
		return err
	}
	d.has.Store(true)
	if err = d.stream.Ready(ctx); err != nil { // it was given up a moment ago
		err = errors.Join(fmt.Errorf("gpu server %s: %w", d.to.Server, err), d.moving.Decide(false))
		d.moving = nil
	}
	return err
}

// settle has the session go on at the other server, or where it was, and answers, beside the link's goroutine.
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
		p.settling.Add(-1)
		_ = p.link.Send(diverted(m.Number, err))
	}()
}

// goOver is settle's part that waits.
func (p *passer) goOver(d *diversion, goes bool) error {
	switch {
	case d.moving == nil && !goes:
		return nil
	case d.moving == nil:
		return d.err
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
	return nil
}
