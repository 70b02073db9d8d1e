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
