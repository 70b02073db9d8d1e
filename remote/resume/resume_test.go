package resume

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"causeway/remote"
	"causeway/remote/frame"
	"causeway/remote/mtls"
)

// minute is how long what must come may take.
const minute = time.Minute

// keys are the TLS configurations of both ends: of the first connection and of others.
type keys struct{ server, client, serverAgain, clientAgain *tls.Config }

func newKeys(t testing.TB) keys {
	t.Helper()
	s, c, err := mtls.NewPinnedPair()
	if err != nil {
		t.Fatal(err)
	}
	var k keys
	var errs [4]error
	k.server, errs[0] = s.Server(mtls.SessionProtocol)
	k.client, errs[1] = c.Client(mtls.SessionProtocol)
	k.serverAgain, errs[2] = s.Server(mtls.ResumeProtocol)
	k.clientAgain, errs[3] = c.Client(mtls.ResumeProtocol)
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	return k
}

// pair is a TCP connection.
func pair(t testing.TB) (near, far net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if near, err = net.Dial("tcp", ln.Addr().String()); err == nil {
		far, err = ln.Accept()
	}
	if err != nil {
		t.Fatal(err)
	}
	return near, far
}

// rig is a stream whose client's connections are made by dial.
type rig struct {
	keys
	client, server *Conn
	budget         *budget
	dials          atomic.Int64
}

// newRig begins a stream. wrap, which may be nil, puts something around each end of each
// connection; number 0 is the first.
func newRig(t testing.TB, limit time.Duration, wrap func(n int, c net.Conn, server bool) net.Conn) *rig {
	t.Helper()
	return newRigIn(t, limit, wrap, &budget{limit: 1 << 30})
}

// newRigIn is newRig with what the two ends keep booked in a budget.
func newRigIn(t testing.TB, limit time.Duration, wrap func(n int, c net.Conn, server bool) net.Conn, b *budget) *rig {
	t.Helper()
	if wrap == nil {
		wrap = func(_ int, c net.Conn, _ bool) net.Conn { return c }
	}
	r := &rig{keys: newKeys(t), budget: b}
	near, far := pair(t)
	accepted := make(chan error, 1)
	go func() {
		s, err := frame.Server(context.Background(), wrap(0, far, true), r.keys.server)
		if err == nil {
			r.server, err = newConn(s, limit, b)
		}
		accepted <- err
	}()
	first, err := frame.Client(context.Background(), wrap(0, near, false), r.keys.client)
	if err == nil {
		r.client, err = newConn(first, limit, b)
	}
	if err := errors.Join(err, <-accepted); err != nil {
		t.Fatal(err)
	}
	r.client.client = true
	go r.client.routineRedial(r.clientAgain, func(context.Context, error) (net.Conn, error) {
		n := int(r.dials.Add(1))
		near, far := pair(t)
		go func() { _ = r.server.Accept(wrap(n, far, true), r.serverAgain) }()
		return wrap(n, near, false), nil
	})
	t.Cleanup(func() {
		_, _ = r.client.Close(), r.server.Close()
		if n := b.used(); n != 0 {
			t.Errorf("%d bytes stay booked", n)
		}
	})
	return r
}

// frames is a stream of frames of many lengths, in pieces that do not always end where one does.
func frames(seed uint64, bytes int) []byte {
	rnd := rand.New(rand.NewPCG(seed, 1))
	var b []byte
	for len(b) < bytes {
		n := rnd.IntN(200)
		if rnd.IntN(20) == 0 {
			n = rnd.IntN(100_000)
		}
		b = frame.Header{Kind: frame.Kind(1 + rnd.IntN(12)), Len: uint32(n), Arg: rnd.Uint64()}.Append(b)
		for range n {
			b = append(b, byte(rnd.Uint32()))
		}
	}
	return b
}

