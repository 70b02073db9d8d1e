package remotetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"causeway/remote"
	"causeway/remote/frame"
	"causeway/remote/relay"
	"causeway/remote/resume"
	"causeway/remote/shm"
	"causeway/remote/tcp"
	"causeway/remote/verbs"
	"causeway/remote/verbs/verbstest"
)

// Moves is a session whose guest moves from host to host while it runs, and its relay with it: to
// ones with ports of their own on a fabric, one with two, and one that has none and stays on TLS.
// Each third move is called off. flap is as in Rails.
func Moves(flap int) (Ends, error) {
	_, m, err := onFabric(flap)
	if err != nil {
		return Ends{}, err
	}
	return guested(m.Passed(), nil)
}

// onFabric is a mover over a fabric of its own.
func onFabric(flap int) (*verbstest.Fabric, *Mover, error) {
	f := verbstest.New()
	here, there := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.1")
	ports := func(name string) Ports {
		return Ports{[]verbs.Adapter{f.Adapter(name, here), f.Adapter(name+" too", there)}, 3}
	}
	f.Flap(flap)
	m, err := NewMover(here.String(), ports("worker"), one(f.Adapter("host a", here)), ports("host b"), Ports{})
	if flap > 0 {
		m.Every = moveRarely
	}
	return f, m, err
}

// Mover has a session's relay go from host to host.
type Mover struct {
	// Went and Stayed count moves, and those that came to nothing without being called off.
	Went, Stayed atomic.Int64
	// Every is for how long a host has the session, and Settle for how long more, each second time
	// at most, until one that has ports uses them.
	Every, Settle time.Duration
	// Stood is for how long it stood in each move, until its stream had a connection there. It is
	// who passes it on that notes it.
	Stood []time.Duration

	keys    Keys
	address string
	worker  Ports
	hosts   []Ports
	server  atomic.Pointer[resume.Conn]
}

// NewMover is a mover between hosts with such ports, to a worker with some, by connections at an
// address of this machine. The first one's, and the worker's, have to go together.
func NewMover(address string, worker Ports, hosts ...Ports) (*Mover, error) {
	k, err := NewKeys()
	return &Mover{Every: moveEach, Settle: moveSettle, keys: k, address: address, worker: worker, hosts: hosts}, err
}

// moveEach is long enough for memory to be granted between two moves. Where queue pairs fail as
// they are agreed on, seconds may go by until the session is on TLS.
const (
	moveEach   = 4 * time.Millisecond
	moveRarely = 40 * time.Millisecond
	moveSettle = time.Second
)

// Passed is a session of a program that comes by itself.
func (m *Mover) Passed() Passed {
	near, far, err := PairTCPAt(m.address)
	return Passed{
		func() (remote.Carrier, error) {
			if err != nil {
				return nil, err
			}
			s, err := frame.Server(context.Background(), far, m.keys.Server)
			if err != nil {
				return nil, err
			}
			l, err := LiftWide(s, m.worker, false)
			if err != nil {
				return nil, err
			}
			c, err := resume.NewServerOver(s, l, nil)
			if err != nil {
				return nil, err
			}
			m.server.Store(c)
			return AsCarrier(tcp.Accept(c))
		},
		func(program *net.UnixConn) error {
			if err != nil {
				return err
			}
			return m.pass(program, near)
		},
	}
}

// again makes another connection to the server.
func (m *Mover) again(context.Context, error) (net.Conn, error) {
	s := m.server.Load()
	if s == nil {
		return nil, errors.New("the server has not begun")
	}
	over, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Ready(over); err != nil && !errors.Is(err, context.Canceled) {
		return nil, resume.ErrGone // as who listens for it would say
	}
	near, far, err := PairTCPAt(m.address)
	if err == nil {
		go func() { _ = s.Accept(far, m.keys.ServerAgain) }()
	}
	return near, err
}

// rejoins is how a host that a session comes to agrees on what its stream goes over.
func rejoins(p Ports) resume.Lifted {
	var first *verbs.Conn
	l := resume.Lifted{Again: func(ctx context.Context, s *frame.Secure) (resume.Way, error) {
		var up net.Conn
		var err error
		if first != nil {
			up, err = first.Again(ctx, s, true)
		} else {
			up, err = verbs.Rejoin(ctx, s, p.Adapters, "this host has none", p.Pairs)
		}
		switch {
		case errors.Is(err, verbs.ErrStays):
			return s, nil
		case err != nil:
			s.Abort()
			return nil, err
		}
		way := up.(*verbs.Conn)
		if first == nil {
			first = way
		}
		return way, nil
	}}
	if len(p.Adapters) > 0 {
		l.Stays = func(ctx context.Context, s *frame.Secure) (resume.Way, error) {
			_, err := verbs.Stay(ctx, s, "not yet")
			if !errors.Is(err, verbs.ErrStays) {
				return nil, err
			}
			return s, nil
		}
	}
	return l
}

