package resume

import (
	"context"
	"errors"
	"fmt"
	"net"

	"causeway/remote"
	"causeway/remote/frame"
)

/*
Both ends of a stream may agree, inside each connection's TLS and before anything of the stream is
said there, that its bytes go beside it, by RDMA. Such a way is lost and found as a connection is:
what was not acknowledged is sent again over the next, which may be one with TLS alone. What one end
reaches of the other's memory is no part of the stream: it is done when Fetch or Store return, or
was not, and then frames do it.

A client's end that goes on in another process (held.go) has that process's adapters, or none: what
it agrees on there is agreed on as if it were the stream's first, which to the server is one of
those that follow; but the stream does not wait for that (beside.go).
*/

// Way is what a stream goes over at a time: a connection with TLS, or what its ends have agreed on
// inside of one.
type Way interface {
	net.Conn
	// WriteAll writes one after the other. One goroutine writes at a time.
	WriteAll(list [][]byte) error
	// Ended reports whether an end of file that was read was the other end's word.
	Ended() bool
	// Abort ends it without a word. Nothing of the other end arrives any more when it returns.
	Abort()
}

var _ Way = (*frame.Secure)(nil)

// Lifted is what a stream's ends have agreed on inside its first connection. The zero value:
// nothing, it stays there.
type Lifted struct {
	Way Way
	// Again agrees inside of another connection, which it takes over: what it returns may be that
	// connection.
	Again func(ctx context.Context, s *frame.Secure) (Way, error)
	// Stays is for a client whose stream comes from another process, and is nil elsewhere, or where
	// Again has nothing to wait for: it agrees inside of a connection, which it takes over, that
	// the stream goes over that. Until there is another way the stream does, and Again is called
	// beside it.
	Stays func(ctx context.Context, s *frame.Secure) (Way, error)
}

// Lifted reports whether the ends of each connection agree on what the stream goes over.
func (c *Conn) Lifted() bool { return c.lift.Again != nil }

// goOver goes on over the connection of an attempt, whose other end has received so many bytes.
func (c *Conn) goOver(s *frame.Secure, attempt, received uint64) error {
	up := Way(s)
	if c.Lifted() {
		var err error
		if up, err = c.agree(s, attempt); err != nil {
			return err
		}
		c.lifted(up)
	}
	err := c.adopt(up, attempt, received)
	if err != nil {
		up.Abort()
	}
	return err
}

// lifted notes what registers memory where the stream has gone on in this process, over connections
// without.
func (c *Conn) lifted(up Way) {
	c.mu.Lock()
	grants, ok := up.(frame.Granting)
	first := c.lift.Way == nil && ok && grants.Grants()
	if first {
		c.lift.Way = up
	}
	tell := c.granted
	c.mu.Unlock()
	if first && tell != nil {
		tell()
	}
}

var (
	_ frame.Lifting  = (*Conn)(nil)
	_ frame.Reaching = (*Conn)(nil)
)

// Grants implements frame.Granting.
func (c *Conn) Grants() bool {
	w, ok := c.liftedBy().(frame.Granting)
	return ok && w.Grants()
}

// Grant implements frame.Granting. It is the adapter's, which all ways of the stream have in this
// process, not the first one's.
func (c *Conn) Grant(mem []byte) (frame.Granted, func(), error) {
	w, ok := c.liftedBy().(frame.Granting)
	if !ok {
		return frame.Granted{}, nil, frame.ErrUnreached
	}
	return w.Grant(mem)
}

// Lifts implements frame.Lifting.
func (c *Conn) Lifts(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.granted = f
	return c.client && c.Lifted()
}

// liftedBy is the first way beside TLS that the stream has had in this process.
func (c *Conn) liftedBy() Way {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lift.Way
}

// Reaches implements frame.Reaching.
func (c *Conn) Reaches() bool {
	w, ok := c.liftedBy().(frame.Reaching)
	return ok && w.Reaches()
}

// Fetch implements frame.Reaching.
func (c *Conn) Fetch(p []byte, from frame.Granted, off uint64) error {
	w, err := c.reaching()
	if err == nil {
		err = c.unreached(w, w.Fetch(p, from, off))
	}
	return err
}

// Store implements frame.Reaching. The bytes are there when it returns: what follows may go another
// way.
func (c *Conn) Store(p []byte, to frame.Granted, off uint64) error {
	w, err := c.reaching()
	if err != nil {
		return err
	}
	err = w.Store(p, to, off)
	if err == nil {
		err = w.Settle()
	}
	return c.unreached(w, err)
}

var _ frame.Direct = (*Conn)(nil)

// FetchTo implements frame.Direct.
func (c *Conn) FetchTo(m remote.Registered, at, n uint64, from frame.Granted, off uint64) error {
	w, d, err := c.direct()
	if err == nil {
		err = c.unreached(w, d.FetchTo(m, at, n, from, off))
	}
	return err
}

// StoreFrom implements frame.Direct.
func (c *Conn) StoreFrom(m remote.Registered, at, n uint64, to frame.Granted, off uint64) error {
	w, d, err := c.direct()
	if err == nil {
		err = c.unreached(w, d.StoreFrom(m, at, n, to, off))
	}
	return err
}

// direct is the way of now, if its adapter knows memory besides this process's.
func (c *Conn) direct() (Way, frame.Direct, error) {
	w, err := c.reaching()
	if err != nil {
		return nil, nil, err
	}
	d, ok := w.(frame.Direct)
	if !ok {
		return nil, nil, frame.ErrUnreached
	}
	return w, d, nil
}

// reacher is a way that reaches memory.
type reacher interface {
	Way
	frame.Reaching
	// Settle waits until what Store has written is there.
	Settle() error
}

func (c *Conn) reaching() (reacher, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, ok := c.up.(reacher)
	if !ok || !w.Reaches() {
		return nil, frame.ErrUnreached
	}
	return w, nil
}

// unreached is what comes of a way's error. The stream goes on; nothing of the way is under way any
// more when frames do what was to be done.
func (c *Conn) unreached(w Way, err error) error {
	if err == nil || errors.Is(err, remote.ErrOutOfBounds) {
		return err
	}
	c.broken(w, err)
	return fmt.Errorf("%w: %w", frame.ErrUnreached, err)
}
