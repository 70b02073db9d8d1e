package shm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"causeway/remote"
)

func testFile(t *testing.T, pages int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	for i := range pages {
		if _, err := unix.Pwrite(fd, bytes.Repeat([]byte{byte('a' + i)}, pageSize), int64(i*pageSize)); err != nil {
			t.Fatal(err)
		}
	}
	return fd
}

// TestScattered: a region is made of pages in any order, at any address, and keeps its address
// while its pages come and go.
func TestScattered(t *testing.T) {
	m := NewMemory()
	fd := testFile(t, 6)
	if err := m.Declare(4, remote.Declared{VA: 0x6a0000400000, Size: 4 * pageSize}, nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if _, err := m.Await(ctx, 4); !errors.Is(err, remote.ErrUnknownRegion) {
		t.Errorf("region without pages: %v", err)
	}
	run := func(page int64, n uint64) Run { return Run{FD: fd, Offset: page * pageSize, Size: n * pageSize} }
	if err := m.SetRuns(4, []Run{run(3, 1), run(0, 1), run(1, 1), run(5, 1)}); err != nil {
		t.Fatal(err)
	}
	if n := len(m.regions[4].runs); n != 3 {
		t.Errorf("%d mappings, want 3: neighbours are one", n)
	}
	if _, err := m.Await(context.Background(), 4); err != nil {
		t.Error(err)
	}
	mem, err := m.Map(4, 0x6a0000400000)
	if err != nil {
		t.Fatal(err)
	}
	look := func(want string) {
		t.Helper()
		got := ""
		for i := 0; i < len(mem); i += pageSize {
			got += string(mem[i])
		}
		if got != want {
			t.Errorf("pages %q, want %q", got, want)
		}
	}
	look("dabf")
	if err := m.Detach(); err != nil {
		t.Fatal(err)
	}
	if err := m.ReadAt(4, make([]byte, 1), 0); !errors.Is(err, remote.ErrClosed) {
		t.Errorf("read of detached memory: %v", err)
	}
	if err := m.SetRuns(4, []Run{run(2, 4)}); err != nil {
		t.Fatal(err)
	}
	if err := m.Attach(); err != nil {
		t.Fatal(err)
	}
	look("cdef")
	if err := m.WriteAt(4, []byte("X"), pageSize); err != nil {
		t.Error(err)
	}
	look("cXef")
	for _, off := range []uint64{4 * pageSize, 4*pageSize - 1, ^uint64(0)} {
		if err := m.ReadAt(4, make([]byte, 2), off); !errors.Is(err, remote.ErrOutOfBounds) {
			t.Errorf("read at %#x: %v", off, err)
		}
	}
	if err := m.End(4); !errors.Is(err, remote.ErrProtocol) {
		t.Errorf("end of a mapped region: %v", err)
	}
	if _, err := reserve(0x6a0000400000, pageSize); !errors.Is(err, unix.EEXIST) {
		t.Errorf("addresses in use: %v", err)
	}
	if err := errors.Join(m.Unmap(4), m.End(4), m.Close()); err != nil {
		t.Error(err)
	}
}

// TestKeptFromOthers: a region's pages are in no core file of this process, and no child of its own
// has them; also other pages, and those that were away.
func TestKeptFromOthers(t *testing.T) {
	m := NewMemory()
	defer m.Close()
	fd := testFile(t, 3)
	if err := errors.Join(m.Declare(1, remote.Declared{Size: 2 * pageSize}, nil), m.SetRuns(1, []Run{{fd, pageSize, pageSize}, {fd, 0, pageSize}})); err != nil {
		t.Fatal(err)
	}
	mem, err := m.Map(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	check := func(when string) {
		t.Helper()
		for page := range uintptr(2) {
			if flags := vmFlags(t, uintptr(unsafe.Pointer(&mem[0]))+page*pageSize); !slices.Contains(flags, "dd") || !slices.Contains(flags, "dc") {
				t.Errorf("%s: page %d has %v", when, page, flags)
			}
		}
	}
	check("at first")
	if err := m.SetRuns(1, []Run{{fd, 2 * pageSize, pageSize}, {fd, 0, pageSize}}); err != nil {
		t.Fatal(err)
	}
	check("with other pages")
	if err := errors.Join(m.Detach(), m.Attach()); err != nil {
		t.Fatal(err)
	}
	check("back again")
}

// vmFlags is what the kernel says of a mapping of this process (proc_pid_smaps(5)).
func vmFlags(t *testing.T, at uintptr) []string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	within := false
	for line := range strings.Lines(string(b)) {
		var low, high uintptr
		if _, err := fmt.Sscanf(line, "%x-%x ", &low, &high); err == nil {
			within = low <= at && at < high
		}
		if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok && within {
			return strings.Fields(flags)
		}
	}
	t.Fatalf("nothing lies at %#x", at)
	return nil
}

// TestFilesSideBySide: pages that lie behind each other, but in different files, are two mappings.
func TestFilesSideBySide(t *testing.T) {
	m := NewMemory()
	one, other := testFile(t, 2), testFile(t, 2)
	if _, err := unix.Pwrite(other, []byte("other"), pageSize); err != nil {
		t.Fatal(err)
	}
	if err := m.Declare(1, remote.Declared{Size: 2 * pageSize}, nil); err != nil {
		t.Fatal(err)
	}
	if err := m.SetRuns(1, []Run{{one, 0, pageSize}, {other, pageSize, pageSize}}); err != nil {
		t.Fatal(err)
	}
	mem, err := m.Map(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := m.Map(1, uint64(uintptr(unsafe.Pointer(&mem[0])))); err != nil || &again[0] != &mem[0] {
		t.Errorf("mapped again where it is: %v", err)
	}
	if _, err := m.Map(1, 0x6a0000400000); err == nil {
		t.Error("mapped at two addresses")
	}
	last := make([]byte, 2)
	if err := m.ReadAt(1, last, 2*pageSize-2); err != nil || string(last) != "bb" {
		t.Errorf("the last bytes are %q, %v", last, err)
	}
	if mem[0] != 'a' || string(mem[pageSize:pageSize+5]) != "other" {
		t.Errorf("pages %q and %q", mem[:5], mem[pageSize:pageSize+5])
	}
	if err := errors.Join(m.Unmap(1), m.End(1), m.Close()); err != nil {
		t.Error(err)
	}
}

func TestDeclareRules(t *testing.T) {
	m := NewMemory()
	fd := testFile(t, 1)
	for _, d := range []remote.Declared{{Size: 0}, {Size: 5}, {VA: 1, Size: pageSize}, {VA: ^uint64(pageSize - 1), Size: 2 * pageSize}, {Size: MaxRegionSize + pageSize}} {
		if err := m.Declare(1, d, nil); !errors.Is(err, remote.ErrProtocol) {
			t.Errorf("%+v: %v", d, err)
		}
	}
	if err := errors.Join(m.Declare(2, remote.Declared{Size: MaxRegionSize}, nil), m.End(2)); err != nil {
		t.Error(err)
	}
	if err := m.Declare(1, remote.Declared{Size: pageSize}, nil); err != nil {
		t.Fatal(err)
	}
	if err := m.Declare(1, remote.Declared{Size: pageSize}, nil); !errors.Is(err, remote.ErrProtocol) {
		t.Errorf("declared twice: %v", err)
	}
	for _, runs := range [][]Run{nil, {{fd, 0, 2 * pageSize}}, {{fd, 0, 0}}, {{fd, 5, pageSize}}, {{fd, -pageSize, pageSize}}, {{fd, pageSize, 0}, {fd, 0, pageSize}}, {{fd, 0, pageSize}, {fd, 0, pageSize}}} {
		if err := m.SetRuns(1, runs); !errors.Is(err, remote.ErrProtocol) {
			t.Errorf("%v: %v", runs, err)
		}
	}
	if err := m.SetRuns(2, nil); !errors.Is(err, remote.ErrUnknownRegion) {
		t.Error(err)
	}
	_ = m.Close()
}

func TestBell(t *testing.T) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewBell(fd, func(uint32) {})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	b.Ring()
	if err := b.Wait(context.Background()); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(10*time.Millisecond, cancel)
	if err := b.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("wait ended with %v", err)
	}
}

