package resume

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"causeway/remote"
	"causeway/remote/frame"
)

// overTLS is what both ends of a test agree on beside a connection: another one, under a name of
// its own.
type overTLS struct{ *frame.Secure }

// agreeing has both ends of a rig's stream agree inside of its connections from the next one on:
// the client says whether it stays, or hears what the server says to another way.
func (r *rig) agreeing(answer func(n int64) byte) (beside *atomic.Int64) {
	beside = &atomic.Int64{}
	end := func(s *frame.Secure, said byte) (Way, error) {
		if said == 'y' {
			return &overTLS{s}, nil
		}
		if said == 'f' {
			s.Abort()
			return nil, errTest
		}
		return s, nil
	}
	var b [1]byte
	r.server.mu.Lock()
	r.server.lift.Again = func(_ context.Context, s *frame.Secure) (Way, error) {
		b := b
		if _, err := io.ReadFull(s, b[:]); err != nil || b[0] == 's' {
			return s, err
		}
		said := answer(beside.Add(1))
		_, err := s.Write([]byte{said})
		if err != nil {
			return nil, err
		}
		if said == 'f' { // the client is to read it
			_, _ = s.Read(b[:])
		}
		return end(s, said)
	}
	r.server.mu.Unlock()
	r.client.mu.Lock()
	defer r.client.mu.Unlock()
	r.client.lift = Lifted{
		Stays: func(_ context.Context, s *frame.Secure) (Way, error) {
			_, err := s.Write([]byte("s"))
			return s, err
		},
		Again: func(_ context.Context, s *frame.Secure) (Way, error) {
			b := b
			if _, err := s.Write([]byte("w")); err != nil {
				return nil, err
			}
			if _, err := io.ReadFull(s, b[:]); err != nil {
				return nil, err
			}
			return end(s, b[0])
		},
	}
	return beside
}

// lose has the stream's client be without a connection.
func (r *rig) lose() {
	r.client.mu.Lock()
	up := r.client.up
	r.client.mu.Unlock()
	r.client.broken(up, errTest)
}

// both reports whether both ends go over what was agreed on.
func (r *rig) both() bool {
	over := 0
	for _, c := range []*Conn{r.client, r.server} {
		c.mu.Lock()
		if _, ok := c.up.(*overTLS); ok {
			over++
		}
		c.mu.Unlock()
	}
	return over == 2
}

func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

func (c *Conn) trying() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.beside.tries
}

// TestBeside: a stream goes on over a connection at once, and over what both ends agree on beside
// that when they have, with no byte lost, or another; the next connection is agreed on as any.
func TestBeside(t *testing.T) {
	r, may := newRig(t, minute, nil), make(chan struct{})
	beside := r.agreeing(func(int64) byte { <-may; return 'y' })
	r.lose()
	exchange(t, r.client, r.server, 300_000) // while nobody answers
	until(t, "nothing is tried beside", func() bool { return beside.Load() == 1 })
	if r.both() || r.dials.Load() != 2 {
		t.Errorf("%d connections, over another way: %v", r.dials.Load(), r.both())
	}
	close(may)
	for n := 0; !r.both() || n < 3; n++ {
		exchange(t, r.client, r.server, 100_000)
	}
	if r.client.trying() || r.dials.Load() != 2 {
		t.Errorf("%d connections", r.dials.Load())
	}
	r.lose()
	exchange(t, r.client, r.server, 100_000)
	if !r.both() || beside.Load() != 2 || r.dials.Load() != 3 || r.client.trying() {
		t.Errorf("%d connections, agreed on %d times", r.dials.Load(), beside.Load())
	}
}

