package shm

import (
	"errors"
	"io"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"causeway/remote"
)

// TestParse: a message that was cut off, or whose descriptors were, is none, and of those that came
// with it none stays open.
func TestParse(t *testing.T) {
	good := remote.FormatHello(remote.Hello{Type: remote.MsgRegion, Region: 1}, "")
	for what, c := range map[string]struct {
		b     []byte
		flags int
		want  error
	}{
		"whole":                 {good, unix.MSG_CMSG_CLOEXEC, nil},
		"too long":              {good, unix.MSG_TRUNC, remote.ErrProtocol},
		"with more descriptors": {good, unix.MSG_CTRUNC, remote.ErrProtocol},
		"short":                 {good[:len(good)-1], 0, remote.ErrProtocol},
		"the end":               {nil, 0, io.EOF},
	} {
		fd, err := unix.Dup(testFile(t, 1))
		if err != nil {
			t.Fatal(err)
		}
		h, files, err := parse(c.b, unix.UnixRights(fd), c.flags)
		if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
		if err == nil && (h.Region != 1 || len(files) != 1 || files[0] != fd) || err != nil && files != nil {
			t.Errorf("%s: %+v with %v", what, h, files)
		}
		if _, e := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); (e == nil) != (err == nil) {
			t.Errorf("%s: its descriptor: %v", what, e)
		}
		if err == nil {
			_ = unix.Close(fd)
		}
	}
}

// TestMerge: runs that continue each other in one file are one, all of them, and no others.
func TestMerge(t *testing.T) {
	for _, c := range []struct{ in, want []Run }{
		{nil, nil},
		{[]Run{{3, 0, 4096}, {3, 4096, 8192}}, []Run{{3, 0, 12288}}},
		{[]Run{{3, 0, 4096}, {3, 4096, 4096}, {3, 8192, 4096}, {3, 16384, 4096}}, []Run{{3, 0, 12288}, {3, 16384, 4096}}},
		{[]Run{{3, 0, 4096}, {4, 4096, 4096}, {4, 8192, 4096}}, []Run{{3, 0, 4096}, {4, 4096, 8192}}},
		{[]Run{{3, 4096, 4096}, {3, 0, 4096}}, []Run{{3, 4096, 4096}, {3, 0, 4096}}},
	} {
		if got := merge(c.in); !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.in, got, c.want)
		}
	}
}

// TestEndOfRegion0: it is mapped for as long as there is a session, whether somebody watches or
// not.
func TestEndOfRegion0(t *testing.T) {
	for _, watched := range []bool{false, true} {
		m := NewMemory()
		if err := errors.Join(m.Declare(0, remote.Declared{Size: pageSize}, nil), m.SetRuns(0, []Run{{FD: testFile(t, 1), Size: pageSize}})); err != nil {
			t.Fatal(err)
		}
		w := &told{}
		if watched {
			m.Watch(w)
		}
		if _, err := m.Map(0, 0); err != nil {
			t.Fatal(err)
		}
		if err := m.End(0); !errors.Is(err, remote.ErrProtocol) || len(w.list) != 0 {
			t.Errorf("watched %v: %v, %v", watched, err, w.list)
		}
		if err := errors.Join(m.Unmap(0), m.End(0), m.Close()); err != nil || len(w.list) != 0 {
			t.Errorf("watched %v: %v, %v", watched, err, w.list)
		}
	}
}
