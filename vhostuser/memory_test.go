package vhostuser_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"causeway/vhostuser"
	"causeway/vhostuser/vhosttest"
)

// observer records announcements and checks that a region can be touched while they are made.
type observer struct {
	mu    sync.Mutex
	calls []string
}

func (o *observer) MemoryAdded(r *vhostuser.Region) {
	r.Bytes()[0]++
	o.note("+%#x", r.GPA())
}

func (o *observer) MemoryRemoving(r *vhostuser.Region) {
	r.Bytes()[0]++
	o.note("-%#x", r.GPA())
}

func (o *observer) note(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls = append(o.calls, fmt.Sprintf(format, args...))
}

func (o *observer) take() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := strings.Join(o.calls, " ")
	o.calls = nil
	return s
}

func TestMemoryHotPlug(t *testing.T) {
	b := serve(t, &fakeDevice{})
	o := &observer{}
	b.mem.Observe(o)
	f := b.connect()
	low, high := ram(t, 0, 1<<20), ram(t, 1<<32, 2<<20)
	must(t, f.AddMemory(high))
	must(t, f.AddMemory(low))
	if got := o.take(); got != "+0x100000000 +0x0" {
		t.Errorf("announced %q", got)
	}
	gen := b.mem.Generation()
	rs := b.mem.Regions()
	if len(rs) != 2 || rs[0].GPA() != 0 || rs[1].GPA() != 1<<32 || rs[1].Size() != 2<<20 || rs[1].UserAddr() != high.User {
		t.Fatalf("regions %+v", rs)
	}
	// Another process would map the region's file like this.
	file, err := rs[1].DupFile()
	must(t, err)
	mapped, err := unix.Mmap(int(file.Fd()), int64(rs[1].Offset()), int(rs[1].Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	copy(mapped[100:], "shared")
	if !bytes.Equal(high.Bytes[100:106], []byte("shared")) || !bytes.Equal(rs[1].Bytes()[100:106], []byte("shared")) {
		t.Error("a worker's mapping is not the guest's memory")
	}
	must(t, unix.Munmap(mapped))
	file.Close()

	// A view keeps removed memory mapped.
	v := b.mem.View()
	must(t, f.RemoveMemory(high))
	if got := o.take(); got != "-0x100000000" {
		t.Errorf("announced %q", got)
	}
	if b.mem.Generation() == gen {
		t.Error("the generation did not change")
	}
	p, err := v.Bytes(1<<32+100, 6)
	must(t, err)
	if string(p) != "shared" {
		t.Errorf("the view reads %q", p)
	}
	v.Release()
	now := b.mem.View()
	defer now.Release()
	if _, err := now.Bytes(1<<32, 1); !errors.Is(err, vhostuser.ErrNotMapped) {
		t.Errorf("removed memory: %v", err)
	}
	if err := f.RemoveMemory(high); !errors.Is(err, vhosttest.ErrRefused) {
		t.Errorf("second removal: %v", err)
	}
	// Overlap with what is there.
	if err := f.AddMemory(ram(t, 1<<19, 1<<20)); !errors.Is(err, vhosttest.ErrRefused) {
		t.Errorf("overlapping region: %v", err)
	}
}

func TestMemoryTableKeepsUnchangedRegions(t *testing.T) {
	b := serve(t, &fakeDevice{})
	o := &observer{}
	b.mem.Observe(o)
	f := b.connect()
	low, high := ram(t, 0, 1<<20), ram(t, 1<<32, 1<<20)
	send := func(ms ...*vhosttest.Memory) {
		t.Helper()
		p := vhosttest.U32s(uint32(len(ms)), 0)
		var fds []int
		for _, m := range ms {
			p = append(p, vhosttest.U64(m.GPA, uint64(len(m.Bytes)), m.User, 0)...)
			fds = append(fds, fdOf(t, m.File))
		}
		must(t, f.Set(vhostuser.SetMemTable, p, fds...))
	}
	send(low)
	first := b.mem.Regions()[0]
	send(low, high)
	send(low)
	if got := o.take(); got != "+0x0 +0x100000000 -0x100000000" {
		t.Errorf("announced %q", got)
	}
	if b.mem.Regions()[0] != first {
		t.Error("an unchanged region was mapped anew")
	}
}

// TestRegionsThatWrap: a region's ends lie behind its beginnings, for the guest, the front end and
// in the file.
func TestRegionsThatWrap(t *testing.T) {
	m := vhostuser.NewMemory()
	defer m.Clear()
	fd, err := ram(t, 0, 0x2000).DupFD()
	must(t, err)
	defer unix.Close(fd)
	const wraps = ^uint64(0) - 0xfff
	for what, r := range map[string]struct{ gpa, size, user, offset uint64 }{
		"guest":           {wraps, 0x2000, 0, 0},
		"front end":       {0, 0x2000, wraps, 0},
		"file":            {0, 0x2000, 0, wraps},
		"beyond any file": {0, 0x1000, 0, 1 << 62},
		"beyond the file": {0, 0x1000, 0, 0x2000},
		"nothing":         {0, 0, 0, 0},
	} {
		if err := m.Add(fd, r.gpa, r.size, r.user, r.offset); !errors.Is(err, vhostuser.ErrBadRegion) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestViewBounds(t *testing.T) {
	m := vhostuser.NewMemory()
	defer m.Clear()
	for _, r := range []struct{ gpa, size uint64 }{{0x1000, 0x2000}, {0x3000, 0x1000}, {0x10000, 0x1000}} {
		g := ram(t, r.gpa, r.size)
		fd, err := g.DupFD()
		must(t, err)
		must(t, m.Add(fd, r.gpa, r.size, r.gpa, 0))
	}
	v := m.View()
	defer v.Release()
	for _, c := range []struct {
		gpa, size uint64
		want      int // -1: not mapped
	}{
		{0, 1, -1}, {0xfff, 1, -1}, {0x1000, 1, 1}, {0x2fff, 1, 1}, {0x2fff, 2, 1}, {0x3000, 0x1000, 0x1000},
		{0x4000, 1, -1}, {0x1000, ^uint64(0), 0x2000}, {0x10fff, 100, 1}, {0x11000, 1, -1}, {^uint64(0), 10, -1},
	} {
		b, err := v.Bytes(c.gpa, c.size)
		if c.want < 0 != (err != nil) || err == nil && len(b) != c.want {
			t.Errorf("Bytes(%#x, %#x) = %d bytes, %v", c.gpa, c.size, len(b), err)
		}
	}
	for _, c := range []struct {
		user, size uint64
		ok         bool
	}{{0x1000, 0x2000, true}, {0x1000, 0x2001, false}, {0x2fff, 1, true}, {0x2fff, 2, false}, {0x10fff, 2, false}, {0x10fff, 0x1000, false}, {0x0, 1, false}, {^uint64(0), 1, false}} {
		if _, err := m.UserToGPA(c.user, c.size); (err == nil) != c.ok {
			t.Errorf("UserToGPA(%#x, %#x): %v", c.user, c.size, err)
		}
	}
}

// TestViewsUnderChange has readers touch memory while regions come and go. An unmapped page would
// kill the process.
func TestViewsUnderChange(t *testing.T) {
	m := vhostuser.NewMemory()
	g := ram(t, 0, 1<<16)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := 0; i < 4; i++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				select {
				case <-stop:
					return
				default:
				}
				v := m.View()
				if b, err := v.Bytes(0, 1<<16); err == nil {
					for j := 0; j < len(b); j += 4096 {
						_ = b[j]
					}
				}
				v.Release()
			}
		}()
	}
	for i := 0; i < 300; i++ {
		fd, err := g.DupFD()
		must(t, err)
		must(t, m.Add(fd, 0, 1<<16, 0, 0))
		m.Clear()
	}
	close(stop)
	wg.Wait()
}

func TestDirtyLog(t *testing.T) {
	b := serve(t, &fakeDevice{})
	f := b.connect()
	fd, err := unix.MemfdCreate("dirty-log", unix.MFD_CLOEXEC)
	must(t, err)
	defer unix.Close(fd)
	const size = 4096 // covers 128 MiB
	must(t, unix.Ftruncate(fd, size+4096))
	log, err := unix.Mmap(fd, 4096, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	defer func() { must(t, unix.Munmap(log)) }()
	b.mem.MarkDirty(0, 4096) // no log yet: nothing happens
	if _, err := f.GetU64(vhostuser.SetLogBase, vhosttest.U64(size, 4096), fd); err != nil {
		t.Fatal(err)
	}
	b.mem.MarkDirty(0, 4096)
	if n := bytes.Count(log, []byte{0}); n != size {
		t.Error("pages were marked before F_LOG_ALL")
	}
	must(t, f.SetFeatures(vhostuser.Features))
	for _, c := range []struct {
		gpa, n uint64
		pages  []uint64
	}{
		{0, 1, []uint64{0}},
		{4095, 2, []uint64{0, 1}},
		{0x20000, 0x3000, []uint64{32, 33, 34}},
		{31 << 12, 4097, []uint64{31, 32}},
		{127<<20 + 5, 0, nil},
		{128<<20 - 1, 100, []uint64{128<<8 - 1}}, // the rest is beyond the log
		{1 << 50, 100, nil},
		{^uint64(0) - 5, 100, nil},
	} {
		clear(log)
		b.mem.MarkDirty(c.gpa, c.n)
		want := make([]byte, size)
		for _, p := range c.pages {
			want[p/8] |= 1 << (p % 8)
		}
		if !bytes.Equal(log, want) {
			t.Errorf("MarkDirty(%#x, %#x) marked the wrong pages", c.gpa, c.n)
		}
	}
	must(t, f.SetFeatures(vhostuser.Features&^vhostuser.FeatureLogAll))
	clear(log)
	b.mem.MarkDirty(0, 1)
	if log[0] != 0 {
		t.Error("a page was marked after logging ended")
	}
}
