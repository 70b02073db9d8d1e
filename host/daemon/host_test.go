package daemon_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"causeway/host/api"
	"causeway/host/daemon"
	"causeway/host/daemon/config"
	"causeway/host/daemon/daemontest"
	"causeway/host/daemon/discover"
	"causeway/host/daemon/systemd"
)

func TestMain(m *testing.M) {
	daemontest.Main()
	killedMain()
	os.Exit(m.Run())
}

// host is a causewayd under test.
type host struct {
	t   *testing.T
	cfg config.Config
	m   *daemontest.Machine
	d   *daemon.Daemon
	c   *api.Client
	end func() error // of the API
	log *lines

	address string           // where it awaits other hosts
	clock   func() time.Time // of leases
	lookup  discover.Lookup  // of DNS SRV records
	obey    time.Duration    // Options.Obey
	renew   time.Duration    // Options.Renew; 0: often
	agree   time.Duration    // Options.Agree
	scopes  daemon.Scopes
	journal *systemd.Journal
}

// lines is a log that tests read.
type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lines) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.b.String(), text)
}

func (l *lines) times(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}

// newHost is a host on which causewayd does not run yet. At the end nothing of it runs.
func newHost(t *testing.T, m *daemontest.Machine) *host {
	t.Helper()
	h := &host{t: t, cfg: settings(t.TempDir()), m: m, log: &lines{}}
	t.Cleanup(func() {
		h.stop()
		records, _ := filepath.Glob(filepath.Join(h.cfg.RunDir, "*", "*.json"))
		for _, f := range append(records, filepath.Join(h.cfg.RunDir, "scheduler.json")) {
			var r struct{ PID int }
			if b, err := os.ReadFile(f); err == nil && json.Unmarshal(b, &r) == nil && r.PID > 1 {
				_ = syscall.Kill(r.PID, syscall.SIGKILL)
			}
		}
	})
	return h
}

func (h *host) env(name, value string) *host {
	h.cfg.Devices.Environment[name] = value
	return h
}

// options are what start starts with.
func (h *host) options() daemon.Options {
	h.t.Helper()
	program, err := os.Executable()
	if err != nil {
		h.t.Fatal(err)
	}
	return daemon.Options{
		Scopes: h.scopes, Journal: h.journal, Now: h.clock, Renew: cmp.Or(h.renew, 20*time.Millisecond), Lookup: h.lookup, Agree: h.agree,
		Config: h.cfg, Program: program, Scheduler: true, SchedulerLook: 20 * time.Millisecond, Version: "test", Machine: h.m, Grace: 300 * time.Millisecond, Obey: h.obey,
		Log: slog.New(slog.NewTextHandler(io.MultiWriter(h.log, testWriter{h.t}), &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	if testing.Verbose() {
		_, _ = os.Stderr.Write(b)
	}
	return len(b), nil
}

// start starts causewayd.
func (h *host) start() *host {
	h.t.Helper()
	d, err := daemon.New(h.t.Context(), h.options())
	if err != nil {
		h.t.Fatal(err)
	}
	ln, err := d.Listen(api.Socket(h.cfg.RunDir))
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Serve(ctx, ln) }()
	h.d, h.c = d, api.NewClient(api.Socket(h.cfg.RunDir))
	h.end = func() error {
		cancel()
		return errors.Join(ended(h.t, done), d.Close())
	}
	return h
}

// stop ends causewayd, and nothing else.
func (h *host) stop() {
	h.t.Helper()
	if h.end == nil {
		return
	}
	h.c.Close()
	if err := h.end(); err != nil {
		h.t.Error(err)
	}
	h.end = nil
}

func (h *host) ensure(s api.Spec) api.VGPU {
	h.t.Helper()
	for tries := 1; ; tries++ {
		v, err := h.c.Ensure(h.t.Context(), s.Wish())
		switch {
		case err == nil && v.Status == nil:
			return h.vgpu(s)
		case err == nil:
			return v
		}
		if !strings.Contains(err.Error(), "it took too long") || tries == 5 {
			h.t.Fatal(err)
		}
	}
}

// tail is the end of a vGPU's log.
func (h *host) tail(s api.Spec, lines int) string {
	h.t.Helper()
	body, err := h.c.Log(h.t.Context(), s.VM, s.Name, lines, false)
	if err != nil {
		h.t.Fatal(err)
	}
	defer body.Close()
	b, err := io.ReadAll(body)
	if err != nil {
		h.t.Fatal(err)
	}
	return string(b)
}

// refused wants an error of the API: a status, and words of its text.
func refused(t *testing.T, err error, status int, words ...string) {
	t.Helper()
	var e *api.Error
	if !errors.As(err, &e) || e.Status != status {
		t.Errorf("%v, want status %d", err, status)
		return
	}
	for _, w := range words {
		if !strings.Contains(e.Error(), w) {
			t.Errorf("%q does not say %q", e.Error(), w)
		}
	}
}

// ended waits for the end of something that causewayd serves.
func ended(t *testing.T, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(2 * time.Minute):
		t.Fatal("causewayd does not end")
		return nil
	}
}

// until waits for something that is about to happen.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still not: %s", what)
		}
	}
}

// A device process that answered too late is asked again: on a busy machine it has no status for
// that time.
// One that never answers is to be asked of h.c.
func (h *host) vgpu(s api.Spec) api.VGPU {
	h.t.Helper()
	for tries := 1; ; tries++ {
		v, err := h.c.VGPU(h.t.Context(), s.VM, s.Name)
		if err != nil {
			h.t.Fatal(err)
		}
		if v.Status != nil || v.State == api.Lost || tries == 20 {
			return v
		}
	}
}

// tell changes what a fake device process says of itself.
func (h *host) tell(s api.Spec, st api.Status) {
	h.t.Helper()
	c := api.NewClient(s.ControlPath(h.cfg.RunDir))
	defer c.Close()
	said := map[string]any{"connected": st.Connected, "memory": st.Memory, "sessions": st.Sessions, "past": st.Past}
	if st.Migrating {
		said["migrating"] = true
	}
	if st.Runs {
		said["runs"] = true
	}
	if st.UUID != "" {
		said["uuid"] = st.UUID
	}
	if err := c.Do(h.t.Context(), http.MethodPut, "/fake", said, nil); err != nil {
		h.t.Fatal(err)
	}
}

// runs reports whether a process is there and no zombie.
func runs(pid int) bool {
	b, err := os.ReadFile(filepath.Join("/proc", itoa(pid), "stat"))
	return err == nil && !strings.Contains(string(b), ") Z ")
}

func itoa(n int) string { b, _ := json.Marshal(n); return string(b) }

// below lists the files below the run directory that belong to vGPUs.
func (h *host) below() []string {
	h.t.Helper()
	var list []string
	for _, pattern := range []string{"*/*.sock", "*/*.ctl", "*/*.json", "*/.*"} {
		found, _ := filepath.Glob(filepath.Join(h.cfg.RunDir, pattern))
		for _, f := range found {
			if !strings.HasPrefix(f, h.cfg.StateDir) {
				list = append(list, f)
			}
		}
	}
	return list
}
