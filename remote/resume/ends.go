package resume

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"causeway/remote"
	"causeway/remote/frame"
)

// ErrGone says that the other end has no such stream any more.
var ErrGone = errors.New("the other end has no such session")

// Attempts of a client follow one another after so long, which doubles. A branch waits for its
// trunk's first, and may have to try for longer.
const (
	againFirst  = 20 * time.Millisecond
	againMost   = 500 * time.Millisecond
	againBranch = 2 * time.Second
)

// greetingLimit bounds what a connection may take until it is the session's.
const greetingLimit = 5 * time.Second

// Dialer makes another connection to the other end, where there is none for a reason that it is
// told. It ends the stream by ErrGone.
type Dialer func(ctx context.Context, why error) (net.Conn, error)

// NewClient is the client's end of a stream that begins on a connection, which it takes over. TLS
// of others is cfg's. What it keeps is booked in a budget, which may be nil.
func NewClient(first *frame.Secure, cfg *tls.Config, dial Dialer, b Budget) (*Conn, error) {
	return NewClientOver(first, Lifted{}, cfg, dial, b)
}

// NewClientOver is NewClient where both ends have agreed inside the first connection on what the
// stream goes over.
func NewClientOver(first *frame.Secure, l Lifted, cfg *tls.Config, dial Dialer, b Budget) (*Conn, error) {
	c, err := newConnOver(first, l, Limit, b)
	if err == nil {
		c.client, c.branches.cfg, c.branches.dial = true, cfg, dial
		go c.routineRedial(cfg, dial)
	}
	return c, err
}

// NewServer is the server's end of a stream that begins on a connection, which it takes over.
// Others come by Accept.
func NewServer(first *frame.Secure, b Budget) (*Conn, error) {
	return NewServerOver(first, Lifted{}, b)
}

// NewServerOver is NewServer where both ends have agreed inside the first connection on what the
// stream goes over.
func NewServerOver(first *frame.Secure, l Lifted, b Budget) (*Conn, error) {
	return newConnOver(first, l, Limit, b)
}

// SetLimit has the stream go on without a connection for so long, in place of Limit.
func (c *Conn) SetLimit(limit time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit, c.now = limit, limit
}

func (c *Conn) routineRedial(cfg *tls.Config, dial Dialer) {
	most := againMost
	if c.trunk != nil {
		most = againBranch
	}
	for {
		select {
		case <-c.lost:
		case a := <-c.beside.agreed:
			c.change(a)
		case <-c.ctx.Done():
			return
		}
		for wait := againFirst; c.isLost(); wait = min(2*wait, most) {
			err := c.redial(cfg, dial)
			if err == nil {
				continue
			}
			if c.final(err) {
				c.end(err)
				return
			}
			c.mu.Lock()
			c.why = err
			c.mu.Unlock()
			select {
			case <-time.After(wait):
			case <-c.ctx.Done():
				return
			}
		}
		c.tryBeside(cfg, dial)
	}
}

// final reports whether no other attempt would do: the session is gone, or the other end takes no
// such branch.
func (c *Conn) final(err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	begins := c.trunk != nil && c.branches.fresh
	return errors.Is(err, ErrGone) || errors.Is(err, remote.ErrProtocol) || begins && (errors.Is(err, ErrBranch) || errors.Is(err, errFarBudget) || errors.Is(err, ErrProof))
}

func (c *Conn) isLost() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.up == nil && c.err == nil && !c.hold.on
}

// redial makes a connection and goes on over it.
func (c *Conn) redial(cfg *tls.Config, dial Dialer) error {
	c.mu.Lock()
	why := c.why
	if c.trunk != nil && c.branches.fresh {
		why = ErrFresh
	}
	c.mu.Unlock()
	s, err := another(c.ctx, cfg, dial, why)
	if err != nil {
		return err
	}
	if err := c.greet(s); err != nil {
		s.Abort()
		return err
	}
	return nil
}

