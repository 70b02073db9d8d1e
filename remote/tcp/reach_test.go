package tcp_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"slices"
	"testing"

	"causeway/remote"
	frames "causeway/remote/frame"
)

const grant, recall, recalled = 16, 17, 18

// wideGrant is a grant of region 1 with keys of further adapters.
var wideGrant = frame(grant, 0, 1, frames.Granted{Size: 4096, More: [3]frames.Key{{Is: true}, {}, {Is: true}}}.Append(nil))

func grantFrame(id uint32, size uint64) []byte {
	return frame(grant, 0, uint64(id), frames.Granted{Address: 1 << 41, Size: size, Key: 7}.Append(nil))
}

// reachingPipe is a stream whose other end's memory this end reaches, as far as it says so.
type reachingPipe struct {
	net.Conn
	reached func(p []byte, g frames.Granted, off uint64, write bool) error // nil: all is zero
}

func (r *reachingPipe) Reaches() bool { return true }

func (r *reachingPipe) Fetch(p []byte, g frames.Granted, off uint64) error {
	return r.reach(p, g, off, false)
}

func (r *reachingPipe) Store(p []byte, g frames.Granted, off uint64) error {
	return r.reach(p, g, off, true)
}

func (r *reachingPipe) reach(p []byte, g frames.Granted, off uint64, write bool) error {
	if r.reached == nil {
		clear(p)
		return nil
	}
	return r.reached(p, g, off, write)
}

