package resume

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"causeway/remote/frame"
)

// stalling is an end of a connection of which somebody gets no processor where its other end has
// been answered, and it has not been gone over yet: there its deadline is lifted, for the which-th
// time.
type stalling struct {
	net.Conn
	which    int
	at, goes chan struct{}
}

func newStalling(c net.Conn, which int) *stalling {
	return &stalling{c, which, make(chan struct{}), make(chan struct{})}
}

func (s *stalling) SetDeadline(t time.Time) error {
	if t.IsZero() {
		if s.which--; s.which == 0 {
			close(s.at)
			<-s.goes
		}
	}
	return s.Conn.SetDeadline(t)
}

// stalls are what a test has of a session's connections: some stall at the server's end, and from
// one on none is made before the test says so.
type stalls struct {
	mu   sync.Mutex
	list map[int]*stalling
	wait sync.Cond
	last int // none behind it is made
}

// newStalls has connections stall, by their number, where their deadline is lifted for the which-th
// time.
func newStalls(which map[int]int) *stalls {
	s := &stalls{list: map[int]*stalling{}, last: 1 << 30}
	s.wait.L = &s.mu
	for n, w := range which {
		s.list[n] = newStalling(nil, w)
	}
	return s
}

func (s *stalls) wrap(n int, c net.Conn, server bool) net.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.list[n]; server && x != nil {
		x.Conn = c
		return x
	}
	for !server && n > s.last {
		s.wait.Wait()
	}
	return c
}

// upTo has connections be made up to a number.
func (s *stalls) upTo(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = n
	s.wait.Broadcast()
}

// free has one that stalls go on, and waits until a server is done with it.
func (s *stalls) free(t *testing.T, server *Conn, n int) {
	t.Helper()
	close(s.list[n].goes)
	until(t, "it stalls for ever", func() bool {
		server.mu.Lock()
		defer server.mu.Unlock()
		return !slices.Contains(server.pending, net.Conn(s.list[n]))
	})
}

// heard is what an end reads all the time.
type heard struct {
	mu   sync.Mutex
	b    []byte
	done chan struct{}
}

func hear(c *Conn) *heard {
	h := &heard{done: make(chan struct{})}
	go func() {
		defer close(h.done)
		for p := make([]byte, 1<<16); ; {
			n, err := c.Read(p)
			h.mu.Lock()
			h.b = append(h.b, p[:n]...)
			h.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return h
}

func (h *heard) is(want ...[]byte) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return bytes.Equal(h.b, slices.Concat(want...))
}

// comes waits until an end has what was sent, or something else, which is an error.
func (h *heard) comes(t *testing.T, who string, c *Conn, want ...[]byte) {
	t.Helper()
	all := slices.Concat(want...)
	until(t, who+" waits for ever", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.b) >= len(all) || !bytes.HasPrefix(all, h.b) || c.ended() != nil
	})
	if err := c.ended(); err != nil {
		t.Fatalf("%s has ended: %v", who, err)
	}
	if !h.is(all) {
		t.Fatalf("%s has %d bytes, or others, not %d", who, len(h.b), len(all))
	}
}

// stands reports whether a stream has no connection.
func (c *Conn) stands() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.up == nil
}

// given reports whether the server's or client's connections were given all that is written.
func (c *Conn) given() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.up != nil && c.sent == c.kept.end
}

// stalled is a session of which one stream's client and server are looked at.
type stalled struct {
	*rig
	near, far *Conn
	n         int // the connection that stalls; the one behind it as well, if stalls says so
}

func (s *stalled) cut() {
	s.near.mu.Lock()
	up := s.near.up
	s.near.mu.Unlock()
	s.near.broken(up, errTest)
}

// stalledSessions are a stream, a branch, one whose ends agree inside each connection, and what was
// agreed on beside a connection. The first that stalls is the next that is made, or was made last.
var stalledSessions = map[string]func(t *testing.T, both bool) (*stalled, *stalls){
	"a stream": func(t *testing.T, both bool) (*stalled, *stalls) {
		st := newStalls(first(1, 1, both))
		r := newRig(t, minute, st.wrap)
		r.server.TakeBranches(DefaultBranches, nil) // as many may shake hands
		s := &stalled{r, r.client, r.server, 1}
		s.cut()
		return s, st
	},
	"a branch": func(t *testing.T, both bool) (*stalled, *stalls) {
		st := newStalls(first(4, 1, both))
		f := newForked(t, 3, minute, st.wrap)
		s := &stalled{f.rig, f.near[1], f.far[1], 4}
		s.cut()
		return s, st
	},
	"agreed inside": func(t *testing.T, both bool) (*stalled, *stalls) {
		st := newStalls(first(1, 1, both))
		r := newRig(t, minute, st.wrap)
		r.server.TakeBranches(DefaultBranches, nil)
		r.agreeing(nil)
		stays := r.client.lift.Stays
		r.client.lift.Again, r.client.lift.Stays = stays, nil
		s := &stalled{r, r.client, r.server, 1}
		s.cut()
		return s, st
	},
	"agreed beside": func(t *testing.T, both bool) (*stalled, *stalls) {
		which := first(2, 2, both)
		if both {
			which[3] = 1
		}
		st := newStalls(which)
		r := newRig(t, minute, st.wrap)
		r.server.TakeBranches(DefaultBranches, nil)
		r.agreeing(func(int64) byte { return 'y' })
		// The one behind does not wait for the server's word, which stalls.
		stays := r.client.lift.Stays
		again := r.client.lift.Again
		tries := 0
		r.client.lift.Again = func(ctx context.Context, s *frame.Secure) (Way, error) {
			if tries++; tries == 1 {
				return again(ctx, s)
			}
			return stays(ctx, s)
		}
		s := &stalled{r, r.client, r.server, 2}
		s.cut()
		return s, st
	},
}

