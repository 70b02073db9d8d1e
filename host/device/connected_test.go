package device

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/api"
	"causeway/host/worker/link"
	"causeway/remote"
	"causeway/remote/mtls"
	"causeway/remote/sys"
)

// leased is a device that another host has, whose workers are fakes.
type leased struct {
	t       *testing.T
	d       *Device
	workers *fakeWorkers
	path    string
	end     func()
}

func newLeased(t *testing.T, l api.Limits) *leased {
	t.Helper()
	return newLeasedOf(t, Options{Worker: link.Config{GPU: "soft"}, Limits: l, Leased: true})
}

func newLeasedOf(t *testing.T, o Options) *leased {
	t.Helper()
	o.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	x := &leased{t: t, d: d, workers: &fakeWorkers{fail: t.Errorf}, path: filepath.Join(t.TempDir(), "gpu0.sock")}
	d.workers = x.workers
	ln, err := Listen(x.path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.ServeLease(ctx, ln, mtls.Pinned{Peer: mtls.KeyHash{1}}) }()
	x.end = func() {
		cancel()
		x.ended(done)
	}
	return x
}

// ended waits for the end of what serves it.
func (x *leased) ended(done <-chan error) {
	x.t.Helper()
	select {
	case err := <-done:
		if err != nil {
			x.t.Error(err)
		}
	case <-time.After(time.Minute):
		x.t.Fatal("what serves the vGPU does not end")
	}
}

// hand hands files over as causewayd does the connection of a session.
func (x *leased) hand(files ...int) {
	x.t.Helper()
	x.handAs(remote.Preface{Lease: remote.LeaseID{1}, Session: remote.NewSessionID()}, files...)
}

func (x *leased) handAs(p remote.Preface, files ...int) {
	x.t.Helper()
	c, err := net.Dial("unix", x.path)
	if err != nil {
		x.t.Fatal(err)
	}
	defer c.Close()
	if err := sys.SendPacket(c.(*net.UnixConn), append(p.Encode(), "192.0.2.1:4"...), files); err != nil {
		x.t.Fatal(err)
	}
}

// program is a program's end of a connection whose other end is handed over.
func (x *leased) program() *net.UnixConn {
	x.t.Helper()
	return x.programAs(remote.Preface{Lease: remote.LeaseID{1}, Session: remote.NewSessionID()})
}

func (x *leased) programAs(p remote.Preface) *net.UnixConn {
	x.t.Helper()
	near, far := socketPair(x.t)
	f, err := far.File()
	if err != nil {
		x.t.Fatal(err)
	}
	x.handAs(p, int(f.Fd()))
	_, _ = f.Close(), far.Close()
	return near
}

// TestLeasedReady: a worker that waits is for a program of which its host says that it will do, and
// for no other.
func TestLeasedReady(t *testing.T) {
	x := newLeased(t, api.Limits{})
	for n, ready := range []bool{true, false, true} {
		x.programAs(remote.Preface{Lease: remote.LeaseID{1}, Session: remote.NewSessionID(), Ready: ready})
		x.until("a session", func() bool { return x.running() == n+1 })
		if got := x.workers.last().spare; got != ready {
			t.Errorf("session %d: a worker that waited may serve it: %v, not %v", n, got, ready)
		}
		if !x.workers.last().cfg.Tied {
			t.Errorf("session %d would go on without its device process", n)
		}
	}
	x.end()
}

// TestLeasedMigratable: sessions of a lease may go to another server on the software GPU, and on a
// real one where the vGPU is migratable, from the base of its name; those of a container's programs
// may not.
func TestLeasedMigratable(t *testing.T) {
	base := link.BaseOf("vm1/gpu0")
	for _, c := range []struct {
		worker     link.Config
		leased     bool
		migratable bool
		base       uint64
	}{
		{link.Config{GPU: "soft"}, true, true, 0},
		{link.Config{GPU: "cuda"}, true, false, 0},
		{link.Config{GPU: "cuda", Migratable: true, Base: base}, true, true, base},
		{link.Config{GPU: "cuda", Migratable: true, Base: base}, false, false, 0},
		{link.Config{GPU: "soft"}, false, false, 0},
	} {
		x := newLeasedOf(t, Options{Worker: c.worker, Leased: c.leased, Programs: !c.leased})
		x.program()
		x.until("a session", func() bool { return x.running() == 1 })
		if cfg := x.workers.last().cfg; cfg.Migratable != c.migratable || cfg.Base != c.base {
			t.Errorf("%+v, leased %v: %v, base %#x", c.worker, c.leased, cfg.Migratable, cfg.Base)
		}
		x.end()
	}
}

// TestLeasedAgain: a connection over which a session goes on comes to that session's worker, and
// makes none; who asks for a session that is none, or is over, hears so, and nobody begins a second
// of a name.
func TestLeasedAgain(t *testing.T) {
	x := newLeased(t, api.Limits{})
	p := remote.Preface{Lease: remote.LeaseID{1}, Session: remote.NewSessionID()}
	hears := func(p remote.Preface, want string) {
		t.Helper()
		if b, err := io.ReadAll(x.programAs(p)); string(b) != want || err != nil {
			t.Errorf("%+v hears %q, %v, not %q", p, b, err, want)
		}
	}
	again := p
	again.Again = true
	hears(again, remote.Gone)
	x.programAs(p)
	x.until("a session", func() bool { return x.running() == 1 })
	x.programAs(remote.Preface{Lease: remote.LeaseID{1}, Session: remote.NewSessionID()})
	x.until("two", func() bool { return x.running() == 2 })
	hears(again, tookConnection)
	hears(p, "")
	hears(remote.Preface{Lease: remote.LeaseID{1}, Session: remote.NewSessionID(), Again: true}, remote.Gone)
	if n := len(x.d.all()); n != 2 {
		t.Errorf("%d sessions", n)
	}
	x.d.connectedAs(p.Session).proc.(*fakeWorker).exit(nil)
	x.until("it is gone", func() bool { return len(x.d.all()) == 1 })
	hears(again, remote.Gone)
	x.end()
}

