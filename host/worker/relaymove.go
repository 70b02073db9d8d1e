package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/remote/mtls"
	"causeway/remote/relay"
	"causeway/remote/resume"
)

// A session that is passed on moves with its VM from relay to relay: the one there goes on over the
// same stream, to the same worker of the GPU server, where nothing moves. The keys to connect do
// not come with the session: the lease's are with the vGPU there. Where its bytes may go by RDMA
// they do from there on by that host's adapter, once both agree on it, and over TLS until then.

// mostRelayed bounds what a relay keeps of what comes: its streams', and as much as one has for all
// else.
const mostRelayed = 2*resume.MostKept + resume.MostBranches*resume.MostBranchKept

// movable says why the session cannot go on in another relay.
func (p *passer) movable() error {
	session := p.session.Load()
	switch {
	case p.virtiofs == nil:
		return errElsewhere // its program is of this host
	case session == nil:
		return errBusy
	}
	return session.Movable()
}

// export writes the session, which is parked, for another relay, and keeps it: the VM may go on
// here after all.
func (p *passer) export(m link.Export) error {
	memory := aside(m.Memory)
	defer memory.Close()
	h, err := newHandover(m.Stream.FD(), 0)
	if err != nil {
		return err
	}
	defer h.close()
	session := p.session.Load()
	switch {
	case m.Ahead || memory != nil:
		return errElsewhere
	case p.virtiofs == nil || session == nil:
		return relay.ErrNotParked
	}
	if p.diversion != nil || p.settling.Load() != 0 {
		return relay.ErrMoving
	}
	still, err := session.StandStill()
	if err != nil {
		return err
	}
	p.way.Lock()
	defer p.way.Unlock()
	stream, err := p.stream.Export()
	if err != nil {
		return fmt.Errorf("the stream to the GPU server: %w", err)
	}
	bare := p.virtiofs.bare()
	s := &relayedState{Lease: p.cfg.Relay.Lease, Session: p.id, Head: bare.Head, Regions: bare.Regions, Stream: stream, Relay: still}
	s.write(h.out)
	return h.out.Flush()
}

// adoptPassed makes the session that comes over the stream, which it takes over, and runs it,
// parked.
func (s *starter) adoptPassed(ctx context.Context, stream int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p := newPasser(ctx, s, cancel)
	session, err := p.receive(stream)
	if err != nil {
		return errors.Join(err, s.link.Send(adopted(err)))
	}
	p.session.Store(session)
	if err := s.link.Send(adopted(nil)); err != nil {
		cancel()
	}
	go p.routineLink()
	return errors.Join(session.Run(ctx), s.virtiofs.Close())
}

func (p *passer) receive(stream int) (*relay.Session, error) {
	h, err := newHandover(stream, mostRelayed)
	if err != nil {
		return nil, err
	}
	defer h.close()
	if p.cfg.Rehearsal {
		return nil, errElsewhere
	}
	p.rdma.open(p.cfg, p.confined, p.log) // as greet has it
	if err := p.awaitLent(); err != nil {
		return nil, err
	}
	bell, memory, err := p.awaitBell()
	if err != nil {
		return nil, err
	}
	_ = memory.Close() // there is none to be taken back
	var st *relayedState
	if err = p.link.Send(link.Started{}); err == nil {
		st, err = readRelayed(h.in)
	}
	switch to := p.cfg.Relay; {
	case err != nil:
	case st.Lease != to.Lease:
		err = fmt.Errorf("it is a session of the lease %v, and this vGPU has the lease %v of %s", st.Lease, to.Lease, to.Server)
	}
	if err != nil {
		_ = unix.Close(bell)
		return nil, fmt.Errorf("session that is passed on: %w", err)
	}
	began := time.Now()
	l := newVirtiofs(p.link)
	if err := errors.Join(l.mem.Detach(), l.adoptDetached(&virtiofsState{Head: st.Head, Regions: st.Regions}, bell)); err != nil {
		return nil, err
	}
	p.virtiofs = l
	session, err := p.pickUp(l, st)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	p.log.Info("session that is passed on is adopted, parked", "server", p.cfg.Relay.Server, "lease", st.Lease, "unacknowledged", len(st.Stream.Kept), "took", time.Since(began).Round(time.Microsecond))
	return session, nil
}

// pickUp has the session go on where another relay left it.
func (p *passer) pickUp(l *virtiofs, st *relayedState) (*relay.Session, error) {
	again, err := p.cfg.Relay.Identity.Client(mtls.ResumeProtocol)
	if err != nil {
		return nil, err
	}
	p.id = st.Session
	if p.stream, err = resume.ImportOver(st.Stream, p.elsewhere(&telling{s: p.starter}), again, p.another(p.id), replayed{p.hostMemory()}); err != nil {
		return nil, err
	}
	session, err := relay.Adopt(l, p.stream, st.Relay, p.cfg.Relay.Server, p.log)
	if err != nil {
		return nil, errors.Join(err, p.stream.Close())
	}
	return session, p.link.Send(link.Carried{Over: onTCP})
}
