package tcp_test

import (
	"bytes"
	"context"
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

const (
	hello, welcome, region, regionEnd, ring, slot = 1, 2, 3, 4, 5, 7
	read, data                                    = 10, 11
)

func frame(kind, flags uint16, arg uint64, payload []byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(payload)))
	b = binary.LittleEndian.AppendUint16(b, kind)
	b = binary.LittleEndian.AppendUint16(b, flags)
	b = binary.LittleEndian.AppendUint64(b, arg)
	return append(b, payload...)
}

func helloFrame() []byte {
	return frame(hello, 0, 0, remote.FormatHello(remote.Hello{Type: remote.MsgHello, Va: 1 << 40, Size: remote.Region0Size}, ""))
}

func regionFrame(id uint32, size uint64) []byte {
	return frame(region, 0, uint64(id), remote.FormatHello(remote.Hello{Type: remote.MsgRegion, Region: id, Va: 1 << 41, Size: size}, ""))
}

// session is the host's end of a connection whose guest end the test plays.
type session struct {
	*tcp.Carrier
	guest net.Conn
}

func open(t testing.TB) *session {
	t.Helper()
	guest, host := net.Pipe()
	return openOn(t, guest, host)
}

// openOn is open over a stream, whose other end is the guest's.
func openOn(t testing.TB, guest net.Conn, host net.Conn) *session {
	t.Helper()
	go func() { _, _ = guest.Write(helloFrame()) }()
	c, err := tcp.Accept(host)
	if err != nil {
		t.Fatal(err)
	}
	return &session{c, guest}
}

