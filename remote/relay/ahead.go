package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"causeway/remote"
	"causeway/remote/frame"
)

/*
Memory of a session that is to go to another server goes ahead of it, in rounds, while its program
runs: the other server is told so (AHEAD), the first one is asked for a round at a time (AHEAD), and
what it says is passed on beside the session's own frames. The receiver keeps what comes, no more
than was granted, and never waits for the other server: who asked for the round passes it on, and
grants as much again (MORE). Then Stand has the consumer stop, as Move does from the beginning, and
what follows is what has changed since. Until then the consumer knows nothing of it.
*/

// ErrNoRounds says that memory cannot go ahead of a session: one of the two servers is of a version
// without.
var ErrNoRounds = errors.New("memory does not go ahead of a session there")

// AheadMemory is how much of the host's memory the rounds of a session take.
const AheadMemory = 2 * frame.AheadWindow

// Times and sizes of rounds.
const (
	// In which nothing of one goes on: a server may look at much memory in which nothing has
	// changed.
	roundSilence = time.Minute
	// For a server to say that a round which nobody wants any more is over.
	forgetLimit = 10 * time.Second
	passPart    = 256 << 10
)

// ahead is what a move has of its rounds. Session.parks.mu guards it, unless it says otherwise.
type ahead struct {
	kind     frame.Kind    // what they are asked for by
	runs     bool          // the session does: the consumer leaves the move alone
	n        uint64        // rounds asked for; tells is held to change it
	due      bool          // one was, and has not ended
	left     int           // bytes that the server may say
	came     []byte        // that wait to be passed on
	did      frame.Round   // valid once due is false
	failed   error         // likewise
	news     chan struct{} // one place: some of this has changed
	stayed   bool          // the server was told that nobody wants it any more
	passed   []byte        // what is being passed on; Round's
	once     sync.Mutex    // held by a round
	patience time.Duration // roundSilence
	tells    sync.Mutex    // orders what the server is told of rounds; ahead of parks.mu
}

// Rounds reports whether the session's server sends memory ahead of it.
func (s *Session) Rounds() bool {
	s.parks.mu.Lock()
	defer s.parks.mu.Unlock()
	return s.rounds
}

// Ahead has a server await a session over conn, which it takes over, and whose memory is to come in
// rounds; hello and server are as in Move, which Stand goes on with. The program runs on.
// ErrNoRounds: one of the servers knows of none.
func (s *Session) Ahead(ctx context.Context, conn frame.Stream, hello remote.Hello, branches int, server string) (*Moving, error) {
	m := s.newMoving(ctx, conn, hello, branches, server)
	m.ahead.runs, m.ahead.kind = true, frame.Ahead
	if err := m.awaits(ctx, s.Rounds, ErrNoRounds); err != nil {
		return nil, err
	}
	return m, nil
}

// awaits begins a move of a session that runs, if its server does its part of that, and the other
// one; none says that one of them is of a version that does not.
func (m *Moving) awaits(ctx context.Context, does func() bool, none error) error {
	s := m.s
	err := s.mayMove(m)
	if err == nil && !does() {
		s.unmove(m)
		err = fmt.Errorf("gpu server %s: %w", s.server, none)
	}
	if err != nil {
		m.cancel()
		return errors.Join(err, m.conn.Close())
	}
	if err = m.awaited(ctx, none); err != nil {
		m.callOff(err)
		<-m.over
		return m.end
	}
	m.heard = true // before anybody else has m
	go m.routineWelcome()
	return nil
}

// awaited has the other server say that it awaits the session.
func (m *Moving) awaited(ctx context.Context, none error) error {
	hello, err := m.greeting(ctx)
	if err != nil {
		return err
	}
	if err = m.out.send(frame.Header{Kind: m.ahead.kind}, hello); err != nil {
		return fmt.Errorf("gpu server %s: %w", m.server, lost(err))
	}
	_ = m.conn.SetReadDeadline(time.Now().Add(welcomeLimit))
	defer context.AfterFunc(ctx, func() { _ = m.conn.SetReadDeadline(time.Now()) })()
	b, err := m.in.Peek(frame.HeaderSize)
	if err != nil {
		return fmt.Errorf("gpu server %s: %w", m.server, lost(err))
	}
	if h := frame.ParseHeader(b); h.Kind == frame.More && h.Len == 0 && h.Flags == 0 && h.Arg == 0 {
		_, _ = m.in.Discard(frame.HeaderSize)
		return m.conn.SetReadDeadline(time.Time{})
	}
	// One that knows nothing of this takes the frame for no hello.
	if _, err = m.welcomed(0); err == nil {
		err = remote.Violation("it has a session of which nothing has come")
	} else if errors.Is(err, ErrRefused) {
		err = errors.Join(none, err)
	}
	return fmt.Errorf("gpu server %s: %w", m.server, err)
}

