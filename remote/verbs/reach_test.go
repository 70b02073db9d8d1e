package verbs_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"

	"causeway/remote"
	"causeway/remote/frame"
	"causeway/remote/verbs"
	"causeway/remote/verbs/verbstest"
)

// granted is memory of the near end that the far one reaches.
func granted(t *testing.T, e ends, size int) (mem []byte, g frame.Granted, revoke func()) {
	t.Helper()
	c := e.near.(*verbs.Conn)
	if !c.Grants() || c.Reaches() || e.far.(*verbs.Conn).Grants() || !e.far.(*verbs.Conn).Reaches() {
		t.Fatal("the server reaches memory of the client's, and nothing else does")
	}
	mem = make([]byte, size)
	g, revoke, err := c.Grant(mem)
	if err != nil {
		t.Fatal(err)
	}
	return mem, g, revoke
}

// TestReach: bytes of all sizes, at any place, by several at once; the end whose memory it is has
// no part in it. What is written is there before what the stream says afterwards.
func TestReach(t *testing.T) {
	e := open(t)
	const each, users = 3 << 20, 3
	mem, g, revoke := granted(t, e, each*users)
	far := e.far.(*verbs.Conn)
	said := make(chan error, 1)
	go func() { // calls go on beside
		b := make([]byte, 100)
		var err error
		for range 50 * users {
			if _, rerr := io.ReadFull(e.near, b); rerr != nil {
				err = rerr
			}
		}
		said <- err
	}()
	before := e.Moved(verbs.WriteImmediate)
	var wg sync.WaitGroup
	for u := range users {
		wg.Go(func() {
			r, mirror := rand.New(rand.NewPCG(7, uint64(u))), make([]byte, each)
			for range 50 {
				off := r.IntN(each)
				p := make([]byte, min(each-off, 1+r.IntN(1<<r.IntN(22))))
				fill(p, byte(r.Uint32()))
				if err := far.Store(p, g, uint64(u*each+off)); err != nil {
					t.Error(err)
					return
				}
				copy(mirror[off:], p)
				clear(p)
				if err := far.Fetch(p, g, uint64(u*each+off)); err != nil || !bytes.Equal(p, mirror[off:][:len(p)]) {
					t.Errorf("%d bytes at %d: %v, or other bytes", len(p), off, err)
				}
				if _, err := far.Write(make([]byte, 100)); err != nil {
					t.Error(err)
				}
			}
			got := make([]byte, each)
			if err := far.Fetch(got, g, uint64(u*each)); err != nil || !bytes.Equal(got, mirror) {
				t.Errorf("user %d: other bytes, or %v", u, err)
			}
		})
	}
	wg.Wait()
	if err := <-said; err != nil {
		t.Error(err)
	}
	if n := e.Moved(verbs.WriteImmediate) - before; n != 50*users*100 {
		t.Errorf("%d bytes went by the stream", n)
	}
	for _, x := range [][2]int{{len(mem), 1}, {len(mem) - 1, 2}, {-1, 2}} {
		if err := errors.Join(far.Fetch(make([]byte, x[1]), g, uint64(x[0]))); !errors.Is(err, remote.ErrOutOfBounds) {
			t.Errorf("%v: %v", x, err)
		}
		if err := far.Store(make([]byte, x[1]), g, uint64(x[0])); !errors.Is(err, remote.ErrOutOfBounds) {
			t.Errorf("%v: %v", x, err)
		}
	}
	for i := range 20 { // the byte is there when the word of it is
		if err := far.Store([]byte{byte(100 + i)}, g, 5); err != nil {
			t.Fatal(err)
		}
		if _, err := far.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(e.near, make([]byte, 1)); err != nil || mem[5] != byte(100+i) {
			t.Fatalf("round %d: %d, %v", i, mem[5], err)
		}
	}
	revoke()
	e.end(t)
}

// TestReachFaults: what a failure is called at the end that reaches, and that both ends' streams
// end with it.
func TestReachFaults(t *testing.T) {
	for name, x := range map[string]struct {
		fault func(e ends, revoke func())
		want  verbs.Status
	}{
		"taken back":     {func(_ ends, revoke func()) { revoke() }, verbs.RemoteAccess},
		"link down":      {func(e ends, _ func()) { e.Cut() }, verbs.RetryExceeded},
		"queue pair":     {func(e ends, _ func()) { e.Break(verbs.LocalOperation) }, verbs.LocalOperation},
		"not registered": {func(e ends, _ func()) { e.Forget() }, verbs.RemoteAccess},
	} {
		for _, write := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " write=", write), func(t *testing.T) {
				e := open(t)
				mem, g, revoke := granted(t, e, 1<<20)
				once := sync.OnceFunc(revoke)
				x.fault(e, once)
				far, p := e.far.(*verbs.Conn), bytes.Repeat([]byte{1}, 400<<10)
				var err error
				for err == nil { // who writes hears of it later
					if err = far.Fetch(p, g, 0); write {
						err = far.Store(p, g, 0)
					}
				}
				if !errors.Is(err, x.want) || !errors.Is(err, verbs.ErrQueue) {
					t.Errorf("the end that reaches: %v", err)
				}
				if _, err := far.Read(make([]byte, 1)); !errors.Is(err, x.want) {
					t.Errorf("its stream: %v", err)
				}
				if !bytes.Equal(mem, make([]byte, len(mem))) {
					t.Error("memory has changed")
				}
				once()
				e.end(t)
			})
		}
	}
}

// TestReachEnds: who reaches memory when its own end closes is told so, and nothing is touched
// afterwards.
func TestReachEnds(t *testing.T) {
	e := open(t)
	_, g, revoke := granted(t, e, 4<<20)
	e.Hold(true)
	far, done, closed := e.far.(*verbs.Conn), make(chan error, 2), make(chan error, 1)
	go func() { done <- far.Fetch(make([]byte, 4<<20), g, 0) }()
	go func() { done <- far.Store(make([]byte, 4<<20), g, 0) }()
	go func() { closed <- far.Close() }()
	for range 2 {
		if err := <-done; !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	}
	e.Hold(false)
	revoke()
	if err := errors.Join(e.near.Close(), <-closed); err != nil {
		t.Error(err)
	}
	if n := e.Left(); n != 0 {
		t.Errorf("%d things are left", n)
	}
}

// TestReachWithoutMemory: where the server may not pin what bytes pass through, all goes by the
// stream, and both say so.
func TestReachWithoutMemory(t *testing.T) {
	f := verbstest.New()
	f.Pin(2*verbs.MostWindow + 4096) // the two windows
	e, err1, err2 := upgrade(t, []verbs.Adapter{f.Adapter("near", here)}, []verbs.Adapter{f.Adapter("far", here)})
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	e.Fabric = f
	if e.near.(*verbs.Conn).Grants() || e.far.(*verbs.Conn).Reaches() {
		t.Error("the server reaches memory")
	}
	for c, want := range map[net.Conn]string{e.near: "copies in frames", e.far: "copies in frames: memory for RDMA: register 1048576 bytes: no more than"} {
		if about := fmt.Sprint(c); !strings.Contains(about, want) {
			t.Errorf("%q", about)
		}
	}
	e.end(t)
}
