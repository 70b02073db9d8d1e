package verbs

import (
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"time"

	"causeway/remote"
)

// Immediates. Without the highest bit: so many bytes came. With it, credit: bytes in the lowest 21
// bits, immediates with bytes in the ten above.
const (
	creditBit   = 1 << 31
	creditShift = 21
	creditBytes = 1<<creditShift - 1
)

// causeLimit is how long the cause of a failure is looked for.
const causeLimit = 5 * time.Millisecond

func spinning() time.Duration {
	if runtime.NumCPU() == 1 {
		return 0 // it would keep the other end from what it is waited for
	}
	return spin
}

// awaitLocked waits until ready, the end, or a deadline.
func (c *Conn) awaitLocked(d *deadline, ready func() bool) error {
	var closed bool
	err := c.pollLocked(d, func() bool {
		closed = c.closed
		return closed || ready()
	})
	if closed {
		return net.ErrClosed
	}
	return err
}

// pollLocked waits as awaitLocked does, also on a connection that is being closed. It takes
// completions if nobody does.
func (c *Conn) pollLocked(d *deadline, ready func() bool) error {
	for {
		switch {
		case ready():
			return nil
		case c.err != nil:
			return c.err
		case d.passed():
			return errDeadline
		case c.polling:
			c.cond.Wait()
			continue
		}
		c.polling = true
		short := c.shortLocked()
		c.mu.Unlock()
		var cs [32]Completion
		n, err := c.take(cs[:], !short)
		c.mu.Lock()
		c.polling = false
		c.applyLocked(cs[:n])
		c.causeLocked()
		if err == nil && short && n == 0 {
			err = fmt.Errorf("the other end said that it has written %d bytes, and is gone after %d: %w", c.final, c.got, io.ErrUnexpectedEOF)
		}
		if err != nil {
			c.failLocked(err)
		}
		c.cond.Broadcast()
	}
}

// shortLocked reports whether bytes are missing that the other end said it had written before it
// was gone. It says so when its adapter has them acknowledged, so what came of them can be polled.
func (c *Conn) shortLocked() bool { return c.cut && c.ends && c.got < c.final }

// causeLocked looks, when work was flushed, for what made it so: that may be told a little later.
func (c *Conn) causeLocked() {
	var q *QueueError
	if c.sought || !errors.As(c.err, &q) || q.Status != Flushed {
		return
	}
	c.sought = true
	var cs [32]Completion
	for start := time.Now(); q.Status == Flushed && time.Since(start) < causeLimit; errors.As(c.err, &q) {
		n, err := c.queue.Poll(cs[:])
		if err != nil {
			return
		}
		c.applyLocked(cs[:n])
	}
}

// take returns completions, or none for no reason. It sleeps if there are none for a while, and it
// may.
func (c *Conn) take(cs []Completion, sleep bool) (int, error) {
	n, err := c.queue.Poll(cs)
	for start := time.Now(); n == 0 && err == nil && time.Since(start) < c.spin; {
		n, err = c.queue.Poll(cs)
	}
	if n > 0 || err != nil || !sleep {
		return n, err
	}
	if err := c.queue.Arm(); err != nil {
		return 0, err
	}
	if n, err = c.queue.Poll(cs); n > 0 || err != nil {
		return n, err
	}
	return 0, c.queue.Wait()
}

// applyLocked notes what completions say. The first of a failure is its cause.
func (c *Conn) applyLocked(cs []Completion) {
	came := 0
	for _, x := range cs {
		switch {
		case x.Status != Success:
			c.failLocked(&QueueError{x.Status, x.Vendor})
		case x.Received:
			came++
			if err := c.immediateLocked(x.Immediate); err != nil {
				c.failLocked(err)
			}
		default:
			c.done = x.ID
		}
	}
	if c.err != nil {
		return
	}
	if came > 0 {
		if err := c.queue.PostReceive(came); err != nil {
			c.failLocked(err)
			return
		}
	}
	c.creditLocked() // also when only room for it came
}

// immediateLocked checks and notes one immediate of the peer.
func (c *Conn) immediateLocked(v uint32) error {
	if v&creditBit == 0 {
		if free := uint64(len(c.window.mem)) - (c.got - c.taken) - uint64(c.owedBytes); v == 0 || uint64(v) > free {
			return remote.Violation("%d bytes by RDMA, where %d fit", v, free)
		}
		if c.owedCount >= mostMessages {
			return remote.Violation("more than %d messages by RDMA without credit", mostMessages)
		}
		c.got += uint64(v)
		c.owedCount++
		return nil
	}
	bytes, messages := uint64(v&creditBytes), int(v&^creditBit>>creditShift)
	if bytes > c.sent-c.credited || messages > c.messages {
		return remote.Violation("credit for %d bytes in %d messages, of %d in %d", bytes, messages, c.sent-c.credited, c.messages)
	}
	c.credited += bytes
	c.messages -= messages
	return nil
}

// creditLocked tells the peer what is free again, once that is worth it. Without room for it in the
// send queue it waits for the next time.
func (c *Conn) creditLocked() {
	if c.err != nil || c.ends || c.owedBytes < len(c.window.mem)/4 && c.owedCount < mostMessages/4 || c.posted-c.done >= sends {
		return
	}
	w := c.work(WriteImmediate, 0, 0)
	w.Immediate = creditBit | uint32(c.owedCount)<<creditShift | uint32(c.owedBytes)
	c.owedBytes, c.owedCount = 0, 0
	_ = c.postLocked([]Work{w}) // its error is the connection's
}
