package daemon_test

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/api"
	"causeway/host/daemon"
	"causeway/host/daemon/daemontest"
)

var one = api.Spec{VM: "vm1", Name: "gpu0", Limits: api.Limits{Memory: 1 << 20}}

// roomy is one on a real GPU, whose contexts need room.
var roomy = api.Spec{VM: "vm1", Name: "gpu0", Limits: api.Limits{Memory: 640 << 20}}

func TestEnsure(t *testing.T) {
	h := newHost(t, daemontest.Soft(1<<30)).start()
	v := h.ensure(one)
	if v.State != api.Waiting || v.GPU == "" || v.PID == 0 || v.Status == nil || v.Status.Limits.Memory != 1<<20 || v.Spec.Share != 100 || v.Spec.Sessions != 64 {
		t.Errorf("%+v", v)
	}
	c, err := net.Dial("unix", v.Socket)
	if err != nil {
		t.Fatalf("its socket: %v", err)
	}
	_ = c.Close()
	if again := h.ensure(one); again.PID != v.PID {
		t.Errorf("the same Spec again started process %d beside %d", again.PID, v.PID)
	}
	elsewhere, node := one, 1
	elsewhere.NUMA = &node
	if again := h.ensure(elsewhere); again.PID != v.PID {
		t.Errorf("a node of the host started process %d beside %d", again.PID, v.PID)
	}
	nowhere := one.Wish()
	nowhere.GPU = "H100"
	_, err = h.c.Ensure(t.Context(), nowhere)
	refused(t, err, http.StatusNotFound, "H100")
	if !runs(v.PID) || h.vgpu(one).State != api.Waiting {
		t.Error("a GPU that is not there ended it")
	}
	gpus, err := h.c.GPUs(t.Context())
	if err != nil || len(gpus) != 1 || gpus[0].Promised != 1<<20 || len(gpus[0].VGPUs) != 1 {
		t.Errorf("%+v, %v", gpus, err)
	}
	if err := h.c.Release(t.Context(), one.VM, one.Name, true); err != nil {
		t.Fatal(err)
	}
	if runs(v.PID) || len(h.below()) > 0 {
		t.Errorf("after its release: runs %v, files %v", runs(v.PID), h.below())
	}
	refused(t, h.c.Release(t.Context(), one.VM, one.Name, true), http.StatusNotFound, "vm1/gpu0")
}

