package remotetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"causeway/remote/frame"
	"causeway/remote/resume"
	"causeway/remote/verbs"
	"causeway/remote/verbs/verbstest"
)

// lifted is a stream by RDMA over a fabric, and over connections that follow.
type lifted struct {
	*verbstest.Fabric
	client, server *resume.Conn
	came           chan []byte // frames, to either end
	dialed         atomic.Int64
	last           atomic.Pointer[net.Conn] // the client's end of the newest connection
}

func newLifted(t *testing.T) *lifted {
	t.Helper()
	f, here := verbstest.New(), netip.MustParseAddr("127.0.0.1")
	x := &lifted{Fabric: f}
	k, err := NewKeys()
	if err != nil {
		t.Fatal(err)
	}
	near, far, err := PairTCP()
	if err != nil {
		t.Fatal(err)
	}
	x.last.Store(&near)
	again := func(context.Context, error) (net.Conn, error) {
		near, far, err := PairTCP()
		if err == nil {
			x.dialed.Add(1)
			x.last.Store(&near)
			go func() { _ = x.server.Accept(far, k.ServerAgain) }()
		}
		return near, err
	}
	began := make(chan error, 1)
	go func() {
		s, err := frame.Server(context.Background(), far, k.Server)
		var l resume.Lifted
		if err == nil {
			l, err = Lift(s, f.Adapter("server", here), false)
		}
		if err == nil {
			x.server, err = resume.NewServerOver(s, l, nil)
		}
		began <- err
	}()
	s, err := frame.Client(context.Background(), near, k.Client)
	if err != nil {
		t.Fatal(err)
	}
	l, err := Lift(s, f.Adapter("client", here), true)
	if err := errors.Join(err, <-began); err != nil {
		t.Fatal(err)
	}
	if x.client, err = resume.NewClientOver(s, l, k.ClientAgain, again, nil); err != nil {
		t.Fatal(err)
	}
	x.came = make(chan []byte, 2)
	go x.read(x.client)
	go x.read(x.server)
	return x
}

func (x *lifted) end(t *testing.T) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- x.server.Close() }()
	if err := errors.Join(x.client.Close(), <-done); err != nil {
		t.Error(err)
	}
	for end := time.Now().Add(Limit); x.Left() != 0; time.Sleep(time.Millisecond) {
		// A way that was given up may still be.
		if time.Now().After(end) {
			t.Fatalf("%d queue pairs and registrations are left", x.Left())
		}
	}
}

// exchange has a frame go each way.
func (x *lifted) exchange(t *testing.T, n int) {
	t.Helper()
	f := Frame(tcpWrite, 0, uint64(n), bytes.Repeat([]byte{byte(n)}, n))
	sent := make(chan error, 2)
	for _, c := range []*resume.Conn{x.client, x.server} {
		go func() {
			_, err := c.Write(f)
			sent <- err
		}()
	}
	for range 2 {
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-x.came:
			if !bytes.Equal(got, f) {
				t.Fatalf("other bytes than of a frame of %d", n)
			}
		case <-time.After(Limit):
			t.Fatalf("a frame of %d bytes does not come", n)
		}
	}
}

// read reads one end at all times, as a relay and a worker are: who does not read hears of no loss.
func (x *lifted) read(c *resume.Conn) {
	for {
		b := make([]byte, frame.HeaderSize)
		if _, err := io.ReadFull(c, b); err != nil {
			return
		}
		b = append(b, make([]byte, frame.ParseHeader(b).Len)...)
		if _, err := io.ReadFull(c, b[frame.HeaderSize:]); err != nil {
			return
		}
		x.came <- b
	}
}

// TestLifted: what goes by RDMA survives its queue pairs as it survives a connection, over others
// by RDMA; memory that was granted is so over each.
func TestLifted(t *testing.T) {
	for name, fault := range map[string]func(x *lifted){
		"queue pairs": func(x *lifted) { x.Break(verbs.General) },
		"connection":  func(x *lifted) { _ = (*x.last.Load()).Close() },
		"flaps":       func(x *lifted) { x.Flap(23) },
	} {
		t.Run(name, func(t *testing.T) {
			x := newLifted(t)
			mem := make([]byte, 1<<20)
			g, revoke, err := x.client.Grant(mem)
			if err != nil || !x.client.Grants() || !x.server.Reaches() {
				t.Fatal(err)
			}
			reached, frames := 0, x.Moved(verbs.WriteImmediate)
			for i := range 30 {
				x.exchange(t, 1+i*997)
				if i%5 == 2 {
					fault(x)
				}
				p, got := bytes.Repeat([]byte{byte(i)}, 200<<10), make([]byte, 200<<10)
				err := x.server.Store(p, g, uint64(i)*1000)
				if err == nil && !bytes.Equal(mem[i*1000:][:len(p)], p) {
					t.Error("what was stored is not there")
				}
				copy(mem[i*1000:], p) // as frames would
				if err == nil {
					err = x.server.Fetch(got, g, uint64(i)*1000)
				}
				switch {
				case err == nil && bytes.Equal(got, p):
					reached++
				case !errors.Is(err, frame.ErrUnreached):
					t.Errorf("round %d: %v, or other bytes", i, err)
				}
			}
			x.Flap(0)
			x.exchange(t, 100)
			if x.dialed.Load() == 0 || reached == 0 || x.Moved(verbs.WriteImmediate) == frames {
				t.Errorf("%d other connections, memory reached %d times", x.dialed.Load(), reached)
			}
			t.Logf("%d other connections, memory reached %d times of 30", x.dialed.Load(), reached)
			revoke()
			x.end(t)
		})
	}
}

// TestLiftedAndNot: where the fabric carries nothing for a while the stream goes on over TLS, and
// reaches no memory; by RDMA again over the next connection.
func TestLiftedAndNot(t *testing.T) {
	x := newLifted(t)
	mem := make([]byte, 4096)
	g, revoke, err := x.client.Grant(mem)
	if err != nil {
		t.Fatal(err)
	}
	x.Cut()
	x.exchange(t, 5000)
	if err := x.server.Fetch(make([]byte, 9), g, 0); !errors.Is(err, frame.ErrUnreached) {
		t.Errorf("over TLS: %v", err)
	}
	x.Heal()
	_ = (*x.last.Load()).Close()
	x.exchange(t, 7000)
	if err := x.server.Fetch(make([]byte, 9), g, 0); err != nil {
		t.Errorf("by RDMA again: %v", err)
	}
	revoke()
	x.end(t)
}
