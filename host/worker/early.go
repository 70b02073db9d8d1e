package worker

import (
	"slices"
	"sync"
	"sync/atomic"

	"causeway/cuda/wire"
	"causeway/remote"
)

// How much of copies to the GPU comes early: so many bytes may be on their way or wait for their
// copy, in pieces of at most so many, and so many copies may wait to be asked for.
const (
	earlyMost  = 4 << 20
	earlyPiece = 1 << 20
	earlyWaits = 64
	earlyLost  = 16 // so many may have been given up whose bytes have yet to come
)

// early asks for the bytes of copies to the GPU ahead of their turn, where guest memory lies across
// a link: each would take a round trip otherwise, in which the link carries nothing. The ring says
// which copies come. A record of one means that its bytes lie in staging memory, where the guest
// leaves them until the copy's completion word says that they are copied, so they are the same
// whenever they are read. A guest that does otherwise finds the one or the other on the GPU, as it
// would if it wrote there during any copy.
//
// A driver copies where the consumer stands, so copies that come meanwhile are asked for by follow:
// each would wait for the one before otherwise. To wake it for what comes at any other time is of
// no use, and cost a call 10 us of a processor.
type early struct {
	memory remote.EarlyMemory
	ring   remote.Foresight
	passes func(size uint64) bool // copies that need not come early; nil: none
	coming chan struct{}          // one place: for follow
	at     atomic.Bool            // the consumer is at a copy

	mu     sync.Mutex
	looked uint64                  // position in the ring up to which copies are noted
	waits  []wire.MemcpyStagedArgs // noted, and not asked for
	came   []*fetch                // asked for, in the ring's order
	bytes  uint64                  // of them
	takes  uint64                  // copies that fetched their bytes
	lost   int                     // given up before their bytes came
	pinned *landings               // nil: no driver has asked for them
	room   sync.Pool               // *[earlyPiece]byte, where there is none of those
}

// fetch is the bytes of a copy on their way.
type fetch struct {
	copy    wire.MemcpyStagedArgs
	p       *[earlyPiece]byte // nil: they come to at
	at      landing
	done    <-chan error // one answer
	takes   uint64
	awaited bool // by the copy itself
}

func (f *fetch) bytes() []byte {
	if f.p == nil {
		return f.at.bytes()
	}
	return f.p[:f.copy.Size]
}

// newEarly is nil where bytes need not come early, or cannot.
func newEarly(r remote.Ring, m remote.GuestMemory) *early {
	ring, ok := r.(remote.Foresight)
	memory, also := m.(remote.EarlyMemory)
	if !ok || !also {
		return nil
	}
	e := &early{memory: memory, ring: ring, coming: make(chan struct{}, 1), room: sync.Pool{New: func() any { return new([earlyPiece]byte) }}}
	ring.Coming(func() {
		if !e.at.Load() {
			return // the consumer looks when it comes to a copy
		}
		select {
		case e.coming <- struct{}{}:
		default:
		}
	})
	return e
}

// begin is look at the beginning of a copy, and has follow look until end. The consumer calls both.
func (e *early) begin(head uint64) {
	e.at.Store(true) // before it looks: what comes behind that look finds it
	e.look(head)
}

func (e *early) end() { e.at.Store(false) }

// follow looks at what comes, until the session has ended. Who brings it cannot: to ask may mean to
// wait for that one.
func (e *early) follow(ended <-chan struct{}) {
	for {
		select {
		case <-e.coming:
			e.look(e.ring.Consumed())
		case <-ended:
			return
		}
	}
}

// look notes the copies that the ring has, from the record that is consumed next on.
func (e *early) look(head uint64) {
	var in remote.Incoming
	e.mu.Lock()
	defer e.mu.Unlock()
	for at := max(e.looked, head); len(e.waits) < earlyWaits; {
		next, ok := e.ring.Behind(at, &in)
		if !ok {
			break
		}
		if wire.Op(in.Op) == wire.OpMemcpyStaged {
			a, err := wire.Decode(wire.OpMemcpyStaged, in.Bytes, nil)
			if err != nil {
				break // whoever executes it says so
			}
			if c := *a.(*wire.MemcpyStagedArgs); c.Direction == 0 && c.Size > 0 && c.Size <= earlyPiece && (e.passes == nil || !e.passes(c.Size)) {
				e.waits = append(e.waits, c)
			}
		}
		at, e.looked = next, next
	}
	e.askLocked()
}

