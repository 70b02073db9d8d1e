package device

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"causeway/host/api"
	"causeway/host/inventory"
	"causeway/host/worker/link"
	"causeway/remote"
)

// newPrograms is a device for programs of this host, whose workers are fakes.
func newPrograms(t *testing.T, l api.Limits) *leased {
	t.Helper()
	d, err := New(Options{Worker: link.Config{GPU: "soft"}, Limits: l, Programs: true, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Machine: func(context.Context) (*inventory.Reading, error) { return nil, errors.New("no machine") }})
	if err != nil {
		t.Fatal(err)
	}
	x := &leased{t: t, d: d, workers: &fakeWorkers{fail: t.Errorf}, path: filepath.Join(t.TempDir(), api.ProgramsSession)}
	d.workers = x.workers
	ln, err := ListenPrograms(x.path)
	if err != nil {
		t.Fatal(err)
	}
	nvml, err := ListenNVML(filepath.Join(filepath.Dir(x.path), api.ProgramsNVML))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.ServePrograms(ctx, ln, nvml) }()
	x.end = func() {
		cancel()
		x.ended(done)
	}
	return x
}

func (x *leased) connect() net.Conn {
	x.t.Helper()
	c, err := net.Dial("unixpacket", x.path)
	if err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestPrograms: a connection is a session of the process that made it, limited and counted as any;
// it stays with its worker and ends with it, and the worker has the program's connection itself.
func TestPrograms(t *testing.T) {
	x := newPrograms(t, api.Limits{Sessions: 2, UserSessions: 2})
	if st := x.d.Status(); st.Connected {
		t.Error("nobody is there, and it is in use")
	}
	first := x.connect()
	if b, err := io.ReadAll(io.LimitReader(first, int64(len(tookConnection)))); string(b) != tookConnection {
		t.Errorf("the worker says %q, %v", b, err)
	}
	x.until("a session", func() bool { return x.running() == 1 })
	w := x.workers.last()
	st := x.d.Status()
	if s := st.Sessions[0]; !st.Connected || s.GuestPID != uint32(os.Getpid()) || s.Peer != fmt.Sprintf("process %d of uid %d", os.Getpid(), os.Getuid()) || s.GuestUID != uint32(os.Getuid()) {
		t.Errorf("%+v", st)
	}
	if !w.spare || !w.tenant || w.carrier != link.CarrierUnix {
		t.Errorf("carrier %q, a worker that waited may serve it: %v, it is a tenant's: %v", w.carrier, w.spare, w.tenant)
	}
	x.connect()
	x.until("two", func() bool { return x.running() == 2 })
	many, said := x.connect(), make([]byte, 1024)
	n, err := many.Read(said)
	if h, text, perr := remote.ParseHello(said[:n]); err != nil || perr != nil || h.Type != remote.MsgWelcome || h.Status != uint32(unix.EUSERS) || !strings.Contains(text, errSessions.Error()) {
		t.Errorf("more sessions than there may be: %+v %q, %v, %v", h, text, err, perr)
	}
	if n, err := many.Read(said); n != 0 || err == nil {
		t.Errorf("who is refused stays connected: %d, %v", n, err)
	}
	for name, do := range map[string]func(context.Context) error{
		"rebuild": func(ctx context.Context) error { _, err := x.d.Rebuild(ctx); return err },
		"suspend": func(ctx context.Context) error { _, err := x.d.Suspend(ctx, Suspension{}); return err },
	} {
		if err := do(t.Context()); !errors.Is(err, ErrPrograms) {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.exit(nil)
	x.until("the first is gone", func() bool { return len(x.d.all()) == 1 })
	x.connect()
	x.until("there is room again", func() bool { return x.running() == 2 })
	x.end()
	if n := len(x.d.all()); n != 0 {
		t.Errorf("%d sessions are left", n)
	}
}

// TestProgramsNVML: who asks is answered, with nothing where the machine cannot be read, and makes
// no session.
func TestProgramsNVML(t *testing.T) {
	x := newPrograms(t, api.Limits{})
	c, err := net.Dial("unix", filepath.Join(filepath.Dir(x.path), api.ProgramsNVML))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(c); len(b) != 0 || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	if st := x.d.Status(); st.Opened != 0 {
		t.Errorf("%d sessions", st.Opened)
	}
	x.end()
	if left, _ := os.ReadDir(filepath.Dir(x.path)); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}