func first(n, which int, both bool) map[int]int {
	if both {
		return map[int]int{n: which, n + 1: which}
	}
	return map[int]int{n: which}
}

// TestStalled: a handshake of the server's end that comes to its end when the client has long made
// another connection changes nothing: not when more has been acknowledged since, which had ended
// the session as if the client had broken the rules, nor when what the client sent over it comes
// by the next.
func TestStalled(t *testing.T) {
	up, down, up2, down2 := frames(1, 20_000), frames(2, 20_000), frames(3, 20_000), frames(4, 20_000)
	begin := func(t *testing.T, make func(t *testing.T, both bool) (*stalled, *stalls), both bool) (*stalled, *stalls, *heard, *heard) {
		s, st := make(t, both)
		near, far := hear(s.near), hear(s.far)
		<-st.list[s.n].at
		until(t, "the client does not go on", func() bool { return !s.near.stands() })
		write(t, s.near, up) // which lies unread
		until(t, "it is not sent", s.near.given)
		if !far.is() {
			t.Fatal("the server's end does not stall")
		}
		return s, st, near, far
	}
	end := func(t *testing.T, s *stalled, st *stalls, near, far *heard, begun []byte) {
		st.upTo(1 << 30)
		write(t, s.near, up2)
		write(t, s.far, down2)
		far.comes(t, "the server", s.far, up, up2)
		near.comes(t, "the client", s.near, begun, down2)
		_ = s.client.Close()
		<-near.done
		_ = s.server.Close()
		<-far.done
		if !far.is(up, up2) || !near.is(begun, down2) {
			t.Error("more came")
		}
	}
	for name, made := range stalledSessions {
		for _, more := range []int{1, 2} { // connections that were, and are lost, when it goes on
			t.Run(fmt.Sprint(name, ", ", more, " behind it"), func(t *testing.T) {
				s, st, near, far := begin(t, made, false)
				st.upTo(s.n + more)
				s.cut()
				far.comes(t, "the server", s.far, up)
				write(t, s.far, down)
				near.comes(t, "the client", s.near, down)
				for n := range more {
					if n > 0 {
						until(t, "nothing is said to have come", func() bool {
							s.far.mu.Lock()
							defer s.far.mu.Unlock()
							return s.far.kept.start == uint64(len(down)) && s.far.up != nil
						})
						until(t, "the client does not go on", func() bool { return !s.near.stands() })
					}
					s.cut()
				}
				until(t, "the server's end does not hear of it", s.far.stands)
				st.free(t, s.server, s.n)
				end(t, s, st, near, far, down)
			})
		}
		t.Run(name+", the next stalls as well", func(t *testing.T) {
			s, st, near, far := begin(t, made, true)
			st.upTo(s.n + 1)
			s.cut()
			<-st.list[s.n+1].at
			until(t, "the client does not go on", func() bool { return !s.near.stands() })
			st.free(t, s.server, s.n)
			until(t, "the server's end goes on over it for ever", s.far.stands)
			st.free(t, s.server, s.n+1)
			end(t, s, st, near, far, nil)
		})
	}
}

// TestStallsAlone: while a handshake of the client's end stalls it makes no other connection, so
// that what it was told there is so still.
func TestStallsAlone(t *testing.T) {
	var stall *stalling
	made := make(chan struct{})
	r := newRig(t, minute, func(n int, c net.Conn, server bool) net.Conn {
		if n == 1 && !server {
			stall = newStalling(c, 1)
			close(made)
			return stall
		}
		return c
	})
	up, down := frames(1, 20_000), frames(2, 20_000)
	r.lose()
	<-made
	<-stall.at
	near, far := hear(r.client), hear(r.server)
	write(t, r.client, up)
	write(t, r.server, down)
	until(t, "the server's end does not go on", r.server.given)
	reset(stall.Conn) // from then on nothing can come of it
	until(t, "the server's end does not hear of it", r.server.stands)
	time.Sleep(3 * againFirst)
	if n := r.dials.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
	close(stall.goes)
	far.comes(t, "the server", r.server, up)
	near.comes(t, "the client", r.client, down)
	if n := r.dials.Load(); n != 2 {
		t.Errorf("%d connections", n)
	}
}

// holdingWay is a connection that ends while somebody holds its stream.
type holdingWay struct {
	*fakeWay
	hold func()
}

func (w *holdingWay) Abort() {
	w.fakeWay.Abort()
	w.hold()
}

// sayingWay notes whether something was said.
type sayingWay struct {
	muteWay
	said bool
}

func (w *sayingWay) Write(p []byte) (int, error) {
	w.said = true
	return len(p), nil
}

// TestHoldsWhileItChanges: a stream that goes over to what was agreed on beside its connection is
// held before that, and then greets nobody, or not told: the server waits for minutes for what it
// was told of, and for seconds again once it was greeted.
func TestHoldsWhileItChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, way := bareConn(digest{}, minute), &sayingWay{muteWay: muteWay{newWay()}}
		defer c.end(ErrLost)
		go c.routineSend()
		var err error
		c.client, c.up = true, &holdingWay{newWay(), func() { err = c.Hold() }}
		c.change(&agreedWay{way, digest{}})
		if (err == nil) == way.said || err == nil && !c.hold.told {
			t.Errorf("held: %v, %+v; greeted: %v", err, c.hold, way.said)
		}
	})
}