// another makes a connection, with TLS.
func another(ctx context.Context, cfg *tls.Config, dial Dialer, why error) (*frame.Secure, error) {
	raw, err := dial(ctx, why)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, Limit) // one attempt of several
	defer cancel()
	s, err := frame.Client(ctx, raw, cfg)
	if err != nil && remote.Said(err) == remote.Gone {
		err = ErrGone
	}
	return s, err
}

// greet is the client's part in the beginning of a connection.
func (c *Conn) greet(s *frame.Secure) error {
	c.mu.Lock()
	c.attempt++
	attempt, got := c.attempt, c.got
	c.mu.Unlock()
	far, err := greet(c.ctx, s, c.secret, attempt, got)
	if err != nil {
		return err
	}
	return c.goOver(s, attempt, far)
}

// greet shows on a connection whose it is, and says how many bytes the client has. It returns how
// many the server has.
func greet(ctx context.Context, s *frame.Secure, secret digest, attempt, got uint64) (uint64, error) {
	bind, err := derived(s, labelBind)
	if err != nil {
		return 0, err
	}
	return greetAs(ctx, s, greeting{Attempt: attempt, Got: got}, secret, bind, fromClient, fromServer)
}

// greetAs is greet over what TLS, of which bind is, may lie beside, with what either end is to
// show.
func greetAs(ctx context.Context, up Way, own greeting, secret, bind digest, client, server string) (uint64, error) {
	defer context.AfterFunc(ctx, up.Abort)()
	_ = up.SetDeadline(time.Now().Add(greetingLimit))
	own.Proof = own.proof(secret, bind, client)
	if _, err := up.Write(own.encode()); err != nil {
		return 0, err
	}
	far, err := readGreeting(up)
	switch {
	case err != nil:
		return 0, err
	case far.Attempt == 0:
		return 0, refusal(far.Got)
	case far.Attempt != own.Attempt || !far.proven(secret, bind, server):
		return 0, ErrProof
	}
	_ = up.SetDeadline(time.Time{})
	return far.Got, nil
}

func readGreeting(r io.Reader) (greeting, error) {
	var b [greetingSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return greeting{}, fmt.Errorf("greeting: %w", err)
	}
	return parseGreeting(b), nil
}

// Accept goes on over a connection that the client is said to have made, which it takes over; of
// those that are still shaking hands the oldest gives way to it where there are more than the
// session has streams. What is shown on it decides whose it is: if it is none of the session's,
// nothing has changed.
func (c *Conn) Accept(raw net.Conn, cfg *tls.Config) error {
	if err := c.addPending(raw); err != nil {
		_ = raw.Close()
		return err
	}
	defer c.dropPending(raw)
	s, err := frame.Server(c.ctx, raw, cfg)
	if err != nil {
		return err
	}
	if err = c.greeted(s); err != nil {
		s.Abort()
	}
	return err
}

// addPending notes a connection that shakes hands.
func (c *Conn) addPending(raw net.Conn) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	most := c.branches.most
	if c.Lifted() {
		most++ // one beside the stream's connection, which may not be the stream's yet by this end
	}
	if len(c.pending) > most {
		_ = c.pending[0].Close()
		c.pending = c.pending[1:]
	}
	c.pending = append(c.pending, raw)
	return nil
}

func (c *Conn) dropPending(raw net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending = slices.DeleteFunc(c.pending, func(p net.Conn) bool { return p == raw })
}

// greeted is the server's part in the beginning of a connection.
func (c *Conn) greeted(s *frame.Secure) error {
	bind, err := derived(s, labelBind)
	if err != nil {
		return err
	}
	_ = s.SetDeadline(time.Now().Add(greetingLimit))
	far, err := readGreeting(s)
	if err != nil {
		return err
	}
	to, over := c, (*Conn).besides
	if !far.proven(c.secret, bind, fromClientBeside) {
		over = (*Conn).goOn
		to, err = c.shown(far, bind)
	}
	if err == nil {
		err = over(to, s, far, bind)
		if errors.Is(err, remote.ErrProtocol) {
			to.end(err)
		}
	}
	if why := refused(err); why != 0 {
		_, _ = s.Write(greeting{Got: why}.encode()) // the connection ends either way
	}
	return err
}

