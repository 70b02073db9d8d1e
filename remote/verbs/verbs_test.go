package verbs_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/remote"
	"causeway/remote/remotetest"
	"causeway/remote/verbs"
	"causeway/remote/verbs/verbstest"
)

var here = netip.MustParseAddr("127.0.0.1")

// ends is a connection, and the connection below it.
type ends struct {
	*verbstest.Fabric
	near, far         net.Conn
	nearBase, farBase net.Conn
}

// upgrade has both ends agree. Their adapters may be none.
func upgrade(t testing.TB, near, far []verbs.Adapter) (e ends, nearErr, farErr error) {
	t.Helper()
	var err error
	if e.nearBase, e.farBase, err = remotetest.PairTCP(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.far, farErr = verbs.Upgrade(context.Background(), e.farBase, far, "the far end has none", false)
	}()
	e.near, nearErr = verbs.Upgrade(context.Background(), e.nearBase, near, "the near end has none", true)
	<-done
	return e, nearErr, farErr
}

func open(t testing.TB) ends {
	t.Helper()
	f := verbstest.New()
	e, err1, err2 := upgrade(t, []verbs.Adapter{f.Adapter("near", here)}, []verbs.Adapter{f.Adapter("far", here)})
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	e.Fabric = f
	return e
}

// end closes both ends, and nothing is left.
func (e ends) end(t testing.TB) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- e.far.Close() }()
	if err := errors.Join(e.near.Close(), <-done); err != nil {
		t.Error(err)
	}
	if n := e.Left(); n != 0 {
		t.Errorf("%d queue pairs and registrations are left", n)
	}
}

// TestStream: bytes of both directions at once, in pieces of all sizes, many times the window.
func TestStream(t *testing.T) {
	e := open(t)
	if about := e.near.(*verbs.Conn).String(); about != "RoCE v2 by near port 1, MTU 1024, copies one-sided" {
		t.Error(about)
	}
	const total = 8 << 20
	sent := make(chan error, 2)
	for i, c := range []net.Conn{e.near, e.far} {
		go func() {
			p := make([]byte, total)
			fill(p, byte(i))
			r := rand.New(rand.NewPCG(1, uint64(i)))
			for len(p) > 0 {
				n := min(len(p), 1+r.IntN(1<<r.IntN(20)))
				if _, err := c.Write(p[:n]); err != nil {
					sent <- err
					return
				}
				p = p[n:]
			}
			sent <- nil
		}()
	}
	came := make(chan error, 2)
	for i, c := range []net.Conn{e.far, e.near} {
		go func() {
			want, got := make([]byte, total), make([]byte, total)
			fill(want, byte(i))
			_, err := io.ReadFull(c, got)
			if err == nil && !bytes.Equal(want, got) {
				err = errors.New("other bytes came")
			}
			came <- err
		}()
	}
	for range 2 {
		if err := errors.Join(<-sent, <-came); err != nil {
			t.Error(err)
		}
	}
	e.end(t)
}

func fill(p []byte, seed byte) {
	for i := range p {
		p[i] = byte(i) ^ byte(i>>8) ^ byte(i>>16)*7 ^ seed
	}
}

// TestSmall: many more small writes than there are receives, before the first is read.
func TestSmall(t *testing.T) {
	e := open(t)
	const writes = 2000
	sent := make(chan error, 1)
	go func() {
		var err error
		for i := range writes {
			if _, werr := e.near.Write([]byte{byte(i), byte(i >> 8)}); werr != nil {
				err = werr
			}
		}
		sent <- err
	}()
	var b [2]byte
	for i := range writes {
		if _, err := io.ReadFull(e.far, b[:]); err != nil || b != [2]byte{byte(i), byte(i >> 8)} {
			t.Fatalf("write %d: %x, %v", i, b, err)
		}
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
	e.end(t)
}

// TestEnd: what was written before the end is read, and then there is no more; who writes hears of
// it.
func TestEnd(t *testing.T) {
	e := open(t)
	last := bytes.Repeat([]byte("last"), 50_000)
	if _, err := e.near.Write(last); err != nil {
		t.Fatal(err)
	}
	if err := e.near.Close(); err != nil {
		t.Error(err)
	}
	if got, err := io.ReadAll(e.far); err != nil || !bytes.Equal(got, last) {
		t.Errorf("%d bytes of %d, %v", len(got), len(last), err)
	}
	if _, err := e.far.Write(last); !errors.Is(err, unix.EPIPE) {
		t.Errorf("write to nobody: %v", err)
	}
	for name, err := range map[string]error{"close": e.near.Close(), "read": second(e.near.Read(last)), "write": second(e.near.Write(last))} {
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s of a closed end: %v", name, err)
		}
	}
	if err := e.far.Close(); err != nil {
		t.Error(err)
	}
	if n := e.Left(); n != 0 {
		t.Errorf("%d queue pairs and registrations are left", n)
	}
}