// TestConcurrent: many requests for one vGPU start one process.
func TestConcurrent(t *testing.T) {
	count := filepath.Join(t.TempDir(), "count")
	h := newHost(t, daemontest.Soft(1<<30)).env(daemontest.CountEnv, count).env(daemontest.DelayEnv, "50ms").start()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := h.c.Ensure(t.Context(), one.Wish()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	b, err := os.ReadFile(count)
	if err != nil || strings.Count(string(b), "\n") != 1 {
		t.Errorf("%d device processes, %v", strings.Count(string(b), "\n"), err)
	}
}

// TestRestart: what runs is found again by the next causewayd, of whatever version.
func TestRestart(t *testing.T) {
	h := newHost(t, daemontest.Soft(1<<30)).env(daemontest.VersionEnv, "old").start()
	v := h.ensure(one)
	h.tell(one, api.Status{Connected: true})
	h.stop()
	if !runs(v.PID) {
		t.Fatal("the device process ended with causewayd")
	}
	h.env(daemontest.VersionEnv, "new").start()
	found := h.vgpu(one)
	if found.PID != v.PID || found.State != api.Connected || found.Status.Version != "old" || found.Spec.Memory != one.Memory || !found.Started.Equal(v.Started) {
		t.Errorf("found %+v", found)
	}
	if again := h.ensure(one); again.PID != v.PID {
		t.Error("ensured anew")
	}
	two := api.Spec{VM: "vm2", Name: "gpu0"}
	if v := h.ensure(two); v.Status.Version != "new" {
		t.Errorf("a new one is of version %q", v.Status.Version)
	}
	_ = syscall.Kill(v.PID, syscall.SIGKILL)
	until(t, "lost", func() bool { return h.vgpu(one).State == api.Lost })
	if why := h.vgpu(one).Why; !strings.Contains(why, "not known") && !strings.Contains(why, "signal 9") {
		// As the kernel tells.
		t.Errorf("why: %q", why)
	}
}

// TestLost: a device process that ends by itself is said to have, until the vGPU is asked for again
// or released.
func TestLost(t *testing.T) {
	h := newHost(t, daemontest.Soft(1<<30)).start()
	v := h.ensure(one)
	_ = syscall.Kill(v.PID, syscall.SIGKILL)
	until(t, "lost", func() bool { return h.vgpu(one).State == api.Lost })
	if why := h.vgpu(one).Why; !strings.Contains(why, "signal 9") {
		t.Errorf("why: %q", why)
	}
	if gpus, err := h.c.GPUs(t.Context()); err != nil || gpus[0].Promised != 0 {
		t.Errorf("a lost vGPU's memory stays promised: %+v, %v", gpus, err)
	}
	_, err := h.c.SetLimits(t.Context(), one.VM, one.Name, api.Change{})
	refused(t, err, http.StatusConflict, "lost")
	h.stop()
	h.start()
	if v := h.vgpu(one); v.State != api.Lost || !strings.Contains(v.Why, "signal 9") {
		t.Errorf("after a restart: %+v", v)
	}
	if again := h.ensure(one); again.PID == v.PID || again.State != api.Waiting || again.Why != "" {
		t.Errorf("asked for again: %+v", again)
	}
}

// TestDeathInLog: the log of a vGPU, which is where its operator looks, ends with why its device
// process died: by what signal or status, and the first line of its panic. That of its next process
// does not repeat it.
func TestDeathInLog(t *testing.T) {
	h := newHost(t, daemontest.Soft(1<<30)).start()
	v := h.ensure(one)
	name := filepath.Join(h.cfg.LogDir, one.VM, one.Name+".log")
	say := func(text string) {
		t.Helper()
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteString(text)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	read := func() string { return h.tail(one, 1) }
	say("panic: all is lost\n\ngoroutine 1 [running]:\nmain.main()\n")
	_ = syscall.Kill(v.PID, syscall.SIGKILL)
	until(t, "said", func() bool { return strings.Contains(read(), "vGPU lost") })
	if last := read(); !strings.Contains(last, "signal 9") || !strings.Contains(last, "panic: all is lost") || !strings.Contains(last, itoa(v.PID)) {
		t.Errorf("the log ends with %q", last)
	}
	v = h.ensure(one)
	_ = syscall.Kill(v.PID, syscall.SIGABRT)
	until(t, "said again", func() bool { return strings.Contains(read(), itoa(v.PID)) })
	if last := read(); strings.Contains(last, "all is lost") {
		t.Errorf("the log ends with %q", last)
	}
}

// TestMeanwhile: what ended while no causewayd ran is lost, also if another process has its id by
// now.
func TestMeanwhile(t *testing.T) {
	for name, happen := range map[string]func(h *host, v api.VGPU){
		"ended": func(_ *host, v api.VGPU) {
			_ = syscall.Kill(v.PID, syscall.SIGKILL)
			until(t, "ended", func() bool { return !runs(v.PID) })
		},
		"another process": func(h *host, v api.VGPU) {
			file := filepath.Join(h.cfg.RunDir, "vm1", "gpu0.json")
			b, _ := os.ReadFile(file)
			text := strings.Replace(string(b), `"start": `, `"start": 1`, 1)
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = syscall.Kill(v.PID, syscall.SIGKILL) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, daemontest.Soft(1<<30)).start()
			v := h.ensure(one)
			h.stop()
			happen(h, v)
			h.start()
			if v := h.vgpu(one); v.State != api.Lost || !strings.Contains(v.Why, "exit status is not known") {
				t.Errorf("%+v", v)
			}
		})
	}
}

