package remotetest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"causeway/remote"
	"causeway/remote/frame"
	"causeway/remote/mtls"
	"causeway/remote/relay"
	"causeway/remote/resume"
	"causeway/remote/shm"
	"causeway/remote/tcp"
	"causeway/remote/verbs"
	"causeway/remote/verbs/verbstest"
)

// Ends are the two ends of one session that has not begun: its host's, and its guest's. They are
// opened at the same time: the guest's waits for the host's word (Welcome).
type Ends struct {
	Accept  func() (remote.Carrier, error)
	Connect func() (*Guest, error)
}

// Carriers makes Ends of a new session by the name of what is between them.
func Carriers() map[string]func() (Ends, error) {
	return map[string]func() (Ends, error){
		"unix": Unix, "tcp": TCP,
		"relay":       func() (Ends, error) { return Relayed(false) },
		"relay+tls":   func() (Ends, error) { return Relayed(true) },
		"relay+verbs": Fabric,
		"resets":      Reset,
		"flaps":       Flaps,
		"rails":       func() (Ends, error) { return Rails(0) },
		"rails flap":  func() (Ends, error) { return Rails(97) },
		"moves":       func() (Ends, error) { return Moves(0) },
		"moves flap":  func() (Ends, error) { return Moves(397) },
	}
}

// Unix is a session over shared memory.
func Unix() (Ends, error) {
	guest, host, err := Pair()
	return Ends{
		func() (remote.Carrier, error) { return AsCarrier(shm.AcceptUnix(host)) },
		func() (*Guest, error) { return ConnectUnix(guest, 0) },
	}, err
}

// TCP is a session over a TCP connection.
func TCP() (Ends, error) {
	guest, host, err := PairTCP()
	return Ends{
		func() (remote.Carrier, error) { return AsCarrier(tcp.Accept(host)) },
		func() (*Guest, error) { return ConnectTCP(guest) },
	}, err
}

// AsCarrier keeps a nil pointer from becoming a carrier.
func AsCarrier[C remote.Carrier](c C, err error) (remote.Carrier, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}

// PairTCP returns both ends of a TCP connection.
func PairTCP() (near, far net.Conn, err error) { return PairTCPAt("127.0.0.1") }

// PairTCPAt is PairTCP at an address of this machine.
func PairTCPAt(host string) (near, far net.Conn, err error) {
	ln, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, nil, err
	}
	defer ln.Close()
	if near, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		return nil, nil, err
	}
	if far, err = ln.Accept(); err != nil {
		return nil, nil, errors.Join(err, near.Close())
	}
	return near, far, nil
}

// Lease is the two sides' TLS of a lease.
func Lease() (server, client *tls.Config, err error) {
	k, err := NewKeys()
	return k.Server, k.Client, err
}

// Keys are the two sides' TLS of a session's first connection, and of those that follow.
type Keys struct{ Server, Client, ServerAgain, ClientAgain *tls.Config }

// NewKeys makes some.
func NewKeys() (k Keys, err error) {
	s, c, err := mtls.NewPinnedPair()
	if err != nil {
		return k, err
	}
	var errs [4]error
	k.Server, errs[0] = s.Server(mtls.SessionProtocol)
	k.Client, errs[1] = c.Client(mtls.SessionProtocol)
	k.ServerAgain, errs[2] = s.Server(mtls.ResumeProtocol)
	k.ClientAgain, errs[3] = c.Client(mtls.ResumeProtocol)
	return k, errors.Join(errs[:]...)
}

// Relayed is a session over shared memory to a relay, and over a TCP connection from there, with a
// lease's TLS if that is wanted.
func Relayed(secure bool) (Ends, error) {
	return RelayedBy(PairTCP, secure)
}

// RelayedBy is Relayed over connections that pair makes, of which near is the relay's end.
func RelayedBy(pair func() (near, far net.Conn, err error), secure bool) (Ends, error) {
	near, far, err := pair()
	if err != nil {
		return Ends{}, err
	}
	if !secure {
		return relayed(near, far, plain, plain, same).ends()
	}
	return guested(relayedSecure(near, far, pair, same))
}

// PassedBy is RelayedBy with TLS, for a program that comes by itself.
func PassedBy(pair func() (near, far net.Conn, err error)) (Passed, error) {
	near, far, err := pair()
	if err != nil {
		return Passed{}, err
	}
	return relayedSecure(near, far, pair, same)
}

