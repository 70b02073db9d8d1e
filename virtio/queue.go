package virtio

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"causeway/vhostuser"
)

// ErrBroken says that the ring's indexes make no sense. The queue cannot go on.
var ErrBroken = errors.New("virtqueue is broken")

// minChainLimit is the number of descriptors that a chain may always have: indirect tables may be
// longer than the queue.
const minChainLimit = 1024

// Queue is the device's end of one split virtqueue.
type Queue struct {
	mem      *vhostuser.Memory
	cfg      vhostuser.QueueConfig
	maxDescs int
	eventIdx bool
	indirect bool

	// Owned by the consumer, the goroutine that calls Pop.
	next    uint16 // next entry to take
	seen    uint16 // available index when last read
	scratch []byte // copy of an indirect table

	signals atomic.Pointer[signals]

	mu sync.Mutex // guards what follows and the used ring
	// nil after Stop; the consumer may read it without mu, for only Stop changes it
	ring     *ring
	used     uint16 // next used entry
	flags    uint16 // used.flags
	inflight int    // chains taken and not completed
	idle     chan struct{}
	free     []*Chain

	track *InFlight // nil: nobody takes over
}

// signals is what UpdateQueue may change while the queue runs.
type signals struct {
	call    *vhostuser.EventFD
	logUsed bool
	logAddr uint64
}

// NewQueue maps the ring that cfg describes. Kick is left to the caller.
func NewQueue(mem *vhostuser.Memory, cfg vhostuser.QueueConfig) (*Queue, error) {
	if cfg.Size < 1 || cfg.Size > 32768 || bits.OnesCount(uint(cfg.Size)) != 1 {
		return nil, fmt.Errorf("queue size %d is not a power of two up to 32768", cfg.Size)
	}
	r, err := mapRing(mem, cfg)
	if err != nil {
		return nil, err
	}
	q := &Queue{mem: mem, cfg: cfg, maxDescs: max(cfg.Size, minChainLimit), eventIdx: cfg.EventIdx, indirect: cfg.IndirectDesc,
		next: cfg.Base, seen: cfg.Base, ring: r, used: r.usedIdx()}
	q.Update(cfg)
	return q, nil
}

// Update takes over the call eventfd and used-ring log of cfg, and signals once, since the old
// eventfd may have taken a signal that nobody read.
func (q *Queue) Update(cfg vhostuser.QueueConfig) {
	q.signals.Store(&signals{call: cfg.Call, logUsed: cfg.LogUsed, logAddr: cfg.LogAddr})
	cfg.Call.Signal()
}

// Track has f say what is in flight. Before the first Pop.
func (q *Queue) Track(f *InFlight) {
	q.track = f
	f.begin(q.next)
}

// Resume goes on where another process has left the queue, as f says, and returns the chains that
// it had in flight. Before the first Pop.
func (q *Queue) Resume(f *InFlight) []*Chain {
	next, heads, ok := f.left(q.used)
	if !ok {
		return nil
	}
	// The other may have noted the head of an entry and not that it took it. The entry is the
	// guest's, and names any number.
	if head := q.ring.availEntry(next); int(head) < q.ring.size && q.ring.availIdx().load() != next && f.has(head) {
		next++
	}
	q.next, q.seen = next, next
	var list []*Chain
	for _, head := range heads {
		if int(head) >= q.ring.size {
			break
		}
		c, err := q.take()
		if err != nil {
			break
		}
		c.head = head
		c.view = q.mem.View()
		if err := q.walk(c); err != nil {
			c.Complete(0)
			continue
		}
		list = append(list, c)
	}
	return list
}

// restart goes on with a queue that was stopped with chains in flight. False, and nothing has
// changed: cfg is not where it stood.
func (q *Queue) restart(cfg vhostuser.QueueConfig) bool {
	old := &q.cfg
	if q.inflight == 0 || cfg.Base != q.next || cfg.Size != old.Size || cfg.Desc != old.Desc || cfg.Avail != old.Avail || cfg.Used != old.Used ||
		cfg.EventIdx != old.EventIdx || cfg.IndirectDesc != old.IndirectDesc {
		return false
	}
	r, err := mapRing(q.mem, cfg)
	if err != nil {
		return false
	}
	q.mu.Lock()
	same := r.usedIdx() == q.used
	if same {
		q.ring, q.seen = r, q.next
	} else {
		r.unmap()
	}
	q.mu.Unlock()
	if same {
		q.Update(cfg)
	}
	return same
}

// Next is the index of the next available entry.
func (q *Queue) Next() uint16 { return q.next }

// Pop takes the next chain, or returns nil if there is none. An error that is not ErrBroken
// concerns one chain, which went back to the guest already.
func (q *Queue) Pop() (*Chain, error) {
	if q.seen == q.next {
		q.seen = q.ring.availIdx().load()
		if q.seen == q.next {
			return nil, nil
		}
		if n := q.seen - q.next; int(n) > q.ring.size {
			q.seen = q.next
			return nil, fmt.Errorf("available index is %d entries ahead of a queue of %d: %w", n, q.ring.size, ErrBroken)
		}
	}
	head := q.ring.availEntry(q.next)
	if int(head) >= q.ring.size {
		return nil, fmt.Errorf("available entry names descriptor %d of %d: %w", head, q.ring.size, ErrBroken)
	}
	c, err := q.take()
	if err != nil {
		return nil, err
	}
	q.track.take(head)
	q.next++
	q.track.advance(q.next)
	c.head = head
	c.view = q.mem.View()
	if err := q.walk(c); err != nil {
		c.Complete(0)
		return nil, fmt.Errorf("chain at descriptor %d: %w", head, err)
	}
	return c, nil
}

