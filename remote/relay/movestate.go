package relay

import (
	"fmt"
	"io"
	"strings"

	"causeway/remote"
	"causeway/remote/frame"
)

// What the first server says of a session that is on its way.

// stateFrame passes on what the server says of the session.
func (s *Session) stateFrame(h frame.Header) error {
	s.parks.mu.Lock()
	m := s.moving
	round := m != nil && m.ahead.due
	due := m != nil && m.asked && !m.ended
	s.parks.mu.Unlock()
	if round {
		return s.roundFrame(m, h)
	}
	refused := h.Flags == frame.Refused
	if !due || h.Arg != 0 || h.Flags != 0 && !refused || refused && h.Len > frame.MaxWhy {
		return remote.Violation("STATE frame of %d bytes with flags %#x", h.Len, h.Flags)
	}
	switch {
	case refused:
		text, err := s.body(h)
		if err == nil {
			s.said(m, s.refusal(text))
		}
		return err
	case h.Len > 0:
		return s.passState(m, int(h.Len))
	}
	s.parks.mu.Lock()
	m.sent = true // the other server may answer before send returns
	s.parks.mu.Unlock()
	if m.out.send(h, nil) != nil {
		s.fails(m)
	}
	s.said(m, nil)
	return nil
}

// body is all of a frame's that is short.
func (s *Session) body(h frame.Header) ([]byte, error) {
	b := make([]byte, h.Len)
	if _, err := io.ReadFull(s.in, b); err != nil {
		return nil, short(err)
	}
	return b, nil
}

// refusal is what the server says against a move.
func (s *Session) refusal(text []byte) error {
	return fmt.Errorf("%s: %w", s.server, &Refusal{Text: strings.ToValidUTF8(string(text), "?")})
}

// passState passes n bytes on, from the stream's buffer.
func (s *Session) passState(m *Moving, n int) error {
	return frame.Body(s.in, n, func(b []byte) error {
		if m.ctx.Err() == nil && m.out.send(frame.Header{Kind: frame.State}, b) != nil {
			s.fails(m)
		}
		return nil
	})
}

// said notes that the server has said all of the session, or why it does not.
func (s *Session) said(m *Moving, why error) {
	s.parks.mu.Lock()
	defer s.parks.mu.Unlock()
	m.ended, m.why = true, why
	close(m.whole)
	select {
	case <-m.decided:
		s.unmoveLocked(m) // it stays: this was waited for
	default:
	}
}

// fails notes that the other server takes nothing more.
func (s *Session) fails(m *Moving) {
	s.parks.mu.Lock()
	defer s.parks.mu.Unlock()
	if !m.broken {
		m.broken = true
		close(m.failed)
	}
}
