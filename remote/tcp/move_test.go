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
	"causeway/remote/tcp"
)

const arrive, leave, state, stay = 19, 20, 21, 22

func arriveFrame(head uint64) []byte {
	b := helloFrame()
	binary.LittleEndian.PutUint16(b[4:], arrive)
	binary.LittleEndian.PutUint64(b[8:], head)
	return b
}

// hear reads a frame.
func hear(t testing.TB, c net.Conn) (kind, flags uint16, payload []byte) {
	t.Helper()
	var h [16]byte
	if _, err := io.ReadFull(c, h[:]); err != nil {
		t.Fatal(err)
	}
	payload = make([]byte, binary.LittleEndian.Uint32(h[:]))
	if _, err := io.ReadFull(c, payload); err != nil {
		t.Fatal(err)
	}
	return binary.LittleEndian.Uint16(h[4:]), binary.LittleEndian.Uint16(h[6:]), payload
}

func say(t testing.TB, c net.Conn, b ...[]byte) {
	t.Helper()
	if _, err := c.Write(slices.Concat(b...)); err != nil {
		t.Error(err)
	}
}

// TestLeave: a guest's end that wants to go elsewhere is heard when all of its records are
// consumed, and is told what the session is made of, or why not; when it stays, or has gone, that
// is said, and who stays sends records again.
func TestLeave(t *testing.T) {
	s := open(t)
	rec := make([]byte, 32)
	binary.LittleEndian.PutUint32(rec, 32)
	for turn := range uint64(2) {
		say(t, s.guest, frame(ring, 0, turn*32, rec), frame(leave, 0, (turn+1)*32, nil))
		l := <-s.Leaves()
		var in remote.Incoming
		if ok, err := s.Ring().Next(&in); !ok || err != nil {
			t.Fatal(ok, err)
		}
		select {
		case <-l.Empty():
			t.Error("a record was not consumed")
		default:
		}
		s.Ring().Advance()
		<-l.Empty()
		go func() {
			_, err := l.Write(make([]byte, 600<<10))
			if err == nil {
				err = l.End(nil)
			}
			if err == nil {
				err = l.End(errors.New("in the end not"))
			}
			if err != nil {
				t.Error(err)
			}
		}()
		got, ends := 0, 0
		for ends < 2 {
			kind, flags, payload := hear(t, s.guest)
			switch {
			case kind != state:
				t.Fatalf("frame of type %d", kind)
			case flags == 1 && string(payload) != "in the end not", flags > 1:
				t.Errorf("refused: %q", payload)
			case flags == 1 || len(payload) == 0:
				ends++
			default:
				got += len(payload)
			}
		}
		if got != 600<<10 {
			t.Errorf("%d bytes came", got)
		}
		if turn == 1 {
			_ = s.guest.Close()
		} else {
			say(t, s.guest, frame(stay, 0, 0, nil))
		}
		<-l.Stays()
		if n, err := l.Write([]byte("more")); n != 0 || !errors.Is(err, tcp.ErrStays) {
			t.Errorf("%d bytes more, %v", n, err)
		}
	}
	_ = s.ended(t)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestLeaveRules breaks a rule in each row.
func TestLeaveRules(t *testing.T) {
	rec := make([]byte, 32)
	binary.LittleEndian.PutUint32(rec, 32)
	for name, b := range map[string][]byte{
		"elsewhere":           frame(leave, 0, 8, nil),
		"with bytes":          frame(leave, 0, 0, rec),
		"flagged":             frame(leave, 1, 0, nil),
		"twice":               append(frame(leave, 0, 0, nil), frame(leave, 0, 0, nil)...),
		"records":             append(frame(leave, 0, 0, nil), frame(ring, 0, 0, rec)...),
		"stays unasked":       frame(stay, 0, 0, nil),
		"stays with bytes":    append(frame(leave, 0, 0, nil), frame(stay, 0, 0, rec)...),
		"state unasked":       frame(state, 0, 0, rec),
		"state's end unasked": frame(state, 0, 0, nil),
		"arrives later":       arriveFrame(0),
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			go func() { _, _ = s.guest.Write(b) }()
			s.breaks(t)
		})
	}
}

// opens is open for a guest's end that begins with some bytes, and may go on.
func opens(t testing.TB, b []byte) (*session, error) {
	guest, host := net.Pipe()
	go func() { _, _ = guest.Write(b) }()
	c, err := tcp.Accept(host)
	return &session{c, guest}, err
}

