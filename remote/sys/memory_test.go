package sys

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPage: what one writes another sees; nobody can shrink it, and once writing is sealed, nobody
// else can write.
func TestPage(t *testing.T) {
	fd, mem, err := NewPage("test", os.Getpagesize(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	defer UnmapPage(mem)
	other, err := MapPage(fd, true)
	if err != nil {
		t.Fatal(err)
	}
	other[7] = 9
	if mem[7] != 9 {
		t.Error("a write is not seen")
	}
	UnmapPage(other)
	if err := unix.Ftruncate(fd, 0); err == nil {
		t.Error("it shrinks")
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE); err != nil {
		t.Fatal(err)
	}
	if m, err := MapPage(fd, true); err == nil {
		UnmapPage(m)
		t.Error("writable after its seal")
	}
	ro, err := MapPage(fd, false)
	if err != nil {
		t.Fatal(err)
	}
	defer UnmapPage(ro)
	mem[8] = 1
	if ro[8] != 1 {
		t.Error("its maker cannot write any more")
	}
}

func TestMapPageRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		size  int64
		seals int
	}{
		"empty":    {0, unix.F_SEAL_SHRINK},
		"odd":      {100, unix.F_SEAL_SHRINK},
		"large":    {MaxPage + 4096, unix.F_SEAL_SHRINK},
		"unsealed": {4096, 0},
	} {
		fd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Ftruncate(fd, c.size)
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, c.seals)
		if _, err := MapPage(fd, false); !errors.Is(err, ErrPage) {
			t.Errorf("%s: %v", name, err)
		}
		_ = unix.Close(fd)
	}
}
