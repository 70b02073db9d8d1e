package fs_test

import (
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"

	"causeway/vhostuser"
	"causeway/virtio/fs"
	"causeway/virtio/fs/fstest"
)

// TestPendingPieces: a request counts for all the pieces of memory that it brings, of which it may
// say that it means few, or none: they are kept for it as long.
func TestPendingPieces(t *testing.T) {
	const pieces = 100
	for _, size := range []uint32{0, 1, pieces * 4096} {
		ctl := &testControl{}
		g, _ := boot(t, ctl, fs.Options{MaxPages: 2 * pieces})
		f, err := g.Open(syscall.O_RDWR, fuse.Caller{}, "session")
		if err != nil {
			t.Fatal(err)
		}
		h := ctl.last()
		read := func() *fstest.Call {
			t.Helper()
			in := fuse.ReadIn{Fh: f.FH, Size: size}
			body := unsafe.Slice((*byte)(unsafe.Pointer(&in)), unsafe.Sizeof(in))[40:]
			c, err := g.Submit(fstest.Request{Op: 15, Node: f.Node, Body: body, Pages: g.Pages(pieces)})
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		first := read()
		r := <-h.reads
		if _, errno, err := read().Wait(10 * time.Second); errno != syscall.ENOMEM || err != nil {
			t.Errorf("twice %d pieces of %d for %d bytes: %v, %v", pieces, 2*pieces, size, errno, err)
		}
		r.Complete(0, 0)
		if _, errno, err := first.Wait(10 * time.Second); errno != 0 || err != nil {
			t.Errorf("%d pieces of %d for %d bytes: %v, %v", pieces, 2*pieces, size, errno, err)
		}
		next := read()
		(<-h.reads).Complete(0, 0)
		if _, errno, err := next.Wait(10 * time.Second); errno != 0 || err != nil {
			t.Errorf("after the first has ended: %v, %v", errno, err)
		}
	}
}

// TestFilesEndAtOnce: at a reset, at the end of the mount and of the VM pages of all open files
// come back side by side: QEMU, and its guest, waits no longer for many that take their time than
// for one.
func TestFilesEndAtOnce(t *testing.T) {
	for name, end := range map[string]func(*fs.Device, *fstest.Guest){
		"reset":      func(d *fs.Device, _ *fstest.Guest) { d.Reset() },
		"unmount":    func(_ *fs.Device, g *fstest.Guest) { _ = g.Unmount() },
		"disconnect": func(d *fs.Device, _ *fstest.Guest) { d.Disconnect() },
	} {
		t.Run(name, func(t *testing.T) {
			ctl := &testControl{}
			tree := testTree(t, ctl)
			synctest.Test(t, func(t *testing.T) {
				mem := vhostuser.NewMemory()
				dev, err := fs.New(mem, tree, fs.Options{Logger: quiet()})
				if err != nil {
					t.Fatal(err)
				}
				g, err := fstest.Direct(mem, dev, fstest.Options{})
				if err != nil {
					t.Fatal(err)
				}
				hang := make(chan struct{})
				for range 30 {
					f, err := g.Open(syscall.O_RDWR, fuse.Caller{}, "session")
					if err != nil {
						t.Fatal(err)
					}
					ctl.last().hang = hang
					if _, err := f.Read(0, 0, g.Pages(1)); err != nil {
						t.Fatal(err)
					}
				}
				begin := time.Now()
				end(dev, g)
				// Options.RevokeLimit, and a second.
				if took := time.Since(begin); took > 3*time.Second {
					t.Errorf("30 files that do not let go took %v", took)
				}
				for _, h := range ctl.handles {
					select {
					case <-h.released:
					default:
						t.Error("a file is left")
					}
				}
				close(hang)
				synctest.Wait()
				dev.Disconnect()
				if err := g.Halt(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
