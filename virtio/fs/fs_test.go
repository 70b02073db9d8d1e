package fs_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

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
	if t.refuse != 0 {
		return nil, t.refuse
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
	fds() // the first use opens the poller
	goroutines, open := runtime.NumGoroutine(), fds()
	t.Cleanup(func() {
		deadline := time.Now().Add(5 * time.Second)
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

func TestMount(t *testing.T) {
	g, _ := boot(t, &testControl{}, fs.Options{})
	if g.Init.MaxBackground != 1024 || g.Init.MaxPages != 256 || g.Init.MaxWrite != 1<<20 ||
		g.Init.Flags&fuse.CAP_ASYNC_DIO == 0 || g.Init.Flags&fuse.CAP_WRITEBACK_CACHE != 0 || g.Init.Minor != 38 {
		t.Errorf("INIT answered %+v", g.Init)
	}
	if err := g.Unmount(); err != nil {
		t.Error(err)
	}
}

func TestServedFiles(t *testing.T) {
	g, _ := boot(t, &testControl{}, fs.Options{})
	f, err := g.Open(0, fuse.Caller{}, "lib", "libx.so.1")
	if err != nil {
		t.Fatal(err)
	}
	if f.Flags != fuse.FOPEN_KEEP_CACHE {
		t.Errorf("a served file opens with flags %#x", f.Flags)
	}
	c, err := f.Read(0, 4, g.Pages(2))
	if err != nil {
		t.Fatal(err)
	}
	if p, errno, err := c.Wait(time.Second); string(p) != library[4:] || errno != 0 || err != nil {
		t.Errorf("READ = %q, %v, %v", p, errno, err)
	}
	if err := errors.Join(f.Flush(1), f.Close()); err != nil {
		t.Error(err)
	}
	d, err := g.Open(0, fuse.Caller{}, "disk")
	if err != nil {
		t.Fatal(err)
	}
	c, err = d.Read(0, 4090, g.Pages(8))
	if err != nil {
		t.Fatal(err)
	}
	p, errno, err := c.Wait(time.Second)
	if want := strings.Repeat("0123456789abcdef", 1000)[4090:]; string(p) != want || errno != 0 || err != nil {
		t.Errorf("READ of a file on disk = %d bytes, %v, %v", len(p), errno, err)
	}
	if _, err := g.Open(syscall.O_RDWR, fuse.Caller{}, "lib", "libx.so.1"); !errors.Is(err, syscall.EROFS) {
		t.Errorf("open for writing: %v", err)
	}
	if _, err := g.Open(0, fuse.Caller{}, "nothing"); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("open of a missing file: %v", err)
	}
}

func TestLease(t *testing.T) {
	ctl := &testControl{}
	g, _ := boot(t, ctl, fs.Options{})
	f, err := g.Open(syscall.O_RDWR, fuse.Caller{Owner: fuse.Owner{Uid: 5, Gid: 6}, Pid: 7}, "session")
	if err != nil {
		t.Fatal(err)
	}
	h := ctl.last()
	if h.caller != (fs.Caller{UID: 5, GID: 6, PID: 7}) {
		t.Errorf("caller %+v", h.caller)
	}
	if f.Flags != fuse.FOPEN_DIRECT_IO {
		t.Errorf("a control file opens with flags %#x", f.Flags)
	}
	pages := g.Pages(256)
	c, err := f.Read(0, 1<<40, pages)
	if err != nil {
		t.Fatal(err)
	}
	r := <-h.reads
	if r.Offset != 1<<40 || r.Size != 1<<20 || len(r.Extents()) != 256 || len(r.Segments()) != 256 {
		t.Fatalf("READ has offset %#x, size %#x, %d extents", r.Offset, r.Size, len(r.Extents()))
	}
	for i, e := range r.Extents() {
		if e.GPA != pages[i].GPA || e.Len != 4096 {
			t.Fatalf("extent %d is %+v, not %#x", i, e, pages[i].GPA)
		}
	}
	// Both sides see each other's writes while the READ is pending.
	r.CopyIn([]byte("from the host"), 4096*3)
	if !bytes.HasPrefix(pages[3].Bytes, []byte("from the host")) {
		t.Error("the guest does not see the host's write")
	}
	copy(pages[255].Bytes, "from the guest")
	if !bytes.HasPrefix(r.Segments()[255].Data, []byte("from the guest")) {
		t.Error("the host does not see the guest's write")
	}
	select {
	case <-c.Done():
		t.Fatal("the READ did not stay pending")
	default:
	}
	if !r.Complete(0, 0) || r.Complete(5, 0) {
		t.Error("Complete is not once")
	}
	if p, errno, err := c.Wait(time.Second); len(p) != 0 || errno != 0 || err != nil {
		t.Errorf("renewed READ = %d bytes, %v, %v", len(p), errno, err)
	}
	// A short read with data, then an error.
	c, _ = f.Read(0, 0, pages[:2])
	r = <-h.reads
	r.CopyIn([]byte("abc"), 0)
	r.Complete(3, 0)
	if p, _, err := c.Wait(time.Second); string(p) != "abc" || err != nil {
		t.Errorf("READ = %q, %v", p, err)
	}
	c, _ = f.Read(0, 0, pages[:1])
	(<-h.reads).Complete(0, syscall.EPIPE)
	if _, errno, err := c.Wait(time.Second); errno != syscall.EPIPE || err != nil {
		t.Errorf("READ = %v, %v", errno, err)
	}
}

func TestControlWrite(t *testing.T) {
	ctl := &testControl{}
	g, _ := boot(t, ctl, fs.Options{})
	f, err := g.Open(syscall.O_RDWR, fuse.Caller{}, "session")
	if err != nil {
		t.Fatal(err)
	}
	h := ctl.last()
	go func() {
		w := <-h.writes
		if string(w.Data()) != "hello" || w.Offset != 9 || len(w.Extents()) != 1 {
			t.Errorf("WRITE %q at %d", w.Data(), w.Offset)
		}
		w.Complete(5, 0)
	}()
	if n, err := f.WriteBytes([]byte("hello"), 9); n != 5 || err != nil {
		t.Errorf("WRITE = %d, %v", n, err)
	}
	if err := f.Flush(42); err != nil || <-h.flushed != 42 {
		t.Errorf("FLUSH: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	<-h.released
	if _, err := f.WriteBytes([]byte("x"), 0); !errors.Is(err, syscall.EBADF) {
		t.Errorf("WRITE after close: %v", err)
	}
}

// pend opens the session file and leaves n READs pending.
func pend(t *testing.T, g *fstest.Guest, ctl *testControl, n int) (*fstest.File, *testHandle, []*fstest.Call, []*fs.ReadRequest) {
	t.Helper()
	f, err := g.Open(syscall.O_RDWR, fuse.Caller{}, "session")
	if err != nil {
		t.Fatal(err)
	}
	h := ctl.last()
	var calls []*fstest.Call
	var reads []*fs.ReadRequest
	for i := 0; i < n; i++ {
		c, err := f.Read(i%2, 0, g.Pages(2))
		if err != nil {
			t.Fatal(err)
		}
		calls, reads = append(calls, c), append(reads, <-h.reads)
	}
	return f, h, calls, reads
}

func TestSuspendReturnsLeases(t *testing.T) {
	ctl := &testControl{}
	g, _ := boot(t, ctl, fs.Options{RequestQueues: 2})
	f, h, calls, reads := pend(t, g, ctl, 300)
	start := time.Now()
	if err := g.StopRings(); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(start); d > time.Second {
		t.Errorf("stopping took %v", d)
	}
	for i, c := range calls {
		if p, errno, err := c.Wait(time.Second); len(p) != 0 || errno != 0 || err != nil {
			t.Fatalf("READ %d = %d bytes, %v, %v", i, len(p), errno, err)
		}
		if reads[i].Complete(0, 0) {
			t.Fatalf("READ %d was still pending", i)
		}
	}
	if n := <-h.revoked + <-h.revoked; n != 300 {
		t.Errorf("%d requests were revoked", n)
	}
	if err := g.StartRings(); err != nil {
		t.Fatal(err)
	}
	// The guest renews and the session goes on.
	c, err := f.Read(0, 0, g.Pages(1))
	if err != nil {
		t.Fatal(err)
	}
	(<-h.reads).Complete(1, 0)
	if p, _, err := c.Wait(time.Second); len(p) != 1 || err != nil {
		t.Errorf("READ after resume = %d, %v", len(p), err)
	}
}

func TestDeathOfTheFrontEnd(t *testing.T) {
	ctl := &testControl{}
	g, _ := boot(t, ctl, fs.Options{RequestQueues: 2})
	_, h, _, reads := pend(t, g, ctl, 10)
	g.Front.Sock.Close()
	<-h.released
	for _, r := range reads {
		if r.Complete(0, 0) {
			t.Fatal("a READ outlived the front end")
		}
	}
}

func TestResetReleasesSessions(t *testing.T) {
	ctl := &testControl{}
	reset := make(chan struct{}, 2)
	g, _ := boot(t, ctl, fs.Options{RequestQueues: 2, OnReset: func() { reset <- struct{}{} }})
	<-reset // the handshake's
	_, h, _, _ := pend(t, g, ctl, 4)
	if err := g.StopRings(); err != nil {
		t.Fatal(err)
	}
	if err := g.Front.Set(vhostuser.ResetDevice, nil); err != nil {
		t.Fatal(err)
	}
	<-reset
	<-h.released
	if err := errors.Join(g.StartRings(), g.Mount()); err != nil {
		t.Errorf("mount after the reset: %v", err)
	}
}

func TestMemoryRemovalRevokes(t *testing.T) {
	ctl := &testControl{}
	g, dev := boot(t, ctl, fs.Options{RequestQueues: 2})
	_, h, calls, reads := pend(t, g, ctl, 2)
	_ = dev
	if err := g.Front.RemoveMemory(g.Mem); err != nil {
		t.Fatal(err)
	}
	if n := <-h.revoked; n != 2 {
		t.Errorf("%d requests were revoked", n)
	}
	for i, c := range calls {
		// The rings pin their region, so that the answers still arrive.
		if _, errno, err := c.Wait(time.Second); errno != 0 || err != nil || reads[i].Complete(0, 0) {
			t.Errorf("READ %d: %v %v", i, errno, err)
		}
	}
}

func TestRevokeThatHangs(t *testing.T) {
	ctl := &testControl{}
	g, dev := boot(t, ctl, fs.Options{RequestQueues: 2, RevokeLimit: 20 * time.Millisecond})
	f, h, calls, _ := pend(t, g, ctl, 1)
	h.hang = make(chan struct{})
	dev.CancelPending()
	if _, errno, err := calls[0].Wait(time.Second); errno != 0 || err != nil {
		t.Errorf("READ: %v %v", errno, err)
	}
	close(h.hang)
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}
