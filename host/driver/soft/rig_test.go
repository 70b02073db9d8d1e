package soft

import (
	"bytes"
	"encoding/binary"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/drivertest"
)

// rig is a worker with a guest behind it, which calls a session's operations. Its context is
// current.
type rig struct {
	t    testing.TB
	s    *session
	host *drivertest.Host
	ctx  wire.ID
	next wire.ID

	mu      sync.Mutex
	seq     uint32
	replies map[uint32]chan answer
}

type answer struct {
	res     cuda.Result
	payload []byte
}

// newRig opens a session and retains the primary context of device 0. When the test ends,
// everything must be gone.
func newRig(t testing.TB, o driver.Options) *rig {
	t.Helper()
	return openRig(t, New(), o)
}

func openRig(t testing.TB, b driver.Backend, o driver.Options) *rig {
	t.Helper()
	before := runtime.NumGoroutine()
	r := &rig{t: t, host: drivertest.NewHost(), next: 15, replies: map[uint32]chan answer{}}
	s, err := b.Open(r.host, o)
	if err != nil {
		t.Fatal(err)
	}
	r.s = s.(*session)
	t.Cleanup(func() {
		r.close()
		checkLeaks(t, before)
	})
	r.ok(r.s.SessionInit(r.call(wire.OpSessionInit), &wire.SessionInitArgs{Version: wire.ProtocolVersion}, new(wire.SessionInitReply)))
	r.ctx = r.id()
	r.ok(r.s.PrimaryCtxRetain(r.call(wire.OpPrimaryCtxRetain), &wire.PrimaryCtxRetainArgs{Ctx: r.ctx}, new(wire.PrimaryCtxRetainReply)))
	return r
}

func (r *rig) close() {
	if r.s == nil {
		return
	}
	if err := r.s.Close(); err != nil {
		r.t.Errorf("close: %v", err)
	}
	r.s = nil
}

