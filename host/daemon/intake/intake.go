// Package intake takes the connections of a GPU server's one port. What a connection is for its
// preface says (remote.Preface): a session's goes on as it came, to whoever has its lease; one for
// control shakes hands here, and is the connection of a host that is known then.
package intake

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"causeway/remote"
)

// Bounds. Whoever can reach the port may hold a connection that says nothing for so long, and no
// more of them than these.
const (
	patience      = 10 * time.Second
	mostWaiting   = 256
	mostFromOne   = 64 // address
	mostControls  = 128
	mostOfOneHost = 16
)

// Intake is how connections are taken. Its fields are not changed once Serve runs.
type Intake struct {
	// TLS is the server's side of a control connection; it is asked for each.
	TLS func() (*tls.Config, error)
	// Admit says who shows a certificate, or why a host of the authority is not served.
	Admit func(*x509.Certificate) (host string, err error)
	// Session takes over a session's connection, of which the preface has been read, and nothing
	// more.
	Session func(ctx context.Context, p remote.Preface, c *net.TCPConn)
	// Remedy says what an operator can do about a failed handshake; may be nil.
	Remedy func(error) string
	// Patience is how long a connection may take to say what it is for, and to shake hands; 0: 10
	// s.
	Patience time.Duration
	Log      *slog.Logger

	mu       sync.Mutex
	waiting  int
	from     map[string]int // waiting, by address
	controls int
	hosts    map[string]int // controls, by host
	out      chan net.Conn
	wg       sync.WaitGroup
}

// Control is a control connection.
type Control struct {
	net.Conn
	// Host is who it is, Shown its certificate and those between that and its authority's.
	Host  string
	Shown []*x509.Certificate
	free  func()
}

// Close implements net.Conn.
func (c *Control) Close() error {
	c.free()
	return c.Conn.Close()
}

// errTooMany refuses a connection.
var errTooMany = errors.New("too many connections")

// controls is the listener of control connections, each of which is a *Control.
type controls struct {
	i    *Intake
	addr net.Addr
	ctx  context.Context
	stop context.CancelFunc
}

// Accept implements net.Listener.
func (l *controls) Accept() (net.Conn, error) {
	select {
	case c := <-l.i.out:
		return c, nil
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *controls) Close() error {
	l.stop()
	return nil
}

// Addr implements net.Listener.
func (l *controls) Addr() net.Addr { return l.addr }

// Serve takes connections until ctx ends or the listener fails, and closes the listener. serve is
// given the listener of control connections, and ends when that is closed or ctx ends.
func (i *Intake) Serve(ctx context.Context, ln *net.TCPListener, serve func(context.Context, net.Listener) error) error {
	ctx, cancel := context.WithCancel(ctx)
	i.out = make(chan net.Conn)
	served := make(chan error, 1)
	go func() {
		defer cancel()
		// Who serves closes it, in its own time.
		closed, end := context.WithCancel(context.WithoutCancel(ctx))
		defer end()
		served <- serve(ctx, &controls{i, ln.Addr(), closed, end})
	}()
	err := i.accept(ctx, ln)
	cancel()
	i.wg.Wait()
	return errors.Join(err, <-served)
}

func (i *Intake) accept(ctx context.Context, ln *net.TCPListener) error {
	defer ln.Close()
	defer context.AfterFunc(ctx, func() { _ = ln.Close() })()
	for {
		c, err := ln.AcceptTCP()
		if ctx.Err() != nil {
			if c != nil {
				_ = c.Close()
			}
			return nil
		}
		if err != nil {
			var temporary interface{ Temporary() bool }
			if errors.As(err, &temporary) && temporary.Temporary() {
				// No descriptors, or the connection is gone already.
				i.Log.Warn("a connection is not taken", "error", err)
				select {
				case <-time.After(50 * time.Millisecond):
				case <-ctx.Done():
				}
				continue
			}
			return err
		}
		from := address(c.RemoteAddr())
		if !i.enter(from) {
			i.Log.Warn("a connection is refused", "address", c.RemoteAddr(), "error", errTooMany)
			_ = c.Close()
			continue
		}
		i.wg.Go(func() { i.take(ctx, c, sync.OnceFunc(func() { i.leave(from) })) })
	}
}

// address is whose connection it is, as far as bounds go: one machine has as many addresses of a
// network of IPv6 as it likes.
func address(remote net.Addr) string {
	a, ok := remote.(*net.TCPAddr)
	if !ok {
		return ""
	}
	at := a.AddrPort().Addr().Unmap()
	if at.Is6() {
		if network, err := at.Prefix(64); err == nil {
			return network.String() + "%" + at.Zone()
		}
	}
	return at.String()
}

func (i *Intake) enter(from string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.from == nil {
		i.from = map[string]int{}
	}
	if i.waiting >= mostWaiting || i.from[from] >= mostFromOne {
		return false
	}
	i.waiting++
	i.from[from]++
	return true
}

func (i *Intake) leave(from string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.waiting--
	if i.from[from]--; i.from[from] == 0 {
		delete(i.from, from)
	}
}

// take hears what a connection is for. known ends its waiting.
func (i *Intake) take(ctx context.Context, c *net.TCPConn, known func()) {
	defer known()
	log := i.Log.With("address", c.RemoteAddr())
	_ = c.SetDeadline(time.Now().Add(cmp.Or(i.Patience, patience)))
	end := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) })
	p, err := remote.ReadPreface(c)
	if err != nil {
		if end() && errors.Is(err, remote.ErrVersion) {
			remote.Refuse(c, remote.Version)
		}
		log.Info("a connection is dropped", "error", err)
		_ = c.Close()
		return
	}
	if !p.Lease.IsZero() {
		if !end() || c.SetDeadline(time.Time{}) != nil {
			_ = c.Close()
			return
		}
		i.Session(ctx, p, c)
		return
	}
	control, err := i.shake(ctx, c)
	if !end() && err == nil {
		_ = control.Close()
		return
	}
	if err != nil {
		_ = c.Close()
		remedy := ""
		if i.Remedy != nil {
			remedy = i.Remedy(err)
		}
		log.Warn("a host is refused", "error", err, "remedy", remedy)
		return
	}
	known()
	select {
	case i.out <- control:
	case <-ctx.Done():
		_ = control.Close()
	}
}

// shake does the handshake of a control connection.
func (i *Intake) shake(ctx context.Context, c *net.TCPConn) (*Control, error) {
	cfg, err := i.TLS()
	if err != nil {
		return nil, err
	}
	t := tls.Server(c, cfg)
	if err := t.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	s := t.ConnectionState()
	if len(s.PeerCertificates) == 0 || len(cfg.NextProtos) == 0 || s.NegotiatedProtocol != cfg.NextProtos[0] {
		return nil, errors.New("it speaks nothing that a host does")
	}
	host, err := i.Admit(s.PeerCertificates[0])
	if err != nil {
		return nil, err
	}
	if !i.enterHost(host) {
		return nil, errTooMany
	}
	_ = c.SetDeadline(time.Time{})
	return &Control{t, host, s.PeerCertificates, sync.OnceFunc(func() { i.leaveHost(host) })}, nil
}

func (i *Intake) enterHost(host string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.hosts == nil {
		i.hosts = map[string]int{}
	}
	if i.controls >= mostControls || i.hosts[host] >= mostOfOneHost {
		return false
	}
	i.controls++
	i.hosts[host]++
	return true
}

func (i *Intake) leaveHost(host string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.controls--
	if i.hosts[host]--; i.hosts[host] == 0 {
		delete(i.hosts, host)
	}
}
