package worker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
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

// errElsewhere says why nothing can be done here with what a session has.
var errElsewhere = errors.New("the session runs on a GPU server")

// passer is a worker without a GPU: its session runs on a GPU server, and what it has is the way
// there.
type passer struct {
	*starter
	cancel    context.CancelFunc
	gone      <-chan struct{}     // the session's end
	asks      chan struct{}       // one place: somebody has asked for a connection
	waits     atomic.Bool         // for connected
	connected chan link.Connected // one place
	session   atomic.Pointer[relay.Session]
	id        remote.SessionID // what the server calls it
	stream    *resume.Conn

	diversion *diversion // routineLink's; nil: none
	// Likewise: for how many hundredths of the time the session is held back while memory goes
	// ahead.
	held uint32
	// How many are settled and not over yet: what the session has, and what this has of it, may be
	// of two servers.
	settling atomic.Int32
	way      sync.Mutex // guards id, stream and cfg.Relay once the session has begun
}

// leaseDevices is how many devices a lease is of.
const leaseDevices = 1

func newPasser(ctx context.Context, s *starter, cancel context.CancelFunc) *passer {
	return &passer{starter: s, cancel: cancel, gone: ctx.Done(), asks: make(chan struct{}, 1), connected: make(chan link.Connected, 1)}
}

// passOn is start for a session that runs on a GPU server.
func (s *starter) passOn(ctx context.Context, conn int) error {
	if s.cfg.Parked {
		return s.adoptPassed(ctx, conn)
	}
	if h, ok := s.asksDirect(conn); ok {
		return s.passDirect(ctx, conn, h)
	}
	c, err := s.greet(conn)
	if err != nil || c == nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p := newPasser(ctx, s, cancel)
	go p.routineLink()
	return errors.Join(p.run(ctx, c), c.Close())
}

// run has the session from its beginning to its end.
func (p *passer) run(ctx context.Context, c remote.Carrier) error {
	to := p.cfg.Relay
	session, err := p.open(ctx, c)
	if err != nil {
		return errors.Join(err, c.Welcome(uint32(relay.Errno(err)), err.Error()))
	}
	p.session.Store(session)
	if err := c.Welcome(0, ""); err != nil {
		p.cancel()
		return errors.Join(fmt.Errorf("welcome: %w", err), session.Run(ctx))
	}
	p.log.Info("session is passed on", "server", to.Server, "lease", to.Lease, "peer", p.cfg.Peer, "carrier", p.cfg.Carrier)
	return session.Run(ctx)
}

// open shakes hands with the server. A connection that is reset meanwhile has begun nothing there:
// there is another session over another.
func (p *passer) open(ctx context.Context, c remote.Carrier) (*relay.Session, error) {
	for n := 1; ; n++ {
		s, err := p.begin(ctx, c)
		if err == nil || n == link.Beginnings || !relay.Away(err) && !errors.Is(err, resume.ErrGone) {
			return s, err
		}
		p.log.Warn("the connection to the GPU server is lost before the session began: it begins over another", "server", p.cfg.Relay.Server, "error", err)
	}
}

func (p *passer) begin(ctx context.Context, c remote.Carrier) (*relay.Session, error) {
	to := p.cfg.Relay
	again, err := to.Identity.Client(mtls.ResumeProtocol)
	if err != nil {
		return nil, err
	}
	hello, ready := remote.Hello{}, p.cfg.Spare
	if u, ok := c.(*shm.Unix); ok {
		hello.Pid, hello.Flags = u.PID(), u.Env()
		ready = link.Fits(hello, leaseDevices)
	}
	first, err := p.first(ctx, ready, mtls.SessionProtocols(p.cfg.RDMA != ""))
	if err != nil {
		return nil, err
	}
	lifted, err := p.over(ctx, first, true)
	if err != nil {
		return nil, fmt.Errorf("gpu server %s: %w", to.Server, err)
	}
	conn, err := p.lasting(first, lifted, again)
	if err != nil {
		return nil, err
	}
	session, err := relay.Open(ctx, c, conn, hello, p.cfg.Branches, to.Server, p.log)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return session, nil
}

// first is the connection that a session begins with.
func (p *passer) first(ctx context.Context, ready bool, protocols []string) (*frame.Secure, error) {
	to := p.cfg.Relay
	cfg, err := to.Identity.Client(protocols...)
	if err != nil {
		return nil, err
	}
	p.id = remote.NewSessionID()
	return p.begins(ctx, to, cfg, link.Connect{Session: p.id, Ready: ready})
}

// begins makes the connection that a session begins with at a server.
func (p *passer) begins(ctx context.Context, to *link.Relay, cfg *tls.Config, ask link.Connect) (*frame.Secure, error) {
	raw, err := p.connect(ctx, ask)
	if err != nil {
		return nil, err
	}
	c, err := frame.Client(ctx, raw, cfg)
	if err != nil {
		return nil, fmt.Errorf("gpu server %s: %w", to.Server, relay.Refused(err))
	}
	return c, nil
}

// lasting is a stream that begins on a connection and goes on over others.
func (p *passer) lasting(first *frame.Secure, l resume.Lifted, again *tls.Config) (*resume.Conn, error) {
	c, err := resume.NewClientOver(first, l, again, p.another(p.id), replayed{p.hostMemory()})
	if err == nil {
		p.stream = c
	}
	return c, err
}

