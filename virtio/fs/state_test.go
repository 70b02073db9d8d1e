package fs_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"causeway/vhostuser"
	"causeway/virtio/fs"
	"causeway/virtio/fs/fstest"
)

// moving is a control file whose handles keep what was written to them, over moves.
type moving struct {
	saves, loads *sync.WaitGroup // which all of them must have begun; nil: no matter
	fails        string          // the head of the one that cannot be loaded

	mu   sync.Mutex
	open []*movingHandle
}

type movingHandle struct {
	m        *moving
	head     string
	text     []byte
	reads    []*fs.ReadRequest
	keep     atomic.Bool // over a pause
	late     atomic.Bool // and yet it completes them
	resumed  int
	released bool
}

func (m *moving) add(text []byte) *movingHandle {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := &movingHandle{m: m, text: text}
	m.open = append(m.open, h)
	return h
}

func (m *moving) last() *movingHandle {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.open[len(m.open)-1]
}

func (m *moving) Open(fs.Caller) (fs.ControlHandle, syscall.Errno) { return m.add(nil), 0 }

func (m *moving) Expect(_ fs.Caller, head []byte) (fs.MovableHandle, error) {
	h := m.add(nil)
	h.head = string(head)
	return h, nil
}

func (h *movingHandle) SaveHead() ([]byte, error) { return []byte(h.head), nil }

// meet waits until all others are there, too.
func meet(all *sync.WaitGroup) {
	if all != nil {
		all.Done()
		all.Wait()
	}
}

func (h *movingHandle) Save(w io.Writer) error {
	half := len(h.text) / 2
	_, err := w.Write(h.text[:half])
	meet(h.m.saves)
	if err == nil {
		_, err = w.Write(h.text[half:])
	}
	return err
}

var errFails = errors.New("this one cannot be loaded")

func (h *movingHandle) Load(ctx context.Context, r io.Reader) error {
	meet(h.m.loads)
	if h.m.fails != "" {
		if h.head == h.m.fails {
			return errFails
		}
		<-ctx.Done()
		return ctx.Err()
	}
	b, err := io.ReadAll(r)
	h.text = b
	return err
}

func (h *movingHandle) Movable(context.Context) error { return nil }

func (h *movingHandle) Read(r *fs.ReadRequest) {
	if r.Offset > 0 {
		h.m.mu.Lock()
		h.reads = append(h.reads, r)
		h.m.mu.Unlock()
		return
	}
	r.Complete(r.CopyIn(h.text, 0), 0)
}

func (h *movingHandle) Write(w *fs.WriteRequest) {
	h.text = append(h.text, w.Data()...)
	w.Complete(w.Size, 0)
}

func (h *movingHandle) Flush(uint64)                         {}
func (h *movingHandle) Release()                             { h.m.mu.Lock(); h.released = true; h.m.mu.Unlock() }
func (h *movingHandle) Revoke(context.Context, []fs.Request) {}

func (h *movingHandle) Pause(_ context.Context, list []fs.Request) bool {
	if h.late.Load() { // it lets go after all, behind its answer
		for _, r := range list {
			r.(*fs.ReadRequest).Complete(0, 0)
		}
	}
	return h.keep.Load()
}

func (h *movingHandle) Resume() { h.m.mu.Lock(); h.resumed++; h.m.mu.Unlock() }

func movingDevice(t testing.TB, mem *vhostuser.Memory, content string) (*fs.Device, *moving) {
	t.Helper()
	m := &moving{}
	root := fs.NewDir()
	root.File("library", fs.Bytes([]byte(content)), 0o444)
	root.Control("session", m)
	dev, err := fs.New(mem, root, fs.Options{RequestQueues: 1, Logger: quiet(), MaxHandles: 8})
	if err != nil {
		t.Fatal(err)
	}
	return dev, m
}