// breaks waits until the session has ended, as its guest's end broke a rule.
func (s *session) breaks(t testing.TB) {
	t.Helper()
	if err := s.ended(t); !errors.Is(err, remote.ErrProtocol) {
		t.Errorf("ended with %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	_ = s.guest.Close()
}

func (s *session) ended(t testing.TB) error {
	t.Helper()
	select {
	case <-s.Done():
		return s.Err()
	case <-time.After(time.Minute):
		t.Fatal("session goes on")
		return nil
	}
}

// TestRules breaks a rule in each row; the session ends and says so.
func TestRules(t *testing.T) {
	record := make([]byte, 32)
	for name, b := range map[string][]byte{
		"unknown frame":        frame(99, 0, 0, nil),
		"a host's frame":       frame(slot, 0, 0, make([]byte, 16)),
		"second hello":         helloFrame(),
		"frame too long":       {0, 0, 0x20, 0, ring, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		"ring gap":             frame(ring, 0, 32, record),
		"ring empty":           frame(ring, 0, 0, nil),
		"ring odd":             frame(ring, 0, 0, record[:31]),
		"ring overrun":         frame(ring, 0, 0, make([]byte, remote.RingSize+32)),
		"data unasked":         frame(data, 0, 1, record),
		"region twice":         append(regionFrame(1, 4096), regionFrame(1, 4096)...),
		"region 0":             regionFrame(0, 4096),
		"region empty":         regionFrame(1, 0),
		"region short":         frame(region, 0, 1, record),
		"region ends unknown":  frame(regionEnd, 0, 7, nil),
		"region 0 ends":        frame(regionEnd, 0, 0, nil),
		"region far away ends": append(regionFrame(1, 4096), frame(regionEnd, 0, 1<<32|1, nil)...),
		"grant over TCP":       append(regionFrame(1, 4096), grantFrame(1, 4096)...),
		"recall over TCP":      frame(recall, 0, 0, nil),
		"region other than id": frame(region, 0, 2, remote.FormatHello(remote.Hello{Type: remote.MsgRegion, Region: 1, Size: 4096}, "")),
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			go func() { _, _ = s.guest.Write(b) }()
			s.breaks(t)
		})
	}
}

// TestHandshakes that fail tell the guest why.
func TestHandshakes(t *testing.T) {
	for name, b := range map[string][]byte{
		"no hello": frame(ring, 0, 0, make([]byte, 32)),
		"version":  bytes.Replace(helloFrame(), binary.LittleEndian.AppendUint32(nil, remote.ProtocolVersion), []byte{9, 0, 0, 0}, 1),
		"size":     frame(hello, 0, 0, remote.FormatHello(remote.Hello{Type: remote.MsgHello, Size: 4096}, "")),
	} {
		guest, host := net.Pipe()
		got := make(chan []byte, 1)
		go func() {
			_, _ = guest.Write(b)
			answer, _ := io.ReadAll(guest)
			got <- answer
		}()
		if _, err := tcp.Accept(host); !errors.Is(err, remote.ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
		answer := <-got
		if len(answer) < 16+remote.HelloSize || binary.LittleEndian.Uint16(answer[4:]) != welcome {
			t.Errorf("%s: answered by %d bytes", name, len(answer))
		}
		_ = guest.Close()
	}
}

// TestRead asks for more than one READ may carry; the answers come in pieces, and one is refused.
func TestRead(t *testing.T) {
	s := open(t)
	const size = 40 << 20
	go func() {
		_, _ = s.guest.Write(regionFrame(3, size))
		for {
			var h [16 + 24]byte
			if _, err := io.ReadFull(s.guest, h[:]); err != nil {
				return
			}
			id, off, n := binary.LittleEndian.Uint64(h[8:]), binary.LittleEndian.Uint64(h[24:]), binary.LittleEndian.Uint64(h[32:])
			if off == 1 {
				_, _ = s.guest.Write(frame(data, 1, id, nil))
				continue
			}
			for n > 0 {
				part := min(n, 1<<20)
				_, _ = s.guest.Write(frame(data, 0, id, bytes.Repeat([]byte{byte(off >> 20)}, int(part))))
				off, n = off+part, n-part
			}
		}
	}()
	m := s.Memory()
	if d, err := m.Await(context.Background(), 3); err != nil || d.Size != size {
		t.Fatal(d, err)
	}
	p := make([]byte, size)
	if err := m.ReadAt(3, p, 0); err != nil {
		t.Fatal(err)
	}
	for i := 0; i < size; i += 1 << 20 {
		if p[i] != byte(i>>20) || p[i+1<<20-1] != byte(i>>20) {
			t.Fatalf("wrong bytes at %#x", i)
		}
	}
	if err := m.ReadAt(3, p[:1], 1); !errors.Is(err, remote.ErrOutOfBounds) {
		t.Errorf("refused read: %v", err)
	}
	if err := m.ReadAt(3, p, 5); !errors.Is(err, remote.ErrOutOfBounds) {
		t.Errorf("read beyond the region: %v", err)
	}
	if err := m.WriteAt(0, p[:1], 0); !errors.Is(err, remote.ErrUnknownRegion) {
		t.Errorf("write to region 0: %v", err)
	}
	_ = s.guest.Close()
	_ = s.ended(t)
	if err := m.ReadAt(3, p[:1], 0); !errors.Is(err, remote.ErrClosed) {
		t.Errorf("read after the end: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// FuzzFrames: after the hello a guest sends whatever it likes. The session ends, and nothing is
// left of it.
func FuzzFrames(f *testing.F) {
	f.Add(frame(ring, 0, 0, make([]byte, 64)))
	f.Add(append(regionFrame(1, 4096), frame(regionEnd, 0, 1, nil)...))
	f.Add(append(regionFrame(1, 4096), frame(data, 0, 1, make([]byte, 16))...))
	f.Add(frame(ring, 0, 8, make([]byte, 64)))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, ring, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add(append(regionFrame(1, 4096), grantFrame(1, 4096)...))
	f.Add(append(regionFrame(1, 4096), wideGrant...))
	f.Add(slices.Concat(regionFrame(1, 4096), grantFrame(1, 4096), frame(recall, 0, 0, nil), grantFrame(1, 4096)))
	f.Fuzz(func(t *testing.T, b []byte) {
		guest, host := net.Pipe()
		s := openOn(t, guest, &reachingPipe{Conn: host})
		// A request of the host's is in flight, so that DATA frames mean something.
		waiting := make(chan struct{})
		go func() {
			defer close(waiting)
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
			defer cancel()
			if d, err := s.Memory().Await(ctx, 1); err == nil {
				_ = s.Memory().ReadAt(1, make([]byte, min(d.Size, 4096)), 0)
			}
		}()
		go func() { _, _ = io.Copy(io.Discard, s.guest) }()
		walked := make(chan struct{})
		go func() {
			defer close(walked)
			walk(t, s)
		}()
		_ = s.guest.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = s.guest.Write(b)
		_ = s.guest.Close()
		err := s.ended(t)
		<-waiting
		<-walked
		if err != nil && !errors.Is(err, remote.ErrProtocol) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("ended with %v", err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// walk consumes what comes in the ring until the session ends, and looks at each record beforehand:
// it is the one that is delivered then, and where nothing is delivered nothing is seen.
func walk(t testing.TB, s *session) {
	r := s.Ring()
	far := r.(remote.Foresight)
	for end := false; !end; {
		select {
		case <-s.Done():
			end = true
		default:
		}
		for at := r.Head(); ; {
			var seen, in remote.Incoming
			next, known := far.Behind(at, &seen)
			ok, err := r.Next(&in)
			if err != nil || !ok {
				if known && err != nil {
					t.Errorf("a record was seen that cannot be: %v", err)
				}
				end = end || err != nil
				break
			}
			if known && (seen.Op != in.Op || seen.Flags != in.Flags || seen.Slot != in.Slot || seen.Seq != in.Seq || seen.Ctx != in.Ctx || seen.Thread != in.Thread || !bytes.Equal(seen.Bytes, in.Bytes)) {
				t.Errorf("seen %+v, delivered %+v", seen, in)
			}
			r.Advance()
			if at = r.Head(); known && next != at {
				t.Errorf("the next was seen at %d and is at %d", next, at)
			}
		}
	}
}

// TestBehind: all records that wait are seen, in their order, up to one that cannot be.
func TestBehind(t *testing.T) {
	s := open(t)
	var b []byte
	for i, size := range []int{32, 64, 40, 32} {
		rec := make([]byte, size)
		binary.LittleEndian.PutUint32(rec[remote.RecordSizeOffset:], uint32(size))
		binary.LittleEndian.PutUint16(rec[remote.RecordOpOffset:], uint16(10+i))
		binary.LittleEndian.PutUint32(rec[remote.RecordThreadOffset:], uint32(i))
		b = append(b, rec...)
	}
	b = append(b, make([]byte, 64)...) // no record
	if _, err := s.guest.Write(frame(ring, 0, 0, b)); err != nil {
		t.Fatal(err)
	}
	for !s.Ring().Poll(1000) {
	}
	var in remote.Incoming
	far, at, sizes := s.Ring().(remote.Foresight), uint64(0), []int(nil)
	for {
		next, ok := far.Behind(at, &in)
		if !ok {
			break
		}
		if int(in.Op) != 10+len(sizes) || int(in.Thread) != len(sizes) {
			t.Errorf("%+v at %d", in, at)
		}
		sizes, at = append(sizes, len(in.Bytes)), next
	}
	if !slices.Equal(sizes, []int{32, 64, 40, 32}) {
		t.Error(sizes)
	}
	if _, err := s.Ring().Next(&in); err != nil {
		t.Fatal(err)
	}
	s.Ring().Advance()
	if _, ok := far.Behind(0, &in); ok {
		t.Error("what is consumed is seen")
	}
	_ = s.guest.Close()
	_ = s.ended(t)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

var _ = read
