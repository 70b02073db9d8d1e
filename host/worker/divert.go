package worker

import (
	"context"
	"errors"
	"fmt"

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
	cancel context.CancelFunc
	done   chan struct{} // closed when that is had, or not; the rest is there then
	err    error
	moving *relay.Moving
	id     remote.SessionID
	stream *resume.Conn
}

func diverted(err error) link.Diverted {
	return link.Diverted{Status: link.StatusOf(unix.EOPNOTSUPP, err)}
}

// divert has another server get the session, beside the link's goroutine, which answers.
func (p *passer) divert(to link.Relay) error {
	session := p.session.Load()
	switch {
	case p.diversion != nil:
		return p.link.Send(diverted(relay.ErrMoving))
	case session == nil:
		return p.link.Send(diverted(errBusy)) // also of a program that is the RDMA end itself
	}
	ctx, cancel := context.WithCancel(context.Background())
	d := &diversion{to: to, cancel: cancel, done: make(chan struct{})}
	p.diversion = d
	go func() {
		d.err = p.reach(ctx, d, session)
		if d.err != nil {
			p.log.Warn("the session does not go to another GPU server", "server", to.Server, "error", d.err)
		}
		_ = p.link.Send(diverted(d.err)) // ahead of settle's answer; a parent that is gone asks nothing
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
	hello := remote.Hello{}
	if u, ok := session.Local().(*shm.Unix); ok {
		hello.Pid, hello.Flags = u.PID(), u.Env()
	}
	d.id = remote.NewSessionID()
	ask := link.Connect{Session: d.id, Lease: d.to.Lease}
	var first *frame.Secure
	if first, err = p.begins(ctx, &d.to, cfg, ask); err != nil {
		return err
	}
	ask.Again = true
	if d.stream, err = resume.NewClient(first, again, p.anotherTo(d.to.Server, ask), replayed{p.hostMemory()}); err != nil {
		return err
	}
	d.moving, err = session.Move(ctx, d.stream, hello, p.cfg.Branches, d.to.Server)
	return err
}

// settle has the session go on at the other server, or where it was, and answers, beside the link's goroutine.
func (p *passer) settle(goes bool) {
	d := p.diversion
	p.diversion = nil
	if d == nil {
		err := error(nil)
		if goes {
			err = errors.New("no other GPU server has the session")
		}
		_ = p.link.Send(diverted(err))
		return
	}
	if !goes {
		d.cancel()
	}
	go func() {
		defer d.cancel()
		<-d.done
		_ = p.link.Send(diverted(p.goOver(d, goes)))
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
