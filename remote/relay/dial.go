package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"causeway/remote"
	"causeway/remote/frame"
)

// dialLimit is how long one address of a server may take to answer.
const dialLimit = 4 * time.Second

// Dial connects to a GPU server at the first of its addresses (HOST:PORT) that answers, and begins
// with a preface. The error names each address and why it was none.
func Dial(ctx context.Context, addresses []string, p remote.Preface) (*net.TCPConn, error) {
	if len(addresses) == 0 {
		return nil, errors.New("no address of the GPU server is known")
	}
	var errs []error
	for _, a := range addresses {
		c, err := dial(ctx, a)
		if err == nil {
			err = begin(c, p)
		}
		if err == nil {
			return c, nil
		}
		errs = append(errs, fmt.Errorf("gpu server %s: %w", a, cause(err)))
	}
	return nil, errors.Join(errs...)
}

// DialFirst is Dial for a session that begins: where the link is away it tries again until the
// context ends, as a session that has begun would.
func DialFirst(ctx context.Context, addresses []string, p remote.Preface) (*net.TCPConn, error) {
	return patiently(ctx, func() (*net.TCPConn, error) { return Dial(ctx, addresses, p) })
}

func patiently[C any](ctx context.Context, dial func() (C, error)) (C, error) {
	for {
		c, err := dial()
		if err == nil || !Away(err) {
			return c, err
		}
		select {
		case <-time.After(firstEach):
		case <-ctx.Done():
			return c, err
		}
	}
}

// firstEach is the time between two attempts of DialFirst.
const firstEach = 200 * time.Millisecond

// Away reports whether a link that comes back, or another connection, would mend an error. A server
// that refuses a connection is there.
func Away(err error) bool {
	for _, e := range []unix.Errno{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENETDOWN, unix.EHOSTDOWN, unix.ECONNRESET, unix.ECONNABORTED, unix.EPIPE} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func dial(ctx context.Context, address string) (*net.TCPConn, error) {
	d := net.Dialer{Timeout: dialLimit}
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

func begin(c *net.TCPConn, p remote.Preface) error {
	err := frame.Tune(c, frame.Silent)
	if err == nil {
		_, err = c.Write(p.Encode())
	}
	if err != nil {
		_ = c.Close()
	}
	return err
}

// cause is an error without what the caller says himself: of "dial tcp 192.0.2.1:7745: connect:
// connection refused" the end.
func cause(err error) error {
	var errno unix.Errno
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns):
		return errors.New(dns.Err)
	case errors.As(err, &errno):
		return errno
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("no answer within %v", dialLimit)
	}
	return err
}
