package shm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/remote"
	"causeway/remote/sys"
)

// connected returns both ends of a session socket.
func connected(t *testing.T) (guest, host *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "session")
		c, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = c.(*net.UnixConn)
	}
	return ends[0], ends[1]
}

func memfile(t *testing.T, size int64) int {
	t.Helper()
	fd, err := unix.MemfdCreate("region", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err == nil {
		err = unix.Ftruncate(fd, size)
	}
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// send sends a message with descriptors, which it takes over.
func send(conn *net.UnixConn, b []byte, files ...int) error {
	defer sys.CloseAll(files)
	_, _, err := conn.WriteMsgUnix(b, unix.UnixRights(files...), nil)
	return err
}

// begun is a session whose guest has said hello.
func begun(t *testing.T) (*net.UnixConn, *Unix) { return begunBy(t, AcceptUnix) }

func begunBy(t *testing.T, by func(*net.UnixConn) (*Unix, error)) (*net.UnixConn, *Unix) {
	t.Helper()
	guest, host := saidHello(t, controlPage())
	u, err := by(host)
	if err != nil {
		t.Fatal(err)
	}
	return guest, u
}

// controlPage is the beginning of one as a guest writes it.
func controlPage() []byte {
	page := make([]byte, remote.ControlPageMagicOffset+16)
	binary.LittleEndian.PutUint32(page, remote.HelloMagic)
	binary.LittleEndian.PutUint32(page[4:], remote.ProtocolVersion)
	binary.LittleEndian.PutUint64(page[8:], remote.RingSize)
	return page
}

// saidHello is a session's connection whose guest has said hello for a region 0 that begins so.
func saidHello(t *testing.T, page []byte) (guest, host *net.UnixConn) {
	t.Helper()
	guest, host = connected(t)
	region0 := memfile(t, int64(remote.Region0Size))
	if _, err := unix.Pwrite(region0, page, 0); err != nil {
		t.Fatal(err)
	}
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	hello := remote.Hello{Type: remote.MsgHello, Va: 0x6a0000000000, Size: remote.Region0Size}
	if err := send(guest, remote.FormatHello(hello, ""), region0, bell); err != nil {
		t.Fatal(err)
	}
	return guest, host
}

// TestAwaitLooksItself: who needs a region whose message is there does not wait for the goroutine
// that follows the connection, which may be about to wake up.
func TestAwaitLooksItself(t *testing.T) {
	guest, u := begun(t)
	defer guest.Close()
	if err := u.Freeze(); err != nil { // nobody follows it
		t.Fatal(err)
	}
	for id := uint32(1); id < 4; id++ {
		h := remote.Hello{Type: remote.MsgRegion, Region: id, Va: 0x6a0000400000 + uint64(id)<<20, Size: pageSize}
		if err := send(guest, remote.FormatHello(h, ""), memfile(t, pageSize)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, id := range []uint32{2, 1, 3} {
		if d, err := u.mem.Await(ctx, id); err != nil || d.Size != pageSize {
			t.Errorf("region %d: %+v, %v", id, d, err)
		}
	}
	u.Thaw()
	if err := u.Close(); err != nil {
		t.Error(err)
	}
}

// TestControlPages: a guest whose library lays its memory out otherwise is refused at the
// handshake, and told why, whatever the message said.
func TestControlPages(t *testing.T) {
	for at := range controlPage() {
		page := controlPage()
		page[at] ^= 0x40
		for name, by := range map[string]func(*net.UnixConn) (*Unix, error){"own": AcceptUnix, "tenant": AcceptTenant} {
			guest, host := saidHello(t, page)
			u, err := by(host)
			if !errors.Is(err, remote.ErrProtocol) {
				t.Fatalf("byte %d, %s: %v, %v", at, name, u, err)
			}
			b := make([]byte, messageRoom)
			n, err := guest.Read(b)
			if err != nil {
				t.Fatal(err)
			}
			if h, text, err := remote.ParseHello(b[:n]); err != nil || h.Type != remote.MsgWelcome || h.Status != uint32(unix.EPROTO) || text == "" {
				t.Errorf("byte %d, %s: %+v, %q, %v", at, name, h, text, err)
			}
			_ = guest.Close()
		}
	}
}

// TestRegionOfAFile: a region may begin inside a file, which stays as it is if it is shared with
// others, and lies in it.
func TestRegionOfAFile(t *testing.T) {
	const size = 4 * pageSize
	for _, c := range []struct {
		name         string
		offset, size uint64
		flags        uint32
		ok           bool
	}{
		{"all of it", 0, size, 0, true},
		{"its end", pageSize, size - pageSize, 0, true},
		{"shared", pageSize, pageSize, remote.RegionShared, true},
		{"between pages", 512, pageSize, 0, false},
		{"past its end", pageSize, size, 0, false},
		{"begins at its end", size, pageSize, 0, false},
		{"begins past its end", 2 * size, pageSize, remote.RegionShared, false},
		{"end overflows", ^uint64(pageSize - 1), 2 * pageSize, 0, false},
	} {
		guest, u := begun(t)
		file := memfile(t, size)
		for i := range int64(4) {
			if _, err := unix.Pwrite(file, bytes.Repeat([]byte{byte('a' + i)}, pageSize), i*pageSize); err != nil {
				t.Fatal(err)
			}
		}
		h := remote.Hello{Type: remote.MsgRegion, Region: 5, Va: 0x6a0000400000, Size: c.size, Offset: c.offset, Flags: c.flags}
		mine, err := unix.Dup(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := send(guest, remote.FormatHello(h, ""), file); err != nil {
			t.Fatal(err)
		}
		_ = guest.CloseWrite()
		<-u.Done()
		if c.ok != (u.Err() == nil) || !c.ok && !errors.Is(u.Err(), remote.ErrProtocol) {
			t.Errorf("%s: %v", c.name, u.Err())
		}
		if b := make([]byte, 1); c.ok {
			if err := u.mem.ReadAt(5, b, 0); err != nil || b[0] != byte('a'+c.offset/pageSize) {
				t.Errorf("%s: begins with %q, %v", c.name, b, err)
			}
			shrunk := unix.Ftruncate(mine, 0) == nil
			if shared := c.flags&remote.RegionShared != 0; shrunk != shared {
				t.Errorf("%s: could be shrunk: %v", c.name, shrunk)
			}
		}
		_ = unix.Close(mine)
		if err := errors.Join(u.Close(), guest.Close()); err != nil {
			t.Error(err)
		}
	}
}

// TestRegionInParts: a region may lie in several files, each of which has its part; it moves to
// another process as it is. Word of it is there as soon as it is asked for.
func TestRegionInParts(t *testing.T) {
	const size = 5 * pageSize
	for _, c := range []struct {
		name   string
		part   uint64
		offset uint64
		flags  uint32
		files  []int64 // in pages
		ok     bool
	}{
		{"two in each", 2 * pageSize, 0, 0, []int64{2, 2, 1}, true},
		{"one in each", pageSize, 0, 0, []int64{1, 1, 1, 1, 1}, true},
		{"all in the first", size, 0, 0, []int64{5}, true},
		{"a file too few", 2 * pageSize, 0, 0, []int64{2, 2}, false},
		{"a file too many", 2 * pageSize, 0, 0, []int64{2, 2, 1, 1}, false},
		{"a short file", 2 * pageSize, 0, 0, []int64{2, 1, 1}, false},
		{"a short end", 2 * pageSize, 0, 0, []int64{2, 2, 0}, false},
		{"parts of pages", 2*pageSize + 512, 0, 0, []int64{3, 3, 1}, false},
		{"a part of all and more", 2 * size, 0, 0, []int64{5}, false},
		{"inside files", 2 * pageSize, pageSize, 0, []int64{3, 3, 2}, false},
		{"shared with others", 2 * pageSize, 0, remote.RegionShared, []int64{2, 2, 1}, false},
	} {
		before := descriptors(t)
		guest, u := begun(t)
		var files []int
		for i, pages := range c.files {
			f := memfile(t, pages*pageSize)
			if _, err := unix.Pwrite(f, bytes.Repeat([]byte{byte('a' + i)}, int(pages)*pageSize), 0); err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
		}
		h := remote.Hello{Type: remote.MsgRegion, Region: 5, Va: 0x6a0000400000, Size: size, Offset: c.offset, Flags: c.flags, Part: c.part}
		if err := send(guest, remote.FormatHello(h, ""), files...); err != nil {
			t.Fatal(err)
		}
		patience := map[bool]time.Duration{true: 10 * time.Second, false: 20 * time.Millisecond}
		ctx, cancel := context.WithTimeout(t.Context(), patience[c.ok])
		_, err := u.Memory().Await(ctx, 5)
		cancel()
		if c.ok != (err == nil) {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.ok {
			u = moved(t, u)
			checkParts(t, c.name, u, c.part)
		} else if <-u.Done(); !errors.Is(u.Err(), remote.ErrProtocol) {
			t.Errorf("%s: ended by %v", c.name, u.Err())
		}
		if err := guest.Close(); err != nil {
			t.Error(err)
		}
		if err := u.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		if after := descriptors(t); after != before {
			t.Errorf("%s: %d descriptors before, %d after", c.name, before, after)
		}
	}
}

// moved is the session taken over by another process, which is this one.
func moved(t *testing.T, u *Unix) *Unix {
	t.Helper()
	if err := u.Freeze(); err != nil {
		t.Fatal(err)
	}
	s, files, err := u.State()
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range files {
		if files[i], err = unix.FcntlInt(uintptr(f), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := u.Close(); err != nil {
		t.Error(err)
	}
	v, err := AdoptUnix(s, files)
	if err != nil {
		t.Fatal(err)
	}
	v.Thaw()
	return v
}

func checkParts(t *testing.T, name string, u *Unix, part uint64) {
	t.Helper()
	mem, err := u.mem.Map(5, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range mem {
		if want := byte('a' + uint64(i)/part); mem[i] != want {
			t.Fatalf("%s: byte %d is %q, want %q", name, i, mem[i], want)
		}
	}
}

// FuzzUnix sends a session messages, one behind the other: a byte with the number of descriptors
// and their files' size, then the message. Whatever comes, the session ends orderly and keeps no
// descriptor.
func FuzzUnix(f *testing.F) {
	f.Fuzz(func(t *testing.T, messages []byte) {
		before := descriptors(t)
		guest, u := begun(t)
		for len(messages) > 1 {
			n := min(len(messages), 1+remote.HelloSize)
			var files []int
			for range messages[0] % 4 {
				files = append(files, memfile(t, int64(messages[0]/4)*pageSize))
			}
			if send(guest, messages[1:n], files...) != nil {
				break // the session has ended
			}
			messages = messages[n:]
		}
		_ = guest.CloseWrite()
		select {
		case <-u.Done():
		case <-time.After(time.Minute):
			t.Error("the session did not end")
		}
		if err := u.Err(); err != nil && !errors.Is(err, remote.ErrProtocol) && !errors.Is(err, remote.ErrUnknownRegion) {
			t.Logf("ended by %v", err)
		}
		if err := errors.Join(u.Close(), guest.Close()); err != nil {
			t.Error(err)
		}
		if after := descriptors(t); after > before {
			t.Errorf("%d descriptors before, %d after", before, after)
		}
	})
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
