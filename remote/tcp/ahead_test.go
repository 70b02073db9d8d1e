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

const ahead, more = 23, 24

func aheadHello() []byte {
	b := helloFrame()
	binary.LittleEndian.PutUint16(b[4:], ahead)
	return b
}

// hears reads frames of STATE up to so many bytes.
func hears(t *testing.T, c net.Conn, n int) {
	t.Helper()
	for n > 0 {
		kind, flags, payload := hear(t, c)
		if kind != state || flags != 0 || len(payload) == 0 || len(payload) > n {
			t.Fatalf("frame of type %d with flags %#x and %d bytes, where %d are to come", kind, flags, len(payload), n)
		}
		n -= len(payload)
	}
}

// TestRounds: rounds of memory are asked for one behind another, and no more of one is sent than
// was granted; LEAVE has the rest follow, and says whether any of it went ahead; STAY has it
// forgotten, also in the middle.
func TestRounds(t *testing.T) {
	s := open(t)
	const all = frames.AheadWindow + 3000
	for n := range uint64(2) {
		say(t, s.guest, frame(ahead, 0, n+1, nil))
		r := <-s.Rounds()
		if r.First() != (n == 0) {
			t.Errorf("round %d is the first: %v", n, r.First())
		}
		wrote := make(chan error, 1)
		go func() {
			_, err := r.Write(make([]byte, all))
			wrote <- err
		}()
		hears(t, s.guest, frames.AheadWindow)
		_ = s.guest.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		if _, err := s.guest.Read(make([]byte, 1)); err == nil {
			t.Error("more comes than was granted")
		}
		_ = s.guest.SetReadDeadline(time.Time{})
		say(t, s.guest, frame(more, 0, 1000, nil))
		hears(t, s.guest, 1000)
		say(t, s.guest, frame(more, 0, frames.AheadWindow, nil))
		hears(t, s.guest, 2000)
		if err := <-wrote; err != nil {
			t.Error(err)
		}
		did := frames.Round{Looked: 7, Sent: 5, Cut: n == 1}
		go func() { wrote <- r.End(did, nil) }()
		kind, flags, payload := hear(t, s.guest)
		if got, err := frames.ParseRound(payload); kind != state || flags != frames.Whole || got != did || err != nil {
			t.Errorf("frame of type %d with flags %#x: %+v, %v", kind, flags, got, err)
		}
		if err := <-wrote; err != nil {
			t.Error(err)
		}
	}
	say(t, s.guest, frame(leave, 0, 0, nil))
	l := <-s.Leaves()
	if !l.Ahead() {
		t.Error("nothing went ahead")
	}
	say(t, s.guest, frame(stay, 0, 0, nil))
	<-l.Stays()
	say(t, s.guest, frame(leave, 0, 0, nil))
	if l = <-s.Leaves(); l.Ahead() {
		t.Error("what was forgotten has gone ahead")
	}
	say(t, s.guest, frame(stay, 0, 0, nil))
	<-l.Stays()

	say(t, s.guest, frame(ahead, 0, 1, nil))
	r := <-s.Rounds()
	wrote := make(chan error, 1)
	go func() {
		_, err := r.Write(make([]byte, all))
		wrote <- err
	}()
	hears(t, s.guest, frames.AheadWindow)
	say(t, s.guest, frame(stay, 0, 0, nil), frame(more, 0, 8, nil)) // which was under way
	if err := <-wrote; !errors.Is(err, tcp.ErrStays) {
		t.Error(err)
	}
	<-r.Over()
	go func() { wrote <- r.End(frames.Round{}, errors.New("in the end not")) }()
	if kind, flags, text := hear(t, s.guest); kind != state || flags != frames.Refused || string(text) != "in the end not" {
		t.Errorf("frame of type %d with flags %#x: %q", kind, flags, text)
	}
	if err := <-wrote; err != nil {
		t.Error(err)
	}
	say(t, s.guest, frame(ahead, 0, 1, nil))
	r = <-s.Rounds()
	_ = s.guest.Close()
	<-r.Over()
	_ = s.ended(t)
	if _, err := r.Write([]byte("more")); err == nil {
		t.Error("somebody takes more")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestRoundsRules breaks a rule in each row.
func TestRoundsRules(t *testing.T) {
	asks := frame(ahead, 0, 1, nil)
	for name, b := range map[string][]byte{
		"not the first":              frame(ahead, 0, 2, nil),
		"none":                       frame(ahead, 0, 0, nil),
		"with bytes":                 frame(ahead, 0, 1, make([]byte, 8)),
		"flagged":                    frame(ahead, 1, 1, nil),
		"two at once":                append(slices.Clone(asks), frame(ahead, 0, 2, nil)...),
		"goes in the middle":         append(slices.Clone(asks), frame(leave, 0, 0, nil)...),
		"behind LEAVE":               append(frame(leave, 0, 0, nil), asks...),
		"stays twice":                slices.Concat(asks, frame(stay, 0, 0, nil), frame(stay, 0, 0, nil)),
		"again before its end":       slices.Concat(asks, frame(stay, 0, 0, nil), asks),
		"grants nothing":             append(slices.Clone(asks), frame(more, 0, 0, nil)...),
		"grants too much":            append(slices.Clone(asks), frame(more, 0, frames.AheadWindow+1, nil)...),
		"grants with bytes":          append(slices.Clone(asks), frame(more, 0, 1, make([]byte, 8))...),
		"grants flagged":             append(slices.Clone(asks), frame(more, 1, 1, nil)...),
		"arrives where it has begun": frame(arrive, 0, 0, nil),
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			go func() { _, _ = s.guest.Write(b) }()
			s.breaks(t)
		})
	}
}

