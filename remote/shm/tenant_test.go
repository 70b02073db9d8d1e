package shm

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/remote"
	"causeway/remote/sys"
)

// unsealable is memory that knows seals and takes none, as a file of /dev/shm is.
func unsealable(t *testing.T, size int64) int {
	t.Helper()
	fd, err := unix.MemfdCreate("unsealable", unix.MFD_CLOEXEC)
	if err == nil {
		err = unix.Ftruncate(fd, size)
	}
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

func onDisk(t *testing.T, size int64) int {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "region"))
	if err == nil {
		err = f.Truncate(size)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd, err := unix.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// TestTenantFiles: of a guest process of somebody else's the files are memory, and what is the
// session's alone can never shrink. Memory of the application's choice that is not reached is no
// session's end.
func TestTenantFiles(t *testing.T) {
	const size = 4 * pageSize
	null := func(t *testing.T, _ int64) int { return opened(t, "/dev/zero") }
	pipe := func(t *testing.T, _ int64) int {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(p[0])
		return p[1]
	}
	for _, c := range []struct {
		name         string
		file         func(*testing.T, int64) int
		flags        uint32
		own, tenants string // what ends the session; "-": it goes on without the region
	}{
		{"memory", memfile, 0, "", ""},
		{"memory, shared", memfile, remote.RegionShared, "", ""},
		{"memory that takes no seals", unsealable, 0, "", "cannot be kept from shrinking"},
		{"memory that takes no seals, shared", unsealable, remote.RegionShared, "", ""},
		{"a file on a disk", onDisk, 0, "", "no file of memory"},
		{"a file on a disk, shared", onDisk, remote.RegionShared, "", "-"},
		{"a device", null, 0, "in a file of", "no file of memory"},
		{"a device, shared", null, remote.RegionShared, "in a file of", "-"},
		{"a pipe", pipe, 0, "in a file of", "no file of memory"},
		{"a folder", func(t *testing.T, _ int64) int { return opened(t, "/") }, 0, "in a file of", "no file of memory"},
	} {
		for _, tenant := range []bool{false, true} {
			want := map[bool]string{false: c.own, true: c.tenants}[tenant]
			before := descriptors(t)
			guest, u := begunBy(t, map[bool]func(*net.UnixConn) (*Unix, error){false: AcceptUnix, true: AcceptTenant}[tenant])
			h := remote.Hello{Type: remote.MsgRegion, Region: 5, Va: 0x6a0000400000, Size: size, Flags: c.flags}
			if err := send(guest, remote.FormatHello(h, ""), c.file(t, size)); err != nil {
				t.Fatal(err)
			}
			if want == "" || want == "-" {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				_, err := u.mem.Await(ctx, 5)
				cancel()
				if errors.Is(err, remote.ErrRefused) != (want == "-") || want == "" && err != nil {
					t.Errorf("%s, tenant %v: awaited: %v", c.name, tenant, err)
				}
				if err := send(guest, remote.FormatHello(remote.Hello{Type: remote.MsgRegionEnd, Region: 5}, "")); err != nil {
					t.Error(err)
				}
				_ = guest.CloseWrite()
				want = ""
			}
			<-u.Done()
			if err := u.Err(); want == "" && err != nil || want != "" && (!errors.Is(err, remote.ErrProtocol) || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s, tenant %v: ended by %v, want %q", c.name, tenant, err, want)
			}
			if err := errors.Join(u.Close(), guest.Close()); err != nil && !errors.Is(err, net.ErrClosed) {
				t.Error(err)
			}
			if after := descriptors(t); after != before {
				t.Errorf("%s, tenant %v: %d descriptors before, %d after", c.name, tenant, before, after)
			}
		}
	}
}

func opened(t *testing.T, path string) int {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// TestHelloTime: who connects and says nothing, or not all, holds nothing for long, and is told
// why.
func TestHelloTime(t *testing.T) {
	guest, host := connected(t)
	u, err := accept(newUnix(host), 20*time.Millisecond)
	if u != nil || !errors.Is(err, remote.ErrProtocol) || !strings.Contains(err.Error(), "nothing was said for 20ms") {
		t.Errorf("%v", err)
	}
	b := make([]byte, messageRoom)
	n, err := guest.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	if h, text, err := remote.ParseHello(b[:n]); err != nil || h.Type != remote.MsgWelcome || h.Status != uint32(unix.ETIMEDOUT) || text == "" {
		t.Errorf("%+v, %q, %v", h, text, err)
	}
	if _, err := guest.Read(b); err == nil {
		t.Error("the connection stays")
	}
	_ = guest.Close()
}

// TestDoorbells: what is no eventfd is refused, and one that another reader empties, blocking or
// not, makes nobody wait.
func TestDoorbells(t *testing.T) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer sys.CloseAll([]int{epoll, pipe[0], pipe[1]})
	for name, fd := range map[string]int{"a pipe": pipe[0], "memory": memfile(t, pageSize), "a device": opened(t, "/dev/zero"), "a folder": opened(t, "/")} {
		if err := sys.CheckEvent(fd); !errors.Is(err, sys.ErrNotEvent) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := sys.Drain(epoll); err == nil {
		t.Error("an epoll instance can be read")
	}
	blocking, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(blocking)
	if err := errors.Join(sys.CheckEvent(blocking), sys.Drain(blocking)); err != nil {
		// It is empty: a read would wait.
		t.Error(err)
	}
}
