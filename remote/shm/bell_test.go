package shm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"causeway/remote"
	"causeway/remote/sys"
)

// asleep is how often a thread of this process has gone to sleep, if it sleeps now.
func asleep(t *testing.T, thread int) (times int, now bool) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/status", thread))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?s)State:\t(.).*\nvoluntary_ctxt_switches:\t(\d+)`).FindSubmatch(b)
	if m == nil {
		t.Fatalf("%s", b)
	}
	times, err = strconv.Atoi(string(m[2]))
	if err != nil {
		t.Fatal(err)
	}
	return times, m[1][0] == 'S'
}

// TestBellIsInterrupted: a signal that meets the thread of a consumer asleep, as the Go runtime
// sends them, is no ring and no error.
func TestBellIsInterrupted(t *testing.T) {
	fd, err := sys.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewBell(fd, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	thread, done := make(chan int, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		thread <- unix.Gettid()
		done <- b.Wait(context.Background())
	}()
	id := <-thread
	for signals, last := 0, -1; signals < 5; runtime.Gosched() {
		times, now := asleep(t, id)
		if len(done) > 0 {
			t.Fatalf("after %d signals it ends: %v", signals, <-done)
		}
		if now && times != last { // asleep again
			signals, last = signals+1, times
			if err := unix.Tgkill(os.Getpid(), id, unix.SIGURG); err != nil {
				t.Fatal(err)
			}
		}
	}
	b.Ring()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestBellBreaks: a descriptor that can ring no more is an error, not a ring without end.
func TestBellBreaks(t *testing.T) {
	b, err := NewBell(1<<30, nil) // nobody's
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Wait(t.Context()); !errors.Is(err, remote.ErrClosed) {
		t.Errorf("a descriptor that is none: %v", err)
	}
	if err := b.Close(); !errors.Is(err, unix.EBADF) {
		t.Error(err)
	}
}
