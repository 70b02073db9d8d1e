package cuda_test

import (
	"errors"
	"os"
	"runtime"
	"runtime/debug"
	"testing"

	"golang.org/x/sys/unix"

	"causeway/host/driver"
	"causeway/host/driver/conformance"
	"causeway/host/driver/cuda"
)

// TestMain has the tests print, and panics, to descriptors of their own: a session takes what is
// written to 1 and 2 for what kernels print.
func TestMain(m *testing.M) {
	var own [2]*os.File
	for i := range own {
		fd, err := unix.FcntlInt(uintptr(i+1), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			panic(err)
		}
		own[i] = os.NewFile(uintptr(fd), "output of tests")
	}
	old := os.Stdout
	os.Stdout = own[0]
	if err := debug.SetCrashOutput(own[1], debug.CrashOptions{}); err != nil {
		panic(err)
	}
	status := m.Run()
	runtime.KeepAlive(old) // collected, it would close 1, whatever that is by then
	os.Exit(status)
}

// TestConformance needs an NVIDIA driver with a GPU: without one it skips, where one was promised
// (CAUSEWAY_REQUIRE_GPU=1) it fails.
func TestConformance(t *testing.T) {
	b := present(t)
	if os.Getenv(movableEnv) != "" {
		conformance.Run(t, func(t *testing.T) driver.Backend { return movableBackend{b, t} })
		return
	}
	conformance.Run(t, func(*testing.T) driver.Backend { return b })
}

// movableEnv has TestConformance open sessions that may move. They have a process of their own, as
// the tests end with a context that died.
const movableEnv = "CAUSEWAY_TEST_MIGRATABLE"

// movableBackend opens sessions that may move.
type movableBackend struct {
	driver.Backend
	t *testing.T
}

func (b movableBackend) Open(h driver.Host, o driver.Options) (driver.Session, error) {
	o.Migratable = true
	s, err := b.Backend.Open(h, o)
	if err == nil {
		b.t.Cleanup(func() { cuda.ReleaseArenas(s) }) // behind the session's own end
	}
	return s, err
}

// present is the backend of a machine with a GPU.
func present(t *testing.T) driver.Backend {
	t.Helper()
	b, err := cuda.New()
	if err == nil {
		_, err = b.Devices()
	}
	cuda.Needed(t, err)
	return b
}

func TestNoDriverIsSaidPlainly(t *testing.T) {
	b, err := cuda.New()
	switch {
	case err == nil && b == nil:
		t.Fatal("neither a backend nor an error")
	case err != nil && !errors.Is(err, cuda.ErrNoDriver):
		t.Fatalf("unexpected error: %v", err)
	}
}