// exchange sends a stream each way, and compares what comes. Both ends read all the time, as
// sessions do.
func exchange(t testing.TB, a, b *Conn, bytesEach int) {
	t.Helper()
	var wg, readers sync.WaitGroup
	defer func() {
		for _, c := range []*Conn{a, b} {
			_ = c.SetReadDeadline(time.Unix(1, 0))
		}
		readers.Wait()
		for _, c := range []*Conn{a, b} {
			_ = c.SetReadDeadline(time.Time{})
		}
	}()
	one := func(from, to *Conn, seed uint64) {
		want := frames(seed, bytesEach)
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, 2))
			for p := want; len(p) > 0; {
				n := min(len(p), 1+rnd.IntN(1<<rnd.IntN(21)))
				if _, err := from.Write(p[:n]); err != nil {
					t.Error("write: ", err)
					return
				}
				p = p[n:]
			}
		})
		wg.Add(1)
		readers.Go(func() {
			got := make([]byte, len(want))
			if _, err := io.ReadFull(to, got); err != nil {
				t.Error("read: ", err)
			} else if !bytes.Equal(got, want) {
				t.Error("other bytes came")
			}
			wg.Done()
			if n, err := to.Read(got); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%d bytes more, %v", n, err)
			}
		})
	}
	one(a, b, 1)
	one(b, a, 2)
	wg.Wait()
}

// cutting is a connection that is reset at a byte of what is sent on it: some of a write leaves, or
// none.
type cutting struct {
	net.Conn
	mu   sync.Mutex
	left int
}

func (c *cutting) Write(p []byte) (int, error) {
	c.mu.Lock()
	n := min(c.left, len(p))
	c.left -= n
	c.mu.Unlock()
	if n > 0 {
		if n, err := c.Conn.Write(p[:n]); err != nil {
			return n, err
		}
	}
	if n < len(p) {
		reset(c.Conn)
		return n, errors.New("cut")
	}
	return n, nil
}

// reset ends a connection so that what is on its way is lost.
func reset(c net.Conn) {
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}

// TestCuts (each connection carries a record of TLS or more): wherever connections are cut, in
// TLS's handshake, in the greeting, in a frame's header or behind it, the stream goes on as if
// nothing had been.
func TestCuts(t *testing.T) {
	for _, each := range []int{20_000, 60_001} {
		for _, side := range []string{"server", "client", "either"} {
			t.Run(fmt.Sprint(side, " ", each), func(t *testing.T) {
				r := newRig(t, minute, func(n int, c net.Conn, server bool) net.Conn {
					if cut := side == "server" || side == "either" && n%2 == 1; cut != server {
						return c
					}
					at := each + 37*n
					if n%5 == 2 {
						at = 100 + (n*331)%2500 // in a handshake
					}
					return &cutting{Conn: c, left: at}
				})
				exchange(t, r.client, r.server, 6*each)
				least := int64(4)
				if side == "either" {
					least = 1 // the one may have sent everything before its turn comes
				}
				if n := r.dials.Load(); n < least {
					t.Errorf("the connection was made again %d times", n)
				}
			})
		}
	}
}

// TestEveryByte cuts the second connection at each byte of its beginning: no byte of a handshake is
// one where a stream is lost.
func TestEveryByte(t *testing.T) {
	for at := 0; at < 2200; at += 61 {
		r := newRig(t, minute, func(n int, c net.Conn, server bool) net.Conn {
			switch {
			case n == 0 && server:
				return &cutting{Conn: c, left: 3000}
			case n == 1:
				return &cutting{Conn: c, left: at}
			}
			return c
		})
		exchange(t, r.client, r.server, 10_000)
		_, _ = r.client.Close(), r.server.Close()
	}
}

