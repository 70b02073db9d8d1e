package fs_test

import (
	"testing"

	"causeway/vhostuser"
	"causeway/vhostuser/vhosttest"
	"causeway/virtio"
	"causeway/virtio/fs"
	"causeway/virtio/virtiotest"
)

// direct is a device with one queue that the test drives itself, without server or goroutines.
type direct struct {
	mem *vhostuser.Memory
	dev *fs.Device
	q   *virtio.Queue
	d   *virtiotest.Driver
	in  virtiotest.Buffer
	out virtiotest.Buffer
}

func newDirect(t testing.TB) *direct {
	t.Helper()
	mem := vhostuser.NewMemory()
	g, err := vhosttest.NewMemory(0x100000, 4<<20)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := g.DupFD()
	if err != nil {
		t.Fatal(err)
	}
	if err := mem.Add(fd, g.GPA, 4<<20, 0, 0); err != nil {
		t.Fatal(err)
	}
	x := &direct{mem: mem, d: virtiotest.NewDriver(g, 64, virtiotest.Options{})}
	if x.dev, err = fs.New(mem, fuzzTree(), fs.Options{Logger: quiet()}); err != nil {
		t.Fatal(err)
	}
	if x.q, err = virtio.NewQueue(mem, x.d.Config()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		x.dev.Disconnect()
		x.q.Stop(0)
		mem.Clear()
		g.Close()
	})
	x.in, x.out = x.d.Alloc(4096), x.d.Alloc(1<<20)
	return x
}

// prepare lays one request out in descriptors 0 and 1.
func (x *direct) prepare(op uint32, node uint64, body []byte, room int) {
	n := copy(x.in.Bytes, append(append(u32s(uint32(40+len(body)), op), u64s(7, node)...), make([]byte, 16)...))
	copy(x.in.Bytes[n:], body)
	x.d.PutDesc(x.d.Desc, 0, x.in.GPA, uint32(40+len(body)), virtiotest.Next, 1)
	x.d.PutDesc(x.d.Desc, 1, x.out.GPA, uint32(16+room), virtiotest.Write, 0)
}

func (x *direct) run(t testing.TB) {
	x.d.Offer(0)
	c, err := x.q.Pop()
	if err != nil || c == nil {
		t.Fatal(c, err)
	}
	x.dev.Handle(1, c)
}

func requests() map[string]func(x *direct) {
	read := func(size uint32) []byte { return append(u64s(0, 0), append(u32s(size, 0), make([]byte, 16)...)...) }
	return map[string]func(x *direct){
		"GETATTR": func(x *direct) { x.prepare(3, 1, make([]byte, 16), 104) },
		"LOOKUP":  func(x *direct) { x.prepare(1, 1, []byte("lib\x00"), 128) },
		"READ":    func(x *direct) { x.prepare(15, 5, read(20000), 20000) },
	}
}

func TestServedFilesDoNotAllocate(t *testing.T) {
	for name, prepare := range requests() {
		x := newDirect(t)
		prepare(x)
		if n := testing.AllocsPerRun(100, func() { x.run(t) }); n > 1 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkRequest(b *testing.B) {
	for name, prepare := range requests() {
		b.Run(name, func(b *testing.B) {
			x := newDirect(b)
			prepare(x)
			b.ReportAllocs()
			for b.Loop() {
				x.run(b)
			}
		})
	}
}
