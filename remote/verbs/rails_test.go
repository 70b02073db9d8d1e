package verbs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"causeway/remote/frame"
	"causeway/remote/remotetest"
	"causeway/remote/verbs"
	"causeway/remote/verbs/verbstest"
)

// wide is a connection with several ports at either end.
type wide struct {
	ends
	nearPorts, farPorts []*verbstest.Adapter
	conn, farConn       *verbs.Conn
}

// beside are the addresses of ports that the connection does not have.
var beside = []string{"192.0.2.1", "198.51.100.1"}

// ports are so many of a side: each network has one of either side.
func ports(f *verbstest.Fabric, name string, n int) []*verbstest.Adapter {
	all := []*verbstest.Adapter{f.Adapter(name, here)}
	for i := range n - 1 {
		all = append(all, f.Adapter(fmt.Sprint(name, i+1), netip.MustParseAddr(beside[i]).Next()))
	}
	return all
}

func adapters(of []*verbstest.Adapter) []verbs.Adapter {
	var all []verbs.Adapter
	for _, a := range of {
		all = append(all, a)
	}
	return all
}

// wideOver has both ends agree over connections, of which each end may be wrapped.
func wideOver(t testing.TB, f *verbstest.Fabric, near, far []*verbstest.Adapter, nearPairs, farPairs int, wrap func(near net.Conn) net.Conn) (w wide, nearErr, farErr error) {
	t.Helper()
	w = wide{nearPorts: near, farPorts: far}
	w.Fabric = f
	var err error
	if w.nearBase, w.farBase, err = remotetest.PairTCP(); err != nil {
		t.Fatal(err)
	}
	if wrap != nil {
		w.nearBase = wrap(w.nearBase)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.far, farErr = verbs.UpgradeWide(context.Background(), w.farBase, adapters(far), "", false, farPairs)
	}()
	w.near, nearErr = verbs.UpgradeWide(context.Background(), w.nearBase, adapters(near), "", true, nearPairs)
	<-done
	return w, nearErr, farErr
}

// openWide is a connection with two ports at either end and so many queue pairs for copies.
func openWide(t testing.TB, pairs int, wrap func(near net.Conn) net.Conn) wide {
	t.Helper()
	f := verbstest.New()
	w, err1, err2 := wideOver(t, f, ports(f, "near", 2), ports(f, "far", 2), pairs, pairs, wrap)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	w.conn, w.farConn = w.near.(*verbs.Conn), w.far.(*verbs.Conn)
	return w
}

