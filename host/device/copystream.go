package device

import (
	"crypto/rand"
	"hash/crc32"
	"net"
	"sync"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/host/worker/precopy"
)

// outStream is a session's part.
type outStream struct {
	s     *session
	id    uint32
	token [tokenSize]byte
	proc  workerProcess
	conn  *net.UnixConn // what the worker writes comes out of it

	busy   sync.Mutex // held during a round
	share  uint32     // for how many hundredths of the time its session is held back; busy is held
	order  sync.Mutex // orders what the worker is told
	sealed bool       // no round begins any more; order is held
	rounds int        // whole ones; busy is held
	wrote  uint64     // by the worker so far; busy is held

	mu     sync.Mutex
	sent   uint64
	sum    uint32
	moved  chan struct{} // closed and made anew when sent grows
	answer chan error    // to the seal
	failed error         // the other side refused it, or the worker
	ready  bool          // the worker there has started its driver

	// By which the other side finds out whether it can be there; nil: none was begun.
	rehearsal *outStream
	cannot    string // what that found; copyOut.mu is held
}

// workerEnds are a session's worker's ends of streams that are new, of its memory and of its
// rehearsal, for roundOf, which gives and closes them; -1: there is none.
type workerEnds struct{ memory, rehearsal int }

var noEnds = workerEnds{-1, -1}

// streamOf is the stream of a session that runs; nil: of no other. One that is new, as that of
// another worker than before is, comes with the worker's ends.
func (o *copyOut) streamOf(s *session) (x *outStream, theirs workerEnds, err error) {
	s.mu.Lock()
	p, st := s.proc, s.state
	s.mu.Unlock()
	o.mu.Lock()
	x = o.streams[s]
	o.mu.Unlock()
	if x != nil && x.proc != p {
		o.forget(s, x)
		x = nil
	}
	if s.elsewhereRuns() {
		return nil, noEnds, nil // its memory stays where it is
	}
	if p == nil || st != running && st != parking && st != parked {
		return nil, noEnds, nil
	}
	if x != nil {
		return x, noEnds, nil
	}
	theirs = noEnds
	if x, theirs.memory, err = o.open(s, p); err != nil {
		return nil, noEnds, err
	}
	if theirs.rehearsal, err = o.openRehearsal(x); err != nil {
		o.notRehearsed(x, err)
	}
	return x, theirs, nil
}

// roundOf is a round of one session.
func (o *copyOut) roundOf(x *outStream, theirs workerEnds) (sum precopy.Round, err error) {
	for _, fd := range []int{theirs.memory, theirs.rehearsal} {
		if fd >= 0 {
			defer unix.Close(fd)
		}
	}
	if err := x.why(); err != nil {
		if theirs.rehearsal >= 0 {
			o.endRehearsal(x.rehearsed(), err)
		}
		return sum, nil
	}
	x.busy.Lock()
	defer x.busy.Unlock()
	if theirs.rehearsal >= 0 {
		if err := o.rehearse(x, theirs.rehearsal); err != nil {
			o.notRehearsed(x, err)
		}
	}
	m, err := o.tell(x, link.Copy{Stream: link.FileOf(theirs.memory)})
	if err != nil || m == nil {
		x.fail(err)
		return sum, err
	}
	x.wrote = m.Total
	if !m.Cut {
		x.rounds++
	}
	return precopy.Round{Looked: m.Looked, Sent: m.Sent}, nil
}

// tell has the worker of a stream copy, and returns what it did; nil: the session ends, or stands,
// or the pre-copy is over. x.busy is held.
func (o *copyOut) tell(x *outStream, m link.Copy) (*link.Copied, error) {
	x.order.Lock()
	if x.sealed {
		x.order.Unlock()
		return nil, nil
	}
	m.Number = o.d.copyRounds.Add(1)
	p := x.proc
	_ = o.throttle(x) // an error is the next one's, too
	err := p.Send(m)
	x.order.Unlock()
	if err != nil {
		return nil, nil // the session ends
	}
	for {
		select {
		case did := <-p.Copied():
			if did.Number != m.Number {
				continue // of an earlier pre-copy, which did not wait for it
			}
			return &did, did.Err()
		case <-p.Done():
			return nil, nil
		case <-o.over.Done():
			return nil, nil
		}
	}
}

// open begins a session's stream. theirs is the worker's end, for the caller to close.
func (o *copyOut) open(s *session, p workerProcess) (x *outStream, theirs int, err error) {
	ours, theirs, err := streamPair()
	if err != nil {
		return nil, -1, err
	}
	o.mu.Lock()
	o.last++
	x = &outStream{s: s, id: o.last, proc: p, conn: ours, moved: make(chan struct{}), answer: make(chan error, 1)}
	_, _ = rand.Read(x.token[:])
	o.streams[s] = x
	o.mu.Unlock()
	if err := o.write(copyOpen, x.id, x.opening(0)); err != nil {
		_ = unix.Close(theirs)
		return nil, -1, err
	}
	go o.routinePump(x)
	return x, theirs, nil
}

// copyBuffers are for frames that are on their way.
var copyBuffers = sync.Pool{New: func() any { return new([copyHeader + mostCopyData]byte) }}

// routinePump sends what a worker writes.
func (o *copyOut) routinePump(x *outStream) {
	for {
		b := copyBuffers.Get().(*[copyHeader + mostCopyData]byte)
		n, err := x.conn.Read(b[copyHeader:])
		if err != nil {
			return // it was closed, or the worker is gone
		}
		// Which nobody else changes.
		sum := crc32.Update(x.sum, castagnoli, b[copyHeader:copyHeader+n])
		if err := o.send(b[:copyHeader+n], copyData, x.id); err != nil {
			_ = x.conn.Close() // who writes is told
			return
		}
		x.mu.Lock()
		x.sum = sum
		x.sent += uint64(n)
		close(x.moved)
		x.moved = make(chan struct{})
		x.mu.Unlock()
	}
}

func (x *outStream) fail(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.failed == nil {
		x.failed = err
	}
}

// awaited reports whether there is nothing to wait for before the VM stops.
func (x *outStream) awaited() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.ready || x.failed != nil
}

func (x *outStream) why() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.failed
}

// forget ends a stream that is of no use.
func (o *copyOut) forget(s *session, x *outStream) {
	o.mu.Lock()
	if o.streams[s] == x {
		delete(o.streams, s)
	}
	o.mu.Unlock()
	o.drop(x)
}

func (o *copyOut) drop(x *outStream) {
	x.stop()
	_ = o.write(copyDrop, x.id, nil)
}

// stop has the worker write no more, and forget what it wrote.
func (x *outStream) stop() {
	_ = x.conn.Close()
	if r := x.rehearsed(); r != nil {
		_ = r.conn.Close()
	}
	x.order.Lock()
	defer x.order.Unlock()
	if !x.sealed {
		x.sealed = true
		_ = x.proc.Send(link.CutCopy{Over: true})
	}
}
