package tcp

import (
	"errors"

	"causeway/remote"
	"causeway/remote/frame"
)

/*
Memory of a session goes ahead of it in rounds, each of which the guest's end asks for by AHEAD,
while the session runs on: STATE frames, which stand between those of calls, and at the round's end
one with flag 2, or a refusal. No more than AheadWindow bytes are under way that the guest's end has
not said MORE for, so that it can keep them until the other host takes them, and follow calls
meanwhile. LEAVE has the rest follow; STAY has what went ahead forgotten. To the other host the
guest's end says AHEAD in the place of HELLO, which is answered by MORE, and passes the rounds on;
ARRIVE says later where the ring is.

Before any of it the session may be rehearsed elsewhere: REHEARSE, in the place of the first AHEAD,
has what it is made of follow as a round does, and STAY comes next. The other host is told REHEARSE
in the place of HELLO; WELCOME is its answer to all of it, and nothing else follows.
*/

// aheadPart is how much of a round is one frame: calls' frames come between two of them.
const aheadPart = 64 << 10

// rounds are what a guest's end has asked for since it last said STAY. moves.mu guards it.
type rounds struct {
	ask  chan *Round
	n    uint64
	only bool          // the first is a rehearsal's, behind which there is none
	now  *Round        // under way
	over chan struct{} // closed when they are forgotten; nil: none was asked for
}

// Round is memory that goes ahead of a session. One goroutine writes, and ends it by End.
type Round struct {
	c    *Carrier
	n    uint64
	made bool // what the session is made of is asked for, not its memory
	over chan struct{}
	more chan struct{} // one place: left has grown
	left int           // bytes that may be sent; moves.mu
}

// Rounds says each time that the guest's end wants a round of memory.
func (c *Carrier) Rounds() <-chan *Round { return c.moves.ahead.ask }

// aheadFrame follows AHEAD, and REHEARSE.
func (c *Carrier) aheadFrame(h frame.Header) error {
	m := &c.moves
	m.mu.Lock()
	defer m.mu.Unlock()
	a := &m.ahead
	made, n := h.Kind == frame.Rehearse, a.n+1
	if made {
		n = 0
	}
	if h.Len != 0 || h.Flags != 0 || h.Arg != n || made && a.n != 0 || a.only || a.now != nil || m.left != nil || m.into != nil || !m.placed {
		return remote.Violation("frame of type %d of %d bytes for round %d behind %d", h.Kind, h.Len, h.Arg, a.n)
	}
	a.only = made
	if a.n++; a.over == nil {
		a.over = make(chan struct{})
	}
	a.now = &Round{c: c, n: a.n, made: made, over: a.over, more: make(chan struct{}, 1), left: frame.AheadWindow}
	a.ask <- a.now // which has room: the one before has ended
	return nil
}

// moreFrame follows MORE. One that comes behind the end of what it is about says nothing.
func (c *Carrier) moreFrame(h frame.Header) error {
	m := &c.moves
	m.mu.Lock()
	defer m.mu.Unlock()
	if h.Len != 0 || h.Flags != 0 || h.Arg == 0 || h.Arg > frame.AheadWindow || m.into != nil {
		return remote.Violation("MORE frame of %d bytes for %d", h.Len, h.Arg)
	}
	if r := m.ahead.now; r != nil {
		r.left = min(r.left+int(h.Arg), frame.AheadWindow)
		select {
		case r.more <- struct{}{}:
		default:
		}
	}
	return nil
}

// endLocked has what went ahead forgotten. The round that is under way ends by its own End.
func (a *rounds) endLocked() {
	a.only = false
	if a.n = 0; a.over != nil {
		close(a.over)
		a.over = nil
	}
}

// First reports whether it is the first of its rounds, behind which the others go on.
func (r *Round) First() bool { return r.n == 1 }

// Made reports whether it is to say what the session is made of, for a rehearsal elsewhere, in
// place of memory.
func (r *Round) Made() bool { return r.made }

// Over is closed when what went ahead is to be forgotten, or the connection has ended.
func (r *Round) Over() <-chan struct{} { return r.over }

// Write implements io.Writer: some of the round. ErrStays: nobody wants it any more.
func (r *Round) Write(p []byte) (n int, err error) {
	for n < len(p) {
		part, err := r.part(min(len(p)-n, aheadPart))
		if err != nil {
			return n, err
		}
		if err := r.c.send(frame.Header{Kind: frame.State}, p[n:n+part], nil); err != nil {
			return n, err
		}
		n += part
	}
	return n, nil
}

// part waits until some of so many bytes may be sent, and returns how many.
func (r *Round) part(most int) (int, error) {
	for {
		select {
		case <-r.over:
			return 0, ErrStays
		default:
		}
		r.c.moves.mu.Lock()
		n := min(most, r.left)
		r.left -= n
		r.c.moves.mu.Unlock()
		if n > 0 {
			return n, nil
		}
		select {
		case <-r.more:
		case <-r.over:
		}
	}
}

// End says what the round did, or why it failed, which has the guest's end give the rounds up.
func (r *Round) End(did frame.Round, why error) error {
	m := &r.c.moves
	m.mu.Lock()
	m.ahead.now = nil
	m.mu.Unlock()
	if why == nil {
		return r.c.send(frame.Header{Kind: frame.State, Flags: frame.Whole}, did.Append(nil), nil)
	}
	text := why.Error()
	return r.c.send(frame.Header{Kind: frame.State, Flags: frame.Refused}, []byte(text[:min(len(text), frame.MaxWhy)]), nil)
}

var errAhead = errors.New("it has not said yet where its ring is")

// comesAhead begins a session whose memory comes ahead of it, or that is to be rehearsed, and says
// that it is awaited.
func (c *Carrier) comesAhead(h frame.Header) error {
	if h.Arg != 0 || h.Flags != 0 {
		return remote.Violation("frame of type %d with argument %d", h.Kind, h.Arg)
	}
	if err := c.arrives(0); err != nil {
		return err
	}
	// Nobody else has the carrier yet.
	c.moves.placed, c.moves.rehearsal = false, h.Kind == frame.Rehearse
	return c.send(frame.Header{Kind: frame.More}, nil, nil)
}

// arriveFrame says where the ring is of a session whose memory came ahead of it.
func (c *Carrier) arriveFrame(h frame.Header) error {
	m := &c.moves
	m.mu.Lock()
	defer m.mu.Unlock()
	if h.Len != 0 || h.Flags != 0 || h.Arg%8 != 0 || m.placed || m.rehearsal || m.into == nil {
		return remote.Violation("ARRIVE frame of %d bytes at %d", h.Len, h.Arg)
	}
	if err := c.ringAt(h.Arg); err != nil {
		return err
	}
	m.placed = true
	return nil
}

// Rehearsal reports whether a session that comes is only to be tried: its ring is nowhere.
func (c *Carrier) Rehearsal() bool { return c.moves.rehearsal }

// Declare notes a region of a session that is rehearsed, whose guest's end declares none, and
// answers nobody who would read it.
func (c *Carrier) Declare(id uint32, d remote.Declared) error { return c.mem.declare(id, d) }

// Placed says whether the ring is where the session that comes goes on. Nobody uses it before.
func (c *Carrier) Placed() error {
	c.moves.mu.Lock()
	defer c.moves.mu.Unlock()
	if !c.moves.placed {
		return errAhead
	}
	return nil
}