// until waits for what becomes so by itself.
func until(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(remotetest.Limit); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// TestRails: how many queue pairs copies have, and by which ports, by what each end has and says;
// both say the same, and bytes are right.
func TestRails(t *testing.T) {
	for name, x := range map[string]struct {
		near, far, nearPairs, farPairs, want int
		about                                string // of the near end
	}{
		"by ports":          {2, 2, 0, 0, 2, ", 2 queue pairs for them: near/1, near1/1"},
		"three":             {3, 3, 0, 0, 3, ", 3 queue pairs for them: near/1, near1/1, near2/1"},
		"one near":          {1, 2, 0, 0, 1, ""},
		"one far":           {2, 1, 0, 0, 1, ""},
		"four over two":     {2, 2, 4, 4, 4, ", 4 queue pairs for them: near/1, near1/1, near/1, near1/1"},
		"the fewer":         {2, 2, 8, 3, 3, ", 3 queue pairs"},
		"the near end less": {2, 2, 1, 8, 1, ""},
		"three of one port": {1, 1, 3, 3, 3, ", 3 queue pairs for them: near/1, near/1, near/1"},
		"one to two":        {1, 2, 3, 3, 3, ", 3 queue pairs for them: near/1, near/1, near/1"},
		"most":              {2, 2, 8, 8, 8, ", 8 queue pairs"},
	} {
		t.Run(name, func(t *testing.T) {
			f := verbstest.New()
			w, err1, err2 := wideOver(t, f, ports(f, "near", x.near), ports(f, "far", x.far), x.nearPairs, x.farPairs, nil)
			if err := errors.Join(err1, err2); err != nil {
				t.Fatal(err)
			}
			near, far := w.near.(*verbs.Conn), w.far.(*verbs.Conn)
			if near.Pairs() != x.want || far.Pairs() != x.want {
				t.Errorf("%d and %d queue pairs", near.Pairs(), far.Pairs())
			}
			if about := near.String(); !strings.Contains(about, "copies one-sided"+x.about) || x.about == "" && strings.Contains(about, "queue pair") {
				t.Errorf("%q", about)
			}
			w.copies(t, 2)
			w.end(t)
		})
	}
}

// copies has several goroutines move bytes of all sizes each way.
func (w wide) copies(t *testing.T, rounds int) {
	t.Helper()
	const each, users = 2 << 20, 3
	mem, g, revoke := granted(t, w.ends, each*users)
	far := w.far.(*verbs.Conn)
	var wg sync.WaitGroup
	for u := range users {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(3, uint64(u)))
			for i := range rounds {
				off := r.IntN(each)
				p := make([]byte, min(each-off, 1+r.IntN(1<<(17+i%5))))
				fill(p, byte(r.Uint32()))
				here := mem[u*each+off:][:len(p)]
				if err := far.Store(p, g, uint64(u*each+off)); err != nil {
					t.Error(err)
					return
				}
				got := make([]byte, len(p))
				if err := far.Fetch(got, g, uint64(u*each+off)); err != nil || !bytes.Equal(got, p) {
					t.Errorf("%d bytes at %d: %v, or other bytes", len(p), off, err)
				}
				if err := far.Settle(); err != nil || !bytes.Equal(here, p) {
					// What goes by the stream's queue pair is there before the stream's next, not
					// before.
					t.Errorf("%d bytes at %d are not there, %v", len(p), off, err)
				}
			}
		})
	}
	wg.Wait()
	revoke()
}

// TestRailsMany: many copies at once over many queue pairs.
func TestRailsMany(t *testing.T) {
	w := openWide(t, 5, nil)
	w.copies(t, 30)
	w.end(t)
}

const railCopy = 4 << 20

// begin begins a copy either way while the frames' queue pair stands still: that has a MiB of it at
// most, and rails the rest.
func (w wide) begin(write bool, p []byte, g frame.Granted) chan error {
	w.Stick(w.farPorts[0])
	done := make(chan error, 1)
	go func() {
		if write {
			done <- w.farConn.Store(p, g, 0)
		} else {
			done <- w.farConn.Fetch(p, g, 0)
		}
	}()
	return done
}

// TestRailsCarry: what the one queue pair does not come to do the others do.
func TestRailsCarry(t *testing.T) {
	for _, op := range []verbs.Op{verbs.Read, verbs.Write} {
		w := openWide(t, 2, nil)
		mem, p, g, revoke := w.memory(t, op == verbs.Write)
		done := w.begin(op == verbs.Write, p, g)
		until(t, "the second port does not carry its part", func() bool { return w.MovedBy(w.farPorts[1], op) >= railCopy-1<<20 })
		w.Stick(nil)
		if err := errors.Join(<-done, w.farConn.Settle()); err != nil || !bytes.Equal(p, mem) {
			t.Errorf("%v, or other bytes", err)
		}
		if n := w.MovedBy(w.farPorts[0], op); n > 1<<20 {
			t.Errorf("%d bytes went by the first port", n)
		}
		revoke()
		w.end(t)
	}
}

// memory is granted memory and a copy's other side, one of which has bytes.
func (w wide) memory(t *testing.T, write bool) (mem, p []byte, g frame.Granted, revoke func()) {
	t.Helper()
	mem, x, revoke := granted(t, w.ends, railCopy)
	p = make([]byte, railCopy)
	if write {
		fill(p, 7)
	} else {
		fill(mem, 7)
	}
	return mem, p, x, revoke
}

