package relay

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"causeway/remote"
	"causeway/remote/frame"
)

/*
A session is rehearsed at another server before anything of it goes there: its own server says what
it is made of (REHEARSE), which is passed on as a round of memory is, and the other one makes that
once, over a stream that is the rehearsal's alone, and answers. The program runs on, and nothing of
it is at the other server afterwards.
*/

// Errors of rehearsals.
var (
	// ErrCannot says that a session cannot be at a server what it is where it is. The text behind
	// it is that server's.
	ErrCannot = errors.New("it cannot be rebuilt there")
	// ErrNoRehearsal says that a session cannot be rehearsed: one of the two servers is of a
	// version without.
	ErrNoRehearsal = errors.New("sessions are not rehearsed there")
)

// Rehearses reports whether the session's server says what a session is made of.
func (s *Session) Rehearses() bool {
	s.parks.mu.Lock()
	defer s.parks.mu.Unlock()
	return s.rehearses
}

// Rehearse has a server make what a session is made of once, over conn, which it takes over; hello
// and server are as in Move. nil: the session can be there. ErrCannot: it cannot. Other errors say
// why that is not known. While it lasts the session goes nowhere else.
func (s *Session) Rehearse(ctx context.Context, conn frame.Stream, hello remote.Hello, server string) error {
	m := s.newMoving(ctx, conn, hello, 0, server)
	m.ahead.runs, m.ahead.kind = true, frame.Rehearse
	if err := m.awaits(ctx, s.Rehearses, ErrNoRehearsal); err != nil {
		return err
	}
	defer m.forget()
	_, err := m.Round(ctx, 0)
	if err == nil {
		err = m.tried(ctx)
	}
	var said *Refusal
	if errors.As(err, &said) && said.Errno == unix.EADDRNOTAVAIL {
		return fmt.Errorf("gpu server %s: %w: %w", server, ErrCannot, said)
	}
	return err
}

// tried is the other server's answer to all that the session is made of.
func (m *Moving) tried(ctx context.Context) error {
	m.s.parks.mu.Lock()
	m.sent = true // it may answer before send returns
	m.s.parks.mu.Unlock()
	if err := m.out.send(frame.Header{Kind: frame.State}, nil); err != nil {
		// It may have answered, and gone.
		return errors.Join(m.accepted(ctx), fmt.Errorf("gpu server %s: %w", m.server, lost(err)))
	}
	return m.accepted(ctx)
}
