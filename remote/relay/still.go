package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"causeway/remote"
	"causeway/remote/frame"
)

/*
A session that is parked can be described, and go on in a relay on another host, over the same
stream to the same worker, with the same guest memory: its VM has moved. While it stands still none
of its goroutines runs, so that what is described is all that there is, and Resume has it go on here
as well, if the VM has not moved after all.
*/

// Lasting is a stream that can stand still between two processes. *resume.Conn is one, which
// documents the methods.
type Lasting interface {
	frame.Stream
	Hold() error
	Release()
}

// Errors of sessions that stand still.
var (
	// ErrFixed says that a session cannot go on elsewhere.
	ErrFixed = errors.New("the session's bytes go over a connection that no other can follow")
	// ErrReached says that a server may reach guest memory by itself still.
	ErrReached = errors.New("it does not let go of memory of the program that it reaches by RDMA")
	// ErrState says that what was read is no state of a session.
	ErrState = errors.New("no state of a session that is passed on")
	errStill = errors.New("the session stands still")
)

// MostUnread bounds State.Unread: what a stream's buffer holds, more than once, and a frame's
// beginning.
const MostUnread = 4 * streamBuffer

// State is a session that stands still, without its stream and its guest's memory.
type State struct {
	// Positions in the ring: what the server has been sent, and what it has done with.
	Sent, Head uint64
	Unread     []byte   // of the stream, read and not followed yet
	Reads      []Asked  // READs that wait for an answer, or for the rest of it
	Regions    []Change // all that the server knows, or is to be told
	Untold     []Change // what it is to be told, in this order
	Wanted     uint32   // how many branches the stream may have
	Branches   []Branch // those that it has
	Rounds     bool     // its server sends memory ahead of a session
	Rehearses  bool     // and says what one is made of
}

// Asked is a READ that waits.
type Asked struct {
	ID uint64
	frame.Extent
}

// Branch is what is said of a branch.
type Branch struct {
	Unread    []byte
	Wrote     uint32  // WRITEs that are done, modulo 2^32
	Answering []Asked // the READ that it has begun to answer, if there is one
}

// Change is a region that came, or one that went: its size is 0.
type Change struct {
	ID       uint32
	VA, Size uint64
}

// input is the stream, behind what was read of it and not followed.
type input struct {
	again []byte
	conn  frame.Stream
	came  atomic.Uint64 // bytes
}

// Read implements io.Reader.
func (i *input) Read(p []byte) (n int, err error) {
	if len(i.again) > 0 {
		n = copy(p, i.again)
		i.again = i.again[n:]
	} else {
		n, err = i.conn.Read(p)
	}
	i.came.Add(uint64(n))
	return n, err
}

// Movable says why a session cannot stand still; nil: it can.
func (s *Session) Movable() error {
	s.parks.mu.Lock()
	defer s.parks.mu.Unlock()
	_, err := s.lasting()
	return err
}

// lasting is the session's stream, if another relay can go on with it.
func (s *Session) lasting() (Lasting, error) {
	if conn, ok := s.out.conn.(Lasting); ok {
		return conn, nil
	}
	return nil, ErrFixed
}

// StandStill describes a session that is parked. It stays so until Resume.
func (s *Session) StandStill() (State, error) {
	letGo := s.letGo()
	p := &s.parks
	p.mu.Lock()
	defer p.mu.Unlock()
	conn, err := s.lasting()
	switch {
	case err != nil:
		return State{}, err
	case s.moving != nil:
		return State{}, ErrMoving
	case p.over:
		return State{}, ErrOver
	case p.resume == nil:
		return State{}, ErrNotParked
	case s.dead.Load():
		return State{}, ErrServer
	case letGo != nil:
		return State{}, letGo
	}
	if err := s.haltLocked(conn); err != nil {
		return State{}, err
	}
	st := s.describe()
	return st, st.check() // nobody would take it
}

// haltLocked has the stream held and the session's goroutines end, and waits for them. parks.mu is
// held, and let go meanwhile. With an error the session is parked as before.
func (s *Session) haltLocked(conn Lasting) error {
	p := &s.parks
	halt, halted := p.halt, p.halted
	p.still = true
	if halted == nil { // they do not run
		if err := conn.Hold(); err != nil {
			return s.name(err)
		}
		return nil
	}
	s.still, p.leaving = true, true
	s.away.Unlock() // who waits for guest memory returns
	p.mu.Unlock()
	halt(errStill)
	err := conn.Hold() // who waits for the stream returns
	<-halted
	p.mu.Lock()
	p.leaving = false
	if p.over {
		return ErrOver
	}
	s.rewind()
	s.away.Lock()
	s.still = false
	if err != nil {
		return s.name(err)
	}
	return nil
}

// rewind has each stream be read again from the frame on in whose middle it was left, by whoever
// goes on with the session, this relay too. None of the session's goroutines runs.
func (s *Session) rewind() {
	_ = s.unread()
	s.wide.mu.Lock()
	defer s.wide.mu.Unlock()
	for _, b := range s.wide.list {
		_ = b.unread()
	}
}

// describe is the session's state. None of its goroutines runs.
func (s *Session) describe() State {
	st := State{Sent: s.sent, Head: s.head.Load(), Unread: s.unread(), Rounds: s.rounds, Rehearses: s.rehearses}
	if s.answering != nil {
		st.Reads = append(st.Reads, Asked{s.answering.id, s.answering.Extent})
	}
	for _, reads := range []chan read{s.reads, s.wide.reads} {
		for range len(reads) {
			r := <-reads
			st.Reads = append(st.Reads, Asked{r.id, r.Extent})
			reads <- r
		}
	}
	s.describeWide(&st)
	st.Regions, st.Untold = s.regions.describe()
	return st
}

