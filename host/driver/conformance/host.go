package conformance

import (
	"bytes"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// Guest is a fake worker with a fake guest behind it: it implements driver.Host and wire.Replier
// over a memfd, as causeway run does, and calls a Session's operations directly.
type Guest struct {
	t       testing.TB
	Session driver.Session
	ctx     wire.ID
	next    wire.ID
	caps    uint32 // as SessionInit said

	mu       sync.Mutex
	regions  map[uint32]driver.Region
	sticky   cuda.Result
	deferred cuda.Result
	console  bytes.Buffer
	words    map[uint32]uint32
	seq      uint32
	replies  map[uint32]chan answer
	onCall   func(id uint64, status cuda.Result)
}

type answer struct {
	res     cuda.Result
	payload []byte
}

// memory is a mapping read and written as a carrier would.
type memory []byte

func (m memory) ReadAt(p []byte, off int64) (int, error)  { return copy(p, m[off:]), nil }
func (m memory) WriteAt(p []byte, off int64) (int, error) { return copy(m[off:], p), nil }

// Open starts a session with a current primary context of device 0.
func Open(t testing.TB, b driver.Backend, o driver.Options) *Guest {
	t.Helper()
	// A worker keeps its session on one thread: drivers have per-thread state.
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	g := &Guest{t: t, next: 16, regions: map[uint32]driver.Region{}, words: map[uint32]uint32{}, replies: map[uint32]chan answer{}}
	g.AddRegion(0, 0, 1<<20)
	s, err := b.Open(g, o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	g.Session = s
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	var r wire.SessionInitReply
	g.ok(s.SessionInit(g.call(wire.OpSessionInit), &wire.SessionInitArgs{Version: wire.ProtocolVersion}, &r), "SessionInit")
	if r.DeviceCount == 0 || r.DriverVersion < 12000 {
		t.Fatalf("SessionInit: %d devices, driver %d", r.DeviceCount, r.DriverVersion)
	}
	g.caps = r.Caps
	g.ctx = g.ID()
	var p wire.PrimaryCtxRetainReply
	g.ok(s.PrimaryCtxRetain(g.call(wire.OpPrimaryCtxRetain), &wire.PrimaryCtxRetainArgs{Ctx: g.ctx}, &p), "PrimaryCtxRetain")
	return g
}

// ID picks a fresh handle, as the guest library does.
func (g *Guest) ID() wire.ID {
	g.next++
	return g.next
}

func (g *Guest) call(op wire.Op) *wire.Call {
	g.seq++
	return &wire.Call{Op: op, Ctx: g.ctx, Thread: 1, Seq: g.seq, Replier: g}
}

// do has an operation come as a worker's do, so that a capture changes or forbids it.
func (g *Guest) do(a wire.Args, r wire.Reply) cuda.Result {
	g.t.Helper()
	rec, err := wire.AppendRecord(nil, wire.Header{}, a)
	if err != nil {
		g.t.Fatal(err)
	}
	var d wire.Dispatcher
	payload, res, err := d.Dispatch(g.Session, g.call(a.Op()), rec, nil)
	if err == nil && r != nil && payload != nil {
		err = wire.DecodeReply(payload, r)
	}
	if err != nil {
		g.t.Fatal(err)
	}
	return res
}

func (g *Guest) ok(res cuda.Result, what string) {
	g.t.Helper()
	if res != cuda.Success {
		g.t.Fatalf("%s: %v", what, res)
	}
}

// wait runs a wait operation to its end and returns its result and reply bytes. direct is what the
// method returned; it counts if nothing was taken for later.
func (g *Guest) wait(op wire.Op, run func(*wire.Call) cuda.Result) (cuda.Result, []byte) {
	g.t.Helper()
	c := g.call(op)
	ch := make(chan answer, 1)
	g.mu.Lock()
	g.replies[c.Seq] = ch
	g.mu.Unlock()
	res := run(c)
	if !c.Taken() {
		return res, nil
	}
	select {
	case a := <-ch:
		return a.res, a.payload
	case <-time.After(30 * time.Second):
		g.t.Fatalf("%v: no answer within 30 s", op)
		return 0, nil
	}
}

// Reply implements wire.Replier.
func (g *Guest) Reply(slot, seq uint32, res cuda.Result, payload []byte) {
	g.mu.Lock()
	ch := g.replies[seq]
	delete(g.replies, seq)
	g.mu.Unlock()
	if ch == nil {
		panic(fmt.Sprintf("second reply to %d", seq))
	}
	ch <- answer{res, bytes.Clone(payload)}
}

// GPUDone implements wire.Replier: this guest wants all replies from the host.
func (g *Guest) GPUDone(uint32) (uintptr, bool) { return 0, false }

// WakeSlot implements wire.Replier.
func (g *Guest) WakeSlot(slot, seq uint32) { g.Reply(slot, seq, cuda.Success, nil) }

// AddRegion shares memory with the session's process.
func (g *Guest) AddRegion(id, kind uint32, size int) []byte {
	g.t.Helper()
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		g.t.Fatal(err)
	}
	g.mu.Lock()
	g.regions[id] = driver.Region{ID: id, Kind: kind, VA: address(mem), Size: uint64(size), Mem: mem, IO: memory(mem)}
	g.mu.Unlock()
	return mem
}

// Region implements driver.Host.
func (g *Guest) Region(id uint32) (driver.Region, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r, ok := g.regions[id]
	return r, ok
}

// CompleteWord implements driver.Host.
func (g *Guest) CompleteWord(word, value uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.words[word] = value
}

// SetSticky implements driver.Host.
func (g *Guest) SetSticky(res cuda.Result) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sticky = res
}

// Deferred implements driver.Host.
func (g *Guest) Deferred(res cuda.Result) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.deferred = res
}

// Console implements driver.Host.
func (g *Guest) Console(text []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.console.Write(text)
}

// ConsoleError implements driver.Host.
func (g *Guest) ConsoleError(text []byte) { g.Console(text) }

// CallBack implements driver.Host.
func (g *Guest) CallBack(id uint64, status cuda.Result) bool {
	g.mu.Lock()
	f := g.onCall
	g.mu.Unlock()
	if f == nil {
		return false
	}
	f(id, status)
	return true
}

// word waits until a completion word has a value: written by the driver through the host, or by the
// GPU itself.
func (g *Guest) word(i, value uint32) {
	g.t.Helper()
	mem := g.regions[0].Mem
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Microsecond) {
		g.mu.Lock()
		w := g.words[i]
		g.mu.Unlock()
		if w == value || loadWord(mem, int(wire.WordsOffset)+4*int(i)) == value {
			return
		}
	}
	g.t.Fatalf("completion word %d never became %d", i, value)
}