// TestNothingBeside: where both ends agree on nothing, or one of them knows of no such connection,
// nobody notices, and it is tried again beside the next connection; attempts that fail are followed
// by others, a few.
func TestNothingBeside(t *testing.T) {
	for name, x := range map[string]struct {
		answer func(n int64) byte
		old    bool  // the server is of a version without
		tries  int64 // beside each connection
		found  bool  // after them
	}{
		"they stay":     {func(int64) byte { return 'n' }, false, 1, false},
		"an old server": {nil, true, 1, false},
		"it fails":      {func(int64) byte { return 'f' }, false, besideTries, false},
		"it fails once": {func(n int64) byte {
			if n == 1 {
				return 'f'
			}
			return 'y'
		}, false, 2, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, minute, nil)
			beside := r.agreeing(x.answer)
			if x.old {
				r.server.mu.Lock()
				// With as much room for those who shake hands.
				r.server.lift.Again, r.server.branches.most = nil, 1
				r.server.mu.Unlock()
				r.client.mu.Lock()
				r.client.lift.Stays = func(_ context.Context, s *frame.Secure) (Way, error) { return s, nil }
				r.client.mu.Unlock()
			}
			for n := int64(1); n <= 2 && (n == 1 || !x.found); n++ {
				r.lose()
				exchange(t, r.client, r.server, 100_000)
				until(t, "it is tried for ever", func() bool { return !r.client.trying() && r.dials.Load() >= n*(1+x.tries) })
				exchange(t, r.client, r.server, 10_000)
				if got := r.dials.Load(); got != n*(1+x.tries) || r.both() != x.found || !x.old && beside.Load() != n*x.tries {
					t.Errorf("%d connections, tried beside %d times, over another way: %v", got, beside.Load(), r.both())
				}
			}
		})
	}
}

// TestChangesInVain: a stream that is held, or has ended, goes over nothing that was agreed on; one
// whose other end is gone by then makes another connection.
func TestChangesInVain(t *testing.T) {
	for name, x := range map[string]struct {
		set  func(c *Conn)
		lost bool
	}{
		"held":              {func(c *Conn) { c.hold.on = true }, false},
		"ended":             {func(c *Conn) { c.err = errTest }, false},
		"the other is gone": {func(*Conn) {}, true},
	} {
		c, up, way := bareConn(digest{}, minute), newWay(), &muteWay{fakeWay: newWay()}
		c.up = up
		c.beside.tries = true
		x.set(c)
		c.change(&agreedWay{way, digest{}})
		if way.aborts == 0 || (c.up == nil) != x.lost || (up.aborts > 0) != x.lost || c.beside.found || c.beside.tries || poked(c.lost) != x.lost {
			t.Errorf("%s: ended %d times, up %v", name, way.aborts, c.up)
		}
		if x.lost && !errors.Is(c.why, net.ErrClosed) {
			t.Error(c.why)
		}
		c.err = nil
		c.end(ErrLost)
	}
}

// muteWay takes what is written, and says nothing.
type muteWay struct{ *fakeWay }

func (muteWay) Write(p []byte) (int, error) { return len(p), nil }
func (muteWay) Read([]byte) (int, error)    { return 0, net.ErrClosed }

// TestProofBeside: what is agreed on beside a stream's connection takes its place for who shows the
// secret, on that connection, for an attempt later than all before; positions that cannot be end
// the session.
func TestProofBeside(t *testing.T) {
	for name, x := range map[string]struct {
		change func(g *greeting, secret, bind digest)
		want   error
		takes  bool
	}{
		"it shows it":            {func(g *greeting, secret, bind digest) { g.Proof = g.proof(secret, bind, fromClientOver) }, nil, true},
		"as any connection":      {func(g *greeting, secret, bind digest) { g.Proof = g.proof(secret, bind, fromClient) }, ErrProof, false},
		"as before it is agreed": {func(g *greeting, secret, bind digest) { g.Proof = g.proof(secret, bind, fromClientBeside) }, ErrProof, false},
		"of another connection":  {func(g *greeting, secret, _ digest) { g.Proof = g.proof(secret, digest{1}, fromClientOver) }, ErrProof, false},
		"another secret":         {func(g *greeting, _, bind digest) { g.Proof = g.proof(digest{1}, bind, fromClientOver) }, ErrProof, false},
		"an old attempt":         {func(g *greeting, secret, bind digest) { g.Attempt = 0; g.Proof = g.proof(secret, bind, fromClientOver) }, ErrProof, false},
		"more than there was": {func(g *greeting, secret, bind digest) {
			g.Got = 1 << 40
			g.Proof = g.proof(secret, bind, fromClientOver)
		}, remote.ErrProtocol, false},
		"the position is changed": {func(g *greeting, secret, bind digest) { g.Proof = g.proof(secret, bind, fromClientOver); g.Got-- }, ErrProof, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, minute, nil)
			r.agreeing(func(int64) byte { return 'y' })
			exchange(t, r.client, r.server, 1000)
			s, accepted := r.stranger(t)
			bind, err := derived(s, labelBind)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := greetAs(context.Background(), s, greeting{Attempt: 9}, r.client.secret, bind, fromClientBeside, fromServerBeside); err != nil {
				t.Fatal(err)
			}
			up, err := r.client.lift.Again(context.Background(), s)
			if err != nil {
				t.Fatal(err)
			}
			exchange(t, r.client, r.server, 1000) // nothing has changed
			r.client.mu.Lock()
			g := greeting{Attempt: 9, Got: r.client.got}
			r.client.mu.Unlock()
			x.change(&g, r.client.secret, bind)
			if _, err := up.Write(g.encode()); err != nil {
				t.Fatal(err)
			}
			if err := <-accepted; !errors.Is(err, x.want) || (err == nil) != (x.want == nil) {
				t.Error(err)
			}
			r.server.mu.Lock()
			_, took := r.server.up.(*overTLS)
			ended := r.server.err
			r.server.mu.Unlock()
			if took != x.takes || (ended != nil) != (x.want == remote.ErrProtocol) {
				t.Errorf("it took its place: %v; the stream's end: %v", took, ended)
			}
			if x.want == ErrProof {
				exchange(t, r.client, r.server, 1000)
				if r.dials.Load() != 0 {
					t.Error("the session's connection was lost")
				}
			}
		})
	}
}

