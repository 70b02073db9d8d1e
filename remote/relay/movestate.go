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
		text := make([]byte, h.Len)
		if _, err := io.ReadFull(s.in, text); err != nil {
			return short(err)
		}
		s.said(m, fmt.Errorf("%s: %w", s.server, &Refusal{Text: strings.ToValidUTF8(string(text), "?")}))
		return nil
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

// passState passes n bytes on, from the stream's buffer.
func (s *Session) passState(m *Moving, n int) error {
	for n > 0 {
		if s.in.Buffered() == 0 {
			if _, err := s.in.Peek(1); err != nil {
				return short(err)
			}
		}
		b, _ := s.in.Peek(min(n, s.in.Buffered()))
		if m.ctx.Err() == nil && m.out.send(frame.Header{Kind: frame.State}, b) != nil {
			s.fails(m)
		}
		_, _ = s.in.Discard(len(b))
		n -= len(b)
	}
	return nil
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
