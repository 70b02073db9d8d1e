package fstest

import (
	"encoding/binary"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"causeway/vhostuser/vhosttest"
	"causeway/virtio/virtiotest"
)

var le = binary.LittleEndian

const (
	inHeader  = 40
	outHeader = 16
)

// Request is a FUSE request to submit.
type Request struct {
	Queue    int // 0: first request queue; n: the n-th after it
	Op       uint32
	Node     uint64
	Caller   fuse.Caller
	Body     []byte              // what follows the header
	Data     []virtiotest.Buffer // WRITE data, behind Body
	Room     int                 // bytes for the answer's payload, in memory of their own
	Pages    []virtiotest.Buffer // or the pages of a READ
	NoAnswer bool
}

// Call is a request in flight.
type Call struct {
	q      *queue
	unique uint64
	in     virtiotest.Buffer
	out    virtiotest.Buffer // out header
	room   virtiotest.Buffer
	pages  []virtiotest.Buffer
	answer bool
	done   chan struct{}
	used   uint32
	header fuse.OutHeader // what was in out
}

// queue is one virtqueue of the guest.
type queue struct {
	index int
	drv   *virtiotest.Driver
	ring  *vhosttest.Ring
	base  uint16
	stop  chan struct{}
	done  chan struct{}

	mu      sync.Mutex // guards drv, waiting, and ring while others submit
	waiting map[uint16]*Call
	pool    []virtiotest.Buffer // request and answer memory, one page each
}

// page returns a page of scratch memory. q.mu is held.
func (q *queue) page(n int) virtiotest.Buffer {
	if n <= 4096 {
		if k := len(q.pool); k > 0 {
			b := q.pool[k-1]
			q.pool = q.pool[:k-1]
			return virtiotest.Buffer{GPA: b.GPA, Bytes: b.Bytes[:n]}
		}
		b := q.drv.Alloc(4096)
		return virtiotest.Buffer{GPA: b.GPA, Bytes: b.Bytes[:n:4096]}
	}
	return q.drv.Alloc(n)
}

func (q *queue) putPage(b virtiotest.Buffer) {
	if cap(b.Bytes) == 4096 {
		q.pool = append(q.pool, virtiotest.Buffer{GPA: b.GPA, Bytes: b.Bytes[:4096]})
	}
}

// Submit sends a request and returns at once.
func (g *Guest) Submit(r Request) (*Call, error) {
	q := g.queues[1+r.Queue]
	g.mu.Lock()
	g.unique += 2
	unique := g.unique
	g.mu.Unlock()
	size := inHeader + len(r.Body)
	for _, d := range r.Data {
		size += len(d.Bytes)
	}
	h := fuse.InHeader{Length: uint32(size), Opcode: r.Op, Unique: unique, NodeId: r.Node, Caller: r.Caller}

	c, err := q.add(r, h)
	if err == nil && g.direct != nil {
		if err = g.direct.hand(q.index); err == nil {
			q.reap()
		}
	}
	return c, err
}

// add makes a request available.
func (q *queue) add(r Request, h fuse.InHeader) (*Call, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	in := q.page(inHeader + len(r.Body))
	copy(in.Bytes, structBytes(&h))
	copy(in.Bytes[inHeader:], r.Body)
	c := &Call{q: q, unique: h.Unique, in: in, pages: r.Pages, answer: !r.NoAnswer, done: make(chan struct{})}
	readable := append([]virtiotest.Buffer{in}, r.Data...)
	var writable []virtiotest.Buffer
	if c.answer {
		c.out = q.page(outHeader)
		writable = append(writable, c.out)
		if r.Room > 0 {
			c.room = q.page(r.Room)
			writable = append(writable, c.room)
		}
		writable = append(writable, r.Pages...)
	}
	head, err := q.drv.Add(readable, writable)
	if err != nil { // the queue is full
		q.putPage(in)
		q.putPage(c.out)
		q.putPage(c.room)
		return nil, err
	}
	q.waiting[head] = c
	if q.ring != nil && q.drv.NeedKick() {
		q.ring.Kick.Signal()
	}
	return c, nil
}

// Done is closed when the device has answered.
func (c *Call) Done() <-chan struct{} { return c.done }

// Wait, called once, waits for the answer and checks it as Linux 7.1 does. The payload of a request
// with Pages is in them; what is returned then is only as long as the answer.
func (c *Call) Wait(d time.Duration) ([]byte, syscall.Errno, error) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-c.done:
	case <-t.C:
		return nil, 0, fmt.Errorf("no answer in %v", d)
	}
	if !c.answer {
		return nil, 0, nil
	}
	defer func() {
		c.q.mu.Lock()
		c.q.putPage(c.room)
		c.q.mu.Unlock()
	}()
	h := c.header
	if h.Unique != c.unique || h.Length != c.used || h.Length < outHeader {
		return nil, 0, fmt.Errorf("unique %d for %d, length %d in a used buffer of %d: %w", h.Unique, c.unique, h.Length, c.used, ErrBadReply)
	}
	if h.Status != 0 {
		if h.Length != outHeader || h.Status > 0 || h.Status <= -512 {
			return nil, 0, fmt.Errorf("status %d with %d bytes: %w", h.Status, h.Length, ErrBadReply)
		}
		return nil, syscall.Errno(-h.Status), nil
	}
	n := int(h.Length) - outHeader
	if c.pages == nil {
		return append([]byte(nil), c.room.Bytes[:n]...), 0, nil
	}
	var p []byte
	for _, b := range c.pages {
		k := min(n, len(b.Bytes))
		p, n = append(p, b.Bytes[:k]...), n-k
	}
	return p, 0, nil
}

// routineCompletions takes used entries until halt.
func (q *queue) routineCompletions() {
	defer close(q.done)
	for {
		q.reap()
		select {
		case <-q.stop:
			q.reap()
			return
		default:
			q.ring.Call.Wait(20 * time.Millisecond)
		}
	}
}

func (q *queue) reap() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		u, ok := q.drv.Poll()
		if !ok {
			return
		}
		if c := q.waiting[u.Head]; c != nil {
			delete(q.waiting, u.Head)
			c.used = u.Len
			q.putPage(c.in)
			if c.answer {
				// READs that lend pages come for as long as a program lives, and nobody asks for
				// their answers
				copy(structBytes(&c.header), c.out.Bytes)
				q.putPage(c.out)
			}
			close(c.done)
		}
	}
}

func (q *queue) halt() {
	if q.stop != nil {
		close(q.stop)
		<-q.done
		q.stop = nil
	}
}
