package relay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"causeway/remote"
	"causeway/remote/frame"
)

/*
Over RDMA a server reads and writes guest memory by itself, as far as the relay has granted that:
each region apart, once it is declared, as it may by READ and WRITE frames, and never region 0. The
carrier takes a grant back before a region's pages go (remote.Exposer), whatever the server does: an
honest one is asked before, by a RECALL frame, and goes on with frames until there are new grants.
One that does not answer in time, or uses what it has no more, ends its own session.

A session that stands still has nothing granted, by its server's own word: what the server had was
of an adapter that the relay there does not have. That one grants anew, once it has a way to. Of
one that goes to another server the first one's end with its stream.
*/

const (
	// mostGranted bounds what of a session is pinned for its server, in bytes: more than the
	// staging of a program needs. Regions beyond go by frames.
	mostGranted = 256 << 20
	// recallLimit is how long a server may take to answer a RECALL: less than a worker has to let
	// go of guest memory.
	recallLimit = 500 * time.Millisecond
	// letGoLimit is how long it may take where the session is to leave, its VM with it: one that
	// answers later than that costs the move, one that answers late on a busy machine a pause.
	letGoLimit = 5 * time.Second
)

var errMostGranted = fmt.Errorf("a session's server reaches %d MiB at most", mostGranted>>20)

// grants is what the server reaches by itself.
type grants struct {
	to  frame.Granting // nil: nothing, ever
	mem remote.Exposer

	known   map[uint32]uint64 // the consumer's: the sizes of regions that the server knows
	refused bool              // the consumer's: one could not be granted, which was logged
	renew   atomic.Bool       // the consumer is to grant again what was recalled
	pinned  atomic.Int64

	// Held while GRANT or RECALL are sent; nobody takes it who must not wait for the stream.
	mu     sync.Mutex
	has    map[uint32]bool // what the server was told of, and not to let go of
	closed bool            // a RECALL was sent, and nothing granted since
	limit  time.Duration   // letGoLimit

	state    sync.Mutex
	lent     bool          // the server was told of some since it last let go
	owed     bool          // a RECALL waits for its answer
	parked   bool          // nothing is granted
	answer   chan struct{} // closed when owed ends
	live     map[uint32]frame.Granted
	exposing bool
}

// begin has memory granted over a stream, once that can be, of which lifted hears if it is later.
func (g *grants) begin(conn frame.Stream, mem remote.GuestMemory, lifted func()) {
	g.known, g.has, g.live = map[uint32]uint64{}, map[uint32]bool{}, map[uint32]frame.Granted{}
	g.to, g.limit = nil, letGoLimit
	to, ok := conn.(frame.Granting)
	lender, also := mem.(remote.Exposer)
	if !ok || !also {
		return
	}
	if later, ok := to.(frame.Lifting); to.Grants() || ok && later.Lifts(lifted) {
		g.to, g.mem = to, lender
	}
}

// told follows word of a region that the server has been given. The consumer calls it.
func (s *Session) told(c change) error {
	g := &s.grants
	if c.size != 0 {
		g.known[c.id] = c.size
		return s.grant(c.id)
	}
	delete(g.known, c.id)
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.has, c.id)
	return nil
}