// TestRailFaults: a rail that fails in the middle of a copy is given up at both ends, its parts are
// repeated, and the copy and all that follow are whole; both ends say it.
func TestRailFaults(t *testing.T) {
	for name, x := range map[string]struct {
		fault func(w wide)
		why   string
	}{
		"link down":     {func(w wide) { w.Down(w.nearPorts[1]) }, "retry exceeded"},
		"in the middle": {func(w wide) { w.FailBehind(w.farPorts[1], 5, verbs.RetryExceeded) }, "retry exceeded"},
		"queue pair":    {func(w wide) { w.FailBehind(w.farPorts[1], 9, verbs.LocalOperation) }, ""},
		"remote access": {func(w wide) { w.ForgetAt(w.nearPorts[1]) }, "remote access"},
	} {
		for _, write := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " write=", write), func(t *testing.T) {
				w := openWide(t, 2, nil)
				told := make(chan string, 2)
				w.conn.Watch(func(about string) { told <- about })
				w.farConn.Watch(func(about string) { told <- about })
				mem, p, g, revoke := w.memory(t, write)
				x.fault(w)
				done := w.begin(write, p, g)
				until(t, "the rail is not given up", func() bool { return w.conn.Pairs() == 1 && w.farConn.Pairs() == 1 })
				w.Stick(nil)
				if err := errors.Join(<-done, w.farConn.Settle()); err != nil || !bytes.Equal(p, mem) {
					t.Errorf("%v, or other bytes", err)
				}
				first, second := <-told, <-told
				if s := first + second; !strings.Contains(s, "; not by far1/1: ") || !strings.Contains(s, "; not by near1/1: the other end has given it up") || !strings.Contains(s, x.why) {
					t.Errorf("%q, %q", first, second)
				}
				w.copies(t, 5)
				revoke()
				w.end(t)
			})
		}
	}
}

// slowWords has an end not say a word until it may.
type slowWords struct {
	net.Conn
	magic string
	may   chan struct{}
}

// Write implements net.Conn.
func (c slowWords) Write(b []byte) (int, error) {
	if bytes.HasPrefix(b, []byte(c.magic)) {
		<-c.may
	}
	return c.Conn.Write(b)
}

// TestRailGone: what a rail that has failed was to write is written again when the other end has
// given it up, too, and not before: its adapter might write it over what is there by then.
func TestRailGone(t *testing.T) {
	may := make(chan struct{})
	w := openWide(t, 2, func(near net.Conn) net.Conn { return slowWords{near, verbs.RailLost, may} })
	mem, p, g, revoke := w.memory(t, true)
	w.FailBehind(w.farPorts[1], 5, verbs.RetryExceeded)
	done := w.begin(true, p, g)
	until(t, "the rail is not given up", func() bool { return w.farConn.Pairs() == 1 })
	w.Stick(nil)
	// That are lost: five written without word that they are there, and what was under way.
	const least, most = 6 * verbs.PieceSize, 9 * verbs.PieceSize
	until(t, "the others are not written", func() bool { return w.MovedBy(w.farPorts[0], verbs.Write) >= railCopy-most })
	if n := w.MovedBy(w.farPorts[0], verbs.Write); n > railCopy-least || len(done) != 0 {
		t.Errorf("%d bytes are written, or the copy has ended", n)
	}
	close(may)
	if err := errors.Join(<-done, w.farConn.Settle()); err != nil || !bytes.Equal(p, mem) {
		t.Errorf("%v, or other bytes", err)
	}
	if n := w.MovedBy(w.farPorts[0], verbs.Write); n != railCopy {
		t.Errorf("%d bytes are written", n)
	}
	revoke()
	w.end(t)
}

