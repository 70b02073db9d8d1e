package device_test

import (
	"bytes"
	"syscall"
	"testing"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/remote"
	"causeway/virtio/virtiotest"
)

func extentAt(region uint32, off int) int64 {
	return int64(remote.FileExtent | uint64(region)<<44 | uint64(off))
}

// extent has the host copy between memory of the process and a region.
func (p *process) extent(t *testing.T, at int64, pages []virtiotest.Buffer, in bool) syscall.Errno {
	t.Helper()
	call := p.file.Read
	if in {
		call = p.file.Write
	}
	c, err := call(0, at, pages)
	if err != nil {
		t.Fatal(err)
	}
	_, errno, err := c.Wait(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return errno
}

// TestExtents: bytes reach a region from anywhere in guest memory, over the borders of its loans,
// and come back.
func TestExtents(t *testing.T) {
	const size, off = 600 << 10, 123 << 10 // in three of the region's pieces
	v := boot(t)
	p, g := start(t, v)
	id, mem, res, err := g.AddRegion(0, wire.RegionStaging, 1<<20)
	if err != nil || res != cuda.Success {
		t.Fatal(res, err)
	}
	from, to := v.Pages(size/4096), v.Pages(size/4096)
	var want []byte
	for i, b := range from {
		for k := range b.Bytes {
			b.Bytes[k] = byte(i*31 + k*7>>3)
		}
		want = append(want, b.Bytes...)
	}
	if errno := p.extent(t, extentAt(id, off), from, true); errno != 0 {
		t.Fatal(errno)
	}
	if !bytes.Equal(mem[off:off+size], want) {
		t.Error("bytes changed on their way to the region")
	}
	if !bytes.Equal(mem[:off], make([]byte, off)) || !bytes.Equal(mem[off+size:], make([]byte, 1<<20-off-size)) {
		t.Error("bytes beside the extent changed")
	}
	if errno := p.extent(t, extentAt(id, off), to, false); errno != 0 {
		t.Fatal(errno)
	}
	var got []byte
	for _, b := range to {
		got = append(got, b.Bytes...)
	}
	if !bytes.Equal(got, want) {
		t.Error("bytes changed on their way back")
	}
	for name, at := range map[string]int64{
		"region 0": extentAt(0, 0), "no region": extentAt(id+1, 0), "past the end": extentAt(id, 1<<20-size+1),
		"far past the end": extentAt(id, 1<<43),
	} {
		for _, in := range []bool{false, true} {
			if errno := p.extent(t, at, to, in); errno != syscall.EINVAL {
				t.Errorf("%s: %v", name, errno)
			}
		}
	}
	if res, err := g.DropRegion(0, id); err != nil || res != cuda.Success {
		t.Fatal(res, err)
	}
	if errno := p.extent(t, extentAt(id, 0), to, false); errno != syscall.EINVAL {
		t.Errorf("a region that ended: %v", errno)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

// TestExtentsOfTheDead: without loans there is no copy, and a worker's end is an error.
func TestExtentsOfTheDead(t *testing.T) {
	v := bootWith(t, lapses)
	p, g := start(t, v)
	id, _, res, err := g.AddRegion(0, wire.RegionStaging, 1<<20)
	if err != nil || res != cuda.Success {
		t.Fatal(res, err)
	}
	pages := v.Pages(16)
	p.stop(true)
	for begin := time.Now(); p.pending() > 0; {
		if time.Since(begin) > hangs {
			t.Fatal("READs of a program that stopped are pending")
		}
		// While the loans end, an extent is copied or refused, never kept.
		if errno := p.extent(t, extentAt(id, 0), pages, true); errno != 0 && errno != syscall.EAGAIN {
			t.Fatal(errno)
		}
	}
	if errno := p.extent(t, extentAt(id, 0), pages, true); errno != syscall.EAGAIN {
		t.Errorf("in a parked session: %v", errno)
	}
	p.stop(false)
	for begin := time.Now(); ; {
		errno := p.extent(t, extentAt(id, 0), pages, true)
		if errno == 0 {
			break
		}
		if errno != syscall.EAGAIN || time.Since(begin) > hangs {
			t.Fatalf("after the loans are back: %v", errno)
		}
	}
	p.halt()
	if err := p.control(remote.Hello{Type: remote.MsgRegionEnd}); err != nil {
		t.Fatal(err)
	}
	if errno := p.extent(t, extentAt(id, 0), pages, true); errno != syscall.EPIPE {
		t.Errorf("after the session: %v", errno)
	}
	if err := p.file.Close(); err != nil {
		t.Error(err)
	}
}
