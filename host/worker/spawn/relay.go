package spawn

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/remote/relay"
)

// connectLimit bounds what a worker waits for its connection, whose server has several addresses.
const connectLimit = 10 * time.Second

// connect answers link.Connect, aside: workers have no network, and this process connects them to where their configuration says, nowhere else, and once: a guest
// that has taken its relay over has one session at the server, as any other.
func (p *Process) connect() error {
	to := p.relay.Load()
	if to == nil || p.connected.Swap(true) {
		return fmt.Errorf("%w: a connection", errUnasked)
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), connectLimit)
		defer cancel()
		m := link.Connected{}
		c, err := relay.Dial(ctx, to.Addresses, to.Lease)
		if err == nil {
			defer c.Close()
			f, ferr := c.File()
			if err = ferr; err == nil {
				defer f.Close()
				m.Connection = link.FileOf(int(f.Fd()))
			}
		}
		m.Status = link.StatusOf(errnoOf(err), err)
		_ = p.link.Send(m) // a worker that is gone waits for nothing
	}()
	return nil
}

// errnoOf is an error's errno, if one was its cause.
func errnoOf(err error) unix.Errno {
	var errno unix.Errno
	if errors.As(err, &errno) && errno != 0 {
		return errno
	}
	return unix.EHOSTUNREACH
}
