package fs_test

import (
	"context"
	"encoding/binary"
	"syscall"
	"testing"

	"causeway/vhostuser"
	"causeway/vhostuser/vhosttest"
	"causeway/virtio"
	"causeway/virtio/fs"
	"causeway/virtio/virtiotest"
)

// FuzzRequests gives the device FUSE requests as a guest kernel under control of an attacker may.
// Each is encoded in the input as: opcode, node, file handle, room for the answer (u16),
// segmentation, number of body bytes (u16), body. The device must complete each chain once, with an
// answer whose header matches, and keep nothing after Quiesce.
func FuzzRequests(f *testing.F) {
	req := func(op, node, fh byte, room int, cut byte, body []byte) []byte {
		b := []byte{op, node, fh}
		b = binary.LittleEndian.AppendUint16(b, uint16(room))
		b = append(b, cut)
		b = binary.LittleEndian.AppendUint16(b, uint16(len(body)))
		return append(b, body...)
	}
	read := func(size uint32) []byte { return append(u64s(0, 0), append(u32s(size, 0), make([]byte, 16)...)...) }
	open := req(14, 6, 0, 16, 0, make([]byte, 8))
	f.Add(append(req(26, 0, 0, 64, 0, append(u32s(7, 38, 1<<17, ^uint32(0)), make([]byte, 48)...)), req(1, 1, 0, 128, 7, []byte("lib\x00"))...))
	f.Add(append(append(open, req(15, 6, 1, 4096, 0, read(4096))...), req(18, 6, 1, 0, 0, make([]byte, 24))...))
	f.Add(append(append(open, req(16, 6, 1, 8, 3, append(append(u64s(0, 0), append(u32s(5, 0), make([]byte, 16)...)...), "hello"...))...), req(25, 6, 1, 0, 0, make([]byte, 24))...))
	f.Add(append(req(28, 1, 0, 300, 5, read(300)), req(44, 2, 0, 2000, 0, read(2000))...))
	f.Add(append(req(15, 5, 0, 9000, 0, read(9000)), req(5, 4, 0, 40, 0, nil)...))
	f.Add(append(req(52, 3, 0, 288, 0, make([]byte, 24)), req(4, 6, 0, 104, 0, append(u32s(8, 0), make([]byte, 80)...))...))
	f.Fuzz(fuzzRequests)
}

// fuzzControl completes some requests at once, some never.
type fuzzControl struct{ n int }

func (c *fuzzControl) Open(fs.Caller) (fs.ControlHandle, syscall.Errno) {
	return &fuzzHandle{testHandle{}, c}, 0
}

type fuzzHandle struct {
	testHandle
	c *fuzzControl
}

func (h *fuzzHandle) Read(r *fs.ReadRequest) {
	for _, s := range r.Segments() {
		s.Data[0]++
	}
	if h.c.n++; h.c.n%2 == 0 {
		r.Complete(r.Size+h.c.n%3-1, 0) // one byte too many, now and then
	}
}

func (h *fuzzHandle) Write(w *fs.WriteRequest) {
	if len(w.Data()) != w.Size {
		panic("WRITE data are shorter than announced")
	}
	if h.c.n++; h.c.n%2 == 0 {
		w.Complete(w.Size, 0)
	}
}

func (h *fuzzHandle) Flush(uint64) {}
func (h *fuzzHandle) Release()     {}
func (h *fuzzHandle) Revoke(ctx context.Context, p []fs.Request) {
	for i, r := range p {
		if r, ok := r.(*fs.ReadRequest); ok && i%2 == 0 {
			r.Complete(0, 0)
		}
	}
}

