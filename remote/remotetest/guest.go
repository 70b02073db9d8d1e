package remotetest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"causeway/remote"
)

// Limit bounds every wait.
const Limit = time.Minute

// Errors of a guest.
var (
	ErrGone    = errors.New("host ended the session")
	ErrSilent  = errors.New("no reply in time")
	ErrRefused = errors.New("host refused the session")
)

// Guest is the guest end of one session: region 0, and a way to its host. It knows nothing of what
// its records mean.
type Guest struct {
	Mem     []byte // region 0
	carrier Carrier
	pushes  bool // Ring follows each change of the tail

	mu   sync.Mutex // ring
	tail uint64
}

// Carrier is how a Guest reaches its host.
type Carrier interface {
	// Ring rings the doorbell.
	Ring()
	// Sleep returns when the host woke slot, or when word is no longer 1, as it is when Gone is
	// closed.
	Sleep(slot uint32, word *atomic.Uint32)
	// Gone is closed when the host ended the session.
	Gone() <-chan struct{}
	// AddRegion declares new memory. va is its address as the guest process knows it.
	AddRegion(id uint32, size int) (mem []byte, va uint64, err error)
	// EndRegion ends it.
	EndRegion(id uint32) error
	Close() error
}

// Pusher is a Carrier without a doorbell: what the tail says has to be sent.
type Pusher interface {
	Carrier
	// Pushes reports whether Ring is called after each change of the tail, not only where the
	// worker sleeps.
	Pushes() bool
}

// New makes a guest on region 0 that is initialised, by Prepare or as that does, and known to the
// host.
func New(mem []byte, c Carrier) *Guest {
	p, ok := c.(Pusher)
	return &Guest{Mem: mem, carrier: c, pushes: ok && p.Pushes()}
}

// Append puts a record into the ring as it is, and rings the doorbell if the worker sleeps. The
// record's size must be a multiple of 8.
func (g *Guest) Append(rec []byte) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	size := uint64(len(rec))
	if size > remote.RingSize {
		return fmt.Errorf("record of %d bytes", size)
	}
	pad := uint64(0)
	if left := remote.RingSize - g.tail%remote.RingSize; left < size {
		pad = left
	}
	if err := g.awaitSpace(pad + size); err != nil {
		return err
	}
	if pad > 0 {
		g.putSkip(pad)
		g.tail += pad
	}
	copy(g.Mem[remote.RingOffset+g.tail%remote.RingSize:], rec)
	g.Publish(g.tail + size)
	return nil
}

// AddRegion declares new memory to the host.
func (g *Guest) AddRegion(id uint32, size int) (mem []byte, va uint64, err error) {
	return g.carrier.AddRegion(id, size)
}

// EndRegion ends a region without a word to the host's session.
func (g *Guest) EndRegion(id uint32) error { return g.carrier.EndRegion(id) }

// Gone is closed when the host ended the session.
func (g *Guest) Gone() <-chan struct{} { return g.carrier.Gone() }

// Ring rings the doorbell.
func (g *Guest) Ring() { g.carrier.Ring() }

// Close ends the session.
func (g *Guest) Close() error { return g.carrier.Close() }

// Held runs f while the host's end copies nothing: over a stream both sides of a copy are
// goroutines of one process.
func (g *Guest) Held(f func()) {
	if t, ok := g.carrier.(*tcpCarrier); ok {
		t.mu.Lock()
		defer t.mu.Unlock()
	}
	f()
}