// checkLeaks fails if goroutines or mappings of the arena are left.
func checkLeaks(t testing.TB, before int) {
	t.Helper()
	for range 100 {
		if runtime.NumGoroutine() <= before {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if n := runtime.NumGoroutine(); n > before {
		b := make([]byte, 1<<16)
		t.Errorf("%d goroutines, %d before:\n%s", n, before, b[:runtime.Stack(b, true)])
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(string(maps), "\n") {
		if strings.HasPrefix(line, "78") && strings.Index(line, "-") == 12 {
			t.Errorf("device memory is still mapped: %s", line)
		}
	}
}

func (r *rig) id() wire.ID {
	r.next++
	return r.next
}

func (r *rig) call(op wire.Op) *wire.Call {
	r.seq++
	return &wire.Call{Op: op, Ctx: r.ctx, Thread: 1, Seq: r.seq, Replier: r}
}

// Reply implements wire.Replier.
func (r *rig) Reply(_, seq uint32, res cuda.Result, payload []byte) {
	r.mu.Lock()
	ch := r.replies[seq]
	delete(r.replies, seq)
	r.mu.Unlock()
	if ch != nil {
		ch <- answer{res, bytes.Clone(payload)}
	}
}

// GPUDone implements wire.Replier.
func (r *rig) GPUDone(uint32) (uintptr, bool) { return 0, false }

// WakeSlot implements wire.Replier.
func (r *rig) WakeSlot(_, seq uint32) { r.Reply(0, seq, cuda.Success, nil) }

// begin starts a wait operation; its answer comes from the channel.
func (r *rig) begin(op wire.Op, run func(*wire.Call) cuda.Result) <-chan answer {
	c := r.call(op)
	ch := make(chan answer, 1)
	r.mu.Lock()
	r.replies[c.Seq] = ch
	r.mu.Unlock()
	if res := run(c); !c.Taken() {
		ch <- answer{res: res}
	}
	return ch
}

func (r *rig) finish(ch <-chan answer) answer {
	r.t.Helper()
	select {
	case a := <-ch:
		return a
	case <-time.After(time.Minute):
		r.t.Fatal("no answer within 20 s")
		return answer{}
	}
}

// open fails if a wait was answered.
func (r *rig) open(ch <-chan answer) {
	r.t.Helper()
	select {
	case a := <-ch:
		r.t.Fatalf("answered too early: %v", a.res)
	case <-time.After(10 * time.Millisecond):
	}
}

func (r *rig) ok(res cuda.Result) {
	r.t.Helper()
	if res != cuda.Success {
		r.t.Fatalf("%v", res)
	}
}

func (r *rig) want(got, want cuda.Result, what string) {
	r.t.Helper()
	if got != want {
		r.t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func (r *rig) sync() cuda.Result {
	r.t.Helper()
	return r.finish(r.syncing()).res
}

func (r *rig) syncing() <-chan answer {
	return r.begin(wire.OpCtxSynchronize, func(c *wire.Call) cuda.Result { return r.s.CtxSynchronize(c) })
}

func (r *rig) tryAlloc(size uint64) (uint64, cuda.Result) {
	var m wire.MemAllocReply
	res := r.s.MemAlloc(r.call(wire.OpMemAlloc), &wire.MemAllocArgs{Size: size}, &m)
	return m.Ptr, res
}

func (r *rig) alloc(size uint64) uint64 {
	r.t.Helper()
	p, res := r.tryAlloc(size)
	r.ok(res)
	return p
}

func (r *rig) freeMem(p uint64) cuda.Result {
	return r.s.MemFree(r.call(wire.OpMemFree), &wire.MemFreeArgs{Ptr: p})
}

func (r *rig) put(dst uint64, b []byte, st wire.Stream) cuda.Result {
	return r.s.MemcpyHtoD(r.call(wire.OpMemcpyHtoD), &wire.MemcpyHtoDArgs{Dst: dst, Stream: st, Src: b})
}

// get copies n bytes to the host behind what is on the legacy stream.
func (r *rig) get(src uint64, n int) ([]byte, cuda.Result) {
	r.t.Helper()
	var reply wire.MemcpyDtoHReply
	a := r.finish(r.begin(wire.OpMemcpyDtoH, func(c *wire.Call) cuda.Result {
		return r.s.MemcpyDtoH(c, &wire.MemcpyDtoHArgs{Src: src, Size: uint32(n), Stream: wire.StreamLegacy}, &reply)
	}))
	if a.payload != nil {
		size, off := binary.LittleEndian.Uint32(a.payload), binary.LittleEndian.Uint32(a.payload[4:])
		return a.payload[off:][:size], a.res
	}
	return reply.Dst, a.res
}

func (r *rig) word32(src uint64) uint32 {
	r.t.Helper()
	b, res := r.get(src, 4)
	r.ok(res)
	return binary.LittleEndian.Uint32(b)
}

func (r *rig) set(dst uint64, value uint32, words uint64, st wire.Stream) cuda.Result {
	return r.s.Memset(r.call(wire.OpMemset), &wire.MemsetArgs{Dst: dst, Value: value, Element: 4, Width: words, Height: 1, Stream: st})
}

func (r *rig) stream(flags uint32) wire.Stream {
	r.t.Helper()
	id := r.id()
	r.ok(r.s.StreamCreate(r.call(wire.OpStreamCreate), &wire.StreamCreateArgs{Stream: id, Flags: flags}))
	return id
}

func (r *rig) event(flags uint32) wire.ID {
	r.t.Helper()
	id := r.id()
	r.ok(r.s.EventCreate(r.call(wire.OpEventCreate), &wire.EventCreateArgs{Event: id, Flags: flags}))
	return id
}

func (r *rig) recordEvent(e wire.ID, st wire.Stream) cuda.Result {
	return r.s.EventRecord(r.call(wire.OpEventRecord), &wire.EventRecordArgs{Event: e, Stream: st})
}

// hold holds a stream until the returned function is called.
func (r *rig) hold(st wire.Stream) (open func()) {
	r.t.Helper()
	p := r.alloc(4)
	r.ok(r.set(p, 0, 1, r.stream(cuda.StreamNonBlocking)))
	r.ok(r.s.StreamWaitValue(r.call(wire.OpStreamWaitValue), &wire.StreamWaitValueArgs{Stream: st, Addr: p, Value: 1, Width: 4, Flags: cuda.StreamWaitValueEq}))
	other := r.stream(cuda.StreamNonBlocking)
	return func() {
		r.t.Helper()
		r.ok(r.s.StreamWriteValue(r.call(wire.OpStreamWriteValue), &wire.StreamWriteValueArgs{Stream: other, Addr: p, Value: 1, Width: 4}))
	}
}

func (r *rig) load(image []byte) (wire.ID, *wire.ModuleLoadReply, cuda.Result) {
	id, reply := r.id(), new(wire.ModuleLoadReply)
	res := r.s.ModuleLoad(r.call(wire.OpModuleLoad), &wire.ModuleLoadArgs{Module: id, InfoCap: 4096, ErrCap: 4096, Image: image}, reply)
	return id, reply, res
}

func (r *rig) function(mod wire.ID, name string) wire.ID {
	r.t.Helper()
	id := r.id()
	r.ok(r.s.ModuleGetFunction(r.call(wire.OpModuleGetFunction), &wire.ModuleGetFunctionArgs{Func: id, Module: mod, Name: []byte(name)}, new(wire.ModuleGetFunctionReply)))
	return id
}

// kernels loads the test module and returns a function by name.
func (r *rig) kernels() func(name string) wire.ID {
	r.t.Helper()
	mod, reply, res := r.load([]byte(testPTX))
	if res != cuda.Success {
		r.t.Fatalf("%v: %s", res, reply.Logs)
	}
	return func(name string) wire.ID { return r.function(mod, name) }
}

// launch runs one block of threads on each of blocks; params are u64.
func (r *rig) launch(f wire.ID, st wire.Stream, blocks, threads uint32, params ...uint64) cuda.Result {
	var packed []byte
	for _, p := range params {
		packed = binary.LittleEndian.AppendUint64(packed, p)
	}
	return r.s.Launch(r.call(wire.OpLaunch), &wire.LaunchArgs{Func: f, Stream: st, Gx: blocks, Gy: 1, Gz: 1, Bx: threads, By: 1, Bz: 1, Params: packed})
}