// goOn answers a greeting that is this stream's, which goes on over its connection.
func (c *Conn) goOn(s *frame.Secure, far greeting, bind digest) error {
	own, err := c.giveWay(far)
	if err != nil {
		return err
	}
	own.Proof = own.proof(c.secret, bind, fromServer)
	if _, err := s.Write(own.encode()); err != nil {
		return err
	}
	_ = s.SetDeadline(time.Time{})
	return c.goOver(s, far.Attempt, far.Got)
}

// giveWay ends the connection that there is, for the sake of another whose other end has shown
// whose it is: the client knows best which it has.
func (c *Conn) giveWay(far greeting) (greeting, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
		return greeting{}, c.err
	case far.Attempt <= c.attempt:
		return greeting{}, fmt.Errorf("%w: attempt %d after %d", ErrProof, far.Attempt, c.attempt)
	case far.Got < c.kept.start || far.Got > c.reached:
		return greeting{}, remote.Violation("%d bytes are said to be received, of %d, where %d were before", far.Got, c.reached, c.kept.start)
	}
	c.attempt = far.Attempt
	if c.up != nil {
		up := c.up
		c.loseLocked(errReplaced)
		up.Abort()
	}
	return greeting{Attempt: far.Attempt, Got: c.got}, nil
}

var errReplaced = errors.New("the client made another")

// readable is how long a connection that takes nothing more is read.
const readable = time.Second

// unwritable notes that a connection takes nothing more. The other end may have gone on purpose,
// and what it said last lie unread: the reader finds that, or that the connection is lost; where
// nobody reads it is lost after a while.
func (c *Conn) unwritable(up Way, why error) {
	c.mu.Lock()
	first := c.up == up && c.err == nil && c.mute != up
	if first {
		c.mute = up
	}
	c.mu.Unlock()
	if first {
		time.AfterFunc(c.patient, func() { c.broken(up, why) })
	}
}

// writableLocked is the connection, if there is one that takes anything.
func (c *Conn) writableLocked() Way {
	if c.up == c.mute || c.hold.on && !c.hold.tells {
		return nil
	}
	return c.up
}

// settleLocked waits until what was written has left. A client that ends between two connections
// has the time to make one more, over which it can say so: the other end keeps all it has for the
// session, for Limit, if it does not hear of it.
func (c *Conn) settleLocked() {
	over, end := false, c.kept.end
	timer := time.AfterFunc(goodbyeLimit, func() {
		c.mu.Lock()
		over = true
		c.changed.Broadcast()
		c.mu.Unlock()
	})
	defer timer.Stop()
	for !over && c.err == nil && !c.hold.on {
		if up := c.writableLocked(); up == nil && !c.client || up != nil && c.sent >= end {
			return
		}
		c.changed.Wait()
	}
}

// goodbyeLimit is how long Close waits for a connection, for whoever sends, and for its own word to
// leave.
const goodbyeLimit = 2 * time.Second

// Close implements io.Closer. The other end hears of it, if there is a connection, unless the
// stream is held: another process may go on with it.
func (c *Conn) Close() error {
	c.settle()
	c.mu.Lock()
	c.settleLocked()
	held := c.hold.on
	up := c.endLocked(net.ErrClosed)
	c.mu.Unlock()
	for _, b := range c.all() {
		b.end(net.ErrClosed)
	}
	switch {
	case up == nil:
		return nil
	case held:
		up.Abort()
		return nil
	}
	_ = up.SetWriteDeadline(time.Now().Add(goodbyeLimit)) // whoever sends comes to an end
	c.wire.Lock()
	defer c.wire.Unlock()
	_ = up.Close() // the other end may be gone already
	return nil
}
