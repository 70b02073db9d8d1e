package remotetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
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
	m, err := NewMover(flap)
	if err != nil {
		return Ends{}, err
	}
	return guested(m.Passed(), nil)
}

// Mover has a session's relay go from host to host.
type Mover struct {
	*verbstest.Fabric
	// Went and Stayed count moves, and those that came to nothing without being called off.
	Went, Stayed atomic.Int64
	// Every is for how long a host has the session.
	Every time.Duration
	// Stood is for how long it stood in each move, until its stream had a connection there. It is
	// who passes it on that notes it.
	Stood []time.Duration

	keys   Keys
	hosts  []Ports
	worker *verbstest.Adapter
	server atomic.Pointer[resume.Conn]
}

// NewMover is a mover over a fabric of its own.
func NewMover(flap int) (*Mover, error) {
	k, err := NewKeys()
	f := verbstest.New()
	here, there := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.1")
	ports := func(name string) Ports {
		return Ports{[]verbs.Adapter{f.Adapter(name, here), f.Adapter(name+" too", there)}, 3}
	}
	f.Flap(flap)
	every := moveEach
	if flap > 0 {
		every = moveRarely
	}
	return &Mover{Fabric: f, Every: every, keys: k, worker: f.Adapter("worker", here), hosts: []Ports{one(f.Adapter("host a", here)), ports("host b"), {}}}, err
}

// moveEach is long enough for memory to be granted between two moves. Where queue pairs fail as
// they are agreed on, seconds may go by until the session is on TLS.
const (
	moveEach   = 4 * time.Millisecond
	moveRarely = 40 * time.Millisecond
)

// Passed is a session of a program that comes by itself.
func (m *Mover) Passed() Passed {
	worker := Ports{[]verbs.Adapter{m.worker, m.Adapter("worker too", netip.MustParseAddr("192.0.2.1"))}, 3}
	near, far, err := PairTCP()
	return Passed{
		func() (remote.Carrier, error) {
			if err != nil {
				return nil, err
			}
			s, err := frame.Server(context.Background(), far, m.keys.Server)
			if err != nil {
				return nil, err
			}
			l, err := LiftWide(s, worker, false)
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
	near, far, err := PairTCP()
	if err == nil {
		go func() { _ = s.Accept(far, m.keys.ServerAgain) }()
	}
	return near, err
}

// rejoins is how a host that a session comes to agrees on what its stream goes over.
func rejoins(p Ports) func(context.Context, *frame.Secure) (resume.Way, error) {
	var first *verbs.Conn
	return func(ctx context.Context, s *frame.Secure) (resume.Way, error) {
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
	}
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
		select {
		case err := <-h.over:
			if err != nil {
				err = fmt.Errorf("relay: %w", err)
			}
			return err
		case <-time.After(m.Every):
		}
		if h, err = m.move(h, n); err != nil {
			return errors.Join(err, h.end())
		}
	}
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
		_ = h.stream.Ready(ctx) // a guest that ends before is awaited by its server for as long as one that moves
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

// movedGuest is a guest that moves: its program stands meanwhile, and what it does with regions,
// or its end, is heard of where it goes on. It is the watcher of its regions.
type movedGuest struct {
	*shm.Unix
	done chan struct{}

	mu       sync.Mutex
	watcher  remote.Watcher // nil: nobody
	moves    bool
	there    map[uint32]remote.Declared
	meantime []func()
}

func newMovedGuest(u *shm.Unix) *movedGuest {
	g := &movedGuest{Unix: u, done: make(chan struct{}), there: map[uint32]remote.Declared{}}
	go func() {
		<-u.Done()
		g.hear(func() { close(g.done) })
	}()
	return g
}

// Done implements remote.Carrier.
func (g *movedGuest) Done() <-chan struct{} { return g.done }

// Memory implements remote.Carrier.
func (g *movedGuest) Memory() remote.GuestMemory {
	return movedMemory{g.Unix.Memory().(*shm.Memory), g}
}

// movedMemory is that of a guest that moves.
type movedMemory struct {
	*shm.Memory
	g *movedGuest
}

// Watch implements remote.Watchable: on a host that is new all regions become reachable again.
func (m movedMemory) Watch(w remote.Watcher) {
	g := m.g
	g.mu.Lock()
	begun := g.watcher != nil
	g.watcher = w
	for id, d := range g.there {
		w.Declared(id, d)
	}
	g.mu.Unlock()
	if !begun {
		m.Memory.Watch(g)
	}
}

func (g *movedGuest) stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.moves = true
}

func (g *movedGuest) goOn() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.moves = false
	for _, f := range g.meantime {
		f()
	}
	g.meantime = nil
}

func (g *movedGuest) hear(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.moves {
		g.meantime = append(g.meantime, f)
	} else {
		f()
	}
}

// Declared implements remote.Watcher.
func (g *movedGuest) Declared(id uint32, d remote.Declared) {
	g.hear(func() {
		g.there[id] = d
		g.watcher.Declared(id, d)
	})
}

// Dropped implements remote.Watcher.
func (g *movedGuest) Dropped(id uint32) {
	g.hear(func() {
		delete(g.there, id)
		g.watcher.Dropped(id)
	})
}
