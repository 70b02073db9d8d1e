package device

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/remote"
	"causeway/virtio/fs/fstest"
	"causeway/virtio/virtiotest"
)

// kernel is a guest's kernel on a device whose workers are fakes, all of it in one bubble of fake
// time: what it does is done when a method returns, and a second takes none.
type kernel struct {
	t       testing.TB
	d       *Device
	g       *fstest.Guest
	file    *fstest.File
	workers *fakeWorkers
	short   atomic.Bool // the host is short of CPU
	stop    context.CancelFunc
	ticks   sync.WaitGroup

	mu    sync.Mutex
	lent  []*loan
	spare []byte // where control messages are written, in guest memory
	at    uint64
}

// loan is a READ that lends pages.
type loan struct {
	off   int64
	pages []virtiotest.Buffer
	call  *fstest.Call // nil: on its way
}

// quietDevice is what kernels boot on. lib has a libcuda.so.1.
func quietDevice(lib string) Options {
	return Options{
		Tree:   Tree{Lib: lib, Version: "test", GPU: "Test GPU"},
		Worker: link.Config{GPU: "test"},
		Log:    slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
}

func library(t testing.TB) string {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "libcuda.so.1"), []byte("ELF, so to speak"), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// inKernel runs f in a bubble, with a session open.
func inKernel(t *testing.T, f func(k *kernel)) { inKernelWith(t, 4096, f) }

// inKernelWith does so with a request queue of that size.
func inKernelWith(t *testing.T, queue int, f func(k *kernel)) {
	t.Helper()
	o := quietDevice(library(t))
	synctest.Test(t, func(t *testing.T) {
		k := newKernelWith(t, queue, o)
		t.Cleanup(k.halt) // within the bubble
		k.open()
		f(k)
	})
}

// newKernel boots. It must be called within a bubble.
func newKernel(t testing.TB, o Options) *kernel { return newKernelWith(t, 4096, o) }

func newKernelWith(t testing.TB, queue int, o Options) *kernel {
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	k := &kernel{t: t, d: d}
	k.workers = &fakeWorkers{lent: k.isLent, fail: func(f string, args ...any) { t.Errorf(f, args...) }}
	d.workers = k.workers
	d.crowded = k.short.Load
	if k.g, err = fstest.Direct(d.mem, d.fs, fstest.Options{QueueSize: queue}); err != nil {
		t.Fatal(err)
	}
	k.at, k.spare = k.g.Mem.Alloc(4096, 4096)
	ctx, cancel := context.WithCancel(context.Background())
	k.stop = cancel
	k.ticks.Go(func() { d.routineTick(ctx) })
	return k
}

// halt ends everything, and fails if anything is left.
func (k *kernel) halt() {
	k.t.Helper()
	k.d.fs.Disconnect()
	k.settle()
	time.Sleep(2 * stopGrace)
	k.stop()
	k.ticks.Wait()
	k.d.ending.Wait()
	if err := k.g.Halt(); err != nil {
		k.t.Error(err)
	}
	d := k.d
	if len(d.sessions) != 0 || d.admitted != 0 || d.budget.Used() != 0 || len(d.starts) != 0 || len(d.hands) != 0 {
		k.t.Errorf("left behind: %d sessions, %d admitted, %d bytes, %d starts, %d copies", len(d.sessions), d.admitted, d.budget.Used(), len(d.starts), len(d.hands))
	}
	if l := &d.lendable; l.taken != 0 || l.waits.Load() != 0 {
		k.t.Errorf("left behind in the queue: %d requests for loans, %d waits", l.taken, l.waits.Load())
	}
	for _, w := range k.workers.started {
		if !w.ended {
			k.t.Error("a worker is left")
		}
	}
}

// settle waits until nothing happens any more before time goes on.
func (k *kernel) settle() {
	synctest.Wait()
	k.g.Reap()
}

// sleep lets time go on.
func (k *kernel) sleep(d time.Duration) {
	time.Sleep(d)
	k.settle()
}

// open opens the session's file.
func (k *kernel) open() {
	k.t.Helper()
	f, err := k.g.Open(syscall.O_RDWR, fuse.Caller{Pid: 7}, "session")
	if err != nil {
		k.t.Fatal(err)
	}
	k.file = f
}

// session is the device's end of the open file; nil once it has ended.
func (k *kernel) session() *session {
	for _, s := range k.d.all() {
		if s.state != released {
			return s
		}
	}
	return nil
}

// worker is the session's.
func (k *kernel) worker() *fakeWorker {
	w := k.workers.last()
	if w == nil {
		k.t.Fatal("no worker was started")
	}
	return w
}

// isLent reports whether the guest's kernel has pinned a page for a READ that is not completed.
func (k *kernel) isLent(gpa uint64) bool {
	k.g.Reap()
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.ContainsFunc(k.lent, func(l *loan) bool {
		return !l.ended() && slices.ContainsFunc(l.pages, func(b virtiotest.Buffer) bool {
			return b.GPA <= gpa && gpa < b.GPA+uint64(len(b.Bytes))
		})
	})
}

func (l *loan) ended() bool { return l.call != nil && done(l.call) }

func done(c *fstest.Call) bool {
	select {
	case <-c.Done():
		return true
	default:
		return false
	}
}

// lend submits a READ that lends pages.
func (k *kernel) lend(off int64, pages []virtiotest.Buffer) *fstest.Call {
	k.t.Helper()
	l := &loan{off: off, pages: pages}
	k.mu.Lock()
	k.lent = append(slices.DeleteFunc(k.lent, (*loan).ended), l)
	k.mu.Unlock()
	c, err := k.file.Read(0, off, pages)
	if err != nil {
		k.t.Fatal(err)
	}
	k.mu.Lock()
	l.call = c
	k.mu.Unlock()
	k.settle()
	return c
}

// control writes a handshake message and returns the WRITE.
func (k *kernel) control(h remote.Hello) *fstest.Call {
	k.t.Helper()
	b := remote.FormatHello(h, "")
	c, err := k.file.Write(0, int64(remote.FileControl), []virtiotest.Buffer{k.put(b)})
	if err != nil {
		k.t.Fatal(err)
	}
	k.settle()
	return c
}

// put writes bytes to guest memory that nobody else uses.
func (k *kernel) put(b []byte) virtiotest.Buffer {
	gpa, mem := k.g.Mem.Alloc(uint64(len(b)), 8)
	copy(mem, b)
	return virtiotest.Buffer{GPA: gpa, Bytes: mem}
}

// pages allocates n pages in one run.
func (k *kernel) pages(n int) []virtiotest.Buffer {
	gpa, b := k.g.Mem.Alloc(uint64(n)*pageSize, pageSize)
	return []virtiotest.Buffer{{GPA: gpa, Bytes: b}}
}

// answered is the errno of a call that must have been answered.
func (k *kernel) answered(c *fstest.Call) syscall.Errno {
	k.t.Helper()
	if !done(c) {
		k.t.Fatal("not answered")
	}
	_, errno, err := c.Wait(time.Hour)
	if err != nil {
		k.t.Fatal(err)
	}
	return errno
}

// want fails unless a call was answered so.
func (k *kernel) want(what string, c *fstest.Call, want syscall.Errno) {
	k.t.Helper()
	if !done(c) {
		k.t.Errorf("%s: not answered", what)
	} else if errno := k.answered(c); errno != want {
		k.t.Errorf("%s: %v, want %v", what, errno, want)
	}
}

// pending fails if a call was answered.
func (k *kernel) pending(what string, c *fstest.Call) {
	k.t.Helper()
	if done(c) {
		k.t.Errorf("%s: answered with %v", what, k.answered(c))
	}
}

// begin takes the session to where it runs, with the pages of region 0.
func (k *kernel) begin() []virtiotest.Buffer {
	k.t.Helper()
	k.want("hello", k.control(remote.Hello{Type: remote.MsgHello, Va: 0x7f0000000000, Size: remote.Region0Size}), 0)
	zero := k.pages(int(remote.Region0Size / pageSize))
	k.lend(loanAt(0, 0), zero)
	k.want("start", k.control(remote.Hello{Type: remote.MsgStart}), 0)
	return zero
}

// declare announces a region.
func (k *kernel) declare(id uint32, pages int) *fstest.Call {
	k.t.Helper()
	return k.control(remote.Hello{Type: remote.MsgRegion, Region: id, Va: 0x7e0000000000 + uint64(id)<<32, Size: uint64(pages) * pageSize})
}

func loanAt(id uint32, off uint64) int64 { return int64(remote.FileLoan | uint64(id)<<44 | off) }

func waitAt(slot uint32) int64 { return int64(remote.FileWait | uint64(slot)<<12) }

// knows is what the worker knows of a region's pages at an offset.
func (w *fakeWorker) knows(id uint32, off uint64) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.regions[id]
	if r == nil {
		return "nothing"
	}
	return fmt.Sprint(r.pieces[off])
}

// counts are how often the worker was parked and resumed.
func (w *fakeWorker) counts() (parks, resumes int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.parks, w.resumes
}

func extentsOf(pages []virtiotest.Buffer) string {
	var es []link.Range
	for _, b := range pages {
		es = append(es, link.Range{GPA: b.GPA, Size: uint64(len(b.Bytes))})
	}
	return fmt.Sprint(es)
}

// rings is how often the worker's doorbell rang since the last look.
func (k *kernel) rings() uint64 {
	var b [1 << 12]byte
	n, err := unix.Read(k.session().bell.Hear(), b[:])
	if err != nil {
		return 0
	}
	return uint64(n) / 8
}
