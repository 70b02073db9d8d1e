package remotetest

import (
	"bytes"
	"net"
	"sync/atomic"
	"testing"

	"causeway/remote/frame"
)

// TestBranchesCut: copies of lengths around those at which they go by branches, and are cut into
// parts, while each branch's connections are cut again and again, from either end and with some of
// a write sent: each is whole when its word says so, and nothing of it comes a second time, over
// what the guest has there by then.
func TestBranchesCut(t *testing.T) {
	var made atomic.Int64
	pair := func() (near, far net.Conn, err error) {
		if near, far, err = PairTCP(); err != nil {
			return nil, nil, err
		}
		i := int(made.Add(1)) - 1
		cut := func(c net.Conn) net.Conn { return &resetting{Conn: c, left: 4 + i*7%23, mode: i / 2 % 3} }
		switch {
		case i == 0: // the first stream's stays
			return near, far, nil
		case i%2 == 0:
			return cut(near), far, nil
		}
		return near, cut(far), nil
	}
	s := start(t, func() (Ends, error) { return RelayedBy(pair, true) })
	const part, most, half = 256 << 10, 4<<20 + 1, 4<<20 + 4096
	mem, m := s.declare(t, 1, 2*half), s.Memory()
	p, want, before := make([]byte, most), make([]byte, most), []byte(nil)
	var beforeIn []byte
	for i, size := range []int{frame.Bulk - 1, frame.Bulk, frame.Bulk + 1, part - 1, part, part + 1, 2*part + 1, frame.MaxRead/16 + 7, 16*part - 1, 16 * part, most, most, most} {
		off := i % 2 * half
		here := mem[off : off+size]
		pattern(here, 1, uint64(off), byte(2*i))
		if err := m.ReadAt(1, p[:size], uint64(off)); err != nil || !bytes.Equal(p[:size], here) {
			t.Fatalf("%d bytes to the host: others, %v", size, err)
		}
		if err := m.WriteAt(1, pattern(want[:size], 1, uint64(off), byte(2*i+1)), uint64(off)); err != nil {
			t.Fatal(err)
		}
		s.fence(t)
		if !bytes.Equal(here, want[:size]) {
			t.Fatalf("%d bytes to the guest are others", size)
		}
		if !bytes.Equal(beforeIn, before) {
			t.Fatal("something came a second time")
		}
		clear(here) // what the guest has there next
		before, beforeIn = bytes.Clone(here), here
	}
	if n := made.Load(); n < 1+2*Branches {
		t.Errorf("there were %d connections: branches were not cut", n)
	}
	s.end(t)
}