// grant has the server reach a region that it knows. The consumer calls it. What cannot be granted
// goes by frames.
func (s *Session) grant(id uint32) error {
	g := &s.grants
	if g.to == nil || !g.to.Grants() {
		return nil
	}
	granted, err := g.expose(id)
	if err != nil {
		if !g.refused && !errors.Is(err, remote.ErrClosed) && !errors.Is(err, remote.ErrUnknownRegion) {
			// Else it is granted later, or has ended.
			g.refused = true
			s.log.Warn("the GPU server does not reach memory of the program by itself: copies go in frames", "server", s.server, "why", err)
		}
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || g.has[id] || granted.Size != g.known[id] {
		// One of that name has ended, and another come: the server hears of it next.
		return nil
	}
	g.has[id] = true
	g.state.Lock()
	g.lent = true
	g.state.Unlock()
	return s.out.send(frame.Header{Kind: frame.Grant, Arg: uint64(id)}, granted.Append(nil))
}

// expose registers a region, if it is not.
func (g *grants) expose(id uint32) (frame.Granted, error) {
	g.state.Lock()
	granted, ok := g.live[id]
	parked := g.parked
	g.exposing = !ok && !parked
	g.state.Unlock()
	switch {
	case ok:
		return granted, nil
	case parked:
		return granted, remote.ErrClosed
	}
	defer func() {
		g.state.Lock()
		g.exposing = false
		g.state.Unlock()
	}()
	err := g.mem.Expose(id, func(mem []byte) (func(), error) {
		size := int64(len(mem))
		if g.pinned.Load()+size > mostGranted {
			return nil, errMostGranted
		}
		var revoke func()
		var err error
		if granted, revoke, err = g.to.Grant(mem); err != nil {
			return nil, err
		}
		g.pinned.Add(size)
		g.state.Lock()
		g.live[id] = granted
		g.state.Unlock()
		return func() {
			g.state.Lock()
			delete(g.live, id)
			g.state.Unlock()
			revoke()
			g.pinned.Add(-size)
		}, nil
	})
	return granted, err
}

// regrant grants again what was recalled. The consumer calls it.
func (s *Session) regrant() error {
	g := &s.grants
	if !g.renew.Swap(false) {
		return nil
	}
	g.mu.Lock()
	g.state.Lock()
	open := !g.parked && !g.owed // else again when that has ended
	g.state.Unlock()
	g.closed = g.closed && !open
	g.mu.Unlock()
	if !open {
		return nil
	}
	for _, id := range slices.Sorted(maps.Keys(g.known)) {
		if err := s.grant(id); err != nil {
			return err
		}
	}
	return nil
}

// recall has the server let go of what it reaches, and waits until it has, for a while: what it
// does not let go of ends with the pages.
func (s *Session) recall(ctx context.Context) {
	g := &s.grants
	g.state.Lock()
	if g.to == nil {
		g.state.Unlock()
		return
	}
	g.parked = true
	if !g.owed {
		if len(g.live) == 0 && !g.exposing && !g.lent {
			g.state.Unlock()
			return
		}
		g.owed, g.answer = true, make(chan struct{})
		go s.sendRecall(g.answer) // the stream may be stuck
	}
	answer := g.answer
	g.state.Unlock()
	limit := time.NewTimer(recallLimit)
	defer limit.Stop()
	select {
	case <-answer:
	case <-limit.C:
		s.log.Warn("the GPU server does not let go of memory of the program: it is taken away", "server", s.server)
	case <-ctx.Done():
	}
}

// sendRecall sends the RECALL that an answer is for, unless the session has gone to another server.
func (s *Session) sendRecall(answer chan struct{}) {
	g := &s.grants
	g.mu.Lock()
	defer g.mu.Unlock()
	g.state.Lock()
	owed := g.owed && g.answer == answer
	g.state.Unlock()
	if !owed {
		return
	}
	g.closed = true
	clear(g.has)
	_ = s.out.send(frame.Header{Kind: frame.Recall}, nil) // a stream that ends ends the session
}

// recalled follows a RECALLED frame.
func (s *Session) recalled() error {
	g := &s.grants
	g.state.Lock()
	defer g.state.Unlock()
	if !g.owed {
		return remote.Violation("RECALLED frame that nothing asked for")
	}
	g.owed, g.lent = false, false
	close(g.answer)
	s.reopenLocked()
	return nil
}

// letGo waits until the server has nothing of the guest's memory that it was granted: a session
// that is parked was recalled.
func (s *Session) letGo() error {
	g := &s.grants
	g.state.Lock()
	owed, answer := g.owed, g.answer
	g.state.Unlock()
	if owed {
		limit := time.NewTimer(g.limit)
		defer limit.Stop()
		select {
		case <-answer:
		case <-limit.C:
		}
	}
	g.state.Lock()
	defer g.state.Unlock()
	if g.owed || g.lent {
		return s.name(ErrReached)
	}
	return nil
}

// goOver has the session be at another server, which knows these regions. What the first one had
// ends: its stream is closed. None of the session's goroutines runs.
func (s *Session) goOver(conn frame.Stream, all []Change) {
	g := &s.grants
	g.mu.Lock() // who says something to the first one has failed
	defer g.mu.Unlock()
	g.state.Lock()
	was := slices.Collect(maps.Keys(g.live))
	g.state.Unlock()
	for _, id := range was {
		g.mem.Conceal(id)
	}
	s.lane = newLane(conn)
	g.state.Lock()
	defer g.state.Unlock()
	if g.owed {
		close(g.answer)
	}
	g.owed, g.lent, g.closed = false, false, false
	g.begin(conn, s.mem, s.reopen)
	for _, c := range all {
		g.known[c.ID] = c.Size
	}
	if g.to != nil {
		s.reopenLocked()
	}
}

// reopen has regions granted, if they are to be: there is a way to.
func (s *Session) reopen() {
	g := &s.grants
	g.state.Lock()
	defer g.state.Unlock()
	s.reopenLocked()
}

// unpark has regions granted again: their pages are there.
func (s *Session) unpark() {
	g := &s.grants
	g.state.Lock()
	defer g.state.Unlock()
	if g.parked {
		g.parked = false
		s.reopenLocked()
	}
}

// reopenLocked has the consumer grant what is to be granted again.
func (s *Session) reopenLocked() {
	if g := &s.grants; !g.parked && !g.owed {
		g.renew.Store(true)
		s.poke()
	}
}