// TestRailsEnd: whoever copies by rails is let go when either end closes, or the connection fails,
// and nothing is left.
func TestRailsEnd(t *testing.T) {
	for name, x := range map[string]struct {
		end  func(w wide)
		want error
	}{
		"closed":  {func(w wide) { go func() { _ = w.farConn.Close() }() }, net.ErrClosed},
		"aborted": {func(w wide) { w.farConn.Abort() }, net.ErrClosed},
		"fails":   {func(w wide) { w.Break(verbs.Fatal) }, verbs.ErrQueue},
	} {
		t.Run(name, func(t *testing.T) {
			w := openWide(t, 4, nil)
			_, g, revoke := granted(t, w.ends, railCopy)
			w.Hold(true)
			done := make(chan error, 2)
			go func() { done <- w.farConn.Fetch(make([]byte, railCopy), g, 0) }()
			go func() { done <- w.farConn.Store(make([]byte, railCopy), g, 0) }()
			x.end(w)
			for range 2 {
				if err := <-done; !errors.Is(err, x.want) {
					t.Error(err)
				}
			}
			w.Hold(false)
			revoke()
			_ = errors.Join(w.nearBase.Close(), w.farBase.Close())
			w.conn.Abort()
			w.farConn.Abort()
			until(t, "something is left", func() bool { return w.Left() == 0 })
		})
	}
}

// TestRailsThatDoNotCome: what carries nothing from the beginning is not used, nor is what cannot
// be had; the rest is.
func TestRailsThatDoNotCome(t *testing.T) {
	for name, x := range map[string]struct {
		before    func(f *verbstest.Fabric, near, far []*verbstest.Adapter)
		near, far string
	}{
		"no way":     {func(f *verbstest.Fabric, near, _ []*verbstest.Adapter) { f.Down(near[1]) }, "; not by near1/1: the other end has none there", "; not by far1/1: "},
		"no memory":  {func(f *verbstest.Fabric, _, _ []*verbstest.Adapter) { f.Pin(3*verbs.MostWindow + 100<<10) }, "; not by near2/1: the other end has none there", "; not by far"},
		"all is had": {func(*verbstest.Fabric, []*verbstest.Adapter, []*verbstest.Adapter) {}, "near2/1", "far2/1"},
	} {
		f := verbstest.New()
		near, far, pairs := ports(f, "near", 3), ports(f, "far", 3), 0
		if name == "no memory" { // the first port has no room for another's pieces
			near, far, pairs = near[:1], far[:1], 2
			x.near = "; not by near/1: the other end has none there"
		}
		x.before(f, near, far)
		w, err1, err2 := wideOver(t, f, near, far, pairs, pairs, nil)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(name, err)
		}
		f.Pin(0)
		if a, b := fmt.Sprint(w.near), fmt.Sprint(w.far); !strings.Contains(a, x.near) || !strings.Contains(b, x.far) {
			t.Errorf("%s: %q, %q", name, a, b)
		}
		w.copies(t, 3)
		w.end(t)
	}
}

// TestRailGoneWithPeer: a rail that fails when the other end has gone, and cannot give it up any
// more, ends the copy with an error.
func TestRailGoneWithPeer(t *testing.T) {
	w := openWide(t, 2, nil)
	_, g, revoke := granted(t, w.ends, railCopy)
	w.Hold(true)
	done := make(chan error, 1)
	go func() { done <- w.farConn.Store(make([]byte, railCopy), g, 0) }()
	// Before, the queue pair of the frames may do all of it, and the copy be right to succeed.
	until(t, "the rail takes no part", func() bool { return w.PostedBy(w.farPorts[1]) > 0 })
	w.Stick(w.farPorts[1])
	w.Hold(false)
	until(t, "the parts of the queue pair of the frames are not done", func() bool { return w.MovedBy(w.farPorts[0], 0) >= railCopy-4*verbs.PieceSize })
	_ = w.near.Close()
	w.Stick(nil)
	select {
	case err := <-done:
		if err == nil {
			t.Error("a copy to an end that is gone succeeds")
		}
	case <-time.After(remotetest.Limit):
		t.Error("the copy waits for an end that is gone")
	}
	revoke()
	w.farConn.Abort()
}
