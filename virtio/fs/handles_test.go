package fs_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"causeway/vhostuser"
	"causeway/virtio/fs"
	"causeway/virtio/fs/fstest"
)

// TestHandlesBelongToTheirFile: a handle of one control file is none of another, and one that was
// closed is none of any.
func TestHandlesBelongToTheirFile(t *testing.T) {
	one, other := &testControl{}, &testControl{}
	root := fs.NewDir()
	root.Control("one", one)
	root.Control("other", other)
	checkLeaks(t)
	mem := vhostuser.NewMemory()
	dev, err := fs.New(mem, root, fs.Options{Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	g, err := fstest.Boot(t.TempDir(), mem, dev, fstest.Options{Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Kill(); err != nil {
			t.Error(err)
		}
	})
	open := func(name string) *fstest.File {
		t.Helper()
		f, err := g.Open(syscall.O_RDWR, fuse.Caller{Pid: 1}, name)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	a, b := open("one"), open("other")
	errnoOf := func(f fstest.File) syscall.Errno {
		t.Helper()
		c, err := f.Read(0, 0, g.Pages(1))
		if err != nil {
			t.Fatal(err)
		}
		_, errno, err := c.Wait(time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		return errno
	}
	crossed := *a
	crossed.Node = b.Node
	if errno := errnoOf(crossed); errno != syscall.EBADF {
		t.Errorf("a handle of another file: %v", errno)
	}
	if _, err := crossed.WriteBytes([]byte("x"), 0); err != syscall.EBADF {
		t.Errorf("a WRITE by a handle of another file: %v", err)
	}
	_ = crossed.Close() // must close neither
	select {
	case <-one.last().released:
		t.Fatal("released under another file's name")
	default:
	}
	if len(one.last().reads) != 0 || len(other.last().reads) != 0 {
		t.Error("a request reached a file")
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	<-one.last().released
	if errno := errnoOf(*a); errno != syscall.EBADF {
		t.Errorf("a closed handle: %v", errno)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestCompletedTwice: a request that its owner completes again stays completed, and no other of the
// file is lost by it.
func TestCompletedTwice(t *testing.T) {
	ctl := &testControl{}
	mem := vhostuser.NewMemory()
	dev, err := fs.New(mem, testTree(t, ctl), fs.Options{Logger: quiet(), MaxPages: 8 * 3})
	if err != nil {
		t.Fatal(err)
	}
	g, err := fstest.Direct(mem, dev, fstest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f, err := g.Open(syscall.O_RDWR, fuse.Caller{Pid: 1}, "session")
	if err != nil {
		t.Fatal(err)
	}
	read := func() (*fstest.Call, *fs.ReadRequest) {
		t.Helper()
		c, err := f.Read(0, 0, g.Pages(1))
		if err != nil {
			t.Fatal(err)
		}
		return c, <-ctl.last().reads
	}
	var calls []*fstest.Call
	var reads []*fs.ReadRequest
	for range 3 {
		c, r := read()
		calls, reads = append(calls, c), append(reads, r)
	}
	for range 20 {
		if !reads[1].Complete(0, 0) && len(reads) < 4 {
			reads = append(reads, nil) // only the first counts
		}
	}
	g.Reap()
	for i, c := range calls {
		select {
		case <-c.Done():
			if i != 1 {
				t.Errorf("request %d was completed with another", i)
			}
		default:
			if i == 1 {
				t.Error("not completed")
			}
		}
	}
	reads[0].Complete(0, 0) // the oldest, whose neighbour has gone: the list goes on to the newest
	for range 7 {           // pieces of memory are counted once: of eight requests one is in flight
		read()
	}
	if c, err := f.Read(0, 0, g.Pages(1)); err != nil {
		t.Fatal(err)
	} else if _, errno, err := c.Wait(time.Minute); err != nil || errno == 0 {
		t.Errorf("more pages than may be kept: %v, %v", errno, err)
	}
	dev.CancelPending()
	g.Reap()
	for i, c := range calls {
		select {
		case <-c.Done():
		default:
			t.Errorf("request %d was forgotten", i)
		}
	}
	dev.Disconnect()
	if err := g.Halt(); err != nil {
		t.Error(err)
	}
}
