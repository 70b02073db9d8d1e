package frame

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"causeway/remote"
)

// Secure is TLS over a Buffered connection: one Write is one system call, however many records it
// takes.
type Secure struct {
	*tls.Conn
	raw *Buffered
}

// Limits of TLS's handshake. A client waits for a process that the server may have to start first,
// on a machine that may be busy; a server for nothing but bytes.
const (
	clientLimit = 30 * time.Second
	serverLimit = 10 * time.Second
)

// Client shakes hands as TLS's client on a connection, which it takes over.
func Client(ctx context.Context, c net.Conn, cfg *tls.Config) (*Secure, error) {
	return secure(ctx, c, cfg, tls.Client, clientLimit)
}

// Server shakes hands as TLS's server on a connection, which it takes over.
func Server(ctx context.Context, c net.Conn, cfg *tls.Config) (*Secure, error) {
	return secure(ctx, c, cfg, tls.Server, serverLimit)
}

func secure(ctx context.Context, c net.Conn, cfg *tls.Config, side func(net.Conn, *tls.Config) *tls.Conn, limit time.Duration) (*Secure, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	s := &Secure{raw: NewBuffered(c)}
	s.Conn = side(s.raw, cfg)
	if err := s.HandshakeContext(ctx); err != nil {
		_ = c.Close()
		if ctx.Err() == context.DeadlineExceeded {
			err = fmt.Errorf("the other end does not answer in time: %w", err)
		}
		return nil, fmt.Errorf("TLS: %w", err)
	}
	return s, nil
}

// Write implements net.Conn. One goroutine writes at a time.
func (s *Secure) Write(p []byte) (int, error) {
	s.raw.Cork()
	n, err := s.Conn.Write(p)
	if e := s.raw.Flush(); err == nil {
		err = e
	}
	return n, err
}

// WriteAll writes one after the other what leaves with as few system calls as one Write. One
// goroutine writes at a time.
func (s *Secure) WriteAll(list [][]byte) error {
	s.raw.Cork()
	var err error
	for i := 0; i < len(list) && err == nil; i++ {
		_, err = s.Conn.Write(list[i])
	}
	if e := s.raw.Flush(); err == nil {
		err = e
	}
	return err
}

// Eager has reads look for what comes for a moment before they sleep, if the machine's cores are
// enough for it: for what answers soon, not for what comes in bulk. The reader calls it, between
// reads.
func (s *Secure) Eager(cores int) {
	if e := remote.NewEager(s.raw.Conn, cores); e != nil {
		s.raw.from = e
	}
}

// Awake has reads that wait for more of what comes in bulk sleep in the kernel, if the machine's
// cores are enough for it. The reader calls it, between reads.
func (s *Secure) Awake(cores int) bool {
	a := remote.NewAwake(s.raw.Conn, cores)
	if a != nil {
		s.raw.from = a
	}
	return a != nil
}

// Ended reports whether an end of file that was read was the other end's word (RFC 8446, 6.1), and
// not only the connection's end, which anything in between can make.
func (s *Secure) Ended() bool { return !s.raw.eof.Load() }

// Abort ends the connection without a word.
func (s *Secure) Abort() { _ = s.raw.Conn.Close() }

// Tune is Tune of the connection below.
func (s *Secure) Tune(limit time.Duration) error { return Tune(s.raw.Conn, limit) }

// A peer of which nothing is heard: when the connection ends, Lost where its session ends with it,
// Silent where another may follow (package resume). Until then the kernel sends again what was not
// acknowledged, so that a link that is back sooner has lost nothing and done nothing twice.
// retryMost keeps its attempts close together where the kernel can be told (Linux 6.15); others
// double the time between them, and the attempt after 12.6 s is the one that finds a link that was
// gone for 10 s.
const (
	Lost      = 15 * time.Second
	Silent    = 5 * time.Second
	keepFirst = 3 * time.Second // of silence until it is asked
	keepEach  = time.Second
	retryMost = time.Second

	tcpRTOMaxMS = 44 // TCP_RTO_MAX_MS
)

// Tune sets what a session's connection needs of the kernel: nothing waits for more to send, and a
// peer that is gone is noticed although neither side says a word for so long, or one sends what is
// never acknowledged. A connection that is not TCP stays as it is.
func Tune(c net.Conn, limit time.Duration) error {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return fmt.Errorf("connection: %w", err)
	}
	var serr error
	err = raw.Control(func(fd uintptr) {
		// As far as the kernel knows it.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, tcpRTOMaxMS, int(retryMost/time.Millisecond))
		for _, o := range []struct{ level, name, value int }{
			{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
			{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
			{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(keepFirst / time.Second)},
			{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(keepEach / time.Second)},
			{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, int((limit - keepFirst) / keepEach)},
			{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(limit / time.Millisecond)},
		} {
			if serr = unix.SetsockoptInt(int(fd), o.level, o.name, o.value); serr != nil {
				return
			}
		}
	})
	if err == nil {
		err = serr
	}
	if err != nil {
		return fmt.Errorf("connection: %w", err)
	}
	return nil
}