// TestOneAgreesAtATime: a client that is who it should be, and makes connection after connection
// without agreeing on anything inside of them, has the server's end try one at a time beside the
// stream, and one for it.
func TestOneAgreesAtATime(t *testing.T) {
	for name, as := range map[string]string{"for it": fromClient, "beside it": fromClientBeside} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, minute, nil)
			r.client.stand() // who makes connections is the test
			var begun, now, most atomic.Int64
			r.server.mu.Lock()
			r.server.lift.Again = func(ctx context.Context, s *frame.Secure) (Way, error) {
				begun.Add(1)
				if n := now.Add(1); n > most.Load() {
					most.Store(n)
				}
				defer now.Add(-1)
				<-ctx.Done() // as adapters wait for packets that do not come
				s.Abort()
				return nil, ctx.Err()
			}
			r.server.mu.Unlock()
			const tries = 8
			var last chan error
			for n := range tries {
				s, accepted := r.stranger(t)
				bind, err := derived(s, labelBind)
				if err != nil {
					t.Fatal(err)
				}
				g := greeting{Attempt: uint64(n + 1), Got: 0}
				g.Proof = g.proof(r.client.secret, bind, as)
				if _, err := s.Write(g.encode()); err != nil {
					t.Fatal(err)
				}
				if _, err := readGreeting(s); err != nil {
					t.Fatal(err)
				}
				until(t, "it is not tried", func() bool { return begun.Load() == int64(n+1) })
				if last != nil && most.Load() == 1 {
					if err := <-last; err == nil {
						t.Error("one before it was taken")
					}
				}
				last = accepted
			}
			if most.Load() != 1 {
				t.Errorf("%d of %d are tried at once", most.Load(), tries)
			}
		})
	}
}

// TestBesideEveryByte cuts the connection on which both ends agree beside the stream's at each byte
// of its beginning, of either end's: no byte is lost, they agree again, and nobody waits for it for
// ever.
func TestBesideEveryByte(t *testing.T) {
	before := runtime.NumGoroutine()
	for _, ofServer := range []bool{false, true} {
		for at := 0; at < 2400; at += 79 {
			r := newRig(t, minute, func(n int, c net.Conn, server bool) net.Conn {
				if n == 2 && server == ofServer {
					return &cutting{Conn: c, left: at}
				}
				return c
			})
			r.agreeing(func(int64) byte { return 'y' })
			r.lose()
			exchange(t, r.client, r.server, 10_000)
			until(t, "they never agree", r.both)
			exchange(t, r.client, r.server, 10_000)
			_, _ = r.client.Close(), r.server.Close()
		}
	}
	until(t, "somebody waits still", func() bool { return runtime.NumGoroutine() <= before })
}