// TestCopiesShare: a copy waits for no other, and what takes pages away waits for those that have
// begun.
func TestCopiesShare(t *testing.T) {
	m := NewMemory()
	t.Cleanup(func() { _ = m.Close() })
	fd := testFile(t, 2)
	if err := m.Declare(4, remote.Declared{VA: 0x6a0000400000, Size: 2 * pageSize}, nil); err != nil {
		t.Fatal(err)
	}
	if err := m.SetRuns(4, []Run{{FD: fd, Size: 2 * pageSize}}); err != nil {
		t.Fatal(err)
	}
	begun, goOn, copied := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		copied <- m.copy(4, 0, pageSize, func(mem []byte) {
			close(begun)
			<-goOn
			mem[0] = 'z'
		})
	}()
	<-begun
	p := make([]byte, 1)
	beside := make(chan error, 1)
	go func() { beside <- m.ReadAt(4, p, pageSize) }()
	select {
	case err := <-beside:
		if err != nil || p[0] != 'b' {
			t.Errorf("%q, %v", p, err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("a copy waits for another")
	}
	detached := make(chan error, 1)
	go func() { detached <- m.Detach() }()
	select {
	case <-detached:
		t.Fatal("pages go while they are copied to")
	case <-time.After(20 * time.Millisecond):
	}
	close(goOn)
	for _, c := range []chan error{copied, detached} {
		if err := <-c; err != nil {
			t.Error(err)
		}
	}
	if err := m.ReadAt(4, p, 0); !errors.Is(err, remote.ErrClosed) {
		t.Errorf("of memory that is away: %v", err)
	}
}
