package resume

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"causeway/remote"
	"causeway/remote/frame"
)

// Limit is how long a stream goes on without a connection.
const Limit = 10 * time.Second

// Window is how many bytes one end may have sent that the other has not acknowledged; ackEach is
// after how many it does.
const (
	Window  = 8 << 20
	ackEach = Window / 16
)

// How what is written leaves, in bytes. A copy, which is written in pieces of bulk or more, is kept
// by who writes it, and encrypted and sent by routineSend meanwhile; what is less leaves at once,
// by who writes it.
const (
	// More than a carrier's buffer: a copy of 64 KiB, and the first of a larger one, wakes nobody.
	bulk  = 96 << 10
	part  = 128 << 10    // is kept at once
	batch = 2*part + 512 // is sent at once: of a copy's frames no end is left over
	ahead = 1 << 20      // may be kept, and not be sent, while there is a connection
)

// ErrLost says that a connection was lost, and none came in its place in time.
var ErrLost = errors.New("the connection was lost")

// Conn is one end of a stream of frames. It implements frame.Stream.
type Conn struct {
	secret digest
	limit  time.Duration
	ctx    context.Context // ends with the stream
	cancel context.CancelFunc

	order sync.Mutex
	wrote boundary // of what is kept; order is held
	wire  sync.Mutex

	mu      sync.Mutex
	changed *sync.Cond
	up      Way // nil: none
	mute    Way // takes nothing more, and is read to its end, for as long as
	patient time.Duration
	err     error         // the stream has ended
	why     error         // there is no connection
	timer   *time.Timer   // runs while there is none
	losses  uint64        // for how many it has
	now     time.Duration // limit, or longer, as the client said
	hold    hold
	attempt uint64
	kept    kept
	sending bool     // somebody sends what is kept
	sent    uint64   // of what is kept, what the connection was given
	leaving uint64   // of that, what is being encrypted and written
	reached uint64   // the most that any connection was given
	out     boundary // of what was given up to there
	got     uint64   // bytes delivered
	told    uint64   // of them acknowledged
	until   time.Time
	// Of the first connection; in a process that the stream came to its Way comes later.
	lift    Lifted
	beside  beside
	agrees  turn       // on what the stream's connection is
	asides  turn       // on what may be, beside that
	granted func()     // told of that; nil: nobody is
	pending []net.Conn // the server's: shake hands, the oldest first

	client   bool   // it makes connections
	window   uint64 // Window, or a branch's
	trunk    *Conn  // a branch's
	branches branches

	lost chan struct{} // one place: for the client's redial
	due  chan struct{} // one place: for routineSend
	rung remote.Alarm  // and its alarm

	// The reader's.
	from   Way
	in     *bufio.Reader
	frames boundary
}

var (
	_ frame.Stream = (*Conn)(nil)
	_ frame.Filler = (*Conn)(nil)
)

// newConn begins on the session's first connection, which it takes over.
func newConn(first *frame.Secure, limit time.Duration, b Budget) (*Conn, error) {
	return newConnOver(first, Lifted{}, limit, b)
}

func newConnOver(first *frame.Secure, l Lifted, limit time.Duration, b Budget) (*Conn, error) {
	secret, err := derived(first, labelSecret)
	c := bareConn(secret, limit)
	c.branches.kept = b
	if err == nil {
		err = c.kept.begin(b)
	}
	up := Way(first)
	if l.Way != nil {
		up = l.Way
	}
	if err != nil {
		up.Abort()
		return nil, err
	}
	c.up, c.lift = up, l
	go c.routineSend()
	return c, nil
}

// bareConn is a stream without a connection.
func bareConn(secret digest, limit time.Duration) *Conn {
	ctx, cancel := context.WithCancel(context.Background())
	c := &Conn{
		secret: secret, limit: limit, now: limit, patient: readable, ctx: ctx, cancel: cancel, window: Window,
		lost: make(chan struct{}, 1), due: make(chan struct{}, 1), beside: beside{agreed: make(chan *agreedWay)},
		agrees: turn{taken: make(chan struct{}, 1)}, asides: turn{taken: make(chan struct{}, 1)}, in: bufio.NewReaderSize(nil, 4<<10),
	}
	c.changed, c.kept.pin = sync.NewCond(&c.mu), noPin
	return c
}