// TestFill: frames whose payload is put where they are kept come whole and in order among those
// that are written, and one that cannot be filled has never been.
func TestFill(t *testing.T) {
	r := newRig(t, minute, nil)
	rnd := rand.New(rand.NewPCG(9, 9))
	var want []byte
	broken := errors.New("broken")
	got := make(chan []byte, 1)
	go func() {
		b, _ := io.ReadAll(r.server)
		got <- b
	}()
	for i := range 200 {
		payload := make([]byte, rnd.IntN(1<<rnd.IntN(18)))
		for j := range payload {
			payload[j] = byte(rnd.Uint32())
		}
		h := frame.Header{Kind: frame.Data, Len: uint32(len(payload)), Arg: uint64(i)}
		whole := append(h.Append(nil), payload...)
		if rnd.IntN(3) == 0 {
			if _, err := r.client.Write(whole); err != nil {
				t.Fatal(err)
			}
			want = append(want, whole...)
			continue
		}
		fail, next := rnd.IntN(3) == 0, 0
		err := r.client.Fill(h, func(p []byte, at int) error {
			if at != next || len(p) == 0 {
				t.Errorf("%d bytes at %d, want %d", len(p), at, next)
			}
			next += copy(p, payload[at:])
			if fail && next == len(payload) {
				return broken
			}
			return nil
		})
		if fail = fail && len(payload) > 0; fail != errors.Is(err, broken) || !fail && (err != nil || next != len(payload)) {
			t.Fatalf("%v after %d bytes of %d", err, next, len(payload))
		}
		if !fail {
			want = append(want, whole...)
		}
	}
	r.client.mu.Lock()
	end := r.client.kept.end
	r.client.mu.Unlock()
	if end != uint64(len(want)) {
		t.Errorf("%d bytes are in the stream, want %d", end, len(want))
	}
	for {
		r.server.mu.Lock()
		came := r.server.got
		r.server.mu.Unlock()
		if came == uint64(len(want)) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	_ = r.client.Close()
	if b := <-got; !bytes.Equal(b, want) {
		t.Errorf("other bytes came: %d of %d", len(b), len(want))
	}
}

// TestBounded: what nobody acknowledges is kept up to the window; whoever sends more waits, also
// while there is no connection.
func TestBounded(t *testing.T) {
	stop := make(chan struct{})
	r := newRig(t, minute, func(n int, c net.Conn, _ bool) net.Conn {
		if n > 0 {
			<-stop
		}
		return c
	})
	r.client.broken(r.client.up, errors.New("cut"))
	go func() { _, _ = io.Copy(io.Discard, r.client) }()
	sent := make(chan int, 1)
	go func() {
		n := 0
		for f := append(frame.Header{Kind: frame.Data, Len: 1 << 16}.Append(nil), make([]byte, 1<<16)...); n < 3*Window; n += len(f) {
			if _, err := r.client.Write(f); err != nil {
				t.Error(err)
			}
		}
		sent <- n
	}()
	full := func() bool {
		r.client.mu.Lock()
		defer r.client.mu.Unlock()
		if r.client.kept.size() > Window {
			t.Fatal("more is kept than the window")
		}
		return r.client.kept.size() > Window-1<<17
	}
	for deadline := time.Now().Add(minute); !full(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nobody waits")
		}
	}
	close(stop)
	if n, err := io.CopyN(io.Discard, r.server, 3*Window); err != nil {
		t.Error(n, err)
	}
	_, _ = io.CopyN(io.Discard, r.server, int64(<-sent)-3*Window)
	r.client.mu.Lock()
	defer r.client.mu.Unlock()
	if n := len(r.client.kept.free); n > keptFree {
		t.Errorf("%d chunks are left", n)
	}
}

// TestOver: without a connection for too long both ends end, by name; Close ends the other end at
// once, and a server that has no such session ends the client.
func TestOver(t *testing.T) {
	ends := func(c *Conn) error {
		_ = c.SetReadDeadline(time.Now().Add(minute))
		_, err := c.Read(make([]byte, 1))
		return err
	}
	t.Run("lost", func(t *testing.T) {
		r := newRig(t, 50*time.Millisecond, func(n int, c net.Conn, _ bool) net.Conn {
			if n > 0 {
				reset(c)
			}
			return c
		})
		r.server.broken(r.server.up, errors.New("cut"))
		for _, c := range []*Conn{r.client, r.server} {
			if err := ends(c); !errors.Is(err, ErrLost) {
				t.Error(err)
			}
			if _, err := c.Write([]byte{1}); !errors.Is(err, ErrLost) {
				t.Error(err)
			}
		}
	})
	t.Run("closed", func(t *testing.T) {
		r := newRig(t, minute, nil)
		_ = r.client.Close()
		if err := ends(r.server); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
		if err := ends(r.client); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	t.Run("gone", func(t *testing.T) {
		r := newRig(t, minute, func(n int, c net.Conn, server bool) net.Conn {
			if n > 0 && server {
				_, _ = io.WriteString(c, remote.Gone)
				_, _ = io.CopyN(io.Discard, c, 1)
				_ = c.Close()
			}
			return c
		})
		reset(r.client.up.(*frame.Secure).NetConn().(*frame.Buffered).Conn)
		if err := ends(r.client); !errors.Is(err, ErrGone) {
			t.Error(err)
		}
	})
	t.Run("deadline", func(t *testing.T) {
		r := newRig(t, minute, nil)
		_ = r.client.SetReadDeadline(time.Now().Add(-time.Second))
		if _, err := r.client.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		_ = r.client.SetReadDeadline(time.Time{})
		exchange(t, r.client, r.server, 10_000)
	})
}
