package device_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/api"
	"causeway/host/device"
	"causeway/host/limit"
)

// control serves a VM's device on a control socket.
func control(t *testing.T, v *vm, stop func()) *api.Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ctl")
	ln, err := device.Listen(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := cancellable()
	served := make(chan error, 1)
	go func() { served <- v.device.ServeControl(ctx, ln, stop) }()
	c := api.NewClient(path)
	t.Cleanup(func() {
		c.Close()
		cancel()
		if err := await(t, "the control socket does not end", served); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestControl(t *testing.T) {
	v := bootWith(t, func(o *device.Options) { o.Limits = api.Limits{Memory: 1 << 20, Cap: 50}; o.UUID = "GPU-1" })
	stopped := make(chan struct{})
	c := control(t, v, func() { close(stopped) })
	st, err := c.Status(context())
	want := api.Limits{Memory: 1 << 20, Cap: 50, Share: limit.DefaultShare, Sessions: device.DefaultSessions, HostMemory: limit.DefaultHostMemory}
	if err != nil || !st.Connected || st.UUID != "GPU-1" || st.PID != os.Getpid() || st.Limits != want || st.Sessions == nil || st.Started.IsZero() {
		t.Fatalf("%+v, %v", st, err)
	}
	_, g := start(t, v)
	alloc(t, g, 2<<20, cuda.ErrorOutOfMemory)
	if err := c.Do(context(), "PUT", "/v1/limits", api.Limits{Memory: 4 << 20}.Change(), nil); err != nil {
		t.Fatal(err)
	}
	if want.Memory = 4 << 20; v.device.Limits() != want {
		t.Errorf("after a change of its memory: %+v", v.device.Limits())
	}
	alloc(t, g, 2<<20, cuda.Success)
	var moved device.Moved
	if err := c.Do(context(), "POST", "/v1/rebuild", nil, &moved); err != nil || moved.Sessions != 1 {
		t.Errorf("%+v, %v", moved, err)
	}
	if st, err = c.Status(context()); err != nil || st.Memory != 2<<20 || len(st.Sessions) != 1 || st.Sessions[0].State != "running" {
		t.Errorf("%+v, %v", st, err)
	}
	for name, q := range map[string]struct {
		method, path string
		in           any
		status       int
	}{
		"cap":      {"PUT", "/v1/limits", api.Limits{Cap: 200}, 400},
		"sessions": {"PUT", "/v1/limits", api.Limits{Sessions: 1001}, 400},
		"profile":  {"PUT", "/v1/limits", api.Change{Profile: "half"}, 400},
		"unknown":  {"PUT", "/v1/limits", map[string]int{"weight": 3}, 400},
		"no JSON":  {"PUT", "/v1/limits", "x", 400},
		"long":     {"PUT", "/v1/limits", strings.Repeat("x", 1<<20), 400},
		"no such":  {"GET", "/v1/other", nil, 404},
		"a method": {"DELETE", "/v1/status", nil, 405},
	} {
		var e *api.Error
		if err := c.Do(context(), q.method, q.path, q.in, nil); !errors.As(err, &e) || e.Status != q.status || e.Text == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := c.Do(context(), "POST", "/v1/stop", nil, nil); err != nil {
		t.Error(err)
	}
	await(t, "it is not stopped", stopped)
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if err := v.Kill(); err != nil {
		t.Error(err)
	}
	eventually(t, "still connected", func() bool { st, err := c.Status(context()); return err == nil && !st.Connected })
	v.connect()
}

// TestControlWhileBusy: Status does not wait for a worker that does, nor for many who ask.
func TestControlWhileBusy(t *testing.T) {
	v := bootWith(t, func(o *device.Options) { o.Worker.GPU = "busy"; lapses(o) })
	c := control(t, v, func() {})
	p, g := start(t, v)
	p.stop(true) // its loans lapse; its GPU never gets idle
	time.Sleep(1750 * time.Millisecond)
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			// On a machine without a CPU to spare a hundred take seconds by themselves.
			begin := time.Now()
			if _, err := c.Status(context()); err != nil || time.Since(begin) > time.Minute {
				t.Errorf("after %v: %v", time.Since(begin), err)
			}
		})
	}
	wg.Wait()
	_ = g
	_ = p.file.Close()
}

func TestListen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "vm", "s")
	ln, err := device.Listen(path, 0o660, &device.Owner{UID: os.Getuid(), GID: os.Getgid()})
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(filepath.Dir(path)); err != nil || st.Mode().Perm() != 0o711 {
		t.Errorf("folder: %v, %v", st.Mode(), err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o660 {
		t.Errorf("socket: %v, %v", st.Mode(), err)
	}
	if _, err := device.Listen(path, 0o600, nil); !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "another process serves") {
		t.Errorf("twice: %v", err)
	}
	ln.SetUnlinkOnClose(false)
	_ = ln.Close() // killed: the socket stays
	var wg sync.WaitGroup
	var mu sync.Mutex
	var got []*net.UnixListener
	for range 8 {
		wg.Go(func() {
			if ln, err := device.Listen(path, 0o600, nil); err == nil {
				mu.Lock()
				got = append(got, ln)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(got) != 1 {
		t.Fatalf("%d of 8 have the socket", len(got))
	}
	_ = got[0].Close()
	if _, err := os.Stat(path); err == nil {
		t.Error("the socket stays")
	}
	if _, err := device.Listen(filepath.Join(dir, strings.Repeat("x", 108)), 0o600, nil); err == nil || !strings.Contains(err.Error(), "107") {
		t.Errorf("long path: %v", err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := device.Listen(path, 0o600, nil); err == nil {
		t.Error("a file was replaced")
	}
}

// another is a user who is neither root nor who runs the tests.
const another = 64321

// TestListenPlanted: a link that another user put on the way leads nowhere, whoever runs the
// device; one of root's does.
func TestListenPlanted(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can make another user's folder")
	}
	top := t.TempDir()
	at := func(names ...string) string { return filepath.Join(append([]string{top}, names...)...) }
	theirs := &device.Owner{UID: another, GID: another}
	for _, d := range []string{"victim", "theirs", "theirs/real", "shared", "ours"} {
		if err := os.Mkdir(at(d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{
		"theirs/absolute": at("victim"), "theirs/relative": "../victim", "shared/planted": at("victim"), "shared/root": at("victim"), "ours/there": "../victim", "theirs/gone": at("new"),
	} {
		if err := os.Symlink(to, at(link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"theirs", "theirs/real", "theirs/absolute", "theirs/relative", "theirs/gone", "shared/planted"} {
		if err := os.Lchown(at(name), another, another); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(at("shared"), 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"theirs/absolute", "theirs/relative", "shared/planted", "theirs/gone", "theirs/absolute/deeper"} {
		if ln, err := device.Listen(at(bad, "s"), 0o660, theirs); !errors.Is(err, device.ErrPlanted) {
			t.Errorf("%s: %v", bad, err)
			if err == nil {
				_ = ln.Close()
			}
		}
	}
	if es, err := os.ReadDir(at("victim")); err != nil || len(es) != 0 {
		t.Errorf("the folder that links lead to: %v, %v", es, err)
	}
	if _, err := os.Lstat(at("new")); err == nil {
		t.Error("a folder was made where a link leads")
	}
	for path, holds := range map[string]string{"ours/there": "victim", "shared/root": "victim", "theirs/real": "theirs/real", "theirs/made": "theirs/made", "shared/made": "shared/made"} {
		ln, err := device.Listen(at(path, "s"), 0o660, theirs)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		st, err := os.Stat(at(holds, "s"))
		if err != nil || st.Mode().Perm() != 0o660 || st.Sys().(*syscall.Stat_t).Uid != another {
			t.Errorf("%s: %v, %v", path, st, err)
		}
		if c, err := net.Dial("unix", at(path, "s")); err != nil {
			t.Errorf("%s: %v", path, err)
		} else {
			_ = c.Close()
		}
		_ = ln.Close()
		if _, err := os.Lstat(at(holds, "s")); err == nil {
			t.Errorf("%s: the socket stays", path)
		}
	}
}

func TestParseOwner(t *testing.T) {
	for s, want := range map[string]device.Owner{"root": {}, "root:root": {}, "0:7": {GID: 7}, "12345:54321": {UID: 12345, GID: 54321}} {
		if got, err := device.ParseOwner(s); err != nil || got != want {
			t.Errorf("%s: %+v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "no-such-user", "root:no-such-group", ":", "-1:0"} {
		if _, err := device.ParseOwner(s); !errors.Is(err, device.ErrOwner) {
			t.Errorf("%q: %v", s, err)
		}
	}
}

// TestUnplug: a device that is taken from a running guest while a program waits: its READs end
// before QEMU gets its answer, the session is gone, and another guest can have the device.
func TestUnplug(t *testing.T) {
	v := boot(t)
	for range 3 {
		p, g := start(t, v)
		if _, _, res, err := g.AddRegion(0, wire.RegionPinned, 1<<20); err != nil || res != cuda.Success {
			t.Fatal(res, err)
		}
		p.halt() // a READ that is renewed later would be pending for ever
		if p.pending() == 0 {
			t.Error("nothing is lent")
		}
		begin := time.Now()
		if err := v.StopRings(); err != nil { // GET_VRING_BASE
			t.Fatal(err)
		}
		t.Logf("QEMU waited %v", time.Since(begin)) // TestRevoke bounds it, by a clock of its own
		// The guest learns of what was completed in its own time; nothing is completed any more.
		eventually(t, "READs are pending after the rings stopped", func() bool { return p.pending() == 0 })
		if err := v.Kill(); err != nil {
			t.Error(err)
		}
		eventually(t, "a session outlives its VM", func() bool { st := v.device.Status(); return len(st.Sessions) == 0 && !st.Connected && st.Memory == 0 })
		noChildren(t)
		v.connect()
		if !v.device.Status().Connected {
			t.Error("not connected again")
		}
	}
}