// TestIntent: a causewayd that ended between starting a process and writing its id down.
func TestIntent(t *testing.T) {
	h := newHost(t, daemontest.Soft(1<<30)).start()
	v := h.ensure(one)
	two := api.Spec{VM: "vm2", Name: "gpu0"}
	w := h.ensure(two)
	h.stop()
	for _, s := range []api.Spec{one, two} {
		file := filepath.Join(h.cfg.RunDir, s.VM, "gpu0.json")
		b, _ := os.ReadFile(file)
		text := strings.NewReplacer(`"pid": `+itoa(v.PID), `"pid": 0`, `"pid": `+itoa(w.PID), `"pid": 0`).Replace(string(b))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_ = syscall.Kill(w.PID, syscall.SIGKILL)
	until(t, "ended", func() bool { return !runs(w.PID) })
	h.start()
	if found := h.vgpu(one); found.PID != v.PID || found.State != api.Waiting {
		t.Errorf("%+v", found)
	}
	_, err := h.c.VGPU(t.Context(), two.VM, two.Name)
	refused(t, err, http.StatusNotFound)
	if len(h.below()) != 3 {
		t.Errorf("files: %v", h.below())
	}
}

func TestTwoDaemons(t *testing.T) {
	h := newHost(t, daemontest.Soft(1<<30)).start()
	if _, err := daemon.New(t.Context(), h.options()); !errors.Is(err, daemon.ErrRunning) || !strings.Contains(err.Error(), itoa(os.Getpid())) {
		t.Errorf("a second causewayd: %v", err)
	}
	h.ensure(one)
}

// TestLeavesOthers: a causewayd that ends removes its own socket, and none that another made in its
// place since.
func TestLeavesOthers(t *testing.T) {
	h := newHost(t, daemontest.Soft(1<<30)).start()
	path := api.Socket(h.cfg.RunDir)
	h.stop()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its own socket is left: %v", err)
	}
	h.start()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	other, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	h.stop()
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("another's socket went with it: %v", err)
	}
}

