package tcp_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"causeway/remote"
)

// TestReadsGoOn: of reads one after the other some are refused, whole or in the middle of their
// answer; those behind them get their own bytes.
func TestReadsGoOn(t *testing.T) {
	s := open(t)
	const size = 4096
	go func() {
		_, _ = s.guest.Write(regionFrame(3, size))
		for n := 0; ; n++ {
			var h [16 + 24]byte
			if _, err := io.ReadFull(s.guest, h[:]); err != nil {
				return
			}
			id, length := binary.LittleEndian.Uint64(h[8:]), int(binary.LittleEndian.Uint64(h[32:]))
			if n%3 == 2 {
				_, _ = s.guest.Write(frame(data, 0, id, make([]byte, length/2)))
			}
			if n%3 != 0 {
				_, _ = s.guest.Write(frame(data, 1, id, nil))
				continue
			}
			_, _ = s.guest.Write(frame(data, 0, id, bytes.Repeat([]byte{byte(n)}, length)))
		}
	}()
	m := s.Memory()
	if _, err := m.Await(context.Background(), 3); err != nil {
		t.Fatal(err)
	}
	for n := range 9 {
		p := make([]byte, 64)
		err := m.ReadAt(3, p, 0)
		if refused := n%3 != 0; refused != errors.Is(err, remote.ErrOutOfBounds) || !refused && (err != nil || p[0] != byte(n) || p[63] != byte(n)) {
			t.Fatalf("read %d: %v, %v", n, err, p)
		}
	}
	_ = s.guest.Close()
	_ = s.ended(t)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestHeadsInQuarters: the guest is told what was consumed once per quarter of the ring, as often
// as it fills it.
func TestHeadsInQuarters(t *testing.T) {
	s := open(t)
	const size, turns = 64 << 10, 3
	heads := make(chan uint64, 100)
	go func() {
		defer close(heads)
		for {
			var h [16]byte
			if _, err := io.ReadFull(s.guest, h[:]); err != nil {
				return
			}
			heads <- binary.LittleEndian.Uint64(h[8:])
		}
	}()
	rec, told := make([]byte, size), uint64(0)
	binary.LittleEndian.PutUint32(rec, size)
	for at := uint64(0); at < turns*remote.RingSize; at += size {
		if _, err := s.guest.Write(frame(ring, 0, at, rec)); err != nil {
			t.Fatal(err)
		}
		for ok := false; !ok; {
			var in remote.Incoming
			var err error
			if ok, err = s.Ring().Next(&in); err != nil {
				t.Fatal(err)
			}
		}
		s.Ring().Advance()
		if head := at + size; head-told == remote.RingSize/4 {
			if told = <-heads; told != head {
				t.Fatalf("told of %d at %d", told, head)
			}
		}
	}
	_ = s.guest.Close()
	_ = s.ended(t)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for head := range heads {
		t.Errorf("told of %d besides", head)
	}
}

// lookedAt is a context that says when somebody is about to wait for its end.
type lookedAt struct {
	context.Context
	by chan struct{}
}

func (l lookedAt) Done() <-chan struct{} {
	select {
	case l.by <- struct{}{}:
	default:
	}
	return l.Context.Done()
}

// TestAwaitEndsWithTheStream: who waits for a region hears that the stream is at its end.
func TestAwaitEndsWithTheStream(t *testing.T) {
	s := open(t)
	ctx := lookedAt{context.Background(), make(chan struct{}, 1)}
	heard := make(chan error, 1)
	go func() {
		_, err := s.Memory().Await(ctx, 99)
		heard <- err
	}()
	<-ctx.by
	if err := s.guest.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-heard; err == nil {
		t.Error("it is there")
	}
}
