package sys

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func pair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range []**net.UnixConn{&a, &b} {
		if *c, err = UnixConn(fds[i], "test"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = (*c).Close() })
	}
	return a, b
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestPacket: descriptors arrive as the receiver's own, close-on-exec; a packet that does not fit
// leaves none behind.
func TestPacket(t *testing.T) {
	a, b := pair(t)
	event, err := NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(event)
	before := descriptors(t)
	buf, oob := make([]byte, 8), make([]byte, RightsRoom(2))
	if err := SendPacket(a, []byte("12345678"), []int{event, event}); err != nil {
		t.Fatal(err)
	}
	got, files, err := ReceivePacket(b, buf, oob)
	if err != nil || string(got) != "12345678" || len(files) != 2 {
		t.Fatalf("%q, %d descriptors, %v", got, len(files), err)
	}
	for _, fd := range files {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("descriptor %d: flags %#x, %v", fd, flags, err)
		}
	}
	CloseAll(files)
	for _, c := range []struct {
		text  string
		files []int
	}{{"123456789", []int{event}}, {"1", []int{event, event, event, event}}} {
		if err := SendPacket(a, []byte(c.text), c.files); err != nil {
			t.Fatal(err)
		}
		if _, files, err := ReceivePacket(b, buf, oob); !errors.Is(err, ErrTruncated) || files != nil {
			t.Errorf("%d bytes with %d descriptors: %v", len(c.text), len(c.files), err)
		}
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
	_ = a.Close()
	if _, _, err := ReceivePacket(b, buf, oob); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
}

func TestUnixConnRefuses(t *testing.T) {
	before := descriptors(t)
	event, err := NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := UnixConn(event, "test"); err == nil {
		t.Error("an eventfd became a connection")
	}
	tcp, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := UnixConn(tcp, "test"); err == nil {
		t.Error("a TCP socket became a unix connection")
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}
