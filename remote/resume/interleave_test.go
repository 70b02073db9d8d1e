package resume

import (
	"errors"
	"testing"
)

// shaken is a connection of FuzzHandshakes.
type shaken struct {
	greets            greeting // the client's, and the server's answer
	answer            greeting
	answered, adopted bool
	up                *fakeWay // the server's
	sent, end         uint64   // what the client sends over it, if it goes over it: from 1 on
	read              uint64   // by the client
}

// handshakes are a server's end, and a client that keeps the rules, whose steps come in any order.
type handshakes struct {
	server *Conn
	list   []*shaken
	over   *shaken // what the client goes over
	got    uint64  // by the client
	wrote  uint64  // by the client
}

// step does what one byte says, and another which or how much.
func (h *handshakes) step(t *testing.T, does, which byte) {
	c, x := h.server, &shaken{answered: true, adopted: true, sent: 1} // none
	last := x
	if n := len(h.list); n > 0 {
		last, x = h.list[n-1], h.list[n-1-int(which)%n]
	}
	switch does % 9 {
	case 0: // the client makes a connection, as it has none
		if len(h.list) < 64 {
			h.over = nil
			h.list = append(h.list, &shaken{greets: greeting{Attempt: uint64(len(h.list) + 1), Got: h.got}, up: newWay()})
		}
	case 1: // which the server answers some time
		if x.answered {
			return
		}
		own, err := c.giveWay(x.greets)
		if err != nil && !errors.Is(err, ErrProof) {
			t.Fatal(err)
		}
		x.answer, x.answered = own, err == nil
	case 2: // and the client hears, if it has made no other
		if last.answered && last.sent == 0 {
			h.over, last.sent, last.end = last, last.answer.Got, h.wrote
		}
	case 3: // the server goes on over it some time, or would
		if !x.answered || x.adopted {
			return
		}
		switch err := c.adopt(x.up, x.greets.Attempt, x.greets.Got); {
		case err == nil:
			x.adopted = true
		case !errors.Is(err, errNewer) && c.up == nil:
			t.Fatal(err)
		}
	case 4: // it reads what the client has sent, also over what the client has lost
		for _, x := range h.list {
			if n := min(uint64(which), x.end-min(x.sent, x.end)); c.up == Way(x.up) && n > 0 {
				if c.got != x.sent {
					t.Fatalf("byte %d comes where %d have come", x.sent, c.got)
				}
				c.from = c.up
				c.received(make([]byte, n))
				x.sent += n
			}
		}
	case 5: // it sends
		c.mu.Lock()
		c.kept.added(c.kept.grow(nil, int(which)), true)
		c.sendLocked(^uint64(0))
		c.mu.Unlock()
	case 6: // the client reads that, and says so
		x := h.over
		if x == nil {
			return
		}
		if at := x.greets.Got + x.read; at != h.got {
			t.Fatalf("the client has %d bytes, and %d come", h.got, at)
		}
		n := min(uint64(which), uint64(len(x.up.sent))-x.read)
		h.got, x.read = h.got+n, x.read+n
		if c.from = c.up; c.up == Way(x.up) {
			if err := c.acknowledged(h.got); err != nil {
				t.Fatal(err)
			}
		}
	case 7: // the server's end is lost
		c.mu.Lock()
		if c.up != nil {
			c.loseLocked(errTest)
		}
		c.mu.Unlock()
	case 8: // the client writes
		h.wrote += uint64(which)
		if h.over != nil {
			h.over.end = h.wrote
		}
	}
}

// FuzzHandshakes: in whatever order connections are made, answered, gone over and lost, each by
// whoever gets a processor, no byte comes twice or is left out, and a client that keeps the rules
// is never said to have broken them.
func FuzzHandshakes(f *testing.F) {
	f.Add([]byte{0, 0, 1, 0, 2, 0, 3, 0, 8, 9, 4, 9, 5, 32, 6, 32, 7, 0, 0, 0, 1, 0, 2, 0, 3, 0, 4, 9})
	// The first stalls before it is gone over, while bytes come by the next: what was sent over
	// it, and what was said in it.
	f.Add([]byte{0, 0, 1, 0, 2, 0, 8, 9, 0, 0, 1, 0, 2, 0, 3, 0, 4, 9, 7, 0, 3, 1, 4, 9})
	f.Add([]byte{0, 0, 1, 0, 0, 0, 1, 0, 2, 0, 3, 0, 5, 32, 6, 32, 7, 0, 3, 1})
	// Both stall.
	f.Add([]byte{0, 0, 1, 0, 2, 0, 8, 9, 0, 0, 1, 0, 2, 0, 3, 1, 4, 9, 7, 0, 3, 0, 4, 9})
	f.Fuzz(func(t *testing.T, steps []byte) {
		h := handshakes{server: bareConn(digest{}, minute), wrote: 1}
		h.server.got = 1 // no position of the client's is 0
		defer h.server.end(errTest)
		for len(steps) >= 2 {
			h.step(t, steps[0], steps[1])
			steps = steps[2:]
		}
	})
}