// TestArrive: a session that comes begins at its place in the ring with its regions, and is told
// what it is made of; who does not want that has the rest passed over. STATE behind its end, and
// going away before it, break a rule.
func TestArrive(t *testing.T) {
	const head = 3*remote.RingSize + 64
	s, err := opens(t, arriveFrame(head))
	if err != nil {
		t.Fatal(err)
	}
	a, ok := s.Arrival()
	if !ok {
		t.Fatal("it begins here")
	}
	rec := make([]byte, 32)
	binary.LittleEndian.PutUint32(rec, 32)
	go say(t, s.guest, regionFrame(3, 4096), frame(state, 0, 0, []byte("abc")), frame(state, 0, 0, []byte("def")), frame(state, 0, 0, nil), frame(ring, 0, head, rec))
	if b, err := io.ReadAll(a); string(b) != "abcdef" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	if all := s.Declared(); len(all) != 2 || all[3].Size != 4096 {
		t.Errorf("%+v", all)
	}
	var in remote.Incoming
	for !s.Ring().Poll(1000) {
	}
	if ok, err := s.Ring().Next(&in); !ok || err != nil || s.Ring().Head() != head {
		t.Errorf("%v, %v at %d", ok, err, s.Ring().Head())
	}
	_ = s.guest.Close()
	_ = s.ended(t)
	if err := s.Close(); err != nil {
		t.Error(err)
	}

	for name, b := range map[string][]byte{
		"state behind its end": slices.Concat(frame(state, 0, 0, nil), frame(state, 0, 0, nil)),
		"goes before it came":  frame(leave, 0, head, nil),
		"flagged":              frame(state, 1, 0, []byte("no")),
		"elsewhere":            slices.Concat(frame(state, 0, 0, nil), frame(ring, 0, 0, rec)),
		"passed over":          slices.Concat(frame(state, 0, 0, make([]byte, 1<<20)), frame(99, 0, 0, nil)),
	} {
		t.Run(name, func(t *testing.T) {
			s, err := opens(t, slices.Concat(arriveFrame(head), b))
			if err != nil {
				t.Fatal(err)
			}
			a, _ := s.Arrival()
			_ = a.Close()
			s.breaks(t)
		})
	}
	guest, host := net.Pipe()
	go func() {
		_, _ = guest.Write(arriveFrame(head + 4))
		_, _ = io.Copy(io.Discard, guest)
	}()
	if _, err := tcp.Accept(host); !errors.Is(err, remote.ErrProtocol) {
		t.Errorf("in the middle of a record: %v", err)
	}
	_ = guest.Close()
}

// TestArriveEnds: a session that comes and is closed before anybody wants what it is made of ends
// all the same, as does one whose connection is lost.
func TestArriveEnds(t *testing.T) {
	s, err := opens(t, append(arriveFrame(0), frame(state, 0, 0, make([]byte, 1<<20))...))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	_ = s.guest.Close()
	if s, err = opens(t, append(arriveFrame(0), frame(state, 0, 0, []byte("abc"))...)); err != nil {
		t.Fatal(err)
	}
	a, _ := s.Arrival()
	var b [3]byte
	if _, err := io.ReadFull(a, b[:]); err != nil {
		t.Error(err)
	}
	_ = s.guest.Close()
	if n, err := a.Read(b[:]); n != 0 || !errors.Is(err, remote.ErrClosed) {
		t.Errorf("%d bytes, %v", n, err)
	}
	_ = s.ended(t)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// FuzzArrival: a guest's end whose session comes says whatever it likes. The session ends, and
// nothing is left of it.
func FuzzArrival(f *testing.F) {
	f.Add(frame(state, 0, 0, []byte("abc")))
	f.Add(append(frame(state, 0, 0, nil), frame(leave, 0, 64, nil)...))
	f.Add(slices.Concat(regionFrame(1, 4096), frame(state, 0, 0, nil), frame(leave, 0, 64, nil), frame(stay, 0, 0, nil), frame(leave, 0, 64, nil)))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := opens(t, arriveFrame(64))
		if err != nil {
			t.Fatal(err)
		}
		a, _ := s.Arrival()
		read := make(chan struct{})
		go func() { _, _ = io.Copy(io.Discard, a); close(read) }()
		_ = s.guest.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = s.guest.Write(b)
		_ = s.guest.Close()
		if err := s.ended(t); err != nil && !errors.Is(err, remote.ErrProtocol) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("ended with %v", err)
		}
		<-read
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}
