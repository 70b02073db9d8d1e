package verbs

import (
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"causeway/remote"
)

// Words of the TLS connection beside a stream, each with a number: the end, of so many bytes; and
// that it was heard. Who ends keeps its queue pair until then, so that the other end never writes
// to one that is gone without knowing.
const (
	endMagic = "CWVBYE\x00\x01"
	ackMagic = "CWVACK\x00\x01"
	endSize  = 16
)

func word(magic string, n uint64) []byte {
	return binary.LittleEndian.AppendUint64([]byte(magic), n)
}

// writeWord writes a word.
func (c *Conn) writeWord(magic string, n uint64) {
	c.baseMu.Lock()
	defer c.baseMu.Unlock()
	_ = c.base.SetWriteDeadline(time.Now().Add(drainLimit))
	_, _ = c.base.Write(word(magic, n)) // a peer that is gone needs none
}

// announceEnd tells the peer that this was all, and waits until it has heard that, or is gone.
func (c *Conn) announceEnd() {
	end := deadline{at: time.Now().Add(drainLimit)}
	timer := time.AfterFunc(drainLimit, c.wake)
	defer timer.Stop()
	c.mu.Lock()
	c.endSent = true
	sent := c.sent
	c.mu.Unlock()
	c.writeWord(endMagic, sent)
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.endAcked && !c.ends && !c.cut && !end.passed() {
		c.cond.Wait()
	}
}

// routineLifeline reads the TLS connection to its end.
func (c *Conn) routineLifeline() {
	var b [endSize]byte
	for {
		_, err := io.ReadFull(c.base, b[:])
		n := binary.LittleEndian.Uint64(b[8:])
		lost := err == nil && string(b[:8]) == railLost
		if lost {
			c.railWord(n)
		}
		c.mu.Lock()
		switch {
		case lost:
		case err != nil:
			c.cut = true
			if !c.ends && !c.closed {
				c.failLocked(fmt.Errorf("the connection beside RDMA ended: %w", err))
			}
		case string(b[:8]) == endMagic && !c.ends && n >= c.got:
			c.ends, c.final = true, n
		case string(b[:8]) == cutMagic && !c.ends:
			c.ends, c.final = true, c.got
		case string(b[:8]) == ackMagic && c.endSent:
			c.endAcked = true
		default:
			c.cut = true
			c.failLocked(remote.Violation("the connection beside RDMA says %x, after %d bytes", b, c.got))
		}
		over, answer := c.cut, c.ends && !c.endAcked && string(b[:8]) == endMagic
		c.mu.Unlock()
		c.wake()
		switch {
		case over:
			return
		case answer:
			c.writeWord(ackMagic, n)
		}
	}
}
