package tcp_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"causeway/remote"
	"causeway/remote/remotetest"
	"causeway/remote/tcp"
)

// openForked is open over a stream with n branches, which the guest's end has begun.
func openForked(t testing.TB, n int) (*session, []*remotetest.Fork) {
	t.Helper()
	guest, host := net.Pipe()
	go func() { _, _ = guest.Write(helloFrame()) }()
	f := remotetest.NewForked(host, n)
	c, err := tcp.AcceptWide(f, n)
	if err != nil {
		t.Fatal(err)
	}
	f.Begin()
	return &session{c, guest}, f.Forks
}

// asked begins a copy of n bytes from region 1, which the guest's end answers by nothing, and
// returns the READs that it is asked for.
func (s *session) asked(t testing.TB, n int) (ids []uint64, done chan error) {
	t.Helper()
	done = make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_, err := s.Memory().Await(ctx, 1)
		if err == nil {
			err = s.Memory().ReadAt(1, make([]byte, n), 0)
		}
		done <- err
	}()
	if _, err := s.guest.Write(regionFrame(1, 1<<20)); err != nil {
		t.Fatal(err)
	}
	for left := n; left > 0; {
		var h [16 + 24]byte
		if _, err := io.ReadFull(s.guest, h[:]); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, binary.LittleEndian.Uint64(h[8:]))
		left -= int(binary.LittleEndian.Uint64(h[32:]))
	}
	go func() { _, _ = io.Copy(io.Discard, s.guest) }()
	return ids, done
}

// branchRules are frames that break a rule where they come on a branch while READs 1 and 2, of 256
// KiB each, wait for their answers.
func branchRules() map[string][]byte {
	return map[string][]byte{
		"ring":               frame(ring, 0, 0, make([]byte, 32)),
		"region":             regionFrame(2, 4096),
		"data unasked":       frame(data, 0, 99, make([]byte, 32)),
		"data of nothing":    frame(data, 0, 1, nil),
		"refused with bytes": frame(data, 1, 1, make([]byte, 32)),
		"more than asked":    append(append(frame(data, 0, 1, make([]byte, 256<<10)), frame(data, 0, 2, make([]byte, 256<<10-1))...), frame(data, 0, 2, make([]byte, 2))...),
		"frame too long":     {0, 0, 0x20, 0, data, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0},
	}
}

// TestBranchRules: a guest's end that breaks a rule on a branch ends the session, which says so.
func TestBranchRules(t *testing.T) {
	for name, b := range branchRules() {
		t.Run(name, func(t *testing.T) {
			s, forks := openForked(t, 1)
			_, done := s.asked(t, 512<<10)
			go func() { _, _ = forks[0].Far.Write(b) }()
			if err := s.ended(t); !errors.Is(err, remote.ErrProtocol) {
				t.Errorf("ended with %v", err)
			}
			if err := <-done; err == nil {
				t.Error("the copy is said to be done")
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			_ = s.guest.Close()
		})
	}
}

// TestReadOfTwo: what one stream has begun to answer another does not go on with.
func TestReadOfTwo(t *testing.T) {
	s, forks := openForked(t, 2)
	ids, done := s.asked(t, 256<<10)
	for _, f := range forks {
		if _, err := f.Far.Write(frame(data, 0, ids[0], make([]byte, 1000))); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.ended(t); !errors.Is(err, remote.ErrProtocol) {
		t.Errorf("ended with %v", err)
	}
	if err := <-done; err == nil {
		t.Error("the copy is said to be done")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	_ = s.guest.Close()
}

// TestWriteBeside: WRITEs go by branches that have a connection, and over the first stream while
// none has.
func TestWriteBeside(t *testing.T) {
	s, forks := openForked(t, 2)
	if _, err := s.guest.Write(regionFrame(1, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Memory().Await(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	p := bytes.Repeat([]byte("bytes..."), 128<<10/8)
	for name, c := range map[string]struct {
		away [2]bool
		to   net.Conn
	}{"the second": {[2]bool{true, false}, forks[1].Far}, "the first": {[2]bool{false, true}, forks[0].Far}, "none": {[2]bool{true, true}, s.guest}} {
		for n, away := range c.away {
			forks[n].SetAway(away)
		}
		done := make(chan error, 1)
		go func() {
			err := s.Memory().WriteAt(1, p, 0)
			s.Ring().Complete(1, 1) // on the first stream, behind what it tells of branches
			done <- err
		}()
		got := make([]byte, 16+24+len(p))
		_ = c.to.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.ReadFull(c.to, got); err != nil || !bytes.Equal(got[40:], p) {
			t.Fatalf("%s: %v", name, err)
		}
		rest := make([]byte, 32)
		if c.to == s.guest {
			rest = rest[:16]
		}
		if _, err := io.ReadFull(s.guest, rest); err != nil || len(rest) == 32 && rest[4] != 15 || rest[len(rest)-12] != 8 {
			t.Errorf("%s: % x, %v", name, rest, err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	_ = s.guest.Close()
	_ = s.ended(t)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// FuzzBranchFrames: a guest's end says whatever it likes on a branch. The session ends, and nothing
// is left of it.
func FuzzBranchFrames(f *testing.F) {
	for _, b := range branchRules() {
		f.Add(b[:min(len(b), 4096)])
	}
	f.Add(frame(data, 1, 1, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, forks := openForked(t, 1)
		_, done := s.asked(t, 512<<10)
		_ = forks[0].Far.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = forks[0].Far.Write(b)
		_ = forks[0].Far.Close()
		_ = s.guest.Close()
		if err := s.ended(t); err != nil && !errors.Is(err, remote.ErrProtocol) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("ended with %v", err)
		}
		<-done
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}
