package fs_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"causeway/vhostuser"
	"causeway/virtio/fs"
	"causeway/virtio/fs/fstest"
)

// testControl is a control file that keeps READs pending and collects what happens.
type testControl struct {
	mu      sync.Mutex
	handles []*testHandle
	refuse  syscall.Errno
}

type testHandle struct {
	caller   fs.Caller
	reads    chan *fs.ReadRequest
	writes   chan *fs.WriteRequest
	flushed  chan uint64
	released chan struct{}
	revoked  chan int
	hang     chan struct{} // if not nil, Revoke ignores its context until this is closed
}

func (t *testControl) Open(c fs.Caller) (fs.ControlHandle, syscall.Errno) {
	t.mu.Lock()
	refuse := t.refuse
	t.mu.Unlock()
	if refuse != 0 {
		return nil, refuse
	}
	h := &testHandle{caller: c, reads: make(chan *fs.ReadRequest, 1024), writes: make(chan *fs.WriteRequest, 1024),
		flushed: make(chan uint64, 16), released: make(chan struct{}), revoked: make(chan int, 1024)}
	t.mu.Lock()
	t.handles = append(t.handles, h)
	t.mu.Unlock()
	return h, 0
}

func (t *testControl) last() *testHandle {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.handles[len(t.handles)-1]
}

func (h *testHandle) Read(r *fs.ReadRequest)   { h.reads <- r }
func (h *testHandle) Write(w *fs.WriteRequest) { h.writes <- w }
func (h *testHandle) Flush(o uint64)           { h.flushed <- o }
func (h *testHandle) Release()                 { close(h.released) }
func (h *testHandle) Revoke(ctx context.Context, p []fs.Request) {
	h.revoked <- len(p)
	if h.hang != nil {
		<-h.hang
	}
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

const library = "not really a library"

func testTree(t *testing.T, ctl fs.ControlFile) *fs.Dir {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, bytes.Repeat([]byte("0123456789abcdef"), 1000), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	onDisk, err := fs.OSFile(f)
	if err != nil {
		t.Fatal(err)
	}
	root := fs.NewDir()
	lib := root.Dir("lib")
	lib.File("libx.so.1", fs.Bytes([]byte(library)), 0o555)
	lib.Symlink("libx.so", "libx.so.1")
	root.File("disk", onDisk, 0o444)
	root.Control("session", ctl)
	return root
}

// boot starts a device and a guest; after the test nothing of them may remain.
func boot(t *testing.T, ctl fs.ControlFile, o fs.Options) (*fstest.Guest, *fs.Device) {
	t.Helper()
	tree := testTree(t, ctl)
	checkLeaks(t)
	mem := vhostuser.NewMemory()
	o.Logger = quiet()
	dev, err := fs.New(mem, tree, o)
	if err != nil {
		t.Fatal(err)
	}
	g, err := fstest.Boot(t.TempDir(), mem, dev, fstest.Options{Queues: max(o.RequestQueues, 1), Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Kill(); err != nil {
			t.Errorf("server: %v", err)
		}
	})
	return g, dev
}

// checkLeaks compares goroutines and descriptors before and after the test.
func checkLeaks(t *testing.T) {
	t.Helper()
	fds := func() int {
		d, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(d)
	}
	if r, w, err := os.Pipe(); err == nil { // the first one opens the poller
		_, _ = r.Close(), w.Close()
	}
	goroutines, open := runtime.NumGoroutine(), fds()
	t.Cleanup(func() {
		deadline := time.Now().Add(time.Minute)
		for runtime.NumGoroutine() > goroutines || fds() > open {
			if time.Now().After(deadline) {
				buf := make([]byte, 1<<16)
				t.Errorf("leak: %d goroutines, were %d; %d descriptors, were %d\n%s", runtime.NumGoroutine(), goroutines,
					fds(), open, buf[:runtime.Stack(buf, true)])
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
}