// unread is what was read of a stream and not followed yet. Nobody reads it.
func (l *lane) unread() []byte {
	buffered, _ := l.in.Peek(l.in.Buffered())
	l.input.again = slices.Concat(l.undone, buffered, l.input.again)
	l.in.Reset(&l.input)
	l.undone = l.undone[:0]
	return bytes.Clone(l.input.again)
}

func (r *regions) describe() (all, untold []Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(r.sizes)) {
		all = append(all, Change{ID: id, VA: r.vas[id], Size: r.sizes[id]})
	}
	for _, c := range r.changes {
		if !c.back {
			untold = append(untold, Change{c.id, c.va, c.size})
		}
	}
	return all, untold
}

// Adopt makes a session of what StandStill described, parked until Resume: its guest's memory comes
// later. conn is held, and stays the caller's if there is an error.
func Adopt(local remote.Carrier, conn Lasting, st State, server string, log *slog.Logger) (*Session, error) {
	w, ok := local.Memory().(remote.Watchable)
	if !ok {
		return nil, errUnwatched
	}
	if err := st.check(); err != nil {
		return nil, err
	}
	s := newSession(local, conn, server, log)
	s.input.again, s.rounds, s.rehearses = st.Unread, st.Rounds, st.Rehearses
	s.sent = st.Sent
	s.given.Store(st.Sent)
	s.head.Store(st.Head)
	if err := s.adoptWide(conn, &st); err != nil {
		return nil, err
	}
	for _, r := range st.Reads {
		s.reads <- read{r.ID, r.Extent}
	}
	s.regions.adopt(st.Regions, st.Untold)
	s.grants.adopt(&s.regions)
	s.parks.still, s.parks.resume = true, make(chan struct{})
	s.away.Lock()
	w.Watch(&s.regions)
	return s, nil
}

func (s *State) check() error {
	if s.Sent < s.Head || s.Sent-s.Head > remote.RingSize || len(s.Unread) > MostUnread || len(s.Reads) > mostReads || len(s.Untold) >= mostChanges {
		return fmt.Errorf("%w: %d bytes sent and %d done, %d unread, %d READs, %d regions", ErrState, s.Sent, s.Head, len(s.Unread), len(s.Reads), len(s.Untold))
	}
	reads := s.Reads
	for _, b := range s.Branches {
		if len(b.Unread) > MostUnread || len(b.Answering) > 1 {
			return fmt.Errorf("%w: %d bytes unread of a branch, which answers %d READs", ErrState, len(b.Unread), len(b.Answering))
		}
		reads = slices.Concat(reads, b.Answering)
	}
	for _, r := range reads {
		if r.Size == 0 || r.Size > frame.MaxRead {
			return fmt.Errorf("%w: READ of %d bytes", ErrState, r.Size)
		}
	}
	return nil
}

// adopt takes over what another relay knew of regions. Each of them becomes reachable again, of
// which the server hears nothing.
func (r *regions) adopt(all, untold []Change) {
	r.again = map[uint32]bool{}
	for _, c := range all {
		if c.ID != 0 {
			r.sizes[c.ID], r.vas[c.ID], r.again[c.ID] = c.Size, c.VA, true
		}
	}
	for _, c := range untold {
		r.changes = append(r.changes, change{id: c.ID, va: c.VA, size: c.Size})
	}
}

// adopt has those of a session's regions granted that the server knows, once the session goes on.
func (g *grants) adopt(r *regions) {
	if g.to == nil {
		return
	}
	g.parked, r.lends = true, true
	for id := range r.again {
		g.known[id] = r.sizes[id]
	}
	for _, c := range r.changes { // of these it hears first
		delete(g.known, c.id)
	}
}

// begin waits while the session stands still. halt ends what begins then.
func (s *Session) begin(ctx context.Context, halt context.CancelCauseFunc) error {
	p := &s.parks
	for {
		p.mu.Lock()
		resume := p.resume
		if !p.still {
			p.halt, p.halted = halt, make(chan struct{})
			p.mu.Unlock()
			return nil
		}
		p.mu.Unlock()
		select {
		case <-resume:
		case <-s.local.Done():
			return errGuest
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// halted says that nothing of the session runs.
func (s *Session) halted() {
	p := &s.parks
	p.mu.Lock()
	close(p.halted)
	p.halt, p.halted = nil, nil
	p.mu.Unlock()
}

// pass passes on until something ends that, whose cause it returns: errStill if the session is to
// go on.
func (s *Session) pass(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if err := s.begin(ctx, cancel); err != nil {
		return err
	}
	defer s.halted()
	conn := s.out.conn
	stop := context.AfterFunc(ctx, func() { // whoever sends or receives fails now
		if cause := context.Cause(ctx); !errors.Is(cause, errStill) {
			_ = conn.Close()
			s.leaveMove(cause)
		}
	})
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() {
		err := s.receive(ctx)
		cancel(s.awaitMove(ctx, err))
	})
	wg.Go(func() { cancel(s.serve(ctx, &s.lane, s.reads, nil)) })
	s.passWide(ctx, &wg, cancel)
	wg.Go(func() {
		select {
		case <-s.local.Done():
			cancel(errGuest)
		case <-ctx.Done():
		}
	})
	cancel(s.pump(ctx))
	cause := context.Cause(ctx)
	if !errors.Is(cause, errStill) {
		_ = conn.Close()
	}
	if !errors.Is(cause, errStill) && !errors.Is(cause, errMoved) {
		s.endPark()
	}
	s.wide.pause()
	wg.Wait()
	s.endMove(cause)
	return cause
}
