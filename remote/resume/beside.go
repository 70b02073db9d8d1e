package resume

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"time"

	"causeway/remote/frame"
)

/*
A stream that comes to another process does not stand until its ends know what they can go over
there: that may take seconds where packets get lost. It goes on over a connection with TLS alone,
and the client makes another one beside it, on which both agree (its greeting shows that it is one
of those). Once they have, the client ends the connection that the stream has and greets once more,
over what was agreed on, and what follows is as with any other connection. Where they agree on
nothing nobody has noticed.

Whoever redials has what was agreed on, so that one of the two is done at a time.
*/

// Of attempts beside a connection: how many there are, of those that were lost, and what the two
// greetings of one show.
const (
	besideTries      = 5
	fromClientBeside = "client beside"
	fromServerBeside = "server beside"
	fromClientOver   = "client over"
	fromServerOver   = "server over"
)

// Why a connection that is the stream's ends, and why one beside it.
var (
	errChanged = errors.New("both ends have agreed on another way")
	errNone    = errors.New("both ends agree on no other way beside the stream's")
)

// beside is the client's part. But for the channel Conn.mu guards it.
type beside struct {
	tries  bool            // one is looked for, or was found and is not gone over yet
	found  bool            // the stream has gone over a way
	agreed chan *agreedWay // for routineRedial
}

// agreedWay is what both ends have agreed on beside the connection that the stream has.
type agreedWay struct {
	way  Way
	bind digest
}

// staysLocked reports whether connections are gone on over at once, and a way is looked for beside.
func (c *Conn) staysLocked() bool { return c.lift.Stays != nil && !c.beside.found }

// agree agrees inside of the connection of an attempt, which it takes over, on what the stream goes
// over.
func (c *Conn) agree(s *frame.Secure, attempt uint64) (Way, error) {
	if !c.client {
		ctx, over, err := c.agrees.begin(c, attempt)
		if err != nil {
			s.Abort()
			return nil, err
		}
		defer over()
		return c.lift.Again(ctx, s)
	}
	c.mu.Lock()
	agree := c.lift.Again
	if c.staysLocked() {
		agree = c.lift.Stays
	}
	c.mu.Unlock()
	return agree(c.ctx, s)
}

// turn is the server's: inside of one connection at a time is agreed on what the stream goes over,
// as that takes memory and queue pairs that nobody has booked. The newest is what the client goes
// on with, and has the ones before it end.
type turn struct {
	taken  chan struct{}      // one place
	newest context.CancelFunc // Conn.mu guards it
}

// errNewer says why an attempt has ended.
var errNewer = errors.New("the client has made another connection meanwhile")

// begin waits for the turn, which is over when the caller says so, and soon after ctx has ended. It
// ends no attempt that is later than its own.
func (t *turn) begin(c *Conn, attempt uint64) (ctx context.Context, over func(), err error) {
	ctx, cancel := context.WithCancel(c.ctx)
	c.mu.Lock()
	if attempt < c.attempt {
		c.mu.Unlock()
		cancel()
		return nil, nil, errNewer
	}
	if t.newest != nil {
		t.newest()
	}
	t.newest = cancel
	c.mu.Unlock()
	select {
	case t.taken <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, errNewer
	}
	over = func() {
		cancel()
		<-t.taken
	}
	if ctx.Err() != nil {
		over()
		return nil, nil, errNewer
	}
	return ctx, over, nil
}

// tryBeside has another way be tried beside the connection that there is, if it is to be.
func (c *Conn) tryBeside(cfg *tls.Config, dial Dialer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.staysLocked() && !c.beside.tries && c.up != nil && c.err == nil {
		c.beside.tries = true
		go c.routineBeside(cfg, dial)
	}
}

// routineBeside agrees with the other end on a way beside a connection. Attempts that are lost are
// followed by others.
func (c *Conn) routineBeside(cfg *tls.Config, dial Dialer) {
	var a *agreedWay
	err := error(nil)
	wait := againFirst
	for n := range besideTries {
		if n > 0 {
			select {
			case <-time.After(wait):
			case <-c.ctx.Done():
			}
			wait = min(2*wait, againBranch)
		}
		if a, err = c.meetBeside(cfg, dial); err == nil || c.final(err) || errors.Is(err, ErrProof) || c.ctx.Err() != nil {
			break
		}
	}
	if a == nil { // until there is another connection
		c.mu.Lock()
		defer c.mu.Unlock()
		c.beside.tries = false
		return
	}
	select {
	case c.beside.agreed <- a:
	case <-c.ctx.Done():
		a.way.Abort()
	}
}