// TestLeasedRefused: the relay of a program that does not begin hears of what kind that is, also
// when it has begun to speak TLS, and nothing is left of it.
func TestLeasedRefused(t *testing.T) {
	x := newLeased(t, api.Limits{Sessions: 1})
	first := x.program()
	x.until("a session", func() bool { return x.running() == 1 })
	hears := func(want string) {
		t.Helper()
		c := x.program()
		if _, err := c.Write([]byte("the client's hello")); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(c); string(b) != want || err != nil {
			t.Errorf("it hears %q, %v, not %q", b, err, want)
		}
		_ = c.Close()
	}
	hears(remote.Full)
	x.until("the first alone is there", func() bool { return len(x.d.all()) == 1 })
	_ = first.Close()
	x.d.all()[0].Release()
	x.until("it is gone", func() bool { return len(x.d.all()) == 0 })
	x.d.SetUpstream(api.UpstreamState{Why: "it is lost"})
	hears(remote.Not)
	x.until("nothing is left", func() bool { return len(x.d.all()) == 0 })
	if n := x.d.Status().Refused; n != 2 {
		t.Errorf("%d were refused, by its account", n)
	}
	x.end()
}

func (x *leased) until(what string, is func() bool) {
	x.t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			x.t.Fatalf("still not: %s", what)
		}
	}
}

func (x *leased) running() int {
	n := 0
	for _, s := range x.d.Status().Sessions {
		if s.State == running.String() {
			n++
		}
	}
	return n
}

// TestLeased: a connection that is handed over is a session, counted and limited as any, which
// stays with its worker, and ends with it.
func TestLeased(t *testing.T) {
	x := newLeased(t, api.Limits{Sessions: 2, UserSessions: 2})
	x.program()
	x.until("a session", func() bool { return x.running() == 1 })
	first := x.workers.last()
	if st := x.d.Status(); !st.Connected || st.Opened != 1 {
		t.Errorf("%+v", st)
	}
	x.program()
	x.until("two", func() bool { return x.running() == 2 })
	third := x.program()
	if b, err := io.ReadAll(third); string(b) != remote.Full || err != nil {
		t.Errorf("more sessions than there may be: %q, %v", b, err)
	}
	_ = third.Close()
	if st := x.d.Status(); st.Refused != 1 {
		t.Errorf("%d were refused", st.Refused)
	}
	for name, do := range map[string]func(context.Context) error{
		"rebuild": func(ctx context.Context) error { _, err := x.d.Rebuild(ctx); return err },
		"suspend": func(ctx context.Context) error { _, err := x.d.Suspend(ctx, Suspension{}); return err },
	} {
		if err := do(t.Context()); !errors.Is(err, ErrFar) || !strings.Contains(err.Error(), "another host") {
			t.Errorf("%s: %v", name, err)
		}
	}
	first.exit(nil)
	x.until("the first is gone", func() bool { return len(x.d.all()) == 1 })
	x.hand() // nothing
	x.program()
	x.until("there is room again", func() bool { return x.running() == 2 })
	x.end()
	if n := len(x.d.all()); n != 0 {
		t.Errorf("%d sessions are left", n)
	}
}

// TestUpstreamEnds: of a GPU server that is lost, sessions end where that is said.
func TestUpstreamEnds(t *testing.T) {
	x := newLeased(t, api.Limits{Sessions: 2})
	x.program()
	x.until("a session", func() bool { return x.running() == 1 })
	x.d.SetUpstream(api.UpstreamState{Why: "it is lost"})
	if x.running() != 1 {
		t.Error("it has ended")
	}
	x.d.SetUpstream(api.UpstreamState{Why: "it is lost: the certificate is revoked", Ends: true})
	x.until("it has ended", func() bool { return len(x.d.all()) == 0 })
	x.end()
}

// TestUnreached: while its GPU server is lost a virtual GPU's programs are told so.
func TestUnreached(t *testing.T) {
	d, err := New(Options{Worker: link.Config{GPU: "soft"}, Leased: true, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	d.SetUpstream(api.UpstreamState{Why: "the GPU server gpu1 is lost: no route"})
	if err := d.reachable(); !errors.Is(err, errUnreached) || !strings.Contains(err.Error(), "gpu1") {
		t.Error(err)
	}
	d.SetUpstream(api.UpstreamState{})
	if err := d.reachable(); err != nil {
		t.Error(err)
	}
}

func socketPair(t *testing.T) (near, far *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if near, err = sys.UnixConn(fds[0], "near"); err != nil {
		t.Fatal(err)
	}
	if far, err = sys.UnixConn(fds[1], "far"); err != nil {
		t.Fatal(err)
	}
	_ = near.SetReadDeadline(time.Now().Add(2 * time.Minute)) // what is never closed is an error
	t.Cleanup(func() { _ = near.Close() })
	return near, far
}

// TestRelayed: a session whose GPU is a server's stays with its relay, and says whose.
func TestRelayed(t *testing.T) {
	s := &session{dev: &Device{}, at: &Place{Worker: link.Config{Relay: &link.Relay{Server: "gpu1"}}}}
	if err := s.fixed(); !errors.Is(err, ErrFar) || !strings.Contains(err.Error(), "gpu1") {
		t.Error(err)
	}
	s.at = &Place{}
	if err := s.fixed(); err != nil {
		t.Error(err)
	}
}
