package verbs

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Of a connection. Receives are for all immediates that the other end may have outstanding:
// mostMessages with bytes, and credit, of which one is for at least a quarter of the window or of
// mostMessages.
const (
	windowSize   = MostWindow
	receives     = 256
	mostMessages = 128
	sends        = 256
	reserved     = 64 // of sends, for credit
	signalEach   = 32 // work requests of which one is signaled
	// Bytes of one work request: the other end copies while more is on its way.
	chunk  = 64 << 10
	inline = 128
)

// Spinning: how long who waits for completions polls before it sleeps.
const spin = 40 * time.Microsecond

// drainLimit is how long Close waits until the other end's adapter has what was written.
const drainLimit = 5 * time.Second

// Conn implements net.Conn by RDMA WRITEs. Upgrade makes it.
type Conn struct {
	base    net.Conn // TLS: its end is the session's
	about   string   // of the port and the peer
	adapter Adapter
	queue   Queue
	// What copies may go by, of another connection of the session's too.
	adapters []Adapter
	pairs    int
	small    int // bytes that leave inline
	peer     Peer
	spin     time.Duration

	window, out *buffer // what the peer writes to; what leaves from

	readMu, writeMu sync.Mutex
	closeOnce       sync.Once
	baseMu          sync.Mutex // held while base is written
	wg              sync.WaitGroup

	mu      sync.Mutex
	cond    sync.Cond // of mu: something below changed
	polling bool      // a goroutine takes completions
	err     error     // final
	sought  bool      // its cause was looked for
	closed  bool

	// Bytes and immediates that left: sent and not credited; work requests posted, and how many of
	// them are known to be done.
	sent, credited uint64
	messages       int
	posted, done   uint64
	unsignaled     int
	// Bytes that came: there, and taken; and what the peer is not told of yet.
	got, taken           uint64
	owedBytes, owedCount int
	ends                 bool   // the peer says that it has written
	final                uint64 // so many bytes
	endSent, endAcked    bool   // this end did, and the peer knows
	cut                  bool   // nothing more comes beside the stream
	reach                reach

	readEnd, writeEnd deadline
}

var _ net.Conn = (*Conn)(nil)

// deadline is the time at which an operation gives up. Conn.mu guards it.
type deadline struct {
	at    time.Time
	timer *time.Timer
}

func (d *deadline) passed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

func newConn(base net.Conn, about string, queue Queue, window, out *buffer, peer Peer) *Conn {
	c := &Conn{base: base, about: about, queue: queue, small: min(queue.Inline(), inline), window: window, out: out, peer: peer, spin: spinning()}
	c.cond.L = &c.mu
	return c
}

// String says what carries the bytes.
func (c *Conn) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.about + railsText(place{adapter: c.adapter}.String(), c.reach.rails)
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	c.readMu.Lock()
	defer c.readMu.Unlock()
	c.mu.Lock()
	err := c.awaitLocked(&c.readEnd, func() bool { return c.got > c.taken || c.ends && c.taken >= c.final })
	n := int(min(uint64(len(p)), c.got-c.taken))
	from := c.taken
	c.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if n == 0 {
		if len(p) == 0 {
			return 0, nil
		}
		return 0, io.EOF
	}
	c.window.copyOut(p[:n], from)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taken += uint64(n)
	c.owedBytes += n
	c.creditLocked()
	return n, nil
}

// Write implements net.Conn. What it has taken is on its way when it returns.
func (c *Conn) Write(p []byte) (int, error) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	written := 0
	for written < len(p) {
		c.mu.Lock()
		err := c.awaitLocked(&c.writeEnd, c.roomLocked)
		room := int(uint64(len(c.out.mem)) - (c.sent - c.credited))
		from, ends := c.sent, c.ends
		c.mu.Unlock()
		switch {
		case err != nil:
			return written, err
		case ends:
			return written, &net.OpError{Op: "write", Net: "verbs", Err: unix.EPIPE}
		}
		part := p[written:][:min(len(p)-written, room, chunk)]
		c.out.copyIn(part, from)
		if err := c.push(from, len(part)); err != nil {
			return written, err
		}
		written += len(part)
	}
	return written, nil
}