func second(_ int, err error) error { return err }

// TestCloseWakes: an end that is closed lets go of who reads and of who writes.
func TestCloseWakes(t *testing.T) {
	e := open(t)
	ended := make(chan error, 2)
	go func() { ended <- second(e.near.Read(make([]byte, 1))) }()
	go func() { ended <- second(e.near.Write(make([]byte, 4<<20))) }()
	if _, err := io.ReadFull(e.far, make([]byte, 100)); err != nil { // the writer has begun
		t.Fatal(err)
	}
	if err := e.near.Close(); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	}
	if err := e.far.Close(); err != nil {
		t.Error(err)
	}
}

// TestDeadlines: an operation whose time is up gives up, and the next goes on.
func TestDeadlines(t *testing.T) {
	e := open(t)
	_ = e.near.SetReadDeadline(time.Now().Add(time.Millisecond))
	if _, err := e.near.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
	_ = e.near.SetWriteDeadline(time.Now().Add(time.Millisecond))
	if n, err := e.near.Write(make([]byte, 4<<20)); !errors.Is(err, os.ErrDeadlineExceeded) || n > verbs.MostWindow {
		t.Error(n, err)
	}
	_ = e.near.SetDeadline(time.Time{})
	go func() { _, _ = io.Copy(e.far, io.LimitReader(e.far, 100)) }()
	if _, err := io.ReadFull(e.near, make([]byte, 100)); err != nil {
		t.Error(err)
	}
	e.end(t)
}

