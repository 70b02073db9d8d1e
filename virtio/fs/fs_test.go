package fs_test

import (
	"bytes"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"causeway/virtio/fs"
	"causeway/virtio/fs/fstest"
)

func TestMount(t *testing.T) {
	g, _ := boot(t, &testControl{}, fs.Options{})
	if g.Init.MaxBackground != 1024 || g.Init.MaxPages != 1020 || g.Init.MaxWrite != 1<<20 ||
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
	if p, errno, err := c.Wait(time.Minute); string(p) != library[4:] || errno != 0 || err != nil {
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
	p, errno, err := c.Wait(time.Minute)
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

func TestLoan(t *testing.T) {
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
	if f.Flags != fuse.FOPEN_DIRECT_IO|fuse.FOPEN_NOFLUSH|fuse.FOPEN_PARALLEL_DIRECT_WRITES {
		t.Errorf("a control file opens with flags %#x", f.Flags)
	}
	pages := g.Pages(256)
	c, err := f.Read(0, 1<<40, pages)
	if err != nil {
		t.Fatal(err)
	}
	r := <-h.reads
	if r.Offset != 1<<40 || r.Size != 1<<20 || len(r.Ranges()) != 256 || len(r.Segments()) != 256 {
		t.Fatalf("READ has offset %#x, size %#x, %d ranges", r.Offset, r.Size, len(r.Ranges()))
	}
	for i, e := range r.Ranges() {
		if e.GPA != pages[i].GPA || e.Len != 4096 {
			t.Fatalf("range %d is %+v, not %#x", i, e, pages[i].GPA)
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
	if p, errno, err := c.Wait(time.Minute); len(p) != 0 || errno != 0 || err != nil {
		t.Errorf("renewed READ = %d bytes, %v, %v", len(p), errno, err)
	}
	// A short read with data, then an error.
	c, _ = f.Read(0, 0, pages[:2])
	r = <-h.reads
	r.CopyIn([]byte("abc"), 0)
	r.Complete(3, 0)
	if p, _, err := c.Wait(time.Minute); string(p) != "abc" || err != nil {
		t.Errorf("READ = %q, %v", p, err)
	}
	// More than was asked for is no answer, although the pages have room for it.
	for _, n := range []int{101, -1} {
		in := append(u64s(f.FH, 0), append(u32s(100, 0), append(u64s(0), u32s(0, 0)...)...)...)
		c, _ = g.Submit(fstest.Request{Op: 15, Node: f.Node, Body: in, Pages: pages[:1]})
		(<-h.reads).Complete(n, 0)
		if p, errno, err := c.Wait(time.Minute); len(p) != 0 || errno != syscall.EIO || err != nil {
			t.Errorf("READ of %d bytes = %d bytes, %v, %v", n, len(p), errno, err)
		}
	}
	c, _ = f.Read(0, 0, pages[:1])
	(<-h.reads).Complete(0, syscall.EPIPE)
	if _, errno, err := c.Wait(time.Minute); errno != syscall.EPIPE || err != nil {
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
		if string(w.Data()) != "hello" || w.Offset != 9 || len(w.Ranges()) != 1 {
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