// RelayedBeside is Relayed with TLS, where the relay wants so many branches and the worker's end
// takes so many: 0 is one of a version that knows of none.
func RelayedBeside(relay, worker int) (Ends, error) {
	near, far, err := PairTCP()
	if err != nil {
		return Ends{}, err
	}
	return guested(relayedSecure(near, far, PairTCP, widths{relay, worker}))
}

// RelayedVerbs is Relayed over the two ends of a connection, with the bytes by RDMA between two
// ports.
func RelayedVerbs(near, far net.Conn, relay, worker verbs.Adapter) (Ends, error) {
	up := func(a verbs.Adapter, client bool) wrap {
		return func(c net.Conn) (frame.Stream, error) {
			up, err := verbs.Upgrade(context.Background(), c, []verbs.Adapter{a}, "", client)
			if err != nil { // also if it would go on without
				return nil, errors.Join(err, c.Close())
			}
			return up, nil
		}
	}
	return relayed(near, far, up(relay, true), up(worker, false), same).ends()
}

// Fabric is RelayedVerbs over a fabric of its own.
func Fabric() (Ends, error) {
	near, far, err := PairTCP()
	if err != nil {
		return Ends{}, err
	}
	f, here := verbstest.New(), netip.MustParseAddr("127.0.0.1")
	return RelayedVerbs(near, far, f.Adapter("relay", here), f.Adapter("worker", here))
}

// wrap is what one end makes of a connection before frames are sent. It takes it over.
type wrap func(net.Conn) (frame.Stream, error)

func plain(c net.Conn) (frame.Stream, error) { return c, nil }

// widths are how many branches the relay wants, and the worker's end takes.
type widths struct{ relay, worker int }

var same = widths{Branches, Branches}

// Passed is a session of a program that comes by itself: its host's end, and the relay, which
// serves the connection that the program has made, to the session's end.
type Passed struct {
	Accept func() (remote.Carrier, error)
	Pass   func(program *net.UnixConn) error
}

func relayed(near, far net.Conn, client, server wrap, w widths) Passed {
	return Passed{
		func() (remote.Carrier, error) {
			c, err := server(far)
			if err != nil {
				return nil, err
			}
			if wide, ok := c.(frame.Branching); ok && !fixed(c) {
				return AsCarrier(tcp.AcceptWide(wide, w.worker))
			}
			return AsCarrier(tcp.Accept(c))
		},
		func(program *net.UnixConn) error { return pass(program, near, client, w.relay) },
	}
}

// ends has a guest of this package's be the program.
func (p Passed) ends() (Ends, error) {
	guest, local, err := Pair()
	if err != nil {
		return Ends{}, err
	}
	return Ends{
		p.Accept,
		func() (*Guest, error) {
			failed := make(chan error, 1)
			go func() { failed <- p.Pass(local) }()
			g, err := ConnectUnix(guest, 0)
			if err != nil {
				err = errors.Join(err, <-failed)
			}
			return g, err
		},
	}, nil
}

func guested(p Passed, err error) (Ends, error) {
	if err != nil {
		return Ends{}, err
	}
	return p.ends()
}

// fixed reports whether a stream has its bytes beside TLS, and no branches.
func fixed(c frame.Stream) bool {
	r, ok := c.(*resume.Conn)
	return ok && r.Lifted()
}

// Branches are those of a session whose stream can have them, once it copies.
const Branches = 3

// pass is a relay, from its guest's connection to the session's end.
func pass(local *net.UnixConn, near net.Conn, client wrap, branches int) error {
	ctx := context.Background()
	c, err := shm.AcceptUnix(local)
	if err != nil {
		return errors.Join(err, near.Close())
	}
	defer c.Close()
	up, err := client(near)
	if err != nil {
		return err
	}
	s, err := relay.Open(ctx, c, up, remote.Hello{Pid: c.PID()}, branches, "test", slog.New(slog.DiscardHandler))
	if err != nil {
		return errors.Join(err, c.Welcome(uint32(relay.Errno(err)), err.Error()), up.Close())
	}
	if err := c.Welcome(0, ""); err != nil {
		return errors.Join(err, up.Close())
	}
	if err := s.Run(ctx); err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	return nil
}
