package fs_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"causeway/vhostuser"
	"causeway/virtio/fs"
	"causeway/virtio/fs/fstest"
	"causeway/virtio/virtiotest"
)

func u32s(vs ...uint32) (b []byte) {
	for _, v := range vs {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

func u64s(vs ...uint64) (b []byte) {
	for _, v := range vs {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

// TestOperations sends every operation, rightly and wrongly. Nodes of testTree in order of
// creation: 1 root, 2 lib, 3 lib/libx.so.1, 4 lib/libx.so, 5 disk, 6 session.
func TestOperations(t *testing.T) {
	g, _ := boot(t, &testControl{}, fs.Options{})
	open, read := make([]byte, 8), append(u64s(0, 0), append(u32s(4096, 0), append(u64s(0), u32s(0, 0)...)...)...)
	setattr := func(valid uint32) []byte { return append(u32s(valid, 0), make([]byte, 80)...) }
	for _, c := range []struct {
		name  string
		op    uint32
		node  uint64
		body  []byte
		errno syscall.Errno
		size  int // of the answer, -1: any
	}{
		{"LOOKUP", 1, 1, []byte("lib\x00"), 0, 128},
		{"LOOKUP .", 1, 2, []byte(".\x00"), 0, 128},
		{"LOOKUP ..", 1, 1, []byte("..\x00"), 0, 128},
		{"LOOKUP missing is a negative entry", 1, 1, []byte("x\x00"), 0, 128},
		{"LOOKUP without NUL", 1, 1, []byte("lib"), syscall.EINVAL, 0},
		{"LOOKUP empty body", 1, 1, nil, syscall.EINVAL, 0},
		{"LOOKUP below a file", 1, 3, []byte("x\x00"), syscall.ENOTDIR, 0},
		{"LOOKUP long", 1, 1, append(bytes.Repeat([]byte("a"), 256), 0), syscall.ENAMETOOLONG, 0},
		{"LOOKUP below nothing", 1, 99, []byte("x\x00"), syscall.ESTALE, 0},
		{"LOOKUP below node 0", 1, 0, []byte("x\x00"), syscall.ESTALE, 0},
		{"GETATTR", 3, 1, make([]byte, 16), 0, 104},
		{"GETATTR of nothing", 3, 1 << 63, make([]byte, 16), syscall.ESTALE, 0},
		{"SETATTR truncates a control file", 4, 6, setattr(fuse.FATTR_SIZE), 0, 104},
		{"SETATTR mode of a control file", 4, 6, setattr(fuse.FATTR_MODE), syscall.EROFS, 0},
		{"SETATTR of a file", 4, 3, setattr(fuse.FATTR_SIZE), syscall.EROFS, 0},
		{"SETATTR short", 4, 6, make([]byte, 8), syscall.EINVAL, 0},
		{"READLINK", 5, 4, nil, 0, len("libx.so.1")},
		{"READLINK of a file", 5, 3, nil, syscall.EINVAL, 0},
		{"SYMLINK", 6, 1, []byte("a\x00b\x00"), syscall.EROFS, 0},
		{"MKNOD", 8, 1, make([]byte, 20), syscall.EROFS, 0},
		{"MKDIR", 9, 1, make([]byte, 20), syscall.EROFS, 0},
		{"UNLINK", 10, 1, []byte("a\x00"), syscall.EROFS, 0},
		{"RMDIR", 11, 1, []byte("a\x00"), syscall.EROFS, 0},
		{"RENAME", 12, 1, make([]byte, 20), syscall.EROFS, 0},
		{"LINK", 13, 1, make([]byte, 20), syscall.EROFS, 0},
		{"OPEN", 14, 3, open, 0, 16},
		{"OPEN of a directory", 14, 2, open, syscall.EISDIR, 0},
		{"OPEN of a link", 14, 4, open, syscall.ELOOP, 0},
		{"OPEN for writing", 14, 3, u32s(syscall.O_WRONLY, 0), syscall.EROFS, 0},
		{"OPEN with O_TRUNC", 14, 3, u32s(syscall.O_TRUNC, 0), syscall.EROFS, 0},
		{"OPEN short", 14, 3, make([]byte, 7), syscall.EINVAL, 0},
		{"READ", 15, 3, read, 0, len(library)},
		{"READ at the end", 15, 3, append(u64s(0, uint64(len(library))), read[16:]...), 0, 0},
		{"READ at a negative offset", 15, 3, append(u64s(0, ^uint64(0)), read[16:]...), syscall.EINVAL, 0},
		{"READ at the last offset", 15, 3, append(u64s(0, math.MaxInt64-4096), read[16:]...), 0, 0},
		{"READ beyond the last offset", 15, 3, append(u64s(0, math.MaxInt64-4095), read[16:]...), syscall.EINVAL, 0},
		{"READ of a directory", 15, 2, read, syscall.EISDIR, 0},
		{"READ of a link", 15, 4, read, syscall.EINVAL, 0},
		{"READ of a session that is not open", 15, 6, read, syscall.EBADF, 0},
		{"WRITE of a file", 16, 3, make([]byte, 40), syscall.EROFS, 0},
		{"WRITE of a session that is not open", 16, 6, make([]byte, 40), syscall.EBADF, 0},
		{"WRITE with less data than it says", 16, 6, append(u64s(0, 0), append(u32s(5), make([]byte, 20)...)...), syscall.EINVAL, 0},
		{"STATFS", 17, 1, nil, 0, 80},
		{"RELEASE", 18, 3, make([]byte, 24), 0, 0},
		{"RELEASE of a session that is not open", 18, 6, make([]byte, 24), syscall.EBADF, 0},
		{"FSYNC", 20, 3, make([]byte, 16), 0, 0},
		{"SETXATTR", 21, 1, make([]byte, 16), syscall.EROFS, 0},
		{"GETXATTR", 22, 1, make([]byte, 16), syscall.ENOSYS, 0},
		{"LISTXATTR", 23, 1, make([]byte, 16), syscall.ENOSYS, 0},
		{"REMOVEXATTR", 24, 1, []byte("a\x00"), syscall.EROFS, 0},
		{"FLUSH", 25, 3, make([]byte, 24), 0, 0},
		{"FLUSH of a session that is not open", 25, 6, make([]byte, 24), syscall.EBADF, 0},
		{"INIT 7.31", 26, 0, u32s(7, 31, 1<<17, ^uint32(0)), 0, 64},
		{"INIT 8.0", 26, 0, u32s(8, 0, 0, 0), 0, 64},
		{"INIT 7.8", 26, 0, u32s(7, 8, 0, 0), syscall.EPROTO, 0},
		{"INIT 6.0", 26, 0, u32s(6, 0, 0, 0), syscall.EPROTO, 0},
		{"INIT short", 26, 0, u32s(7), syscall.EINVAL, 0},
		{"OPENDIR", 27, 1, open, 0, 16},
		{"OPENDIR of a file", 27, 3, open, syscall.ENOTDIR, 0},
		{"READDIR", 28, 1, read, 0, 5 * 32},
		{"READDIR of a file", 28, 3, read, syscall.ENOTDIR, 0},
		{"READDIR far away", 28, 1, append(u64s(0, ^uint64(0)), read[16:]...), 0, 0},
		{"RELEASEDIR", 29, 1, make([]byte, 24), 0, 0},
		{"FSYNCDIR", 30, 1, make([]byte, 16), 0, 0},
		{"GETLK", 31, 1, make([]byte, 48), syscall.ENOSYS, 0},
		{"ACCESS read", 34, 3, u32s(4, 0), 0, 0},
		{"ACCESS write", 34, 3, u32s(2, 0), syscall.EROFS, 0},
		{"ACCESS write to a session", 34, 6, u32s(2, 0), 0, 0},
		{"ACCESS execute", 34, 5, u32s(1, 0), syscall.EACCES, 0},
		{"ACCESS odd", 34, 3, u32s(8, 0), syscall.EINVAL, 0},
		{"CREATE", 35, 1, make([]byte, 20), syscall.EROFS, 0},
		{"BMAP", 37, 3, make([]byte, 16), syscall.ENOSYS, 0},
		{"IOCTL", 39, 3, make([]byte, 32), syscall.ENOSYS, 0},
		{"POLL", 40, 3, make([]byte, 24), syscall.ENOSYS, 0},
		{"FALLOCATE", 43, 3, make([]byte, 32), syscall.EROFS, 0},
		{"READDIRPLUS", 44, 2, read, 0, 3*(128+32) + 128 + 40},
		{"RENAME2", 45, 1, make([]byte, 20), syscall.EROFS, 0},
		{"LSEEK", 46, 3, make([]byte, 24), syscall.ENOSYS, 0},
		{"COPY_FILE_RANGE", 47, 3, make([]byte, 56), syscall.EROFS, 0},
		{"SETUPMAPPING", 48, 3, make([]byte, 40), syscall.ENOSYS, 0},
		{"TMPFILE", 51, 1, make([]byte, 20), syscall.EROFS, 0},
		{"STATX", 52, 3, make([]byte, 24), 0, 288},
		{"opcode 0", 0, 1, nil, syscall.ENOSYS, 0},
		{"opcode 4096", 4096, 1, nil, syscall.ENOSYS, 0},
		{"DESTROY", 38, 0, nil, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, errno, err := g.Do(c.op, c.node, c.body, 4096)
			if err != nil {
				t.Fatal(err)
			}
			if errno != c.errno || len(p) != c.size {
				t.Errorf("answer: %v, %d bytes; want %v, %d", errno, len(p), c.errno, c.size)
			}
		})
	}
}

func TestUnansweredOperations(t *testing.T) {
	g, _ := boot(t, &testControl{}, fs.Options{})
	for _, op := range []uint32{2, 36, 42} {
		c, err := g.Submit(fstest.Request{Op: op, Node: 3, Body: make([]byte, 16), NoAnswer: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := c.Wait(time.Minute); err != nil {
			t.Errorf("opcode %d: %v", op, err)
		}
	}
}

// TestReplyWithoutRoom: an answer that does not fit becomes EIO; one without room for a header is
// only given back.
func TestReplyWithoutRoom(t *testing.T) {
	g, _ := boot(t, &testControl{}, fs.Options{})
	if _, errno, err := g.Do(3, 1, make([]byte, 16), 50); errno != syscall.EIO || err != nil {
		t.Errorf("GETATTR = %v, %v", errno, err)
	}
	c, err := g.Submit(fstest.Request{Op: 3, Node: 1, Body: make([]byte, 16), NoAnswer: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Wait(time.Minute); err != nil {
		t.Error(err)
	}
}

// TestDirectoryPages reads a directory in small pieces; names, types and inodes must come once
// each.
func TestDirectoryPages(t *testing.T) {
	checkLeaks(t)
	root := fs.NewDir()
	for i := 0; i < 300; i++ {
		root.File(fmt.Sprintf("file-%d", i), fs.Bytes(nil), 0o444)
	}
	mem := vhostuser.NewMemory()
	dev, err := fs.New(mem, root, fs.Options{Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	g, err := fstest.Boot(t.TempDir(), mem, dev, fstest.Options{Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Kill()
	for _, plus := range []uint32{28, 44} {
		seen := map[string]bool{}
		off := uint64(0)
		for {
			body := append(u64s(0, off), append(u32s(1000, 0), append(u64s(0), u32s(0, 0)...)...)...)
			p, errno, err := g.Do(plus, 1, body, 4096)
			if errno != 0 || err != nil {
				t.Fatal(errno, err)
			}
			if len(p) > 1000 {
				t.Fatalf("%d bytes for a request of 1000", len(p))
			}
			if len(p) == 0 {
				break
			}
			for len(p) > 0 {
				if plus == 44 {
					p = p[128:]
				}
				off = binary.LittleEndian.Uint64(p[8:])
				n := int(binary.LittleEndian.Uint32(p[16:]))
				name := string(p[24 : 24+n])
				if seen[name] {
					t.Fatalf("%q comes twice", name)
				}
				seen[name] = true
				p = p[(24+n+7)&^7:]
			}
		}
		if len(seen) != 302 {
			t.Errorf("%d names", len(seen))
		}
	}
}

func TestBadTrees(t *testing.T) {
	for name, build := range map[string]func(d *fs.Dir){
		"twice":      func(d *fs.Dir) { d.File("a", fs.Bytes(nil), 0); d.Dir("a") },
		"empty name": func(d *fs.Dir) { d.Dir("") },
		"dot":        func(d *fs.Dir) { d.Dir("..") },
		"slash":      func(d *fs.Dir) { d.Dir("a/b") },
		"long":       func(d *fs.Dir) { d.Dir(strings.Repeat("a", 256)) },
		"no content": func(d *fs.Dir) { d.File("a", nil, 0) },
		"no control": func(d *fs.Dir) { d.Control("a", nil) },
		"no target":  func(d *fs.Dir) { d.Symlink("a", "") },
		"deep":       func(d *fs.Dir) { d.Dir("a").Dir("b").Dir("\x00") },
	} {
		root := fs.NewDir()
		build(root)
		if _, err := fs.New(vhostuser.NewMemory(), root, fs.Options{}); !errors.Is(err, fs.ErrBadTree) {
			t.Errorf("%s: New = %v", name, err)
		}
	}
	f, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := fs.OSFile(f); !errors.Is(err, fs.ErrBadTree) {
		t.Errorf("a directory as a file: %v", err)
	}
}

func TestHandleLimit(t *testing.T) {
	ctl := &testControl{}
	g, _ := boot(t, ctl, fs.Options{MaxHandles: 2})
	for i := 0; i < 2; i++ {
		if _, err := g.Open(syscall.O_RDWR, fuse.Caller{}, "session"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := g.Open(syscall.O_RDWR, fuse.Caller{}, "session"); !errors.Is(err, syscall.ENFILE) {
		t.Errorf("third open: %v", err)
	}
	if err := g.Unmount(); err != nil { // DESTROY closes what was left
		t.Fatal(err)
	}
	ctl.mu.Lock()
	ctl.refuse = syscall.EBUSY
	ctl.mu.Unlock()
	if _, err := g.Open(syscall.O_RDWR, fuse.Caller{}, "session"); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("refused open: %v", err)
	}
}

func TestPendingLimit(t *testing.T) {
	ctl := &testControl{}
	g, _ := boot(t, ctl, fs.Options{MaxPages: 10})
	f, err := g.Open(syscall.O_RDWR, fuse.Caller{}, "session")
	if err != nil {
		t.Fatal(err)
	}
	h := ctl.last()
	for range 3 {
		first, err := f.Read(0, 0, g.Pages(8))
		if err != nil {
			t.Fatal(err)
		}
		r := <-h.reads
		more, err := f.Read(0, 0, g.Pages(3))
		if err != nil {
			t.Fatal(err)
		}
		if _, errno, err := more.Wait(time.Minute); errno != syscall.ENOMEM || err != nil {
			t.Errorf("11 pages of 10: %v, %v", errno, err)
		}
		r.Complete(0, 0)
		if _, errno, err := first.Wait(time.Minute); errno != 0 || err != nil {
			t.Errorf("8 pages of 10: %v, %v", errno, err)
		}
	}
}

func TestState(t *testing.T) {
	ctl := &testControl{}
	g, dev := boot(t, ctl, fs.Options{})
	var b bytes.Buffer
	if err := dev.Save(&b); err != nil {
		t.Fatal(err)
	}
	if err := dev.Load(bytes.NewReader(b.Bytes())); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"", "CWFS", "CWFS\x02\x00\x00\x00", "CWFS\x03\x00\x00\x00", b.String() + "x"} {
		if err := dev.Load(strings.NewReader(bad)); err == nil {
			t.Errorf("state %q was accepted", bad)
		}
	}
	if _, err := g.Open(syscall.O_RDWR, fuse.Caller{}, "session"); err != nil {
		t.Fatal(err)
	}
	if err := dev.Save(&b); err == nil {
		t.Error("an open session was dropped silently")
	}
}

// TestReleaseWithPendingReads: the kernel never does this, a hostile one may.
func TestReleaseWithPendingReads(t *testing.T) {
	ctl := &testControl{}
	g, _ := boot(t, ctl, fs.Options{RequestQueues: 2})
	f, h, calls, reads := pend(t, g, ctl, 3)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	<-h.released
	for i, c := range calls {
		if _, errno, err := c.Wait(time.Minute); errno != 0 || err != nil || reads[i].Complete(0, 0) {
			t.Errorf("READ %d: %v, %v", i, errno, err)
		}
	}
	var page []virtiotest.Buffer = g.Pages(1)
	c, err := f.Read(0, 0, page)
	if err != nil {
		t.Fatal(err)
	}
	if _, errno, err := c.Wait(time.Minute); errno != syscall.EBADF || err != nil {
		t.Errorf("READ after RELEASE: %v, %v", errno, err)
	}
}