// saved is the state of a device with open files that hold texts.
func saved(t testing.TB, texts ...[]byte) []byte {
	t.Helper()
	mem := vhostuser.NewMemory()
	dev, m := movingDevice(t, mem, "a library")
	g, err := fstest.Direct(mem, dev, fstest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range texts {
		if _, err := g.Open(syscall.O_RDWR, fuse.Caller{Pid: 3}, "session"); err != nil {
			t.Fatal(err)
		}
		m.last().text = text
	}
	var b bytes.Buffer
	if err := dev.Save(&b); err != nil {
		t.Fatal(err)
	}
	dev.Disconnect()
	if err := g.Halt(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// loaded is what another device makes of a state. With an error nothing may be left.
func loaded(t testing.TB, content string, state []byte) (texts [][]byte, err error) {
	t.Helper()
	dev, m := movingDevice(t, vhostuser.NewMemory(), content)
	err = dev.Load(bytes.NewReader(state))
	for _, h := range m.open {
		if err != nil && !h.released {
			t.Error("an open file is left of a state that was refused")
		}
		texts = append(texts, h.text)
	}
	return texts, err
}

// TestStateOfOpenFiles: open files go along, with what they hold, however long; what is not all of
// that state is refused.
func TestStateOfOpenFiles(t *testing.T) {
	want := [][]byte{bytes.Repeat([]byte("one"), 1<<20), nil, []byte("three")}
	b := saved(t, want...)
	got, err := loaded(t, "a library", b)
	if err != nil || len(got) != 3 {
		t.Fatalf("%d files, %v", len(got), err)
	}
	for i := range want {
		if !bytes.Equal(got[i], want[i]) {
			t.Errorf("file %d holds %d bytes, held %d", i, len(got[i]), len(want[i]))
		}
	}
	refused := func(what, content string, b []byte) {
		t.Helper()
		if _, err := loaded(t, content, b); !errors.Is(err, fs.ErrState) {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("another library", "b library", b)
	refused("more behind it", "a library", append(bytes.Clone(b), 0))
	for n := 0; n < len(b); n += 1 + n/3 {
		refused("cut short", "a library", b[:n])
		bad := bytes.Clone(b)
		bad[n] ^= 0x10
		refused("altered", "a library", bad)
	}
	wraps := bytes.Clone(b[:len(b)-4])
	// The next file would be number 0, and then 1 again.
	copy(wraps[8+8+3*sha256.Size:], bytes.Repeat([]byte{0xff}, 8))
	refused("numbers that wrap", "a library", binary.LittleEndian.AppendUint32(wraps, crc32.Checksum(wraps, crc32.MakeTable(crc32.Castagnoli))))
	many := make([][]byte, 8)
	if _, err := loaded(t, "a library", saved(t, many...)); err != nil {
		t.Errorf("as many files as may be open: %v", err)
	}
}

// TestHandlesMoveSideBySide: none waits for another, neither at the source nor where it comes; and
// one that fails there ends all.
func TestHandlesMoveSideBySide(t *testing.T) {
	const n = 2 // as many as any machine saves at a time
	synctest.Test(t, func(t *testing.T) {
		mem := vhostuser.NewMemory()
		dev, m := movingDevice(t, mem, "a library")
		g, err := fstest.Direct(mem, dev, fstest.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			if _, err := g.Open(syscall.O_RDWR, fuse.Caller{Pid: 7}, "session"); err != nil {
				t.Fatal(err)
			}
			h := m.last()
			h.head, h.text = fmt.Sprint(i), bytes.Repeat([]byte{byte(i)}, 3<<20)
		}
		all := func() *sync.WaitGroup { g := &sync.WaitGroup{}; g.Add(n); return g }
		m.saves = all()
		var b bytes.Buffer
		if err := dev.Save(&b); err != nil {
			t.Fatal(err)
		}
		for _, fails := range []string{"", "1"} {
			to, there := movingDevice(t, vhostuser.NewMemory(), "a library")
			there.loads, there.fails = all(), fails
			err := to.Load(bytes.NewReader(b.Bytes()))
			if errors.Is(err, errFails) != (fails != "") || fails == "" && err != nil || len(there.open) != n {
				t.Errorf("one that fails: %q: %v, of %d", fails, err, len(there.open))
			}
			for i, h := range there.open {
				if h.released != (fails != "") || fails == "" && (h.head != m.open[i].head || !bytes.Equal(h.text, m.open[i].text)) {
					t.Errorf("handle %d came as %q, %d bytes, released: %v", i, h.head, len(h.text), h.released)
				}
			}
		}
		dev.Disconnect()
		if err := g.Halt(); err != nil {
			t.Fatal(err)
		}
	})
}

// counted is a file that counts how often it is read from its beginning.
type counted struct {
	fs.Content
	reads atomic.Int32
}

func (c *counted) ReadAt(p []byte, off int64) (int, error) {
	if off == 0 {
		c.reads.Add(1)
	}
	return c.Content.ReadAt(p, off)
}

// TestTreeIsSummedOnce: what a guest's files hold is read before its VM moves, and not again.
func TestTreeIsSummedOnce(t *testing.T) {
	c := &counted{Content: fs.Bytes([]byte("a library"))}
	root := fs.NewDir()
	root.File("library", c, 0o444)
	dev, err := fs.New(vhostuser.NewMemory(), root, fs.Options{RequestQueues: 1, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	dev.SumTree()
	before := c.reads.Load()
	var b bytes.Buffer
	if err := errors.Join(dev.Save(&b), dev.Load(&b)); err != nil {
		t.Fatal(err)
	}
	if n := c.reads.Load(); n != before || before == 0 {
		t.Errorf("read %d times before a move, %d times then", before, n-before)
	}
}

// named is content that is known by a name.
type named struct {
	*counted
	name string
}

func (n named) Sum() []byte { return []byte(n.name) }

// TestSummedContent: what says by itself what it is is not read for a move, and must be that at the
// other end.
func TestSummedContent(t *testing.T) {
	c := &counted{Content: fs.Bytes([]byte("a large file"))}
	device := func(name string) *fs.Device {
		root := fs.NewDir()
		root.File("file", named{c, name}, 0o444)
		dev, err := fs.New(vhostuser.NewMemory(), root, fs.Options{RequestQueues: 1, Logger: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		return dev
	}
	var state bytes.Buffer
	if err := device("one").Save(&state); err != nil {
		t.Fatal(err)
	}
	if err := device("one").Load(bytes.NewReader(state.Bytes())); err != nil {
		t.Error(err)
	}
	if err := device("other").Load(bytes.NewReader(state.Bytes())); !errors.Is(err, fs.ErrState) {
		t.Errorf("another file: %v", err)
	}
	if n := c.reads.Load(); n != 0 {
		t.Errorf("read %d times", n)
	}
}

// FuzzLoad: bytes from anywhere load or do not, and leave nothing if not.
func FuzzLoad(f *testing.F) {
	f.Add(saved(f))
	f.Add(saved(f, []byte("text"), []byte("more")))
	f.Fuzz(func(t *testing.T, b []byte) { _, _ = loaded(t, "a library", b) })
}

// TestPausedRequests: requests that a handle keeps over a pause are completed when the rings go on,
// whatever completes them meanwhile.
func TestPausedRequests(t *testing.T) {
	m := &moving{}
	g, dev := boot(t, m, fs.Options{RequestQueues: 1})
	f, err := g.Open(syscall.O_RDWR, fuse.Caller{}, "session")
	if err != nil {
		t.Fatal(err)
	}
	h := m.last()
	h.keep.Store(true)
	var calls []*fstest.Call
	for range 3 {
		c, err := f.Read(0, 4096, g.Pages(1))
		if err != nil {
			t.Fatal(err)
		}
		calls = append(calls, c)
	}
	within(t, "READs", time.Second, func() bool { m.mu.Lock(); defer m.mu.Unlock(); return len(h.reads) == 3 })
	if err := g.StopRings(); err != nil {
		t.Fatal(err)
	}
	if err := dev.Save(io.Discard); err == nil {
		t.Error("saved with requests in flight")
	}
	if !h.reads[0].Complete(0, 0) || h.reads[0].Complete(0, syscall.EIO) {
		t.Error("a request is completed once")
	}
	if n := h.reads[1].CopyIn([]byte("now"), 0); n != 0 {
		t.Error("guest memory was written while the VM stands")
	}
	for _, c := range calls {
		select {
		case <-c.Done():
			t.Error("a request ended while the rings stand")
		default:
		}
	}
	if err := g.StartRings(); err != nil {
		t.Fatal(err)
	}
	h.reads[1].Complete(h.reads[1].CopyIn([]byte("then"), 0), 0)
	for i, want := range []string{"", "then"} {
		if p, errno, err := calls[i].Wait(time.Minute); string(p) != want || errno != 0 || err != nil {
			t.Errorf("READ %d: %q, %v, %v", i, p, errno, err)
		}
	}
	m.mu.Lock()
	if h.resumed != 1 {
		t.Errorf("resumed %d times", h.resumed)
	}
	m.mu.Unlock()
	h.keep.Store(false)
	if err := g.StopRings(); err != nil {
		t.Fatal(err)
	}
	if _, errno, err := calls[2].Wait(time.Minute); errno != 0 || err != nil {
		t.Errorf("a request that is not kept: %v, %v", errno, err)
	}
	if err := dev.Save(io.Discard); err != nil {
		t.Error(err)
	}
	if err := g.StartRings(); err != nil {
		t.Fatal(err)
	}
}

// TestPausedForNothing: an owner that keeps its requests, and has completed them by the time that
// they are noted, hears that the rings go on like any, once for each pause.
func TestPausedForNothing(t *testing.T) {
	m := &moving{}
	g, dev := boot(t, m, fs.Options{RequestQueues: 1})
	f, err := g.Open(syscall.O_RDWR, fuse.Caller{}, "session")
	if err != nil {
		t.Fatal(err)
	}
	h := m.last()
	h.keep.Store(true)
	h.late.Store(true)
	resumed := func(want int) {
		t.Helper()
		m.mu.Lock()
		defer m.mu.Unlock()
		if h.resumed != want {
			t.Errorf("resumed %d times, want %d", h.resumed, want)
		}
	}
	for round := range 2 {
		c, err := f.Read(0, 4096, g.Pages(1))
		if err != nil {
			t.Fatal(err)
		}
		within(t, "the READ", time.Minute, func() bool { m.mu.Lock(); defer m.mu.Unlock(); return len(h.reads) == round+1 })
		if err := g.StopRings(); err != nil {
			t.Fatal(err)
		}
		resumed(round)
		if err := dev.Save(io.Discard); err != nil {
			t.Error(err)
		}
		if err := g.StartRings(); err != nil {
			t.Fatal(err)
		}
		if _, errno, err := c.Wait(time.Minute); errno != 0 || err != nil {
			t.Errorf("round %d: %v, %v", round, errno, err)
		}
		within(t, "the word that the rings go on", time.Minute, func() bool { m.mu.Lock(); defer m.mu.Unlock(); return h.resumed == round+1 })
	}
	h.keep.Store(false) // and then it keeps nothing
	if err := errors.Join(g.StopRings(), g.StartRings()); err != nil {
		t.Fatal(err)
	}
	resumed(2)
}

// TestPausedAndReset: of requests that were kept nothing is left when the guest is reset, or its
// device starts anew.
func TestPausedAndReset(t *testing.T) {
	m := &moving{}
	g, _ := boot(t, m, fs.Options{RequestQueues: 1})
	f, err := g.Open(syscall.O_RDWR, fuse.Caller{}, "session")
	if err != nil {
		t.Fatal(err)
	}
	h := m.last()
	h.keep.Store(true)
	if _, err := f.Read(0, 4096, g.Pages(1)); err != nil {
		t.Fatal(err)
	}
	within(t, "the READ", time.Second, func() bool { m.mu.Lock(); defer m.mu.Unlock(); return len(h.reads) == 1 })
	if err := errors.Join(g.StopRings(), g.Front.Set(vhostuser.ResetDevice, nil), g.StartRings(), g.Mount()); err != nil {
		t.Fatal(err)
	}
	if h.reads[0].Complete(0, 0) || h.resumed != 0 {
		t.Error("a request of before the reset is pending")
	}
}
