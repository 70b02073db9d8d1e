package tcp_test

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"causeway/remote"
	frames "causeway/remote/frame"
	"causeway/remote/tcp"
)

const rehearse = 25

// TestRehearsalAsked: what a session is made of is asked for in the place of the first round, and
// no round goes on behind it; STAY has it forgotten.
func TestRehearsalAsked(t *testing.T) {
	s := open(t)
	for range 2 {
		say(t, s.guest, frame(rehearse, 0, 0, nil))
		r := <-s.Rounds()
		if !r.Made() || !r.First() {
			t.Error("it is a round of memory, or none of its own")
		}
		wrote := make(chan error, 1)
		go func() {
			_, err := r.Write([]byte("a module"))
			wrote <- errors.Join(err, r.End(frames.Round{Looked: 8, Sent: 8}, nil))
		}()
		hears(t, s.guest, 8)
		if kind, flags, _ := hear(t, s.guest); kind != state || flags != frames.Whole {
			t.Errorf("frame of type %d with flags %#x", kind, flags)
		}
		if err := <-wrote; err != nil {
			t.Error(err)
		}
		say(t, s.guest, frame(stay, 0, 0, nil))
		<-r.Over()
	}
	say(t, s.guest, frame(ahead, 0, 1, nil))
	if r := <-s.Rounds(); r.Made() {
		t.Error("a round of memory is to say what the session is made of")
	} else {
		go func() { _ = r.End(frames.Round{}, nil) }()
	}
	hear(t, s.guest)
	_ = s.guest.Close()
	_ = s.ended(t)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestRehearsalRules breaks a rule in each row.
func TestRehearsalRules(t *testing.T) {
	asks := frame(rehearse, 0, 0, nil)
	for name, b := range map[string][]byte{
		"with an argument":     frame(rehearse, 0, 1, nil),
		"with bytes":           frame(rehearse, 0, 0, make([]byte, 8)),
		"flagged":              frame(rehearse, 1, 0, nil),
		"twice":                append(slices.Clone(asks), asks...),
		"behind a round":       append(frame(ahead, 0, 1, nil), asks...),
		"a round behind it":    append(slices.Clone(asks), frame(ahead, 0, 2, nil)...),
		"a round beside it":    append(slices.Clone(asks), frame(ahead, 0, 1, nil)...),
		"goes behind it":       append(slices.Clone(asks), frame(leave, 0, 0, nil)...),
		"behind LEAVE":         append(frame(leave, 0, 0, nil), asks...),
		"again before its end": slices.Concat(asks, frame(stay, 0, 0, nil), asks),
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			go func() { _, _ = s.guest.Write(b) }()
			s.breaks(t)
		})
	}
	t.Run("once it has ended", func(t *testing.T) {
		for name, b := range map[string][]byte{"a round": frame(ahead, 0, 2, nil), "goes": frame(leave, 0, 0, nil), "again": asks} {
			s := open(t)
			say(t, s.guest, asks)
			r := <-s.Rounds()
			go func() { _ = r.End(frames.Round{}, nil) }()
			hear(t, s.guest)
			go func() { _, _ = s.guest.Write(b) }()
			if err := s.ended(t); !errors.Is(err, remote.ErrProtocol) {
				t.Errorf("%s: ended with %v", name, err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			_ = s.guest.Close()
		}
	})
}

// rehearsal is a session that comes to be rehearsed, and is awaited.
func rehearsal(t testing.TB) *session {
	t.Helper()
	b := helloFrame()
	binary.LittleEndian.PutUint16(b[4:], rehearse)
	return comesBy(t, b)
}

// TestRehearsal: a session that comes to be rehearsed says what it is made of, and its ring is
// nowhere; regions are what is said there, each once, and it goes on in no way.
func TestRehearsal(t *testing.T) {
	s := rehearsal(t)
	a, ok := s.Arrival()
	if !ok || !s.Rehearsal() {
		t.Fatal("it begins here, or comes to stay")
	}
	go say(t, s.guest, frame(state, 0, 0, []byte("abc")), frame(state, 0, 0, nil))
	if b, err := io.ReadAll(a); string(b) != "abc" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	if s.Placed() == nil {
		t.Error("its ring is somewhere")
	}
	if err := s.Declare(3, remote.Declared{VA: 1 << 40, Size: 4096}); err != nil || len(s.Declared()) != 2 {
		t.Errorf("%v, %d regions", err, len(s.Declared()))
	}
	for id, d := range map[uint32]remote.Declared{0: {VA: 1 << 40, Size: 4096}, 3: {VA: 1 << 40, Size: 4096}, 4: {VA: 1 << 40}} {
		if err := s.Declare(id, d); !errors.Is(err, remote.ErrProtocol) {
			t.Errorf("region %d of %d bytes: %v", id, d.Size, err)
		}
	}
	answered := make(chan error, 1)
	go func() { answered <- s.Welcome(99, "a variable comes out beside") }()
	if kind, _, _ := hear(t, s.guest); kind != welcome {
		t.Errorf("frame of type %d", kind)
	}
	if err := <-answered; err != nil {
		t.Error(err)
	}
	_ = s.guest.Close()
	_ = s.ended(t)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if c := comes(t); c.Rehearsal() {
		t.Error("one whose memory comes ahead of it is rehearsed")
	} else {
		_, _ = c.guest.Close(), c.ended(t)
		_ = c.Close()
	}
	end := frame(state, 0, 0, nil)
	for name, b := range map[string][]byte{
		"arrives":              frame(arrive, 0, 0, nil),
		"records":              frame(ring, 0, 0, make([]byte, 32)),
		"goes":                 append(slices.Clone(end), frame(leave, 0, 0, nil)...),
		"asks for rounds":      append(slices.Clone(end), frame(ahead, 0, 1, nil)...),
		"asks for a rehearsal": append(slices.Clone(end), frame(rehearse, 0, 0, nil)...),
		"stays":                append(slices.Clone(end), frame(stay, 0, 0, nil)...),
		"more":                 append(slices.Clone(end), frame(state, 0, 0, []byte("abc"))...),
	} {
		t.Run(name, func(t *testing.T) {
			s := rehearsal(t)
			a, _ := s.Arrival()
			_ = a.Close()
			go func() { _, _ = s.guest.Write(b) }()
			s.breaks(t)
		})
	}
	guest, host := net.Pipe()
	go func() {
		b := helloFrame()
		binary.LittleEndian.PutUint16(b[4:], rehearse)
		binary.LittleEndian.PutUint64(b[8:], 8)
		_, _ = guest.Write(b)
		_, _ = io.Copy(io.Discard, guest)
	}()
	if _, err := tcp.Accept(host); !errors.Is(err, remote.ErrProtocol) {
		t.Errorf("at once: %v", err)
	}
	_ = guest.Close()
}

// FuzzRehearsal: a guest's end says whatever it likes of a session that is rehearsed here, or that
// it asks to be told of. The session ends, and nothing is left of it.
func FuzzRehearsal(f *testing.F) {
	f.Add(true, append(frame(state, 0, 0, []byte("abc")), frame(state, 0, 0, nil)...))
	f.Add(true, append(frame(state, 0, 0, nil), frame(leave, 0, 0, nil)...))
	f.Add(true, append(regionFrame(3, 4096), frame(arrive, 0, 64, nil)...))
	f.Add(false, slices.Concat(frame(rehearse, 0, 0, nil), frame(more, 0, 4096, nil), frame(stay, 0, 0, nil)))
	f.Add(false, append(frame(rehearse, 0, 0, nil), frame(ahead, 0, 2, nil)...))
	f.Fuzz(func(t *testing.T, comes bool, b []byte) {
		var s *session
		if comes {
			s = rehearsal(t)
		} else {
			s = open(t)
		}
		over := make(chan struct{})
		go func() {
			defer close(over)
			if a, ok := s.Arrival(); ok {
				_, _ = io.Copy(io.Discard, a)
				if s.Placed() == nil {
					t.Error("its ring is somewhere")
				}
				_ = s.Declare(3, remote.Declared{VA: 1 << 40, Size: 4096})
				<-s.Done()
				return
			}
			for {
				select {
				case r := <-s.Rounds():
					_, err := r.Write(make([]byte, 3<<20))
					_ = r.End(frames.Round{}, err)
				case l := <-s.Leaves():
					<-l.Stays()
				case <-s.Done():
					return
				}
			}
		}()
		go func() { _, _ = io.Copy(io.Discard, s.guest) }()
		_ = s.guest.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = s.guest.Write(b)
		_ = s.guest.Close()
		if err := s.ended(t); err != nil && !errors.Is(err, remote.ErrProtocol) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("ended with %v", err)
		}
		<-over
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}