// routineWelcome awaits the other server's answer to all of the session, which is none before that.
func (m *Moving) routineWelcome() {
	n, err := m.welcomed(m.want)
	m.want = n
	m.welcome <- err
}

// Round has what has changed of the session's memory since the round before, all of it in the
// first, be at the other server. Until there is another, or the session stands or stays, it is held
// back for so many hundredths of the time. With an error the session does not go there.
func (m *Moving) Round(ctx context.Context, held uint32) (frame.Round, error) {
	if !m.ahead.once.TryLock() {
		return frame.Round{}, ErrMoving
	}
	defer m.ahead.once.Unlock()
	begun, err := m.beginRound(held)
	if !begun {
		return frame.Round{}, err
	}
	// Who sends to the other server fails then.
	defer context.AfterFunc(ctx, func() { m.callOff(ctx.Err()) })()
	did := frame.Round{}
	if err == nil {
		did, err = m.passRound()
	}
	if err != nil {
		m.callOff(err)
		<-m.over
		return frame.Round{}, m.end
	}
	return did, nil
}

// beginRound asks for a round, if it can be asked for.
func (m *Moving) beginRound(held uint32) (begun bool, err error) {
	a := &m.ahead
	a.tells.Lock()
	defer a.tells.Unlock()
	if err := m.mayRound(held); err != nil {
		return false, err
	}
	h := frame.Header{Kind: a.kind}
	if h.Kind == frame.Ahead {
		h.Arg = a.n
	}
	if err := m.s.out.send(h, nil); err != nil {
		return true, lost(err)
	}
	return true, nil
}

func (m *Moving) mayRound(held uint32) error {
	m.s.parks.mu.Lock()
	defer m.s.parks.mu.Unlock()
	a := &m.ahead
	switch {
	case m.gave:
		return m.end
	case !a.runs || a.due:
		return ErrMoving
	}
	if a.n, a.due, a.left = a.n+1, true, frame.AheadWindow; a.n == 1 {
		a.came, a.passed = make([]byte, 0, frame.AheadWindow), make([]byte, 0, frame.AheadWindow)
	}
	m.s.hold(held) // with parks.mu held: whoever ends the move lets it go behind that
	return nil
}

// passRound passes on what the server says, and grants as much again, until the round has ended.
func (m *Moving) passRound() (frame.Round, error) {
	stuck := time.AfterFunc(m.ahead.patience, func() {
		m.callOff(fmt.Errorf("%w: between %s and %s nothing of a round of memory has gone on for %v", ErrServer, m.s.server, m.server, m.ahead.patience))
	})
	defer stuck.Stop()
	for {
		over, err := m.takeRound()
		if err != nil {
			return frame.Round{}, err
		}
		for b := m.ahead.passed; len(b) > 0; {
			part := b[:min(len(b), passPart)]
			if err := m.pass(part); err != nil {
				return frame.Round{}, err
			}
			b = b[len(part):]
			stuck.Reset(m.ahead.patience)
		}
		if over {
			return m.ahead.did, m.ahead.failed
		}
		if len(m.ahead.passed) > 0 {
			continue
		}
		select {
		case <-m.ahead.news:
		case err := <-m.welcome:
			m.welcome <- err // for accepted, which finds the same
			return frame.Round{}, fmt.Errorf("gpu server %s: %w", m.server, m.early(err))
		case <-m.ctx.Done():
			return frame.Round{}, m.ctx.Err()
		}
	}
}

// takeRound takes what has come. over: it is the last of the round.
func (m *Moving) takeRound() (over bool, err error) {
	m.s.parks.mu.Lock()
	defer m.s.parks.mu.Unlock()
	a := &m.ahead
	a.came, a.passed = a.passed[:0], a.came
	if m.gave {
		return false, m.end
	}
	return !a.due, nil
}