// roomLocked reports whether bytes may leave; or never will, because the peer is gone.
func (c *Conn) roomLocked() bool {
	return c.ends || c.sent-c.credited < uint64(len(c.out.mem)) && c.messages < mostMessages && c.posted-c.done+2 <= sends-reserved
}

// push posts n bytes of the stream, which lie in out.
func (c *Conn) push(from uint64, n int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	c.sent += uint64(n)
	c.messages++
	size := uint64(len(c.out.mem))
	at := from % size
	first := min(uint64(n), size-at)
	ws := make([]Work, 0, 2)
	if rest := uint64(n) - first; rest > 0 {
		ws = append(ws, c.work(Write, at, first), c.work(WriteImmediate, 0, rest))
	} else {
		ws = append(ws, c.work(WriteImmediate, at, first))
	}
	ws[len(ws)-1].Immediate = uint32(n)
	return c.postLocked(ws)
}

func (c *Conn) work(op Op, at, n uint64) Work {
	w := c.peer.offer.Window
	return Work{
		Op: op, Local: c.out.reg.Address() + at, LocalKey: c.out.reg.LocalKey(), Length: uint32(n), Inline: int(n) <= c.small,
		Remote: w.Address + at, RemoteKey: w.Key,
	}
}

// postLocked numbers work requests, asks for a completion now and then, and posts them.
func (c *Conn) postLocked(ws []Work) error {
	for i := range ws {
		c.posted++
		c.unsignaled++
		ws[i].ID = c.posted
		if c.unsignaled >= signalEach || ws[i].Signaled {
			ws[i].Signaled = true
			c.unsignaled = 0
		}
	}
	err := c.queue.Post(ws)
	if err != nil {
		err = c.failLocked(err)
	}
	return err
}

// failLocked ends the connection, if it goes on, and says why it ended.
func (c *Conn) failLocked(err error) error {
	var was, is *QueueError
	if c.err == nil || errors.As(c.err, &was) && was.Status == Flushed && errors.As(err, &is) && is.Status != Flushed {
		c.err = err
	}
	c.changedLocked()
	return c.err
}

// Close implements net.Conn. What was written reaches the peer's memory first, as far as the peer
// is there.
func (c *Conn) Close() error {
	err := net.ErrClosed
	c.closeOnce.Do(func() { err = c.close() })
	return err
}

func (c *Conn) close() error {
	c.mu.Lock()
	c.closed = true
	c.changedLocked()
	c.mu.Unlock()
	c.writeMu.Lock() // who writes has left
	defer c.writeMu.Unlock()
	if c.drain() {
		c.announceEnd()
	}
	_ = c.base.Close() // a peer that is gone is no failure of this end's
	return c.release()
}

// drain waits until all that was posted is done, and reports whether the peer is there to hear how
// much that was.
func (c *Conn) drain() bool {
	end := deadline{at: time.Now().Add(drainLimit)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || c.ends {
		return false
	}
	w := c.work(Write, 0, 0)
	w.Signaled = true
	if c.postLocked([]Work{w}) != nil {
		return false
	}
	timer := time.AfterFunc(drainLimit, c.wake)
	defer timer.Stop()
	return c.pollLocked(&end, func() bool { return c.posted == c.done || c.ends }) == nil && !c.ends
}

// wake has everybody who waits look again.
func (c *Conn) wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changedLocked()
}

// changedLocked is wake for what no completion tells of. Who takes completions sleeps in
// Queue.Wait, and nobody else does.
func (c *Conn) changedLocked() {
	c.cond.Broadcast()
	if c.polling {
		c.queue.Kick()
	}
	if c.err != nil || c.closed {
		c.kickRailsLocked()
	}
}

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return c.base.LocalAddr() }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return c.base.RemoteAddr() }

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadline(&c.readEnd, t) }

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadline(&c.writeEnd, t) }

func (c *Conn) setDeadline(d *deadline, t time.Time) error {
	c.mu.Lock()
	closed := c.closed
	stopTimer(d)
	d.at = t
	if !t.IsZero() && !closed {
		d.timer = time.AfterFunc(time.Until(t), c.wake)
	}
	c.mu.Unlock()
	if closed {
		return net.ErrClosed
	}
	return nil
}

func stopTimer(d *deadline) {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}

// errDeadline is what an operation that gave up returns.
var errDeadline = os.ErrDeadlineExceeded
