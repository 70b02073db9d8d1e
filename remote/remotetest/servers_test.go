package remotetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"testing"

	"causeway/remote"
	"causeway/remote/frame"
	"causeway/remote/relay"
	"causeway/remote/resume"
	"causeway/remote/shm"
	"causeway/remote/tcp"
	"causeway/remote/verbs"
	"causeway/remote/verbs/verbstest"
)

// far is a GPU server's end of a session, and the relay's of the same stream.
type far struct {
	*tcp.Carrier
	stream *resume.Conn
	over   chan error // of what the carrier's beginning waits for
}

// newFar begins a stream to a server, by RDMA between two ports, if there are any. The carrier is
// there once the relay has said what it begins with.
func newFar(t *testing.T, near, there Ports) *far {
	t.Helper()
	k, err := NewKeys()
	if err != nil {
		t.Fatal(err)
	}
	a, b, err := PairTCP()
	if err != nil {
		t.Fatal(err)
	}
	f := &far{over: make(chan error, 1)}
	go func() {
		s, err := frame.Server(context.Background(), b, k.Server)
		var l resume.Lifted
		if err == nil {
			l, err = LiftWide(s, there, false)
		}
		var c *resume.Conn
		if err == nil {
			c, err = resume.NewServerOver(s, l, nil)
		}
		if err == nil {
			f.Carrier, err = tcp.Accept(c)
		}
		f.over <- err
	}()
	s, err := frame.Client(context.Background(), a, k.Client)
	if err != nil {
		t.Fatal(err)
	}
	l, err := LiftWide(s, near, true)
	if err != nil {
		t.Fatal(err)
	}
	if f.stream, err = resume.NewClientOver(s, l, k.ClientAgain, nil, nil); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestServersByRDMA: a session goes from one GPU server to another where either reaches its memory
// by RDMA, or none does: from then on by the adapter of the other, and what the first was granted
// is nobody's any more. One that is called off goes on at the first, which has what it had.
func TestServersByRDMA(t *testing.T) {
	here := netip.MustParseAddr("127.0.0.1")
	for name, x := range map[string]struct{ first, second, off bool }{
		"both": {true, true, false}, "the first": {true, false, false}, "the second": {false, true, false}, "called off": {true, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := verbstest.New()
			ports := func(name string, is bool) (p Ports, a *verbstest.Adapter) {
				if a = f.Adapter(name, here); is {
					p = one(a)
				}
				return p, a
			}
			near, _ := ports("relay", x.first)
			oneAt, oneBy := ports("gpu1", x.first)
			guest, local, err := Pair()
			if err != nil {
				t.Fatal(err)
			}
			accepted := make(chan *shm.Unix, 1)
			a := newFar(t, near, oneAt)
			type opened struct {
				s   *relay.Session
				err error
			}
			sessions := make(chan opened, 1)
			go func() {
				u, err := shm.AcceptUnix(local)
				accepted <- u
				var s *relay.Session
				if err == nil {
					s, err = relay.Open(t.Context(), u, a.stream, remote.Hello{}, 0, "gpu1", slog.New(slog.DiscardHandler))
				}
				if err == nil {
					err = u.Welcome(0, "")
				}
				sessions <- opened{s, err}
			}()
			g := make(chan *Guest, 1)
			go func() {
				c, _ := ConnectUnix(guest, 0)
				g <- c
			}()
			if err := <-a.over; err != nil {
				t.Fatal(err)
			}
			if err := a.Welcome(0, ""); err != nil {
				t.Fatal(err)
			}
			o := <-sessions
			if o.err != nil {
				t.Fatal(o.err)
			}
			u := <-accepted
			s := &session{Guest: <-g, Carrier: a}
			ended := make(chan error, 1)
			go func() { ended <- o.s.Run(t.Context()) }()

			const size = 1 << 20
			mem := s.declare(t, 1, size)
			// copies goes both ways, and has the memory granted if it can be.
			copies := func(gen byte, by *verbstest.Adapter, reaches bool) {
				t.Helper()
				b := make([]byte, size)
				pattern(mem, 1, 0, gen)
				was := f.ReachedBy(by, verbs.Read)
				for n := 0; n == 0 || reaches && f.ReachedBy(by, verbs.Read) == was; n++ {
					if err := s.Memory().ReadAt(1, b, 0); err != nil || !bytes.Equal(b, mem) {
						t.Fatalf("%v, or other bytes", err)
					}
					if n == 1000 {
						t.Fatal("it is not reached by RDMA")
					}
					s.fence(t)
				}
				if err := s.Memory().WriteAt(1, pattern(b, 1, 0, ^gen), 0); err != nil {
					t.Fatal(err)
				}
				s.fence(t)
				if !bytes.Equal(b, mem) {
					t.Fatal("other bytes are written")
				}
			}
			copies(1, oneBy, x.first)
			held := f.Left()

			again, _ := ports("relay again", x.second)
			twoAt, twoBy := ports("gpu2", x.second)
			b := newFar(t, again, twoAt)
			said := make(chan error, 1)
			go func() { // the servers' parts
				l := <-a.Leaves()
				<-l.Empty()
				_, err := l.Write([]byte("all of it"))
				if err = errors.Join(err, l.End(nil), <-b.over); err == nil {
					r, _ := b.Arrival()
					var all []byte
					if all, err = io.ReadAll(r); err == nil && string(all) != "all of it" {
						err = errors.New("another state comes")
					}
					err = errors.Join(err, b.Welcome(0, ""))
				}
				said <- err
			}()
			m, err := o.s.Move(t.Context(), b.stream, remote.Hello{}, 0, "gpu2")
			if err := errors.Join(err, <-said); err != nil {
				t.Fatal(err)
			}
			if err := m.Decide(!x.off); err != nil {
				t.Fatal(err)
			}
			if x.off {
				copies(2, oneBy, x.first)
			} else {
				<-a.Done()
				_ = a.Close()
				s.Carrier = b
				b.Ring().SetState(remote.WorkerPolling)
				copies(2, twoBy, x.second)
				if n := f.Left(); n != 0 && !x.second {
					t.Errorf("%d things are left of the first server's", n)
				}
			}
			if x.off {
				<-b.Done()
				_ = b.Close()
				if n := f.Left(); n != held {
					t.Errorf("%d things are left, %d were", n, held)
				}
			}
			s.end(t)
			if err := errors.Join(<-ended, u.Close()); err != nil {
				t.Error(err)
			}
			if n := f.Left(); n != 0 {
				t.Errorf("%d queue pairs and registrations are left", n)
			}
		})
	}
}