// askLocked asks for as much as there is room for. What waits for a copy that did not come, when
// many others have, makes room: it was refused.
func (e *early) askLocked() {
	begun := false
	defer func() {
		if begun { // all with one write
			e.memory.Ask()
		}
	}()
	for len(e.waits) > 0 && e.lost < earlyLost {
		c := e.waits[0]
		if e.bytes+c.Size > earlyMost {
			if e.came[0].takes+earlyWaits > e.takes {
				return
			}
			e.forgetLocked(0)
			continue
		}
		e.waits = e.waits[1:]
		f, err := e.beginLocked(c)
		if err != nil {
			continue // the copy's own attempt says why
		}
		e.came, e.bytes, begun = append(e.came, f), e.bytes+c.Size, true
	}
}

func (e *early) dropLocked(i int) {
	e.bytes -= e.came[i].copy.Size
	e.came = slices.Delete(e.came, i, i+1)
}

// beginLocked begins to fetch a copy's bytes.
func (e *early) beginLocked(c wire.MemcpyStagedArgs) (*fetch, error) {
	f := &fetch{copy: c, takes: e.takes}
	var ok bool
	if f.at, ok = e.pinned.take(c.Size); !ok {
		f.p = e.room.Get().(*[earlyPiece]byte)
	}
	var err error
	if f.done, err = e.memory.Begin(c.Region, f.bytes(), c.Offset); err != nil {
		e.free(f)
	}
	return f, err
}

// free gives back the memory of a fetch of which nothing is under way any more.
func (e *early) free(f *fetch) {
	if f.p == nil {
		f.at.put()
	} else {
		e.room.Put(f.p)
	}
}

// forgetLocked drops one whose bytes may come yet: what they come to is nobody's until then. A
// guest's end that never brings them has no more asked for.
func (e *early) forgetLocked(i int) {
	if f := e.came[i]; !f.awaited {
		e.lost++
		go func() {
			<-f.done
			e.free(f)
			e.mu.Lock()
			e.lost--
			e.mu.Unlock()
		}()
	}
	e.dropLocked(i)
}

// take is the bytes of a copy, if they were asked for; ok: they were. Any goroutine.
func (e *early) take(c wire.MemcpyStagedArgs, p []byte) (ok bool, err error) {
	e.mu.Lock()
	i := e.indexLocked(c)
	if i < 0 {
		e.passedLocked(c)
		e.mu.Unlock()
		return false, nil
	}
	f, err := e.awaitAndUnlock(i)
	copy(p, f.bytes())
	e.free(f)
	return true, err
}

// hold is take of bytes that come to a landing, where they stay until it is put; false: they do
// not.
func (e *early) hold(c wire.MemcpyStagedArgs) (l landing, ok bool, err error) {
	e.mu.Lock()
	i := e.indexLocked(c)
	if i < 0 || e.came[i].p != nil {
		e.mu.Unlock()
		return landing{}, false, nil
	}
	f, err := e.awaitAndUnlock(i)
	if err != nil {
		f.at.put()
	}
	return f.at, true, err
}

// indexLocked is where a copy is of those whose bytes were asked for; below 0: nowhere.
func (e *early) indexLocked(c wire.MemcpyStagedArgs) int {
	return slices.IndexFunc(e.came, func(f *fetch) bool { return f.copy == c && !f.awaited })
}

// passedLocked notes that a copy's turn has come.
func (e *early) passedLocked(c wire.MemcpyStagedArgs) {
	e.takes++
	e.waits = slices.DeleteFunc(e.waits, func(w wire.MemcpyStagedArgs) bool { return w == c })
}

// awaitAndUnlock waits for the bytes of one that was asked for, which is the caller's then.
func (e *early) awaitAndUnlock(i int) (*fetch, error) {
	f := e.came[i]
	f.awaited = true
	e.passedLocked(f.copy)
	e.mu.Unlock()
	err := e.memory.Answer(f.done)
	e.mu.Lock()
	defer e.mu.Unlock()
	if i = slices.Index(e.came, f); i >= 0 {
		e.dropLocked(i)
	}
	e.askLocked()
	return f, err
}

// pass forgets a copy whose bytes have gone another way.
func (e *early) pass(c wire.MemcpyStagedArgs) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.passedLocked(c)
	if i := e.indexLocked(c); i >= 0 {
		e.forgetLocked(i)
	}
	e.askLocked()
}

// landings is memory outside of Go's heap to which bytes come from now on; nil: there is none.
func (e *early) landings() []byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.pinned == nil {
		if e.pinned = newLandings(); e.pinned == nil {
			return nil
		}
	}
	return e.pinned.mem
}
