package remotetest

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"causeway/remote/frame"
	"causeway/remote/resume"
	"causeway/remote/verbs"
	"causeway/remote/verbs/verbstest"
)

// Reset is Relayed with TLS over connections each of which is reset, from the one side or the
// other, at a write: before it, with half of it sent, or behind it.
func Reset() (Ends, error) {
	var n atomic.Int64
	pair := func() (near, far net.Conn, err error) {
		if near, far, err = PairTCP(); err != nil {
			return nil, nil, err
		}
		i := int(n.Add(1))
		if i%2 == 0 {
			return &resetting{Conn: near, left: 20 + i%13, mode: i / 2 % 3}, far, nil
		}
		return near, &resetting{Conn: far, left: 20 + i%13, mode: i / 2 % 3}, nil
	}
	near, far, err := pair()
	if err != nil {
		return Ends{}, err
	}
	return guested(relayedSecure(near, far, pair, same))
}

// Flaps is Relayed with TLS and, inside of it, RDMA over a fabric on which each connection is lost
// after a while, and another found.
func Flaps() (Ends, error) {
	f, here := verbstest.New(), netip.MustParseAddr("127.0.0.1")
	near, far, err := PairTCP()
	if err != nil {
		return Ends{}, err
	}
	f.Flap(97)
	return guested(relayedLifted(near, far, PairTCP, same, one(f.Adapter("relay", here)), one(f.Adapter("worker", here))))
}

// Ports are those that an end may go by, and how many queue pairs its copies may have
// (verbs.UpgradeWide). None: it stays on TLS.
type Ports struct {
	Adapters []verbs.Adapter
	Pairs    int
}

// one is a port whose one queue pair has copies and frames.
func one(a verbs.Adapter) Ports { return Ports{[]verbs.Adapter{a}, 1} }

// Rails is Flaps with two ports at either end, and three queue pairs for copies over them. flap: of
// how many work requests one fails; 0: none.
func Rails(flap int) (Ends, error) {
	f, here, there := verbstest.New(), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.1")
	near, far, err := PairTCP()
	if err != nil {
		return Ends{}, err
	}
	f.Flap(flap)
	ports := func(name string) Ports {
		return Ports{[]verbs.Adapter{f.Adapter(name, here), f.Adapter(name+" too", there)}, 3}
	}
	return guested(relayedLifted(near, far, PairTCP, same, ports("relay"), ports("worker")))
}

// Lifted is Relayed with TLS and, inside of it, RDMA between two ports; it goes on over others.
func Lifted(relay, worker verbs.Adapter) (Ends, error) { return guested(PassedLifted(relay, worker)) }

// PassedLifted is Lifted for a program that comes by itself.
func PassedLifted(relay, worker verbs.Adapter) (Passed, error) {
	near, far, err := PairTCP()
	if err != nil {
		return Passed{}, err
	}
	return relayedLifted(near, far, PairTCP, same, one(relay), one(worker))
}

// resetting is a connection that is reset at a write.
type resetting struct {
	net.Conn
	mu   sync.Mutex
	left int // writes
	mode int // how much of the last one leaves, in halves
}

// Write implements net.Conn.
func (c *resetting) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left--; c.left > 0 {
		return c.Conn.Write(p)
	}
	if part := p[:len(p)*c.mode/2]; len(part) > 0 {
		if n, err := c.Conn.Write(part); err != nil {
			return n, err
		}
	}
	if t, ok := c.Conn.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = c.Conn.Close()
	return 0, unix.ECONNRESET
}

// relayedSecure is a session over TLS that goes on over connections that pair makes.
func relayedSecure(near, far net.Conn, pair func() (near, far net.Conn, err error), w widths) (Passed, error) {
	return relayedLifted(near, far, pair, w, Ports{}, Ports{})
}

// relayedLifted is relayedSecure, with the bytes by RDMA between ports, if there are any.
func relayedLifted(near, far net.Conn, pair func() (near, far net.Conn, err error), w widths, relay, worker Ports) (Passed, error) {
	k, err := NewKeys()
	if err != nil {
		return Passed{}, err
	}
	var server atomic.Pointer[resume.Conn]
	again := func(context.Context, error) (net.Conn, error) {
		s := server.Load()
		if s == nil {
			return nil, errors.New("the server has not begun")
		}
		near, far, err := pair()
		if err == nil {
			go func() { _ = s.Accept(far, k.ServerAgain) }()
		}
		return near, err
	}
	return relayed(near, far,
		func(c net.Conn) (frame.Stream, error) {
			s, err := frame.Client(context.Background(), c, k.Client)
			if err != nil {
				return nil, err
			}
			l, err := LiftWide(s, relay, true)
			if err != nil {
				return nil, err
			}
			return stream(resume.NewClientOver(s, l, k.ClientAgain, again, nil))
		},
		func(c net.Conn) (frame.Stream, error) {
			s, err := frame.Server(context.Background(), c, k.Server)
			if err != nil {
				return nil, err
			}
			l, err := LiftWide(s, worker, false)
			if err != nil {
				return nil, err
			}
			r, err := resume.NewServerOver(s, l, nil)
			server.Store(r)
			return stream(r, err)
		}, w), nil
}

// Lift has a connection, and those that follow it, go on over RDMA by a port, if there is one: the
// first must.
func Lift(s *frame.Secure, a verbs.Adapter, client bool) (resume.Lifted, error) {
	return LiftWide(s, one(a), client)
}

// LiftWide is Lift by several ports.
func LiftWide(s *frame.Secure, p Ports, client bool) (resume.Lifted, error) {
	if len(p.Adapters) == 0 {
		return resume.Lifted{}, nil
	}
	up, err := verbs.UpgradeWide(context.Background(), s, p.Adapters, "", client, p.Pairs)
	if err != nil {
		s.Abort()
		return resume.Lifted{}, err
	}
	first := up.(*verbs.Conn)
	again := func(ctx context.Context, s *frame.Secure) (resume.Way, error) {
		up, err := first.Again(ctx, s, client)
		switch {
		case errors.Is(err, verbs.ErrStays) && !first.Alone():
			return s, nil
		case err != nil:
			s.Abort()
			return nil, err
		}
		return up.(*verbs.Conn), nil
	}
	return resume.Lifted{Way: first, Again: again}, nil
}

// stream keeps a nil pointer from becoming a stream.
func stream(c *resume.Conn, err error) (frame.Stream, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}
