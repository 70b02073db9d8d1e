package sys

import (
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestEvent: signals add up to one event, which Drain takes.
func TestEvent(t *testing.T) {
	fd, err := NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	set := func() bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		if err != nil {
			t.Fatal(err)
		}
		return n == 1
	}
	if set() {
		t.Error("set before a signal")
	}
	Signal(fd)
	Signal(fd)
	if !set() {
		t.Error("a signal sets nothing")
	}
	Drain(fd)
	if set() {
		t.Error("set after Drain")
	}
	Drain(fd) // does not block
}

// TestBell: rings add up until they are heard, and who hears has no means to have who rings wait.
func TestBell(t *testing.T) {
	b, err := NewBell()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	set := func() bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(b.Hear()), Events: unix.POLLIN}}, 0)
		if err != nil {
			t.Fatal(err)
		}
		return n == 1
	}
	if set() {
		t.Error("set before a ring")
	}
	for range 3 {
		b.Ring()
	}
	if !set() {
		t.Error("a ring sets nothing")
	}
	if err := Drain(b.Hear()); err != nil || set() {
		t.Errorf("set after Drain, %v", err)
	}
	if err := Drain(b.Hear()); err != nil { // does not block
		t.Error(err)
	}
	// All that a worker which was taken over can do to what it holds.
	if err := unix.SetNonblock(b.Hear(), false); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(b.Hear()), unix.F_SETPIPE_SZ, 4096); err != nil {
		t.Fatal(err)
	}
	rung := make(chan struct{})
	go func() {
		for range 1 << 16 {
			b.Ring()
		}
		close(rung)
	}()
	select {
	case <-rung:
	case <-time.After(10 * time.Second):
		t.Fatal("who rings waits")
	}
	if !set() {
		t.Error("not set by so many")
	}
}

// TestFutex: who sleeps on a word in a page is woken through another mapping of it, and nobody
// sleeps on a word that has changed.
func TestFutex(t *testing.T) {
	fd, mem, err := NewPage("test", 4096, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	defer UnmapPage(mem)
	other, err := MapPage(fd, true)
	if err != nil {
		t.Fatal(err)
	}
	defer UnmapPage(other)
	sleeper, waker := wordOf(mem), wordOf(other)
	FutexWait(sleeper, 1, 0) // it is 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		for sleeper.Load() == 0 {
			FutexWait(sleeper, 0, 0)
		}
	}()
	waker.Store(1)
	FutexWake(waker)
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("nobody woke")
	}
	begin := time.Now()
	for d := time.Millisecond; time.Since(begin) < d; {
		FutexWait(waker, 1, d)
	}
}

func wordOf(mem []byte) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(unsafe.SliceData(mem)))
}
