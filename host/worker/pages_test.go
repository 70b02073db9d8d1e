package worker

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/remote/sys"
)

// TestPages: a worker sees the newest page of each kind, and whoever watches hears of each.
func TestPages(t *testing.T) {
	var p pages
	seen := 0
	p.watch(link.PageGrant, func(mem []byte) { seen += int(mem[0]) })
	for i := byte(1); i <= 2; i++ {
		fd, mem, err := sys.NewPage("test", os.Getpagesize(), 0)
		if err != nil {
			t.Fatal(err)
		}
		mem[0] = i
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE); err != nil {
			t.Fatal(err)
		}
		if err := p.take([]link.Page{{Kind: link.PageGrant, File: fd}}); err != nil {
			t.Fatal(err)
		}
		if got := p.page(link.PageGrant); len(got) != len(mem) || got[0] != i {
			t.Errorf("page %d: %d bytes", i, len(got))
		}
		sys.UnmapPage(mem)
	}
	if seen != 3 {
		t.Errorf("heard of %d", seen)
	}
	if p.page(link.PageMeter) != nil {
		t.Error("a page that nobody sent")
	}
	fd, _ := unix.MemfdCreate("x", 0)
	if err := p.take([]link.Page{{Kind: link.PageMeter, File: fd}}); err == nil {
		t.Error("a file that could shrink was mapped")
	}
}