// meetBeside is one attempt; nil: both ends agree that there is none.
func (c *Conn) meetBeside(cfg *tls.Config, dial Dialer) (*agreedWay, error) {
	if err := c.Ready(c.ctx); err != nil { // ahead of any other connection comes the stream's own
		return nil, err
	}
	s, err := another(c.ctx, cfg, dial, ErrBeside)
	if err != nil {
		return nil, err
	}
	bind, err := derived(s, labelBind)
	if err == nil {
		c.mu.Lock()
		g := greeting{Attempt: c.attempt + 1, Got: c.got} // which goes on over nothing yet
		c.mu.Unlock()
		_, err = greetAs(c.ctx, s, g, c.secret, bind, fromClientBeside, fromServerBeside)
	}
	if err != nil {
		s.Abort()
		return nil, err
	}
	up, err := c.lift.Again(c.ctx, s)
	switch {
	case err != nil:
		return nil, err
	case up == Way(s):
		s.Abort()
		return nil, nil
	}
	return &agreedWay{up, bind}, nil
}

// ErrBeside says why another connection is wanted beside the one that there is.
var ErrBeside = errors.New("another way is looked for beside it")

// change has the stream go on over what was agreed on beside its connection, which ends. Without
// success it has none, and another is made. routineRedial calls it.
func (c *Conn) change(a *agreedWay) {
	c.mu.Lock()
	c.beside.tries = false
	if c.err != nil || c.hold.on {
		c.mu.Unlock()
		a.way.Abort()
		return
	}
	// At once, so that no hold is told between: a server that is greeted waits no longer for it.
	old := c.up
	if old != nil {
		c.loseLocked(errChanged)
	}
	c.attempt++
	g := greeting{Attempt: c.attempt, Got: c.got}
	c.mu.Unlock()
	if old != nil {
		old.Abort() // as broken does: before there is another
	}
	received, err := greetAs(c.ctx, a.way, g, c.secret, a.bind, fromClientOver, fromServerOver)
	if err == nil {
		c.mu.Lock()
		c.beside.found = true
		c.mu.Unlock()
		c.lifted(a.way)
		err = c.adopt(a.way, g.Attempt, received)
	}
	if err != nil {
		a.way.Abort()
		c.mu.Lock()
		c.why = err
		c.mu.Unlock()
	}
}

// besides is the server's part of what is agreed on beside the stream's connection: nothing of that
// changes before the client has greeted once more.
func (c *Conn) besides(s *frame.Secure, far greeting, bind digest) error {
	if !c.Lifted() {
		return fmt.Errorf("%w: nothing is agreed on beside it", ErrProof)
	}
	own := greeting{Attempt: far.Attempt}
	own.Proof = own.proof(c.secret, bind, fromServerBeside)
	if _, err := s.Write(own.encode()); err != nil {
		return err
	}
	_ = s.SetDeadline(time.Time{})
	ctx, over, err := c.asides.begin(c, math.MaxUint64)
	if err != nil {
		return err
	}
	defer over()
	up, err := c.lift.Again(ctx, s)
	switch {
	case err != nil:
		return err
	case up == Way(s):
		return errors.Join(errNone, s.Close()) // behind what the client has to read
	}
	if err = c.changes(ctx, up, bind); err != nil {
		up.Abort()
	}
	return err
}

// changes has the stream go on over what was agreed on, when the client says so.
func (c *Conn) changes(ctx context.Context, up Way, bind digest) error {
	defer context.AfterFunc(ctx, up.Abort)()
	_ = up.SetDeadline(time.Now().Add(greetingLimit))
	far, err := readGreeting(up)
	switch {
	case err != nil:
		return err
	case !far.proven(c.secret, bind, fromClientOver):
		return ErrProof
	}
	own, err := c.giveWay(far)
	if err != nil {
		return err
	}
	own.Proof = own.proof(c.secret, bind, fromServerOver)
	if _, err = up.Write(own.encode()); err != nil {
		return err
	}
	_ = up.SetDeadline(time.Time{})
	return c.adopt(up, far.Attempt, far.Got)
}
