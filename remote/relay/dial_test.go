package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// TestPatience: a session that begins while the link is away waits for it, and for nothing else.
func TestPatience(t *testing.T) {
	at := func(err error) error {
		return errors.Join(fmt.Errorf("gpu server a: %w", unix.ECONNREFUSED), fmt.Errorf("gpu server b: %w", err))
	}
	const limit = 3*firstEach + firstEach/2
	for name, c := range map[string]struct {
		errs []error // of the attempts; the last one's stays
		took time.Duration
		want error
	}{
		"at once":            {errs: []error{nil}},
		"away for a while":   {errs: []error{at(unix.ENETUNREACH), at(unix.EHOSTUNREACH), nil}, took: 2 * firstEach},
		"a reset":            {errs: []error{unix.ECONNRESET, nil}, took: firstEach},
		"away, then refused": {errs: []error{at(unix.ENETDOWN), unix.ECONNREFUSED}, took: firstEach, want: unix.ECONNREFUSED},
		"refused":            {errs: []error{unix.ECONNREFUSED}, want: unix.ECONNREFUSED},
		"away for good":      {errs: []error{at(unix.ENETUNREACH)}, took: limit, want: unix.ENETUNREACH},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				began, n := time.Now(), 0
				_, err := patiently(ctx, func() (int, error) {
					n++
					return n, c.errs[min(n, len(c.errs))-1]
				})
				if took := time.Since(began); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || took != c.took {
					t.Errorf("%v after %v, want %v after %v", err, took, c.want, c.took)
				}
			})
		})
	}
}

// TestCause: of why a server is not reached a program is told what it can act on, and not who
// dialed what.
func TestCause(t *testing.T) {
	within := func(err error) error {
		return fmt.Errorf("dial: %w", &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 7745}, Err: err})
	}
	for _, c := range []struct {
		err  error
		want string
	}{
		{within(os.NewSyscallError("connect", unix.ECONNREFUSED)), "connection refused"},
		{within(os.NewSyscallError("connect", unix.EHOSTUNREACH)), "no route to host"},
		{within(unix.ENETUNREACH), "network is unreachable"},
		{within(&net.DNSError{Err: "no such host", Name: "gpu1"}), "no such host"},
		{within(context.DeadlineExceeded), fmt.Sprintf("no answer within %v", dialLimit)},
		{within(os.ErrDeadlineExceeded), fmt.Sprintf("no answer within %v", dialLimit)},
		{errors.New("something else"), "something else"},
	} {
		if got := cause(c.err); got.Error() != c.want {
			t.Errorf("of %q: %q, not %q", c.err, got, c.want)
		}
	}
	if !errors.Is(cause(within(os.NewSyscallError("connect", unix.ECONNREFUSED))), unix.ECONNREFUSED) {
		t.Error("a number is lost")
	}
}
