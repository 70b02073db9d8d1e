package worker

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/driver"
	"causeway/host/driver/drivertest"
	"causeway/remote"
	"causeway/remote/remotetest"
	"causeway/remote/shm"
	"causeway/remote/sys"
)

// TestMemoryTaken: a program that takes away memory which it shares ends its own session, and the
// worker says what it was; it does not crash.
func TestMemoryTaken(t *testing.T) {
	guest, host, err := remotetest.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer guest.Close()
	file, err := unix.MemfdCreate("unsealable", unix.MFD_CLOEXEC)
	if err == nil {
		err = unix.Ftruncate(file, int64(remote.Region0Size))
	}
	if err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(file, 0, int(remote.Region0Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	remotetest.Prepare(mem)
	bell, err := sys.NewEvent()
	if err == nil {
		err = sys.SendPacket(guest, remote.FormatHello(remote.Hello{Type: remote.MsgHello, Va: 0x6a0000000000, Size: remote.Region0Size}, ""), []int{file, bell})
	}
	if err != nil {
		t.Fatal(err)
	}
	c, err := shm.AcceptUnix(host)
	if err != nil {
		t.Fatal(err)
	}
	w, err := New(c, &drivertest.Backend{}, driver.Options{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- w.Run(context.Background()) }()
	_ = unix.Munmap(mem)
	if err := unix.Ftruncate(file, 0); err != nil {
		t.Fatal(err)
	}
	sys.Signal(bell)
	select {
	case err := <-ended:
		if gone := (*sys.FaultError)(nil); !errors.As(err, &gone) {
			t.Errorf("ended by %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("the session goes on")
	}
	sys.CloseAll([]int{file, bell})
}
