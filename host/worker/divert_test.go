package worker

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/remote/relay"
)

// TestExportOfWhatSettles: a session that is about to go on at another server, or to stay, is not described: what it has and what this process has of it may be of two servers by then.
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
			c.p.starter = &starter{leased: &leased{}}
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