// TestGrantRules breaks a rule in each row, where region 1 has 4096 bytes.
func TestGrantRules(t *testing.T) {
	for name, b := range map[string][]byte{
		"short":          frame(grant, 0, 1, make([]byte, frames.GrantSize-1)),
		"long":           frame(grant, 0, 1, make([]byte, frames.GrantSize+1)),
		"twice, wide":    append(grantFrame(1, 4096), wideGrant...),
		"of region 0":    grantFrame(0, remote.Region0Size),
		"of none":        grantFrame(2, 4096),
		"far away":       frame(grant, 0, 1<<32|1, frames.Granted{Size: 4096}.Append(nil)),
		"of fewer bytes": grantFrame(1, 4095),
		"of more bytes":  grantFrame(1, 8192),
		"twice":          append(grantFrame(1, 4096), grantFrame(1, 4096)...),
		"around":         frame(grant, 0, 1, frames.Granted{Address: ^uint64(0) - 4094, Size: 4096}.Append(nil)),
		"of adapter 4":   frame(grant, 0, 1, append(frames.Granted{Size: 4096}.Append(nil), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0)),
		"half a key":     frame(grant, 0, 1, append(frames.Granted{Size: 4096}.Append(nil), make([]byte, 8)...)),
		"recall bytes":   frame(recall, 0, 0, make([]byte, 8)),
		"recall of one":  frame(recall, 0, 1, nil),
		"an answer":      frame(recalled, 0, 0, nil),
	} {
		t.Run(name, func(t *testing.T) {
			guest, host := net.Pipe()
			s := openOn(t, guest, &reachingPipe{Conn: host})
			go func() { _, _ = guest.Write(append(regionFrame(1, 4096), b...)) }()
			if err := s.ended(t); !errors.Is(err, remote.ErrProtocol) {
				t.Errorf("ended with %v", err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			_ = guest.Close()
		})
	}
}

// TestReach: what is granted is reached without a frame, what is not by frames; a recall is
// answered once nothing is under way, and what begins meanwhile goes by frames.
func TestReach(t *testing.T) {
	const size = 1 << 20
	guest, host := net.Pipe()
	far, hold, begun := make([]byte, size), make(chan struct{}), make(chan struct{}, 1)
	s := openOn(t, guest, &reachingPipe{host, func(p []byte, g frames.Granted, off uint64, write bool) error {
		if g != (frames.Granted{Address: 1 << 41, Size: size, Key: 7}) {
			t.Errorf("%+v", g)
		}
		if write {
			copy(far[off:], p)
			return nil
		}
		if off == 5 {
			begun <- struct{}{}
			<-hold
		}
		copy(p, far[off:])
		return nil
	}})
	say := func(b []byte) {
		if _, err := guest.Write(b); err != nil {
			t.Error(err)
		}
	}
	hear := func() (kind uint16, arg uint64, payload []byte) {
		var h [16]byte
		_, err := io.ReadFull(guest, h[:])
		payload = make([]byte, binary.LittleEndian.Uint32(h[:]))
		if _, e := io.ReadFull(guest, payload); err != nil || e != nil {
			t.Error(err, e)
		}
		return binary.LittleEndian.Uint16(h[4:]), binary.LittleEndian.Uint64(h[8:]), payload
	}
	m := s.Memory()
	say(slices.Concat(regionFrame(1, size), grantFrame(1, size), regionFrame(2, 4096)))
	if _, err := m.Await(context.Background(), 2); err != nil {
		t.Fatal(err)
	}
	p := bytes.Repeat([]byte{3}, 300<<10)
	if err := m.WriteAt(1, p, size-300<<10); err != nil || !bytes.Equal(far[size-300<<10:], p) || far[0] != 0 {
		t.Errorf("written elsewhere, or %v", err)
	}
	clear(p)
	if err := m.ReadAt(1, p, size-300<<10); err != nil || !bytes.Equal(far[size-300<<10:], p) {
		t.Errorf("other bytes, or %v", err)
	}
	if err := m.ReadAt(1, p, size-100); !errors.Is(err, remote.ErrOutOfBounds) {
		t.Errorf("beyond the region: %v", err)
	}
	reads := make(chan error, 2)
	go func() { reads <- m.ReadAt(1, p[:64], 5) }()
	<-begun
	early, err := m.(remote.EarlyMemory).Begin(1, p[1000:][:10], 5) // which needs no Ask
	if err != nil {
		t.Fatal(err)
	}
	<-begun
	say(frame(recall, 0, 0, nil))
	say(regionFrame(3, 4096)) // it is followed when that is
	if _, err := m.Await(context.Background(), 3); err != nil {
		t.Fatal(err)
	}
	by := make([]byte, 3)
	go func() { reads <- m.ReadAt(1, by, 9) }()
	kind, id, _ := hear()
	if kind != read {
		t.Fatalf("frame of type %d while transfers are under way", kind)
	}
	say(frame(data, 0, id, []byte("abc")))
	if err := <-reads; err != nil || string(by) != "abc" {
		t.Errorf("%q, %v", by, err)
	}
	close(hold)
	if err := errors.Join(<-reads, <-early); err != nil {
		t.Error(err)
	}
	if kind, _, _ = hear(); kind != recalled {
		t.Fatalf("frame of type %d", kind)
	}
	say(append(grantFrame(1, size), frame(recall, 0, 0, nil)...)) // nothing is under way
	if kind, _, _ = hear(); kind != recalled {
		t.Fatalf("frame of type %d", kind)
	}
	_ = guest.Close()
	_ = s.ended(t)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestRecallsInVain: a guest's end that recalls, and reads no answer, has one at a time be made for
// it, beside one that is on its way: behind them its session ends.
func TestRecallsInVain(t *testing.T) {
	guest, host := net.Pipe()
	s := openOn(t, guest, &reachingPipe{Conn: host})
	before := runtime.NumGoroutine()
	many := bytes.Repeat(frame(recall, 0, 0, nil), 10_000)
	if n, err := guest.Write(many); err == nil {
		t.Errorf("%d RECALL frames were taken, and there are %d goroutines more", n/16, runtime.NumGoroutine()-before)
	}
	if err := s.ended(t); !errors.Is(err, remote.ErrProtocol) {
		t.Errorf("ended with %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	_ = guest.Close()
}