// take counts a chain in flight and returns its empty shell.
func (q *Queue) take() (*Chain, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	// A driver has no descriptors for more; without the limit it could make the device hold any
	// amount.
	if q.inflight >= q.ring.size {
		return nil, fmt.Errorf("more than %d chains in flight: %w", q.ring.size, ErrBroken)
	}
	q.inflight++
	if n := len(q.free); n > 0 {
		c := q.free[n-1]
		q.free = q.free[:n-1]
		return c, nil
	}
	return &Chain{q: q}, nil
}

// Complete returns the chain to the driver with the number of bytes written to the start of its
// writable buffers. It may be called from any goroutine, once. After Stop it only ends the pin.
func (c *Chain) Complete(written uint32) {
	q := c.q
	written = uint32(min(uint64(written), c.writable))
	c.markDirty(uint64(written))
	q.mu.Lock()
	var notify *signals
	if q.ring != nil {
		notify = q.push(uint32(c.head), written)
	}
	c.view.Release()
	c.recycleLocked()
	q.inflight--
	if q.inflight == 0 && q.idle != nil {
		close(q.idle)
		q.idle = nil
	}
	q.mu.Unlock()
	if notify != nil {
		notify.call.Signal()
	}
}

// markDirty logs the first n writable bytes.
func (c *Chain) markDirty(n uint64) {
	for _, s := range c.Writable {
		if n == 0 {
			return
		}
		k := min(n, uint64(len(s.Data)))
		c.q.mem.MarkDirty(s.GPA, k)
		n -= k
	}
}

// recycleLocked keeps the shell and its slices for the next chain.
func (c *Chain) recycleLocked() {
	clear(c.Readable) // drop references to regions
	clear(c.Writable)
	*c = Chain{Readable: c.Readable[:0], Writable: c.Writable[:0], q: c.q}
	if len(c.q.free) < 64 {
		c.q.free = append(c.q.free, c)
	}
}

// push publishes one used entry and returns what interrupts the driver; nil: it wants none. q.mu is
// held. The signals are those of after the entry: an Update that comes later signals by itself, one
// that came before has closed the eventfd that there was.
func (q *Queue) push(id, length uint32) *signals {
	r, idx := q.ring, q.used
	r.putUsed(idx, id, length)
	q.used++
	q.track.finish(uint16(id), q.used)
	r.publish(q.flags, q.used)
	q.track.drop(uint16(id))
	sig := q.signals.Load()
	if sig.logUsed {
		q.mem.MarkDirty(sig.logAddr+uint64(r.usedOffset(idx)), 8)
		q.mem.MarkDirty(sig.logAddr, 4)
	}
	if q.eventIdx {
		// Interrupt if the driver's mark lies in the entries published since the last test, that
		// is, this one.
		if r.usedEvent().load() != idx {
			return nil
		}
	} else if r.availFlags().load()&availNoInterrupt != 0 {
		return nil
	}
	return sig
}

// DisableKicks asks the driver not to kick while the consumer is busy. With event index there is
// nothing to do.
func (q *Queue) DisableKicks() {
	if !q.eventIdx {
		q.setFlags(usedNoNotify)
	}
}

// EnableKicks asks for a kick with the next available entry. It returns true if entries became
// available meanwhile: then the consumer must not wait.
func (q *Queue) EnableKicks() bool {
	if q.eventIdx {
		q.ring.availEvent().store(q.next)
		if sig := q.signals.Load(); sig.logUsed {
			q.mem.MarkDirty(sig.logAddr+4+8*uint64(q.ring.size), 2)
		}
	} else {
		q.setFlags(0)
	}
	return q.ring.availIdx().load() != q.next
}

func (q *Queue) setFlags(f uint16) {
	sig := q.signals.Load()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.flags != f {
		q.flags = f
		q.ring.publish(f, q.used)
		if sig.logUsed {
			q.mem.MarkDirty(sig.logAddr, 4)
		}
	}
}

// Stop ends the queue after waiting up to limit for the chains in flight, and returns how many were
// not completed. Those are lost to the guest: their Complete does nothing but end the pin. The
// consumer must be gone.
func (q *Queue) Stop(limit time.Duration) (lost int) {
	q.mu.Lock()
	if q.inflight > 0 {
		idle := make(chan struct{})
		q.idle = idle
		q.mu.Unlock()
		select {
		case <-idle:
		case <-time.After(limit):
		}
		q.mu.Lock()
	}
	defer q.mu.Unlock()
	q.idle = nil
	if q.ring != nil {
		q.ring.unmap()
		q.ring = nil
	}
	return q.inflight
}