// pass is a relay, from its guest's connection to the session's end, on one host after another.
func (m *Mover) pass(local *net.UnixConn, near net.Conn) error {
	u, err := shm.AcceptUnix(local)
	if err != nil {
		return errors.Join(err, near.Close())
	}
	defer u.Close()
	s, err := frame.Client(context.Background(), near, m.keys.Client)
	if err != nil {
		return err
	}
	l, err := LiftWide(s, m.hosts[0], true)
	if err != nil {
		return err
	}
	up, err := resume.NewClientOver(s, l, m.keys.ClientAgain, m.again, nil)
	if err != nil {
		return err
	}
	g := newMovedGuest(u)
	session, err := relay.Open(context.Background(), g, up, remote.Hello{Pid: u.PID()}, 0, "test", slog.New(slog.DiscardHandler))
	if err != nil {
		return errors.Join(err, u.Welcome(uint32(relay.Errno(err)), err.Error()), up.Close())
	}
	if err := u.Welcome(0, ""); err != nil {
		return errors.Join(err, up.Close())
	}
	h := m.runs(g, session, up)
	for n := 1; ; n++ {
		wait := m.Every
		for end := time.Now().Add(m.Every + m.Settle); wait > 0; wait = m.unsettled(h, n, end) {
			select {
			case err := <-h.over:
				if err != nil {
					err = fmt.Errorf("relay: %w", err)
				}
				return err
			case <-time.After(wait):
			}
		}
		if h, err = m.move(h, n); err != nil {
			return errors.Join(err, h.end())
		}
	}
}

// unsettled is when to look again whether a host uses its ports, which it may not do before end; 0:
// not any more.
func (m *Mover) unsettled(h *host, n int, end time.Time) time.Duration {
	ports := len(m.hosts[int(m.Went.Load())%len(m.hosts)].Adapters) > 0
	if n%2 == 0 || !ports || h.stream.Grants() || !time.Now().Before(end) {
		return 0
	}
	return time.Millisecond
}

// host is one that has the session.
type host struct {
	guest  *movedGuest
	relay  *relay.Session
	stream *resume.Conn
	cancel context.CancelFunc
	over   chan error // one place
}

func (m *Mover) runs(g *movedGuest, s *relay.Session, up *resume.Conn) *host {
	ctx, cancel := context.WithCancel(context.Background())
	h := &host{g, s, up, cancel, make(chan error, 1)}
	go func() { h.over <- s.Run(ctx) }()
	return h
}

// end has a host give up the session.
func (h *host) end() error {
	h.cancel()
	return <-h.over
}

// move has the session go to the next host, unless it ends, or cannot at this moment. Where the
// session is on is returned.
func (m *Mover) move(h *host, n int) (*host, error) {
	ctx, cancel := context.WithTimeout(context.Background(), Limit)
	defer cancel()
	mem, begin := h.guest.Unix.Memory().(*shm.Memory), time.Now()
	if _, err := h.relay.Park(ctx, mem.Detach); err != nil {
		if errors.Is(err, relay.ErrOver) {
			return h, nil // which h.over tells
		}
		return h, fmt.Errorf("park: %w", err)
	}
	h.guest.stop()
	defer h.guest.goOn()
	goesOn := func(h *host) (*host, error) {
		if err := h.relay.Resume(mem.Attach); err != nil && !errors.Is(err, relay.ErrOver) {
			return h, fmt.Errorf("resume: %w", err)
		}
		// A guest that ends before is awaited by its server for as long as one that moves.
		_ = h.stream.Ready(ctx)
		return h, nil
	}
	st, err := h.relay.StandStill()
	var stream resume.State
	if err == nil {
		stream, err = h.stream.Export()
	}
	if err != nil {
		m.Stayed.Add(1)
		return goesOn(h)
	}
	if n%3 == 0 {
		return goesOn(h)
	}
	up, err := resume.ImportOver(stream, rejoins(m.hosts[int(m.Went.Load()+1)%len(m.hosts)]), m.keys.ClientAgain, m.again, nil)
	if err != nil {
		return h, err
	}
	next, err := relay.Adopt(h.guest, up, st, "test", slog.New(slog.DiscardHandler))
	if err != nil {
		return h, errors.Join(err, up.Close())
	}
	if err := h.end(); err != nil {
		return h, fmt.Errorf("the host that it was on: %w", err)
	}
	m.Went.Add(1)
	h, err = goesOn(m.runs(h.guest, next, up))
	m.Stood = append(m.Stood, time.Since(begin))
	return h, err
}

// CheckMoves has a session move so many times, and until all is so that is wanted, while its memory
// is copied both ways: not a byte is lost, or another.
func CheckMoves(t *testing.T, m *Mover, times int64, wanted func() bool) {
	t.Helper()
	m.Every = moveRarely // so that memory is granted, however slow the machine is
	p := m.Passed()
	over, pass := make(chan error, 1), p.Pass
	p.Pass = func(program *net.UnixConn) error {
		err := pass(program)
		over <- err
		return err
	}
	s := start(t, p.ends)
	const size = 1 << 20
	mem, b := s.declare(t, 1, size), make([]byte, size)
	end := time.Now().Add(Limit)
	for round := byte(0); m.Went.Load() < times || !wanted(); round++ {
		select {
		case err := <-over:
			t.Fatal(err)
		default:
		}
		if time.Now().After(end) {
			t.Fatalf("moved %d times", m.Went.Load())
		}
		pattern(mem, 1, 0, round)
		if err := s.Memory().ReadAt(1, b, 0); err != nil || !bytes.Equal(b, mem) {
			t.Fatalf("round %d: %v, or other bytes", round, err)
		}
		if err := s.Memory().WriteAt(1, pattern(b, 1, 0, ^round), 0); err != nil {
			t.Fatal(err)
		}
		s.fence(t)
		if !bytes.Equal(b, mem) {
			t.Fatalf("round %d: other bytes are written", round)
		}
	}
	s.end(t)
	if err := <-over; err != nil {
		t.Error(err)
	}
	slices.Sort(m.Stood)
	t.Logf("moved %d times, stayed %d times; stood for %v, at most %v", m.Went.Load(), m.Stayed.Load(), m.Stood[len(m.Stood)/2], m.Stood[len(m.Stood)-1])
}