// another asks for connections over which a session goes on.
func (p *passer) another(id remote.SessionID) resume.Dialer {
	return p.anotherTo(p.cfg.Relay.Server, link.Connect{Session: id, Again: true})
}

func (p *passer) anotherTo(server string, ask link.Connect) resume.Dialer {
	return func(ctx context.Context, why error) (net.Conn, error) {
		switch {
		case errors.Is(why, resume.ErrFresh):
			p.log.Info("the session asks for one more connection to the GPU server, for copies", "server", server)
		case errors.Is(why, resume.ErrBeside):
			p.log.Info("the session asks for one more connection to the GPU server, to agree on RDMA beside", "server", server)
		default:
			p.log.Warn("a connection to the GPU server is lost: the session asks for another", "server", server, "why", why)
		}
		return p.connect(ctx, ask)
	}
}

// connect asks the parent for a connection, one at a time: this process has no network, and cannot
// reach what else is there.
func (p *passer) connect(ctx context.Context, ask link.Connect) (net.Conn, error) {
	select {
	case p.asks <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	p.waits.Store(true)
	if err := p.link.Send(ask); err != nil {
		<-p.asks
		return nil, err
	}
	select {
	case m := <-p.connected:
		<-p.asks
		return connectionOf(m)
	case <-ctx.Done(): // the answer is nobody else's
		go func() {
			select {
			case m := <-p.connected:
				if c, err := connectionOf(m); err == nil {
					_ = c.Close()
				}
				<-p.asks
			case <-p.gone:
			}
		}()
		return nil, ctx.Err()
	}
}

// connectionOf is what the parent answered.
func connectionOf(m link.Connected) (net.Conn, error) {
	f := os.NewFile(uintptr(m.Connection.FD()), "gpu server") // nil without one
	if f != nil {
		defer f.Close()
	}
	if m.Errno != 0 || f == nil {
		return nil, &relay.Refusal{Errno: m.Errno, Text: m.Text}
	}
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("gpu server's connection: %w", err)
	}
	return c, nil
}

// routineLink follows the parent until the session or the link ends.
func (p *passer) routineLink() {
	p.tied = p.virtiofs != nil || p.cfg.Tied
	for {
		r, err := p.link.Receive()
		switch {
		case err == nil:
			if err = p.follow(r); err == nil {
				continue
			}
			p.log.Error("session ends", "error", err)
		case errors.Is(err, link.ErrMessage):
			p.log.Error("session ends", "error", err)
		case !p.tied:
			return
		default:
			p.log.Info("session ends with its parent", "link", err)
		}
		p.end()
		return
	}
}

func (p *passer) end() {
	p.cancel()
	if p.virtiofs != nil {
		p.virtiofs.end()
	}
}

// follow does what a message of the parent says. What a worker with a GPU would do is refused in
// the answer.
func (p *passer) follow(r link.Received[link.ToWorker]) error {
	no := link.StatusOf(unix.EOPNOTSUPP, errElsewhere)
	switch m := r.Message().(type) {
	case link.Connected:
		if !p.waits.Swap(false) {
			return r.Refuse()
		}
		p.connected <- m
		return nil
	case link.Quit:
		p.end()
		return nil
	case link.Leave:
		p.tied = p.virtiofs != nil
		return nil
	case link.Park:
		return p.link.Send(link.Parked{Number: m.Number, Status: link.StatusOf(unix.EBUSY, p.park(m))})
	case link.Resume:
		return p.resume()
	case link.SharePages:
		return p.pages.take(m.Pages)
	case link.Measure:
		return p.link.Send(link.Measured{})
	case link.Throttle:
		p.held = m.Share // from the next round on
		return nil
	case link.SetLimit, link.CutCopy: // the server's to hold; nothing is copied
		return nil
	case link.Probe:
		return p.link.Send(link.Probed{Status: link.StatusOf(unix.EOPNOTSUPP, p.movable())})
	case link.Export:
		return p.link.Send(link.Exported{Status: link.StatusOf(unix.EIO, p.export(m))})
	case link.Copy:
		r.Discard()
		return p.copy(m)
	case link.Divert:
		return p.divert(m, false)
	case link.Rehearse:
		return p.divert(link.Divert{Number: m.Number, To: m.To}, true)
	case link.Settle:
		p.settle(m)
		return nil
	case link.Rebuild:
		r.Discard()
		return p.link.Send(link.Rebuilt{Status: no})
	}
	if p.virtiofs != nil {
		return p.virtiofs.handle(r)
	}
	return r.Refuse()
}

// park lets go of guest memory.
func (p *passer) park(m link.Park) error {
	session := p.session.Load()
	if p.virtiofs == nil || session == nil {
		return errBusy
	}
	ctx, cancel := context.WithTimeout(context.Background(), m.Limit)
	defer cancel()
	if _, err := session.Park(ctx, p.virtiofs.mem.Detach); err != nil {
		return fmt.Errorf("%w: %w", errBusy, err)
	}
	return nil
}

// resume takes guest memory back.
func (p *passer) resume() error {
	session := p.session.Load()
	if p.virtiofs == nil || session == nil {
		return relay.ErrNotParked
	}
	return session.Resume(p.virtiofs.mem.Attach)
}
