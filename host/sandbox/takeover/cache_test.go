package takeover_test

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"causeway/host/sandbox"
	"causeway/host/worker/spawn"
)

// cacheEnv has TestCacheInWorker be a worker that says NAME=CONTENT by its cache of compiled
// kernels, or with NAME alone what it finds.
const cacheEnv = "CAUSEWAY_TEST_CACHE"

// TestCache: what one worker of a real GPU's vGPU leaves in its cache the next one finds and may
// replace, and no worker of another vGPU does.
func TestCache(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root gives a vGPU a /dev/shm of its own")
	}
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "CUDA_CACHE_") {
			t.Setenv(name, "") // restored after the test
			_ = os.Unsetenv(name)
		}
	}
	one, other := cacheSpace(t, sandbox.On), cacheSpace(t, sandbox.On)
	for _, c := range []struct {
		space *sandbox.Space
		do    string
		path  string // the operator's, in the parent's environment
		want  string
	}{
		{one, "kernel", "", "nothing"},
		{one, "kernel=a", "", "left"},
		{one, "kernel", "", "found a"},
		{one, "kernel=b", "", "left"},
		{one, "kernel", "", "found b"},
		{other, "kernel", "", "nothing"},
		{other, "kernel=c", "", "left"},
		{one, "kernel", "", "found b"},
		{one, "kernel", "/dev/shm/operator", "nothing"},
		{cacheSpace(t, sandbox.Strict), "kernel=d", "/dev/shm/compute-cache", "denied"},
		{cacheSpace(t, sandbox.Strict), "kernel", "", "no cache"},
		{nil, "kernel", "", "no cache"},
	} {
		t.Run(c.do, func(t *testing.T) {
			if c.path != "" {
				t.Setenv("CUDA_CACHE_PATH", c.path)
			}
			if got := cacheWorker(t, c.space, c.do); got != c.want {
				t.Errorf("with %q: %s, want %s", c.path, got, c.want)
			}
		})
	}
	if _, err := os.Lstat("/dev/shm/compute-cache"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the host's own /dev/shm has a cache: %v", err)
	}
}

func cacheSpace(t *testing.T, mode sandbox.Mode) *sandbox.Space {
	t.Helper()
	space, err := sandbox.New(real(mode), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(space.Close)
	return space
}

// cacheWorker runs TestCacheInWorker in a space and returns what it says.
func cacheWorker(t *testing.T, space *sandbox.Space, do string) string {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestCacheInWorker$", "-test.v")
	cmd.Env = append(spawn.HostEnv(), cacheEnv+"="+do)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: Fork changes the thread
		done <- space.Fork(cmd)
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for line := range strings.Lines(out.String()) {
		if said, ok := strings.CutPrefix(line, "cache: "); ok {
			return strings.TrimSpace(said)
		}
	}
	t.Fatalf("the worker says nothing: %s", out.String())
	return ""
}

// TestCacheInWorker does what the driver does: it makes the folder, and replaces files in it.
func TestCacheInWorker(t *testing.T) {
	do := os.Getenv(cacheEnv)
	if do == "" {
		t.Skip("run by TestCache in a sandbox")
	}
	policy, err := sandbox.FromEnv()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sandbox.Enter(policy, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	_, _ = os.Stdout.WriteString("cache: " + cacheResult(do) + "\n")
}

func cacheResult(do string) string {
	dir, ok := os.LookupEnv("CUDA_CACHE_PATH")
	if !ok {
		return "no cache"
	}
	name, content, leave := strings.Cut(do, "=")
	name = filepath.Join(dir, name)
	if !leave {
		b, err := os.ReadFile(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return "nothing"
		case err != nil:
			return err.Error()
		}
		return "found " + string(b)
	}
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		_ = os.Remove(name)
		err = os.WriteFile(name, []byte(content), 0o600)
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "denied"
	case err != nil:
		return err.Error()
	}
	return "left"
}
