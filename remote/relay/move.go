package relay

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"time"

	"causeway/remote"
	"causeway/remote/frame"
)

/*
A session moves to another GPU server while its guest stays: the consumer stops taking records,
tells its server so (LEAVE), and what that says the session is made of goes on, frame by frame, to
the other one (ARRIVE, STATE), over a stream of its own. Until that has answered, and whoever asked
has decided, the first server keeps all of it, and STAY has it go on there. Nothing is written to
guest memory by the other server before the consumer goes over, and nothing by the first one
afterwards: its stream is closed then. So it is at one of the two at any time, and at none only if
the server is lost that has it.
*/

// Errors of sessions that move to another server.
var (
	// ErrMoving says that a session is on its way to another server.
	ErrMoving = errors.New("the session is moving to another GPU server")
	errMoved  = errors.New("the session goes on at another GPU server")
)

// Moving is a session that another server has as well, and that stands still until Decide.
type Moving struct {
	s      *Session
	conn   frame.Stream // to the other server
	hello  remote.Hello
	want   int // branches
	server string
	lane   // of conn
	cancel context.CancelFunc
	ctx    context.Context

	welcome chan error    // one place: the other server's answer
	whole   chan struct{} // closed when the first server has said all
	failed  chan struct{} // closed when the other one takes no more
	ready   chan error    // one place: the other one has it, or why not
	decide  chan bool     // one place
	decided chan struct{} // closed by the consumer; goes says how
	over    chan struct{} // closed when whoever asked may hear of it
	free    chan struct{} // closed when the session may go elsewhere
	heard   bool          // routineWelcome runs
	all     []Change      // regions that the other one knows; the consumer's

	// Session.parks.mu guards these.
	ahead  ahead
	begun  bool // the consumer has it
	asked  bool // LEAVE was sent
	sent   bool // the end of all of it was given to the other server, or is about to be
	ended  bool // whole is closed
	broken bool // failed is closed
	why    error
	goes   bool
	gave   bool  // finish was called
	end    error // why it goes nowhere, once over is closed
}

// Move has a server get a session over conn, which it takes over, and returns when that has all of
// it; hello is as in Open, and server names it. The program's calls wait until Decide. With an
// error, and if ctx ends before, the session goes on where it was.
func (s *Session) Move(ctx context.Context, conn frame.Stream, hello remote.Hello, branches int, server string) (*Moving, error) {
	m := s.newMoving(ctx, conn, hello, branches, server)
	if err := s.mayMove(m); err != nil {
		m.cancel()
		return nil, errors.Join(err, conn.Close())
	}
	if err := m.stand(ctx); err != nil {
		return nil, err
	}
	return m, nil
}

func (s *Session) newMoving(ctx context.Context, conn frame.Stream, hello remote.Hello, branches int, server string) *Moving {
	m := &Moving{
		s: s, conn: conn, hello: hello, want: branches, server: server, lane: newLane(conn),
		welcome: make(chan error, 1), whole: make(chan struct{}), failed: make(chan struct{}), ready: make(chan error, 1), decide: make(chan bool, 1), decided: make(chan struct{}), over: make(chan struct{}), free: make(chan struct{}),
	}
	m.ahead.news, m.ahead.patience = make(chan struct{}, 1), roundSilence
	m.in = bufio.NewReaderSize(&m.input, streamBuffer)
	m.ctx, m.cancel = context.WithCancel(ctx)
	return m
}

// stand has the consumer stand, and returns when the other server has the session, or why it does
// not.
func (m *Moving) stand(ctx context.Context) error {
	m.s.poke()
	select {
	case err := <-m.ready:
		if err != nil {
			<-m.over
		}
		return err
	case <-m.over:
		return m.end
	case <-ctx.Done():
	}
	m.cancel()
	m.s.drop(m)
	select {
	case err := <-m.ready: // the consumer waits for what is decided, and nobody else will
		if err == nil {
			m.decide <- false
		}
		<-m.over
	case <-m.over:
	}
	return ctx.Err()
}

// mayMove notes a move, unless the session can go nowhere.
func (s *Session) mayMove(m *Moving) error {
	p := &s.parks
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err := s.lasting()
	switch {
	case err != nil:
		return err
	case p.over:
		return ErrOver
	case s.moving != nil:
		return ErrMoving
	case p.still:
		return ErrParked
	}
	s.moving = m
	return nil
}

