package worker

import (
	"context"
	"errors"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/remote/relay"
	"causeway/remote/resume"
)

// TestExportOfWhatSettles: a session that is about to go on at another server, or to stay, is not
// described: what it has and what this process has of it may be of two servers by then.
func TestExportOfWhatSettles(t *testing.T) {
	for name, c := range map[string]struct {
		p    *passer
		want error
	}{
		"is asked for": {&passer{diversion: &diversion{}}, relay.ErrMoving},
		"settles":      {settles(1), relay.ErrMoving},
		"neither":      {settles(0), relay.ErrFixed}, // it has no stream at all
	} {
		t.Run(name, func(t *testing.T) {
			c.p.starter = &starter{virtiofs: &virtiofs{}}
			c.p.session.Store(&relay.Session{})
			fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fds[0])
			if err := c.p.export(link.Export{Stream: link.FileOf(fds[1])}); !errors.Is(err, c.want) {
				t.Error(err)
			}
		})
	}
}

func settles(n int32) *passer {
	p := &passer{}
	p.settling.Store(n)
	return p
}

// TestDiversionPatience: a stream to another server that is lost before that has all of the session
// is not looked for, as its program stands meanwhile; afterwards it is, and so are its first
// connections for copies.
func TestDiversionPatience(t *testing.T) {
	d, dials := &diversion{}, 0
	dial := d.patient(func(context.Context, error) (net.Conn, error) { dials++; return nil, nil })
	lost := errors.New("connection reset")
	if _, err := dial(t.Context(), lost); !errors.Is(err, resume.ErrGone) || !errors.Is(err, lost) || dials != 0 {
		t.Errorf("on the way: %v, %d dials", err, dials)
	}
	if _, err := dial(t.Context(), resume.ErrFresh); err != nil || dials != 1 {
		t.Errorf("a connection for copies: %v, %d dials", err, dials)
	}
	d.has.Store(true)
	if _, err := dial(t.Context(), lost); err != nil || dials != 2 {
		t.Errorf("when it has all: %v, %d dials", err, dials)
	}
}