// comes is a session whose memory comes ahead of it, and which is awaited.
func comes(t testing.TB) *session {
	t.Helper()
	return comesBy(t, aheadHello())
}

// comesBy is a session that begins by something else than a hello, and is awaited.
func comesBy(t testing.TB, says []byte) *session {
	t.Helper()
	guest, host := net.Pipe()
	heard := make(chan error, 1)
	go func() {
		_, err := guest.Write(says)
		b := make([]byte, 16)
		if _, failed := io.ReadFull(guest, b); err == nil {
			err = failed
		}
		if err == nil && !slices.Equal(b, frame(more, 0, 0, nil)) {
			err = errors.New("it is not awaited")
		}
		heard <- err
	}()
	c, err := tcp.Accept(host)
	if err = errors.Join(err, <-heard); err != nil {
		t.Fatal(err)
	}
	return &session{c, guest}
}

// TestArriveBehind: a session whose memory comes ahead of it says behind that where its ring is,
// which takes records from there on.
func TestArriveBehind(t *testing.T) {
	const head = 3*remote.RingSize + 64
	s := comes(t)
	a, ok := s.Arrival()
	if !ok || s.Placed() == nil {
		t.Fatal("it begins here, or where its ring is is known")
	}
	rec := make([]byte, 32)
	binary.LittleEndian.PutUint32(rec, 32)
	go say(t, s.guest, frame(state, 0, 0, []byte("abc")), frame(arrive, 0, head, nil), regionFrame(3, 4096), frame(state, 0, 0, []byte("def")), frame(state, 0, 0, nil), frame(ring, 0, head, rec))
	if b, err := io.ReadAll(a); string(b) != "abcdef" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	if err := s.Placed(); err != nil || s.Ring().Head() != head || len(s.Declared()) != 2 {
		t.Errorf("%v, at %d, %d regions", err, s.Ring().Head(), len(s.Declared()))
	}
	var in remote.Incoming
	for !s.Ring().Poll(1000) {
	}
	if ok, err := s.Ring().Next(&in); !ok || err != nil {
		t.Error(ok, err)
	}
	_ = s.guest.Close()
	_ = s.ended(t)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	at := frame(arrive, 0, head, nil)
	for name, b := range map[string][]byte{
		"twice":                   append(slices.Clone(at), at...),
		"in the middle of a word": frame(arrive, 0, head+4, nil),
		"with bytes":              frame(arrive, 0, head, rec),
		"flagged":                 frame(arrive, 1, head, nil),
		"records before":          frame(ring, 0, 0, rec),
		"behind all of it":        append(frame(state, 0, 0, nil), at...),
		"asks for rounds":         frame(ahead, 0, 1, nil),
		"grants":                  frame(more, 0, 8, nil),
		"goes":                    frame(leave, 0, 0, nil),
		"stays":                   frame(stay, 0, 0, nil),
	} {
		t.Run(name, func(t *testing.T) {
			s := comes(t)
			a, _ := s.Arrival()
			_ = a.Close()
			go func() { _, _ = s.guest.Write(b) }()
			s.breaks(t)
		})
	}
	guest, host := net.Pipe()
	go func() {
		b := aheadHello()
		binary.LittleEndian.PutUint64(b[8:], 8)
		_, _ = guest.Write(b)
		_, _ = io.Copy(io.Discard, guest)
	}()
	if _, err := tcp.Accept(host); !errors.Is(err, remote.ErrProtocol) {
		t.Errorf("at once: %v", err)
	}
	_ = guest.Close()
}

// FuzzRounds: a guest's end says whatever it likes while a worker sends it rounds, or takes those
// that it brings. The session ends, and nothing is left of it.
func FuzzRounds(f *testing.F) {
	f.Add(false, slices.Concat(frame(ahead, 0, 1, nil), frame(more, 0, 4096, nil), frame(stay, 0, 0, nil)))
	f.Add(false, slices.Concat(frame(ahead, 0, 1, nil), frame(leave, 0, 0, nil)))
	f.Add(false, slices.Concat(frame(leave, 0, 0, nil), frame(stay, 0, 0, nil), frame(ahead, 0, 1, nil)))
	f.Add(true, slices.Concat(frame(state, 0, 0, []byte("abc")), frame(arrive, 0, 64, nil), frame(state, 0, 0, nil), frame(leave, 0, 64, nil)))
	f.Add(true, slices.Concat(frame(state, 0, 0, nil), frame(arrive, 0, 64, nil)))
	f.Fuzz(func(t *testing.T, arrives bool, b []byte) {
		var s *session
		if arrives {
			s = comes(t)
		} else {
			s = open(t)
		}
		over := make(chan struct{})
		go func() {
			defer close(over)
			if a, ok := s.Arrival(); ok {
				_, _ = io.Copy(io.Discard, a)
				if s.Placed() == nil {
					_ = s.Ring().Head()
				}
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