// drop forgets a move that the consumer has not begun.
func (s *Session) drop(m *Moving) {
	s.parks.mu.Lock()
	mine := s.moving == m && !m.begun
	if mine {
		m.ahead.runs = true // the consumer leaves it alone
	}
	s.parks.mu.Unlock()
	if mine {
		m.callOff(context.Canceled)
	}
}

// finish is the end of a move that goes nowhere, the first time. parks.mu is held, and closing a
// stream may take its time.
func (m *Moving) finish(why error) {
	if m.gave {
		return
	}
	m.gave, m.end = true, why
	m.cancel()
	go func() {
		_ = m.conn.Close()
		close(m.over)
	}()
}

// Decide has the session go on at the other server, or where it was. An error says that it does not
// go on at the other one; it goes on where it was then, unless the session is over.
func (m *Moving) Decide(goes bool) error {
	m.s.parks.mu.Lock()
	runs := m.ahead.runs
	m.s.parks.mu.Unlock()
	switch {
	case runs && goes:
		return ErrMoving
	case runs:
		m.forget()
		return nil
	}
	m.decide <- goes
	<-m.over
	if !goes {
		return nil
	}
	return m.end
}

// depart is the consumer's part of a move, if there is one.
func (s *Session) depart(ctx context.Context) error {
	p := &s.parks
	p.mu.Lock()
	m := s.moving
	if m == nil || m.begun || m.ahead.runs {
		p.mu.Unlock()
		return nil
	}
	m.begun = true
	p.mu.Unlock()
	return s.atNetwork(ctx, func() error { return s.elsewhere(ctx, m) })
}