// pass has the other server get some of a round, and the first one say as much again.
func (m *Moving) pass(b []byte) error {
	if err := m.out.send(frame.Header{Kind: frame.State}, b); err != nil {
		return fmt.Errorf("gpu server %s: %w", m.server, lost(err))
	}
	m.s.parks.mu.Lock()
	m.ahead.left += len(b) // ahead of the word, to which more may come at once
	wanted := m.ahead.due && !m.gave
	m.s.parks.mu.Unlock()
	if !wanted {
		return nil
	}
	if err := m.s.out.send(frame.Header{Kind: frame.More, Arg: uint64(len(b))}, nil); err != nil {
		return lost(err)
	}
	return nil
}

// roundFrame follows what the server says of a round. It waits for nobody but the server.
func (s *Session) roundFrame(m *Moving, h frame.Header) error {
	switch {
	case h.Arg != 0 || h.Flags != 0 && h.Len > frame.MaxWhy:
	case h.Flags == 0 && h.Len > 0:
		return s.roundBytes(m, int(h.Len))
	case h.Flags == frame.Whole, h.Flags == frame.Refused:
		b, err := s.body(h)
		if err != nil {
			return err
		}
		if h.Flags == frame.Refused {
			s.roundOver(m, frame.Round{}, s.refusal(b))
			return nil
		}
		did, err := frame.ParseRound(b)
		if err == nil {
			s.roundOver(m, did, nil)
		}
		return err
	}
	return remote.Violation("STATE frame of %d bytes with flags %#x in a round of memory", h.Len, h.Flags)
}

// roundBytes keeps n bytes of a round for who passes them on, from the stream's buffer.
func (s *Session) roundBytes(m *Moving, n int) error {
	a := &m.ahead
	err := frame.Body(s.in, n, func(b []byte) error {
		s.parks.mu.Lock()
		a.left -= len(b)
		granted := a.left >= 0
		if granted && !m.gave {
			a.came = append(a.came, b...)
		}
		s.parks.mu.Unlock()
		if !granted {
			return remote.Violation("more of a round of memory than was granted")
		}
		return nil
	})
	if err == nil {
		a.tell()
	}
	return err
}

func (a *ahead) tell() {
	select {
	case a.news <- struct{}{}:
	default:
	}
}

// roundOver notes the end of a round, and forgets a move that waited for it alone.
func (s *Session) roundOver(m *Moving, did frame.Round, failed error) {
	s.parks.mu.Lock()
	defer s.parks.mu.Unlock()
	a := &m.ahead
	a.due, a.did, a.failed = false, did, failed
	if a.stayed {
		s.unmoveLocked(m)
	}
	a.tell()
}

// callOff ends a move of a session that runs, the first time. The server is told, and says when a
// round that is under way is over.
func (m *Moving) callOff(why error) {
	s := m.s
	s.parks.mu.Lock()
	if m.gave || !m.ahead.runs {
		s.parks.mu.Unlock()
		return
	}
	m.finish(why)
	s.hold(0)
	m.ahead.came = nil
	s.parks.mu.Unlock()
	m.ahead.tells.Lock()
	defer m.ahead.tells.Unlock()
	if m.ahead.n > 0 {
		// A stream that is lost is the receiver's to find.
		_ = s.out.send(frame.Header{Kind: frame.Stay}, nil)
	}
	s.parks.mu.Lock()
	defer s.parks.mu.Unlock()
	if m.ahead.stayed = true; !m.ahead.due {
		s.unmoveLocked(m) // behind the word: who asks for rounds again does so after it
	}
}

// Stand has the session stand still, and the other server get what it has not yet; as Move
// otherwise.
func (m *Moving) Stand(ctx context.Context) error {
	m.s.parks.mu.Lock()
	err := error(nil)
	switch {
	case m.gave:
		err = m.end
	case !m.ahead.runs || m.ahead.due:
		err = ErrMoving
	default:
		m.ahead.runs = false
		m.s.hold(0)
	}
	m.s.parks.mu.Unlock()
	if err != nil {
		return err
	}
	return m.stand(ctx)
}

// forget calls a move off whose session runs, and waits until it could go elsewhere.
func (m *Moving) forget() {
	m.callOff(context.Canceled)
	<-m.over
	select {
	case <-m.free:
	case <-time.After(forgetLimit): // it may say so later
	}
}

// unmoveLocked has the session be on its way no more. parks.mu is held.
func (s *Session) unmoveLocked(m *Moving) {
	if s.moving == m {
		s.moving = nil
		close(m.free)
	}
}

func (s *Session) unmove(m *Moving) {
	s.parks.mu.Lock()
	defer s.parks.mu.Unlock()
	s.unmoveLocked(m)
}