// Write implements io.Writer. It waits while the window is full, for a connection no longer than
// until then, and while a connection is far behind.
func (c *Conn) Write(p []byte) (n int, err error) {
	c.order.Lock()
	for n < len(p) && err == nil {
		b := p[n:min(n+part, len(p))]
		if rest := c.wrote.rest(); rest > 0 && rest < uint64(len(b)) {
			b = b[:rest] // behind which it can wait
		}
		err = c.keep(len(b), func(room [][]byte) error {
			for _, r := range room {
				n += copy(r, p[n:])
			}
			return nil
		})
	}
	c.order.Unlock()
	c.sendFew()
	return n, err
}

// Fill implements frame.Filler.
func (c *Conn) Fill(h frame.Header, fill func(p []byte, at int) error) error {
	c.order.Lock()
	err := c.keep(frame.HeaderSize+int(h.Len), func(room [][]byte) error {
		var head [frame.HeaderSize]byte
		h.Put(head[:])
		at := 0
		for _, r := range room {
			n := 0
			if at < len(head) {
				n = copy(r, head[at:])
			}
			if at += n; len(r) == n {
				continue
			}
			if err := fill(r[n:], at-len(head)); err != nil {
				return err
			}
			at += len(r) - n
		}
		return nil
	})
	c.order.Unlock()
	c.sendFew()
	return err
}

// keep keeps n bytes, which fill brings when there is room for them, and has them sent if there is
// much to send. order is held. Only between two frames does it wait for what the other end
// acknowledges: within one this end could not acknowledge anything, and if both ends stood so both
// would for ever.
func (c *Conn) keep(n int, fill func(room [][]byte) error) error {
	var some [part/keptChunk + 3][]byte
	c.mu.Lock()
	for most := uint64(ahead); c.err == nil && !c.hold.on && (c.wrote.whole() && (c.kept.size()+uint64(n) > c.window || !c.kept.fits(n, false)) || c.writableLocked() != nil && c.kept.end+uint64(n)-c.sent > most); most = ahead / 2 {
		c.changed.Wait() // once it waits for as much as is worth a wake-up
	}
	if err := c.err; err != nil {
		c.mu.Unlock()
		return err
	}
	c.kept.fits(n, true) // what does not wait has its room all the same
	room := c.kept.grow(some[:0], n)
	c.mu.Unlock()
	err := fill(room)
	for _, r := range room {
		c.wrote.pass(r) // a frame that was not filled has its header, and all its bytes
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept.added(room, err == nil); c.kept.end-c.sent >= bulk {
		c.poke()
	}
	return err
}

// Read implements io.Reader. One goroutine reads.
func (c *Conn) Read(p []byte) (int, error) {
	for {
		if err := c.await(); err != nil {
			return 0, err
		}
		n, err := c.next(p)
		if n > 0 && c.received(p[:n]) {
			return n, nil
		}
		var timeout net.Error
		switch {
		case err == nil: // of a connection that is gone
		case c.isHeld():
			return 0, ErrHeld
		case errors.As(err, &timeout) && timeout.Timeout() && c.expired():
			return 0, os.ErrDeadlineExceeded
		case errors.Is(err, remote.ErrProtocol):
			c.end(err)
		case errors.Is(err, io.EOF) && c.from.Ended():
			c.end(io.EOF)
		default:
			c.broken(c.from, err)
		}
	}
}

// await has the reader be at the connection that there is, for which it waits.
func (c *Conn) await() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.err == nil && c.up == nil && !c.hold.on {
		c.changed.Wait()
	}
	switch {
	case c.err != nil:
		return c.err
	case c.hold.on:
		return ErrHeld
	}
	if c.from != c.up {
		c.from = c.up
		if s, ok := c.from.(*frame.Secure); ok && c.trunk == nil {
			s.Eager(runtime.NumCPU()) // calls and their answers
		} else if ok && s.Awake(runtime.NumCPU()) { // copies
			c.rung.Use()
		}
		c.in.Reset(c.from)
		_ = c.from.SetReadDeadline(c.until)
	}
	return nil
}