// TestStray: sockets that nobody serves go, others stay, and one in the way is said to be.
func TestStray(t *testing.T) {
	h := newHost(t, daemontest.Soft(1<<30))
	dir := filepath.Join(h.cfg.RunDir, "vm1")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	served, err := net.Listen("unix", filepath.Join(dir, "gpu0.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer served.Close()
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "gpu1.sock"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	_ = dead.Close()
	for name, text := range map[string]string{".gpu0.json.123": "{", "gpu2.json": "not JSON", "gpu3.json": `{"format": 99, "spec": {"vm": "vm1", "name": "gpu3"}}`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h.start()
	var names []string
	for _, f := range h.below() {
		names = append(names, filepath.Base(f))
	}
	if got := strings.Join(names, " "); got != "gpu0.sock gpu2.json gpu3.json" {
		t.Errorf("left: %s", got)
	}
	if !h.log.has("newer causewayd") || !h.log.has("of which causewayd knows nothing") {
		t.Error("nothing was said")
	}
	_, err = h.c.Ensure(t.Context(), one.Wish())
	refused(t, err, http.StatusConflict, "gpu0.sock", "did not start")
	h.ensure(api.Spec{VM: "vm1", Name: "gpu1"})
}

// TestStartFails: one sentence, and nothing is left.
func TestStartFails(t *testing.T) {
	for name, c := range map[string]struct {
		env    map[string]string
		status int
		words  []string
	}{
		"says why":   {map[string]string{daemontest.FailEnv: "no libcuda.so.1"}, http.StatusInternalServerError, []string{"status 1", "it said: no libcuda.so.1", "causeway logs"}},
		"too slow":   {map[string]string{daemontest.DelayEnv: "30s"}, http.StatusInternalServerError, []string{"not ready within 3s"}},
		"other GPU":  {map[string]string{daemontest.UUIDEnv: daemontest.UUID(3)}, http.StatusServiceUnavailable, []string{"numbers its GPUs otherwise"}},
		"stubbornly": {map[string]string{daemontest.StubbornEnv: "1", daemontest.UUIDEnv: daemontest.UUID(3)}, http.StatusServiceUnavailable, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			count := filepath.Join(t.TempDir(), "count")
			h := newHost(t, daemontest.Soft(1<<30)).env(daemontest.CountEnv, count)
			for k, v := range c.env {
				h.env(k, v)
			}
			if name == "too slow" {
				h.cfg.Devices.StartTimeout = 3e9
			}
			h.start()
			_, err := h.c.Ensure(t.Context(), one.Wish())
			refused(t, err, c.status, c.words...)
			b, _ := os.ReadFile(count)
			if pid := strings.TrimSpace(string(b)); pid == "" || strings.Contains(pid, "\n") {
				t.Errorf("started: %q", pid)
			} else if _, err := os.Stat("/proc/" + pid); err == nil {
				t.Error("its process is left")
			}
			if list, err := h.c.VGPUs(t.Context()); err != nil || len(list) > 0 || len(h.below()) > 0 {
				t.Errorf("left: %+v, %v, %v", list, err, h.below())
			}
		})
	}
}

// TestGivesUp: a request that ends before the vGPU is ready leaves nothing.
func TestGivesUp(t *testing.T) {
	h := newHost(t, daemontest.Soft(1<<30)).env(daemontest.DelayEnv, "30s").start()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := h.c.Ensure(ctx, one.Wish()); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	until(t, "nothing left", func() bool {
		list, err := h.c.VGPUs(t.Context())
		return err == nil && len(list) == 0 && len(h.below()) == 0
	})
}

func TestRelease(t *testing.T) {
	t.Parallel()
	h := newHost(t, daemontest.Soft(1<<30)).env(daemontest.StubbornEnv, "1").start()
	v := h.ensure(one)
	h.tell(one, api.Status{Connected: true})
	refused(t, h.c.Release(t.Context(), one.VM, one.Name, true), http.StatusConflict, "a VM is connected")
	if h.vgpu(one).State != api.Connected || !runs(v.PID) {
		t.Error("it was ended all the same")
	}
	if err := h.c.Release(t.Context(), one.VM, one.Name, false); err != nil {
		t.Fatal(err)
	}
	if runs(v.PID) || len(h.below()) > 0 {
		t.Errorf("after its release: runs %v, files %v", runs(v.PID), h.below())
	}
}

// TestEnds: a causewayd that is told to end while a vGPU starts ends soon, and leaves nothing of
// that one.
func TestEnds(t *testing.T) {
	t.Parallel()
	h := newHost(t, daemontest.Soft(1<<30)).env(daemontest.DelayEnv, "60s").start()
	done := make(chan error, 1)
	go func() {
		_, err := h.c.Ensure(context.Background(), one.Wish())
		done <- err
	}()
	until(t, "started", func() bool { return len(h.below()) == 1 })
	begun := time.Now()
	h.stop()
	if d := time.Since(begun); d > 40*time.Second {
		t.Errorf("it took %v", d)
	}
	if err := ended(t, done); err == nil {
		t.Error("it says that the vGPU is ready")
	}
	if len(h.below()) > 0 {
		t.Errorf("left: %v", h.below())
	}
}

// TestLongestSocket: a path that a socket just takes is served, one that is longer by a byte is
// refused, and nothing of it stays.
func TestLongestSocket(t *testing.T) {
	const most = len(unix.RawSockaddrUnix{}.Path) - 1
	h := newHost(t, daemontest.Soft(1<<30)).start()
	s := one
	s.VM = ""
	n := most - len(s.SocketPath(h.cfg.RunDir)) - 1
	if n < 1 || n > 60 {
		t.Skipf("folders of %d bytes leave %d", len(h.cfg.RunDir), n)
	}
	s.VM = strings.Repeat("v", n+1)
	_, err := h.c.Ensure(t.Context(), s.Wish())
	refused(t, err, http.StatusBadRequest, "108 bytes, of 107")
	s.VM = s.VM[1:]
	c, err := net.Dial("unix", h.ensure(s).Socket)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}