// elsewhere has a session go to another server, or stay. errMoved: it goes. Other errors are the
// session's end.
func (s *Session) elsewhere(ctx context.Context, m *Moving) error {
	err := s.offer(ctx, m)
	if ctx.Err() != nil {
		return ctx.Err() // endMove says so
	}
	goes := false
	if m.ready <- err; err == nil {
		select {
		case goes = <-m.decide:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	p := &s.parks
	p.mu.Lock()
	m.goes = goes
	asked := m.asked || m.ahead.n > 0
	if goes {
		close(m.decided)
		p.mu.Unlock()
		return errMoved
	}
	p.mu.Unlock()
	var told error
	if asked {
		told = s.out.send(frame.Header{Kind: frame.Stay}, nil)
	}
	p.mu.Lock()
	close(m.decided)
	if m.ended || !m.asked {
		s.unmoveLocked(m) // behind the word, as in callOff
	}
	m.finish(err)
	p.mu.Unlock()
	if told != nil {
		return lost(told)
	}
	return nil
}

// offer has the other server get the session. An error says why it does not have it; ctx may have
// ended.
func (s *Session) offer(ctx context.Context, m *Moving) error {
	all, err := s.tellAll()
	if err == nil {
		m.all = all
		err = m.arrive(ctx, s.sent, all)
	}
	if err != nil {
		return err
	}
	s.parks.mu.Lock()
	m.asked = true
	s.parks.mu.Unlock()
	if err := s.out.send(frame.Header{Kind: frame.Leave, Arg: s.sent}, nil); err != nil {
		return err // which the receiver finds
	}
	if !m.heard {
		go m.routineWelcome()
	}
	select {
	case <-m.whole:
	case <-m.failed:
		err = fmt.Errorf("gpu server %s: %w: it takes no more of the session", m.server, ErrServer)
	case err = <-m.welcome:
		m.welcome <- err // for accepted, where all has come already
		if err = m.early(err); err != nil {
			return fmt.Errorf("gpu server %s: %w", m.server, err)
		}
		select {
		case <-m.whole: // what is missing is the receiver's word
		case <-ctx.Done():
			err = ctx.Err()
		}
	case <-m.ctx.Done():
		err = m.ctx.Err()
	case <-ctx.Done():
		err = ctx.Err()
	}
	s.parks.mu.Lock()
	if err == nil {
		err = m.why
	}
	s.parks.mu.Unlock()
	if err != nil {
		return err
	}
	return m.accepted(ctx)
}

// early judges an answer of the other server that came while it is not known whether all has been
// sent there.
func (m *Moving) early(err error) error {
	m.s.parks.mu.Lock()
	defer m.s.parks.mu.Unlock()
	if err == nil && !m.sent {
		return remote.Violation("it has a session before all of that has come")
	}
	return err
}

// tellAll has the server know of each region, all of which it returns.
func (s *Session) tellAll() ([]Change, error) {
	for {
		if err := s.sendRegions(); err != nil {
			return nil, err
		}
		if all, ok := s.regions.settled(); ok {
			return all, nil
		}
	}
}

// arrive begins a session at the other server that goes on at a position of the ring, with all
// regions.
func (m *Moving) arrive(ctx context.Context, at uint64, all []Change) error {
	hello, err := []byte(nil), error(nil)
	if !m.heard { // else it has been said
		hello, err = m.greeting(ctx)
	}
	if err != nil {
		return err
	}
	err = m.out.send(frame.Header{Kind: frame.Arrive, Arg: at}, hello)
	for _, c := range all {
		if err == nil {
			err = m.out.send(frame.Header{Kind: frame.Region, Arg: uint64(c.ID)}, remote.FormatHello(remote.Hello{Type: remote.MsgRegion, Region: c.ID, Va: c.VA, Size: c.Size}, ""))
		}
	}
	if err != nil {
		return fmt.Errorf("gpu server %s: %w", m.server, lost(err))
	}
	return nil
}

// greeting is what the session says to a server first of all.
func (m *Moving) greeting(ctx context.Context) ([]byte, error) {
	d, err := m.s.mem.Await(ctx, 0)
	if err != nil {
		return nil, err
	}
	h := m.hello
	h.Type, h.Region, h.Va, h.Size = remote.MsgHello, 0, d.VA, d.Size
	return remote.FormatHello(h, ""), nil
}

// accepted awaits the answer to all of it.
func (m *Moving) accepted(ctx context.Context) error {
	_ = m.conn.SetReadDeadline(time.Now().Add(welcomeLimit))
	var err error
	select {
	case err = <-m.welcome:
	case <-m.ctx.Done():
		return m.ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err == nil {
		err = m.conn.SetReadDeadline(time.Time{})
	}
	if err != nil {
		return fmt.Errorf("gpu server %s: %w", m.server, err)
	}
	return nil
}

// leaveMove ends the stream of a move whose session ends: who sends on it fails, as the other
// server may read nothing more.
func (s *Session) leaveMove(cause error) {
	s.parks.mu.Lock()
	defer s.parks.mu.Unlock()
	if s.moving != nil && !errors.Is(cause, errMoved) {
		s.moving.finish(ErrOver)
	}
}

// awaitMove is what the end of the server's stream means: nothing to a session that another server
// has, if it is to go on there.
func (s *Session) awaitMove(ctx context.Context, err error) error {
	p := &s.parks
	p.mu.Lock()
	m := s.moving
	has := m != nil && m.ended && m.why == nil
	p.mu.Unlock()
	if !has {
		return err
	}
	select {
	case <-m.decided:
	case <-ctx.Done():
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if m.goes {
		return errMoved
	}
	return err
}

// endMove follows the end of what passed on, for a cause. None of the session's goroutines runs.
func (s *Session) endMove(cause error) {
	p := &s.parks
	p.mu.Lock()
	defer p.mu.Unlock()
	m := s.moving
	if m == nil || errors.Is(cause, errStill) {
		return
	}
	s.unmoveLocked(m)
	if !errors.Is(cause, errMoved) {
		m.finish(ErrOver)
		return
	}
	rounds, rehearses := m.rounds, m.rehearses
	s.goOver(m.conn, m.all)
	s.rounds, s.rehearses = rounds, rehearses
	s.input.again = m.unread()
	s.in = bufio.NewReaderSize(&s.input, streamBuffer)
	s.server = m.server
	s.reads = make(chan read, mostReads)
	s.head.Store(s.sent)
	s.dead.Store(false)
	w := &s.wide
	w.mu.Lock()
	w.want, w.asked, w.list, w.reads = m.want, false, nil, make(chan read, mostReads)
	w.mu.Unlock()
	m.cancel()
	close(m.over)
}
