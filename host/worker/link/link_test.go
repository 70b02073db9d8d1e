package link

import (
	"errors"
	"io"
	"os"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"

	"causeway/remote/sys"
)

func pair(t testing.TB) (*Conn, *Conn) {
	t.Helper()
	a, f, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	b, err := New(fd)
	if err != nil {
		t.Fatal(err)
	}
	return a, b
}

func TestMessages(t *testing.T) {
	a, b := pair(t)
	defer b.Close()
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	want := Message{Type: Memory, Region: 3, A: 1 << 60, B: 5, Payload: EncodeMemory([]MemoryRegion{{1, 2, 3}, {4, 5, 6}}), Files: []int{int(f.Fd()), int(f.Fd())}}
	if err := a.Send(want); err != nil {
		t.Fatal(err)
	}
	got, err := b.Receive()
	if err != nil || got.Type != want.Type || got.Region != 3 || got.A != want.A || got.B != 5 || len(got.Files) != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	rs, err := DecodeMemory(got.Payload)
	if err != nil || !reflect.DeepEqual(rs, []MemoryRegion{{1, 2, 3}, {4, 5, 6}}) {
		t.Errorf("%v, %v", rs, err)
	}
	for _, fd := range got.Files {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("descriptor %d: flags %#x, %v", fd, flags, err)
		}
	}
	sys.CloseAll(got.Files)
	if err := a.Send(Message{Payload: make([]byte, MaxPayload+1)}); err == nil {
		t.Error("a message that is too large was sent")
	}
	if err := a.Send(Message{Payload: make([]byte, MaxPayload)}); err != nil {
		t.Error(err)
	}
	if m, err := b.Receive(); err != nil || len(m.Payload) != MaxPayload {
		t.Errorf("%d bytes, %v", len(m.Payload), err)
	}
	_ = a.Close()
	if _, err := b.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
}

// FuzzReceive: what the other process sends is a message or an error.
func FuzzReceive(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, '{', '}'})
	f.Add(append(make([]byte, headerSize), EncodeExtents([]Extent{{4096, 8192}})...))
	f.Add([]byte("short"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 || len(b) > headerSize+MaxPayload {
			return
		}
		x, y := pair(t)
		defer x.Close()
		defer y.Close()
		if _, err := x.uc.Write(b); err != nil {
			t.Skip(err)
		}
		m, err := y.Receive()
		if err != nil {
			if len(b) >= headerSize {
				t.Errorf("%d bytes: %v", len(b), err)
			}
			return
		}
		if rs, err := DecodeMemory(m.Payload); err == nil && len(rs)*24 != len(m.Payload) {
			t.Errorf("%d regions of %d bytes", len(rs), len(m.Payload))
		}
		if es, err := DecodeExtents(m.Payload); err == nil && len(es)*16 != len(m.Payload) {
			t.Errorf("%d extents of %d bytes", len(es), len(m.Payload))
		}
		_, _ = DecodeConfig(m.Payload)
	})
}