// TestFaults: whatever a queue pair can fail with has a name, ends both who reads and who writes,
// and leaves nothing behind.
func TestFaults(t *testing.T) {
	for name, x := range map[string]struct {
		fault func(f *verbstest.Fabric)
		want  verbs.Status
	}{
		"link down":        {(*verbstest.Fabric).Cut, verbs.RetryExceeded},
		"memory forgotten": {(*verbstest.Fabric).Forget, verbs.RemoteAccess},
		"remote operation": {func(f *verbstest.Fabric) { f.Break(verbs.RemoteOperation) }, verbs.RemoteOperation},
		"fatal":            {func(f *verbstest.Fabric) { f.Break(verbs.Fatal) }, verbs.Fatal},
		"not ready":        {func(f *verbstest.Fabric) { f.Break(verbs.NotReadyExceeded) }, verbs.NotReadyExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			e := open(t)
			reads := make(chan error, 1)
			go func() { reads <- second(e.near.Read(make([]byte, 1))) }()
			x.fault(e.Fabric)
			var err error
			for err == nil { // it is noticed at the latest when there is no room any more
				_, err = e.near.Write(bytes.Repeat([]byte("x"), 300))
			}
			var q *verbs.QueueError
			if !errors.Is(err, x.want) || !errors.Is(err, verbs.ErrQueue) || !errors.As(err, &q) || strings.Contains(err.Error(), "status") {
				t.Errorf("who writes: %v", err)
			}
			if err := <-reads; !errors.Is(err, x.want) {
				t.Errorf("who reads: %v", err)
			}
			if err := errors.Join(e.near.Close(), e.far.Close()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestOtherEndFails: the end whose memory was used as it may not hears that its queue pair failed.
func TestOtherEndFails(t *testing.T) {
	e := open(t)
	e.Forget()
	if _, err := e.near.Write(make([]byte, 300)); err != nil {
		t.Fatal(err)
	}
	if _, err := e.far.Read(make([]byte, 1)); !errors.Is(err, verbs.Flushed) {
		t.Error(err)
	}
	if err := errors.Join(e.near.Close(), e.far.Close()); err != nil {
		t.Error(err)
	}
}

// TestLifeline: a peer whose connection beside RDMA breaks is gone.
func TestLifeline(t *testing.T) {
	e := open(t)
	_ = e.nearBase.Close()
	if _, err := e.far.Read(make([]byte, 1)); !errors.Is(err, io.EOF) || errors.Is(err, verbs.ErrQueue) {
		t.Errorf("a peer that is gone: %v", err)
	}
	e.end(t)

	e = open(t)
	_, _ = e.nearBase.Write(make([]byte, 16))
	if _, err := e.far.Read(make([]byte, 1)); !errors.Is(err, remote.ErrProtocol) {
		t.Errorf("other words: %v", err)
	}
	e.end(t)
}

// TestStays: without an adapter, a way through, or room at either end both go on over the
// connection that they had, and both know why.
func TestStays(t *testing.T) {
	f := verbstest.New()
	near, far := f.Adapter("near", here), f.Adapter("far", here)
	one := func(a verbs.Adapter) []verbs.Adapter { return []verbs.Adapter{a} }
	for name, x := range map[string]struct {
		near, far      []verbs.Adapter
		before         func()
		nearHas, other string
	}{
		"none here":         {nil, one(far), nil, "the near end has none", "the other end: the near end has none"},
		"none there":        {one(near), nil, nil, "the other end: the far end has none", "the far end has none"},
		"other networks":    {one(f.Adapter("x", netip.MustParseAddr("192.0.2.1"))), one(far), nil, "no RDMA port is on the connection's network: none has the address 127.0.0.1", "the other end"},
		"InfiniBand there":  {one(near), one(f.InfiniBand("ib", 7)), nil, "this end has RoCE v2, the other InfiniBand", "this end has InfiniBand"},
		"nothing registers": {one(near), one(far), func() { f.Refuse("no room") }, "register memory: no room", "register memory: no room"},
		"no way through":    {one(near), one(far), f.Cut, "retry exceeded", "retry exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			f.Heal()
			if x.before != nil {
				x.before()
			}
			e, err1, err2 := upgrade(t, x.near, x.far)
			if !errors.Is(err1, verbs.ErrStays) || !errors.Is(err2, verbs.ErrStays) {
				t.Fatal(err1, err2)
			}
			if !strings.Contains(err1.Error(), x.nearHas) || !strings.Contains(err2.Error(), x.other) {
				t.Errorf("%v; %v", err1, err2)
			}
			if e.near != e.nearBase || e.far != e.farBase || f.Left() != 0 {
				t.Errorf("%v, %v; %d things left", e.near, e.far, f.Left())
			}
			go func() { _, _ = e.near.Write([]byte("goes on")) }()
			b := make([]byte, 7)
			if _, err := io.ReadFull(e.far, b); err != nil || string(b) != "goes on" {
				t.Error(string(b), err)
			}
			_ = e.near.Close()
			_ = e.far.Close()
		})
	}
}

// TestPartitions: what is not of the same partition of the fabric, with a full member at one end,
// does not reach it, and the session stays on TLS.
func TestPartitions(t *testing.T) {
	for _, x := range []struct {
		near, far verbs.Partition
		reaches   bool
	}{
		{0x8001, 0x8001, true}, {0x8001, 0x0001, true}, {0x0001, 0x8001, true}, {0x8001, 0x8002, false}, {0x8001, 0xffff, false},
	} {
		f := verbstest.New()
		near, far := f.InfiniBand("near", 7).In(x.near), f.InfiniBand("far", 9).In(x.far)
		e, err1, err2 := upgrade(t, []verbs.Adapter{near}, []verbs.Adapter{far})
		if x.reaches && errors.Join(err1, err2) != nil || !x.reaches && (!errors.Is(err1, verbs.ErrStays) || !errors.Is(err2, verbs.ErrStays)) {
			t.Errorf("%v to %v: %v, %v", x.near, x.far, err1, err2)
		}
		if s := near.Port().String(); !strings.HasSuffix(s, ", partition "+x.near.String()+")") {
			t.Error(s)
		}
		_ = e.near.Close()
		_ = e.far.Close()
	}
}

func TestParsePartition(t *testing.T) {
	for in, want := range map[string]verbs.Partition{"": 0, "0x8001": 0x8001, "0x1": 1, "0xffff": 0xffff} {
		if got, err := verbs.ParsePartition(in); got != want || err != nil {
			t.Errorf("%q: %v, %v", in, got, err)
		}
	}
	for _, in := range []string{"8001", "0x", "0x0", "0x8000", "0x18001", "0x-1", "0x80 01", "first"} {
		if got, err := verbs.ParsePartition(in); got != 0 || !errors.Is(err, verbs.ErrPartition) {
			t.Errorf("%q: %v, %v", in, got, err)
		}
	}
}

func TestChoose(t *testing.T) {
	f := verbstest.New()
	a, b, ib := f.Adapter("a", netip.MustParseAddr("192.0.2.1")), f.Adapter("b", netip.MustParseAddr("2001:db8::1")), f.InfiniBand("ib", 9)
	for _, x := range []struct {
		local string
		of    []verbs.Adapter
		want  string
	}{
		{"192.0.2.1", []verbs.Adapter{ib, a, b}, "a"},
		{"::ffff:192.0.2.1", []verbs.Adapter{a, b}, "a"},
		{"2001:db8::1", []verbs.Adapter{a, b}, "b"},
		{"192.0.2.9", []verbs.Adapter{a, b, ib}, "ib"},
		{"192.0.2.9", []verbs.Adapter{a, b}, ""},
		{"fe80::1", []verbs.Adapter{a}, ""}, // a GID of that address, but of RoCE version 1
		{"192.0.2.9", nil, ""},
	} {
		got, gid, err := verbs.Choose(x.of, netip.MustParseAddr(x.local))
		switch {
		case x.want == "" && !errors.Is(err, verbs.ErrNoPort):
			t.Errorf("%s: %v", x.local, err)
		case x.want != "" && (err != nil || got.Port().Device != x.want || gid.Addr == [16]byte{}):
			t.Errorf("%s: %v, %v", x.local, gid, err)
		}
	}
}
