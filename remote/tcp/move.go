package tcp

import (
	"bufio"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"causeway/remote"
	"causeway/remote/frame"
)

/*
A session moves to another host's worker by its guest's end, which alone knows when nothing of it is
under way: it stands still, says LEAVE, and has what the session is made of in STATE frames. It
begins with the other host by ARRIVE in the place of HELLO, declares its regions, and passes the
STATE frames on there. WELCOME is the answer to all of it. Then it ends this connection; or it says
STAY, and the session goes on here. What the bytes mean is the workers' affair.

Memory may go ahead of it, in rounds (ahead.go): then it begins with the other host by AHEAD, and
says ARRIVE when it stands still.
*/

// statePart is how much of a state is one frame.
const statePart = 256 << 10

// Errors of sessions that move.
var (
	// ErrStays says that the guest's end has the session go on here.
	ErrStays = errors.New("the session stays")
	errState = remote.Violation("STATE frame where none is due")
)

// moves is how a session comes or goes.
type moves struct {
	asked atomic.Bool // left is there, and its ring is not empty
	ask   chan *Leaving

	mu     sync.Mutex
	left   *Leaving
	ahead  rounds
	placed bool // where the ring is is known

	// Of a session that comes; the receiver's but for arrival.
	arrival   *io.PipeReader // nil: it begins here
	rehearsal bool           // it is only tried
	into      *io.PipeWriter // nil: nothing is due
}

// Leaving is a session whose guest's end stands still, and wants what it is made of. One goroutine
// writes.
type Leaving struct {
	c     *Carrier
	at    uint64
	ahead bool
	empty chan struct{} // closed once all records are consumed
	stays chan struct{} // closed when the session is to go on here
}

func (m *moves) init() {
	m.ask, m.ahead.ask = make(chan *Leaving, 1), make(chan *Round, 1)
	m.placed = true
}

// arrives begins the ring at a head, and has STATE frames follow.
func (c *Carrier) arrives(head uint64) error {
	if head%8 != 0 {
		return remote.Violation("a session that comes with %d bytes of its ring", head)
	}
	c.moves.arrival, c.moves.into = io.Pipe()
	return c.ringAt(head)
}

// Arrival is what the session is made of that comes from elsewhere; false: it begins here. It ends
// with io.EOF where all has come. Close has what follows passed over.
func (c *Carrier) Arrival() (io.ReadCloser, bool) {
	if c.moves.arrival == nil {
		return nil, false
	}
	return c.moves.arrival, true
}

// Declared are the regions that the guest's end has declared.
func (c *Carrier) Declared() map[uint32]remote.Declared {
	c.mem.mu.Lock()
	defer c.mem.mu.Unlock()
	all := make(map[uint32]remote.Declared, len(c.mem.regions))
	for id, d := range c.mem.regions {
		all[id] = d
	}
	return all
}

// Leaves says each time that the guest's end wants to go elsewhere.
func (c *Carrier) Leaves() <-chan *Leaving { return c.moves.ask }

// leaveFrame follows LEAVE.
func (c *Carrier) leaveFrame(h frame.Header) error {
	m := &c.moves
	m.mu.Lock()
	defer m.mu.Unlock()
	if h.Len != 0 || h.Flags != 0 || h.Arg != c.tail || m.left != nil || m.into != nil || m.ahead.now != nil || m.ahead.only || !m.placed {
		return remote.Violation("LEAVE frame of %d bytes at %d, where %d came", h.Len, h.Arg, c.tail)
	}
	m.left = &Leaving{c: c, at: c.tail, ahead: m.ahead.n > 0, empty: make(chan struct{}), stays: make(chan struct{})}
	m.asked.Store(true)
	m.consumedLocked(c.ring.Consumed()) // the consumer may have been there before it could see that
	select {
	case m.ask <- m.left:
	default: // nobody has taken the one before, which stays: its state was not sent
		return remote.Violation("LEAVE frame, and one before it is not answered")
	}
	return nil
}

// stayFrame follows STAY.
func (c *Carrier) stayFrame(h frame.Header) error {
	m := &c.moves
	m.mu.Lock()
	defer m.mu.Unlock()
	if h.Len != 0 || h.Flags != 0 || h.Arg != 0 || m.left == nil && m.ahead.n == 0 {
		return remote.Violation("STAY frame of %d bytes", h.Len)
	}
	m.stayLocked()
	return nil
}

func (m *moves) stayLocked() {
	m.asked.Store(false)
	m.ahead.endLocked()
	if m.left != nil {
		close(m.left.stays)
		m.left = nil
	}
}

// stateFrame takes what a session that comes is made of.
func (c *Carrier) stateFrame(h frame.Header) error {
	m := &c.moves
	if m.into == nil || h.Flags != 0 || h.Arg != 0 {
		return errState
	}
	if h.Len == 0 {
		_ = m.into.Close()
		m.into = nil
		return nil
	}
	return m.pass(c.in, int(h.Len))
}

// pass passes n bytes to who makes the session; who has given up has them read all the same.
func (m *moves) pass(in *bufio.Reader, n int) error {
	return frame.Body(in, n, func(b []byte) error {
		_, _ = m.into.Write(b)
		return nil
	})
}

// still reports whether the guest's end stands still: it goes, or has not come yet.
func (m *moves) still() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.left != nil || !m.placed
}

// consumed notes how far the ring is consumed.
func (m *moves) consumed(head uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.consumedLocked(head)
}

func (m *moves) consumedLocked(head uint64) {
	if m.left != nil && m.asked.Load() && head == m.left.at {
		m.asked.Store(false)
		close(m.left.empty)
	}
}

// end has nobody wait for more.
func (m *moves) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stayLocked()
	if m.into != nil {
		_ = m.into.CloseWithError(remote.ErrClosed)
		m.into = nil
	}
}

// Ahead reports whether the memory of rounds, which the last one ended, has gone ahead.
func (l *Leaving) Ahead() bool { return l.ahead }

// Empty is closed once all records are consumed that were sent before.
func (l *Leaving) Empty() <-chan struct{} { return l.empty }

// Stays is closed when the session is to go on here, or the connection has ended.
func (l *Leaving) Stays() <-chan struct{} { return l.stays }

// Write implements io.Writer: some of the state. ErrStays: nobody wants it any more.
func (l *Leaving) Write(p []byte) (n int, err error) {
	for n < len(p) {
		select {
		case <-l.stays:
			return n, ErrStays
		default:
		}
		part := p[n:min(n+statePart, len(p))]
		if err := l.c.send(frame.Header{Kind: frame.State}, part, nil); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

// End says that all of the state was written, or why it was not.
func (l *Leaving) End(why error) error {
	if why == nil {
		return l.c.send(frame.Header{Kind: frame.State}, nil, nil)
	}
	text := why.Error()
	return l.c.send(frame.Header{Kind: frame.State, Flags: frame.Refused}, []byte(text[:min(len(text), frame.MaxWhy)]), nil)
}