func fuzzRequests(t *testing.T, in []byte) {
	mem := vhostuser.NewMemory()
	g, err := vhosttest.NewMemory(0x100000, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	fd, err := g.DupFD()
	if err != nil {
		t.Fatal(err)
	}
	if err := mem.Add(fd, g.GPA, 1<<20, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer mem.Clear()
	dev, err := fs.New(mem, fuzzTree(), fs.Options{Logger: quiet(), MaxHandles: 8})
	if err != nil {
		t.Fatal(err)
	}
	d := virtiotest.NewDriver(g, 64, virtiotest.Options{Indirect: true})
	q, err := virtio.NewQueue(mem, d.Config())
	if err != nil {
		t.Fatal(err)
	}
	answers := map[uint16]virtiotest.Buffer{}
	submitted := 0
	for ; len(in) >= 8 && submitted < 60; submitted++ {
		op, node, fh, room, cut := in[0], in[1], in[2], int(binary.LittleEndian.Uint16(in[3:])), int(in[5])
		n := min(int(binary.LittleEndian.Uint16(in[6:])), len(in)-8, 8000)
		body := in[8 : 8+n]
		in = in[8+n:]
		gpa, b := g.Alloc(uint64(40+n), 8)
		binary.LittleEndian.PutUint32(b, uint32(40+n))
		binary.LittleEndian.PutUint32(b[4:], uint32(op))
		binary.LittleEndian.PutUint64(b[8:], uint64(submitted+1)<<32)
		binary.LittleEndian.PutUint64(b[16:], uint64(node))
		copy(b[40:], body)
		if n >= 8 && (op == 15 || op == 16 || op == 18 || op == 25) {
			binary.LittleEndian.PutUint64(b[40:], uint64(fh))
		}
		if cut&0x80 != 0 {
			binary.LittleEndian.PutUint32(b, uint32(cut)<<24|uint32(fh)) // a length that lies
		}
		readable := pieces(gpa, b, cut&0x7f)
		var writable []virtiotest.Buffer
		ogpa, out := g.Alloc(uint64(room%9000+16), 8)
		if room != 65535 {
			writable = pieces(ogpa, out, cut&0x7f)
		}
		head, err := d.Add(readable, writable)
		if err != nil {
			t.Fatal(err)
		}
		answers[head] = virtiotest.Buffer{GPA: uint64(submitted+1) << 32, Bytes: out}
		c, err := q.Pop()
		if err != nil {
			t.Fatal(err)
		}
		dev.Handle(0, c)
		if g.Mark() > 1<<20-40000 {
			submitted++
			break
		}
	}
	dev.Quiesce(0)
	if lost := q.Stop(0); lost != 0 {
		t.Fatalf("%d requests were not completed", lost)
	}
	dev.Disconnect()
	for range submitted {
		u, ok := d.Poll()
		if !ok {
			t.Fatal("a request was not answered")
		}
		a := answers[u.Head]
		if u.Len == 0 {
			continue
		}
		if got := binary.LittleEndian.Uint32(a.Bytes); u.Len < 16 || got != u.Len || binary.LittleEndian.Uint64(a.Bytes[8:]) != a.GPA {
			t.Fatalf("used length %d, header length %d, unique %#x for %#x", u.Len, got, binary.LittleEndian.Uint64(a.Bytes[8:]), a.GPA)
		}
	}
	if _, ok := d.Poll(); ok {
		t.Fatal("a request was answered twice")
	}
}

func fuzzTree() *fs.Dir {
	root := fs.NewDir()
	lib := root.Dir("lib")
	lib.File("libx.so.1", fs.Bytes([]byte(library)), 0o555)
	lib.Symlink("libx.so", "libx.so.1")
	root.File("disk", fs.Bytes(make([]byte, 20000)), 0o444)
	root.Control("session", &fuzzControl{})
	return root
}

// pieces cuts a buffer into descriptors of size bytes; 0 leaves it whole.
func pieces(gpa uint64, b []byte, size int) (out []virtiotest.Buffer) {
	if size == 0 || len(b)/size > 500 {
		return []virtiotest.Buffer{{GPA: gpa, Bytes: b}}
	}
	for len(b) > 0 {
		n := min(size, len(b))
		out = append(out, virtiotest.Buffer{GPA: gpa, Bytes: b[:n]})
		gpa, b = gpa+uint64(n), b[n:]
	}
	return out
}
