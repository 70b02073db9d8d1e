package spawn

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/remote"
	"causeway/remote/relay"
)

const (
	// connectLimit bounds what a worker waits for its connection, whose server has several
	// addresses.
	connectLimit = 10 * time.Second
	// connectEach is how long a worker waits at least from one connection to the next: what it asks
	// for is the server's to bear.
	connectEach = 20 * time.Millisecond
)

// calls are the connections that a worker has asked for.
type calls struct {
	mu      sync.Mutex
	adopts  bool             // the session has begun with another worker
	session remote.SessionID // the last that began; zero: none was asked for
	begun   int              // sessions
	busy    bool
	last    time.Time
}

// begin notes a worker's wish: it has one session, and waits for one connection at a time.
func (c *calls) begin(m link.Connect) (wait time.Duration, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	goesOn := m.Session == c.session || c.adopts && c.session == remote.SessionID{}
	if c.busy || m.Session == (remote.SessionID{}) || m.Again != goesOn || !m.Again && (c.adopts || c.begun == link.Beginnings) {
		return 0, false
	}
	if !m.Again {
		c.begun++
	}
	wait = max(0, connectEach-time.Since(c.last))
	c.session, c.busy, c.last = m.Session, true, time.Now().Add(wait)
	return wait, true
}

// goesOn says whether the worker's session has begun with another.
func (c *calls) goesOn(adopts bool) {
	c.mu.Lock()
	c.adopts = adopts
	c.mu.Unlock()
}

func (c *calls) end() {
	c.mu.Lock()
	c.busy = false
	c.mu.Unlock()
}

// connect answers link.Connect, aside: workers have no network, and this process connects them to
// where their configuration says, nowhere else, and for one session: a guest that has taken its
// relay over has one at the server, as any other.
func (p *Process) connect(m link.Connect) error {
	to, c, gone := p.route(m.Lease)
	if to == nil {
		return fmt.Errorf("%w: a connection", errUnasked)
	}
	wait, ok := c.begin(m)
	if !ok {
		return fmt.Errorf("%w: a connection for session %x, again %v", errUnasked, m.Session, m.Again)
	}
	go func() {
		time.Sleep(wait)
		if gone { // one at a time, and so seldom, as any other
			c.end()
			_ = p.Send(link.Connected{Status: link.StatusOf(unix.ENOENT, errLeft)})
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), connectLimit)
		defer cancel()
		answer := link.Connected{}
		dial := relay.DialFirst
		if m.Again { // the session itself tries again
			dial = relay.Dial
		}
		conn, err := dial(ctx, to.Addresses, remote.Preface{Lease: to.Lease, Session: m.Session, Again: m.Again, Ready: m.Ready})
		if err == nil {
			defer conn.Close()
			f, ferr := conn.File()
			if err = ferr; err == nil {
				defer f.Close()
				answer.Connection = link.FileOf(int(f.Fd()))
			}
		}
		answer.Status = link.StatusOf(errnoOf(err), err)
		c.end()
		_ = p.Send(answer) // a worker that is gone waits for nothing
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
