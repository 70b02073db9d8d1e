package vhostuser

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDirtyLogByChance: each page of what is marked has its bit, whether or not it ends at the end
// of all addresses, and no other has.
func TestDirtyLogByChance(t *testing.T) {
	const pages = 200
	fd, err := unix.MemfdCreate("dirty-log", unix.MFD_CLOEXEC)
	if err == nil {
		err = unix.Ftruncate(fd, 4096)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for _, bad := range [][2]uint64{{0, 0}, {4097, 0}, {4096, 4}, {8, 2}, {1<<36 + 1, 0}, {8, 1<<62 + 1}} {
		if l, err := mapDirtyLog(fd, bad[0], bad[1]); err == nil {
			t.Errorf("a log of %#x bytes at %#x", bad[0], bad[1])
			l.unmap()
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		l, err := mapDirtyLog(fd, pages/8, 64)
		if err != nil {
			t.Fatal(err)
		}
		clear(l.whole)
		want := [pages]bool{}
		for range 3 {
			gpa, size := rng.Uint64N((pages+20)<<logPageShift), rng.Uint64N(9<<logPageShift)
			switch rng.IntN(6) {
			case 0:
				size = -gpa // to the end of all addresses
			case 1:
				size = ^uint64(0) - rng.Uint64N(3)
			case 2:
				size = 0
			}
			l.mark(gpa, size)
			for p := range want {
				first := uint64(p) << logPageShift
				begins := gpa < first+1<<logPageShift
				ends := size != 0 && (gpa+size-1 < gpa || gpa+size-1 >= first)
				want[p] = want[p] || begins && ends
			}
		}
		for p := range want {
			if got := l.words[p/32]>>(p%32)&1 != 0; got != want[p] {
				t.Fatalf("page %d is marked: %v", p, got)
			}
		}
		for i, b := range l.whole {
			if (i < 64 || i >= 64+pages/8) && b != 0 {
				t.Fatalf("byte %d of the file, which is not the log's, is %#x", i, b)
			}
		}
		l.unmap()
	}
}

// TestLogIsThereFirst: whoever sees that there is a log has what it marks in it.
func TestLogIsThereFirst(t *testing.T) {
	fd, err := unix.MemfdCreate("log", unix.MFD_CLOEXEC)
	if err == nil {
		err = unix.Ftruncate(fd, 4096)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	m := NewMemory()
	for name, change := range map[string]func() error{
		"begins": func() error { return m.StartLog(fd, 4096, 0) },
		"ends":   func() error { m.StopLog(); return nil },
	} {
		if name == "ends" {
			if err := m.StartLog(fd, 4096, 0); err != nil {
				t.Fatal(err)
			}
		}
		m.logMu.RLock() // as one does who marks
		done := make(chan error, 1)
		go func() { done <- change() }()
		for m.logMu.TryRLock() { // until the change waits for who marks
			m.logMu.RUnlock()
			runtime.Gosched()
		}
		if m.Logging() {
			t.Errorf("it %s: logging is said before, or after, there is a log", name)
		}
		m.logMu.RUnlock()
		if err := <-done; err != nil {
			t.Error(err)
		}
		m.StopLog()
	}
}
