package fs_test

import (
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"

	"causeway/vhostuser"
	"causeway/virtio/fs"
)

// TestLargestRead: until a larger READ of a control file comes a guest's kernel is taken for one
// that has 256 pages in each; another mount begins anew.
func TestLargestRead(t *testing.T) {
	const page = 4096
	ctl := &testControl{}
	g, dev := boot(t, ctl, fs.Options{})
	f, err := g.Open(syscall.O_RDWR, fuse.Caller{}, "session")
	if err != nil {
		t.Fatal(err)
	}
	h := ctl.last()
	want := func(what string, pages int) {
		t.Helper()
		if got := dev.LargestRead(); got != pages*page {
			t.Errorf("%s: READs of %d bytes, not %d pages", what, got, pages)
		}
	}
	want("at first", 256)
	if n := dev.MostPending(); n != 1024 {
		t.Errorf("%d requests in a queue of 1024", n)
	}
	for _, c := range []struct{ pages, want int }{{2, 256}, {256, 256}, {300, 300}, {299, 300}, {1020, 1020}, {1, 1020}} {
		call, err := f.Read(0, 0, g.Pages(c.pages))
		if err != nil {
			t.Fatal(err)
		}
		(<-h.reads).Complete(0, 0)
		<-call.Done()
		want("after one", c.want)
	}
	if err := g.Mount(); err != nil {
		t.Fatal(err)
	}
	want("of another mount", 256)
}

// TestRoomOfQueues: a queue's size bounds both how many requests there are and how many pages each
// has; without indirect descriptors each takes many entries.
func TestRoomOfQueues(t *testing.T) {
	dev, err := fs.New(vhostuser.NewMemory(), testTree(t, &testControl{}), fs.Options{RequestQueues: 2, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		index          int
		q              vhostuser.QueueConfig
		pages, pending int
	}{
		// Not what requests go by.
		{0, vhostuser.QueueConfig{Size: 64, IndirectDesc: true}, 256, 1024},
		{1, vhostuser.QueueConfig{Size: 128, IndirectDesc: true}, 124, 128},
		// Nor one that guests may not use.
		{2, vhostuser.QueueConfig{Size: 1024, IndirectDesc: true}, 124, 128},
		{1, vhostuser.QueueConfig{Size: 1024}, 256, 3},
		{1, vhostuser.QueueConfig{Size: 4, IndirectDesc: true}, 1, 4},
		{1, vhostuser.QueueConfig{Size: 4096, IndirectDesc: true}, 256, 4096},
	} {
		dev.Starts(c.index, c.q)
		if dev.LargestRead() != c.pages*4096 || dev.MostPending() != c.pending {
			t.Errorf("%+v: READs of %d bytes, %d of them", c.q, dev.LargestRead(), dev.MostPending())
		}
	}
}