// next reads some of one frame, and follows acknowledgements between frames.
func (c *Conn) next(p []byte) (int, error) {
	rest := c.frames.rest()
	for rest == 0 {
		b, err := c.in.Peek(frame.HeaderSize)
		if err != nil {
			return 0, err
		}
		h := frame.ParseHeader(b)
		if h.Kind != frame.Ack && h.Kind != frame.Hold {
			rest = frame.HeaderSize + uint64(h.Len) // whoever reads it checks it
			break
		}
		_, _ = c.in.Discard(frame.HeaderSize)
		if h.Kind == frame.Hold {
			if err := c.longer(h); err != nil {
				return 0, err
			}
			continue
		}
		if h.Len != 0 || h.Flags != 0 {
			return 0, remote.Violation("acknowledgement with %d bytes and flags %#x", h.Len, h.Flags)
		}
		if err := c.acknowledged(h.Arg); err != nil {
			return 0, err
		}
	}
	return c.in.Read(p[:min(uint64(len(p)), rest)])
}

// received counts bytes that the reader has, and reports whether they are the stream's: those of a
// connection that is gone come again.
func (c *Conn) received(p []byte) bool {
	c.mu.Lock()
	if c.up != c.from {
		c.mu.Unlock()
		return false
	}
	c.got += uint64(len(p))
	due := c.got-c.told >= ackEach
	c.mu.Unlock()
	c.frames.pass(p)
	if due {
		c.poke()
	}
	return true
}

// acknowledged forgets what the other end has.
func (c *Conn) acknowledged(to uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.up != c.from {
		return nil
	}
	return c.dropLocked(to)
}

// dropLocked forgets what is before a position that the other end says, if that can be.
func (c *Conn) dropLocked(to uint64) error {
	if to < c.kept.start || to > c.reached {
		return remote.Violation("%d bytes are said to be received, of %d, where %d were before", to, c.reached, c.kept.start)
	}
	c.kept.drop(to)
	c.changed.Broadcast()
	return nil
}

// broken notes that a connection is lost, if it is still the stream's. From here on nothing of it
// is delivered.
func (c *Conn) broken(up Way, why error) {
	// Before there is another: what is under way by RDMA would come behind what that brings.
	up.Abort()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.up == up && c.err == nil {
		c.loseLocked(why)
	}
}

func (c *Conn) loseLocked(why error) {
	c.up, c.why = nil, why
	c.changed.Broadcast()
	if c.hold.on {
		return // nobody looks for another
	}
	if c.timer == nil { // else there was none for longer
		c.losses++
		n := c.losses
		c.timer = time.AfterFunc(c.now, func() { c.overdue(n) })
	}
	select {
	case c.lost <- struct{}{}:
	default:
	}
}

// overdue ends a stream that has had no connection for too long since a loss, the last.
func (c *Conn) overdue(loss uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.up == nil && c.timer != nil && c.losses == loss {
		c.endLocked(fmt.Errorf("%w, and there was no other for %v: %w", ErrLost, c.now, c.why))
	}
}

// adopt goes on over the connection of an attempt, whose other end has received so many bytes. The
// stream has none. While that attempt is the last nothing comes and nothing is acknowledged, so
// that what both ends said as they shook hands is so still. Of one before it neither is: whoever
// shook hands may have had no processor while the client made another connection, and lost that.
func (c *Conn) adopt(up Way, attempt, received uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.err
	switch {
	case err != nil:
	case c.hold.on:
		err = ErrHeld
	case c.attempt != attempt:
		err = errNewer
	case c.up != nil:
		err = errors.New("there is a connection")
	}
	if err == nil {
		err = c.dropLocked(received)
	}
	if err != nil {
		return err
	}
	c.up, c.sent, c.told, c.now = up, received, c.got, c.limit
	c.stopTimerLocked()
	c.connectedLocked()
	c.changed.Broadcast()
	c.poke()
	return nil
}

// end ends the stream.
func (c *Conn) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if up := c.endLocked(err); up != nil {
		up.Abort()
	}
}

// endLocked ends the stream, the first time, and returns its connection.
func (c *Conn) endLocked(err error) Way {
	if c.err != nil {
		return nil
	}
	up := c.up
	c.err, c.up = err, nil
	c.kept.finish()
	if c.timer != nil {
		c.timer.Stop()
	}
	for _, p := range c.pending {
		_ = p.Close()
	}
	c.alongLocked()
	c.cancel()
	c.changed.Broadcast()
	return up
}

// SetReadDeadline bounds Read, over whichever connection.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until = t
	if c.up == nil {
		return nil
	}
	return c.up.SetReadDeadline(t)
}

// expired reports whether Read's deadline has come, not one that is no more.
func (c *Conn) expired() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.until.IsZero() && !time.Now().Before(c.until)
}
