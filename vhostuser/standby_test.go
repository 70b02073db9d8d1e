package vhostuser_test

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"path/filepath"
	"testing"

	"causeway/vhostuser"
	"causeway/vhostuser/vhosttest"
)

// resumable remembers which rings it went on with.
type resumable struct{ fakeDevice }

func (d *resumable) ResumeQueue(i int, c vhostuser.QueueConfig) error {
	d.add("resume%d", i)
	d.set(i, c)
	return nil
}

// TestStandby: it hears what the front end says to another process, touches nothing, and goes on
// from there: a reply that is owed comes first, one that was given does not come again, rings go
// on, and messages are answered.
func TestStandby(t *testing.T) {
	for _, answered := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "s")
		ln, err := vhostuser.Listen(path)
		must(t, err)
		defer ln.Close()
		f, err := vhosttest.Dial(path)
		must(t, err)
		sock, err := ln.AcceptUnix()
		must(t, err)
		dev := &resumable{}
		s := vhostuser.NewStandby(vhostuser.NewMemory(), dev, vhostuser.Options{})
		s.Connected(sock)
		// hears is what the other process does: it reads a message, and tells before it acts.
		hears := func(sock *net.UnixConn) {
			hdr := make([]byte, 12)
			_, err := io.ReadFull(sock, hdr)
			must(t, err)
			body := make([]byte, binary.LittleEndian.Uint32(hdr[8:]))
			_, err = io.ReadFull(sock, body)
			must(t, err)
			s.Message(append(hdr, body...), nil)
		}
		must(t, f.Send(vhostuser.GetFeatures, 0, nil))
		hears(sock)
		if answered {
			s.Answered()
		}
		if got := dev.take(); got != "" {
			t.Errorf("asleep it calls %q", got)
		}
		done := make(chan error, 1)
		go func() { done <- s.TakeOver(context.Background()) }()
		if !answered {
			if b, err := f.Receive(vhostuser.GetFeatures); err != nil || binary.LittleEndian.Uint64(b) != vhostuser.Features {
				t.Errorf("the reply that is owed: %v, %v", b, err)
			}
		}
		if n, err := f.GetU64(vhostuser.GetProtocolFeatures, nil); err != nil || n != vhostuser.ProtocolFeatures {
			t.Errorf("a message after it: %#x, %v", n, err)
		}
		f.Close()
		if err := <-done; err == nil {
			t.Error("TakeOver returns nil where the front end has gone")
		}
		if got := dev.take(); got != "disconnect" {
			t.Errorf("at the end it calls %q", got)
		}
	}
	// One that never had a front end, or whose front end has gone, has nothing to take over.
	dev := &resumable{}
	s := vhostuser.NewStandby(vhostuser.NewMemory(), dev, vhostuser.Options{})
	s.Message([]byte("short"), nil)
	s.Answered()
	s.Gone()
	if err := s.TakeOver(context.Background()); err != nil || dev.take() != "" {
		t.Errorf("without a front end: %v", err)
	}
}
