package resume

import (
	"testing"

	"causeway/remote/frame"
)

// TestBetweenFramesOnly: an acknowledgement, and the word that the stream stands still, go where a
// frame of what was sent ends, wherever a connection had to begin again: before that the rest of
// the frame goes, and no more.
func TestBetweenFramesOnly(t *testing.T) {
	for name, want := range map[string]struct {
		kind frame.Kind
		make func(c *Conn)
	}{
		"hold": {frame.Hold, func(c *Conn) { c.hold = hold{on: true, tells: true} }},
		"ack":  {frame.Ack, func(c *Conn) { c.got, c.told = ackEach+5, 5 }},
	} {
		t.Run(name, func(t *testing.T) {
			made := func(sent, reached uint64, out boundary) *Conn {
				c := &Conn{sent: sent, reached: reached, out: out, up: struct{ Way }{}}
				c.kept = kept{start: 100, end: 300, chunks: [][]byte{make([]byte, 200)}}
				want.make(c)
				return c
			}
			for _, x := range []struct {
				what          string
				sent, reached uint64
				out           boundary
				bytes         int // of what is kept; 0: the frame
			}{
				{"the boundary is further on", 150, 200, boundary{}, 50},
				{"in a frame's body", 200, 200, boundary{left: 30}, 30},
				{"in a frame's header", 200, 200, boundary{have: frame.HeaderSize - 3}, 3},
				{"at a boundary", 200, 200, boundary{}, 0},
			} {
				c := made(x.sent, x.reached, x.out)
				_, list := c.nextLocked(nil)
				n := 0
				for _, b := range list {
					n += len(b)
				}
				if x.bytes == 0 {
					if h := frame.ParseHeader(list[0]); len(list) != 1 || h.Kind != want.kind {
						t.Errorf("%s: %d bytes, %+v", x.what, n, h)
					}
				} else if n < x.bytes || x.sent == x.reached && n > x.bytes {
					t.Errorf("%s: %d bytes, not %d", x.what, n, x.bytes)
				}
			}
		})
	}
}

// TestWants: what fits the last chunk needs none, nor what has been booked or is free; each byte
// beyond that needs one more.
func TestWants(t *testing.T) {
	for _, c := range []struct{ last, have, free, booked, n, want int }{
		{keptChunk - 10, 3, 1, 2, 10, 0}, {keptChunk - 10, 3, 1, 2, 11, 1}, {keptChunk - 10, 3, 1, 2, keptChunk + 10, 1}, {keptChunk - 10, 3, 1, 2, keptChunk + 11, 2},
		{keptChunk, 3, 0, 3, 0, 0}, {keptChunk, 3, 0, 3, 1, 1}, {keptChunk, 3, 1, 3, 1, 0}, {keptChunk, 3, 0, 9, 1, 0},
		{-1, 0, 0, 0, 1, 1}, {-1, 0, 0, 0, keptChunk, 1}, {-1, 0, 0, 0, keptChunk + 1, 2}, {-1, 0, 2, 0, keptChunk + 1, 0},
	} {
		k := kept{have: c.have, booked: c.booked, free: make([][]byte, c.free)}
		if c.last >= 0 {
			k.chunks = [][]byte{make([]byte, keptChunk), make([]byte, c.last)}
		}
		if got := k.wants(c.n); got != c.want {
			t.Errorf("%d bytes behind a last chunk of %d, with %d of which %d are free and %d booked: %d more, want %d", c.n, c.last, c.have, c.free, c.booked, got, c.want)
		}
	}
}

// TestAcknowledgesInTime: what has come is to be acknowledged once there is so much of it that was
// not yet, however much came before; bytes of a connection that is gone count for nothing.
func TestAcknowledgesInTime(t *testing.T) {
	for what, x := range map[string]struct {
		got, told uint64
		n         int
		due       bool
	}{
		"the first":            {0, 0, 1, false},
		"enough":               {ackEach - 1, 0, 1, true},
		"one less":             {ackEach - 2, 0, 1, false},
		"after much":           {9 * ackEach, 9 * ackEach, 1, false},
		"enough after much":    {10*ackEach - 4, 9 * ackEach, 4, true},
		"one less, after much": {10*ackEach - 5, 9 * ackEach, 4, false},
	} {
		c, up := bareConn(digest{}, minute), newWay()
		c.up, c.from, c.got, c.told = up, up, x.got, x.told
		if !c.received(make([]byte, x.n)) || c.got != x.got+uint64(x.n) || c.told != x.told || poked(c.due) != x.due {
			t.Errorf("%s: %d have come", what, c.got)
		}
		c.up = newWay()
		if c.received(make([]byte, ackEach)) || c.got != x.got+uint64(x.n) || poked(c.due) {
			t.Errorf("%s: bytes of a connection that is gone count", what)
		}
	}
}

// TestKeepsWithinAFrame: within a frame nothing waits for the budget, and what is kept is booked
// all the same, to be given back.
func TestKeepsWithinAFrame(t *testing.T) {
	const n = (keptLeast + 4) * keptChunk
	c, b := bareConn(digest{}, minute), &budget{limit: keptLeast * keptChunk}
	if err := c.kept.begin(b); err != nil {
		t.Fatal(err)
	}
	c.wrote.pass(frame.Header{Kind: frame.Write, Len: 2 * n}.Append(nil))
	if err := c.keep(n, func([][]byte) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if want := uint64(n); b.used() != want || c.kept.owed != 4 {
		t.Errorf("%d are booked of %d that are kept, %d chunks owed", b.used(), want, c.kept.owed)
	}
	c.kept.drop(n)
	if c.kept.finish(); b.used() != 0 {
		t.Errorf("%d stay booked", b.used())
	}
	c.end(ErrLost)
}
