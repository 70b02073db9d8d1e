package worker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/remote"
	"causeway/remote/frame"
	"causeway/remote/mtls"
	"causeway/remote/relay"
	"causeway/remote/resume"
	"causeway/remote/sys"
	"causeway/remote/verbs"
)

/*
A guest process whose VM has an RDMA adapter of its own (a virtual function) may be the end of its
session itself. Then this process shakes hands with the GPU server, whose keys it has, and passes on
what the two exchange out of band, beside the fabric: their queue pairs, whether bytes come through,
and the end; and the same again inside another connection when the queue pairs have failed. Nothing
else goes this way.
*/

// Why a guest process is not an RDMA end. It goes on by the relay.
var (
	errDirectOff   = errors.New("this host has its programs' RDMA off (remote.guest_rdma)")
	errServerPlain = errors.New("the GPU server has RDMA off (remote.rdma there)")
)

// asksDirect reports whether the guest process would be the RDMA end, which it says in place of a
// hello.
func (s *starter) asksDirect(conn int) (h remote.Hello, ok bool) {
	if s.cfg.Carrier != link.CarrierUnix || conn < 0 {
		return h, false
	}
	b, err := peek(conn, remote.HelloSize, helloPatience)
	if err != nil {
		return h, false // the handshake says what is wrong
	}
	h, _, err = remote.ParseHello(b)
	return h, err == nil && h.Type == remote.MsgDirect
}

// passDirect has the session from its beginning to its end.
func (s *starter) passDirect(ctx context.Context, conn int, h remote.Hello) error {
	if err := s.sealed(); err != nil {
		return err
	}
	c, err := newDirectConn(conn)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p := newPasser(ctx, s, cancel)
	go p.routineLink()
	first, err := p.openDirect(ctx, h)
	if err != nil { // the guest process comes again, as any other
		p.log.Warn("the guest process is no RDMA end", "why", err)
		return c.welcome(uint32(relay.Errno(err)), err.Error())
	}
	if err := c.welcome(0, addressOf(first.RemoteAddr())); err != nil {
		first.Abort()
		return fmt.Errorf("welcome: %w", err)
	}
	to := p.cfg.Relay
	another, err := p.anotherDirect(first)
	if err != nil {
		first.Abort()
		return err
	}
	passed, err := verbs.Pass(ctx, c, first, func(about string) error {
		p.log.Info("the guest process is the RDMA end itself", "server", to.Server, "lease", to.Lease, "over", about)
		return p.link.Send(link.Carried{Over: about})
	}, another, resume.Limit)
	if errors.Is(err, verbs.ErrStays) { // the guest process comes again, as any other
		p.log.Info("the guest process is no RDMA end", "why", err)
		return nil
	}
	p.log.Info("the guest process's own RDMA session has ended", "bytes_to_server", passed.ToServer, "bytes_to_guest", passed.ToClient)
	return err
}

// openDirect shakes hands with the server.
func (p *passer) openDirect(ctx context.Context, h remote.Hello) (*frame.Secure, error) {
	switch {
	case !p.cfg.Direct:
		return nil, errDirectOff
	case h.Version != remote.ProtocolVersion:
		return nil, remote.Violation("guest library speaks protocol version %d, this host %d: use the library that came with it", h.Version, remote.ProtocolVersion)
	}
	first, err := p.first(ctx, link.Fits(h, leaseDevices), mtls.SessionProtocols(true))
	if err != nil {
		return nil, err
	}
	if first.ConnectionState().NegotiatedProtocol != mtls.VerbsProtocol {
		first.Abort()
		return nil, errServerPlain
	}
	return first, nil
}

// anotherDirect makes connections inside which the guest process and the server agree again, when
// the way between their adapters is lost.
func (p *passer) anotherDirect(first *frame.Secure) (verbs.Another, error) {
	cfg, err := p.cfg.Relay.Identity.Client(mtls.ResumeProtocol)
	if err != nil {
		return nil, err
	}
	again, err := resume.NewAgain(first, cfg, p.another(p.id))
	if err != nil {
		return nil, err
	}
	return again.Connect, nil
}

// addressOf is how a guest is told of the server: its queue pair is best on the port that leads
// there.
func addressOf(a net.Addr) string {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return ""
	}
	return t.AddrPort().Addr().Unmap().WithZone("").String()
}

// directConn is the channel out of band with a guest process: packets, read as a stream.
type directConn struct {
	*bufio.Reader
	net.Conn
}

func newDirectConn(conn int) (*directConn, error) {
	c, err := sys.UnixConn(conn, "guest's connection")
	if err != nil {
		return nil, err
	}
	s := &directConn{bufio.NewReaderSize(c, int(remote.FileDirectMost)+remote.HelloSize+remote.MaxText), c}
	if _, err := s.Discard(remote.HelloSize); err != nil { // which was peeked
		return nil, errors.Join(err, c.Close())
	}
	return s, nil
}

// Read implements io.Reader.
func (s *directConn) Read(b []byte) (int, error) { return s.Reader.Read(b) }

func (s *directConn) welcome(status uint32, text string) error {
	_, err := s.Conn.Write(remote.FormatHello(remote.Hello{Type: remote.MsgWelcome, Status: status}, text))
	if errors.Is(err, unix.EPIPE) {
		return nil // it is gone, which is its own affair
	}
	return err
}
