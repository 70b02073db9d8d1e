package soft

import (
	"encoding/binary"
	"testing"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

func (r *rig) query(st wire.Stream) cuda.Result {
	return r.s.StreamQuery(r.call(wire.OpStreamQuery), &wire.StreamQueryArgs{Stream: st})
}

func (r *rig) waitEvent(st wire.Stream, e wire.ID) cuda.Result {
	return r.s.StreamWaitEvent(r.call(wire.OpStreamWaitEvent), &wire.StreamWaitEventArgs{Stream: st, Event: e})
}

func (r *rig) syncStream(st wire.Stream) <-chan answer {
	return r.begin(wire.OpStreamSynchronize, func(c *wire.Call) cuda.Result {
		return r.s.StreamSynchronize(c, &wire.StreamSynchronizeArgs{Stream: st})
	})
}

func TestStreamOrder(t *testing.T) {
	r := newRig(t, driver.Options{})
	p := r.alloc(1 << 20)
	st := r.stream(0)
	open := r.hold(st)
	for i := range 100 {
		r.ok(r.put(p, binary.LittleEndian.AppendUint32(nil, uint32(i)), st))
		r.ok(r.set(p+4, uint32(i), 1000+uint64(i)*1000, st))
	}
	r.want(r.query(st), cuda.ErrorNotReady, "query of a busy stream")
	ch := r.syncStream(st)
	r.open(ch)
	open()
	r.want(r.finish(ch).res, cuda.Success, "synchronise")
	r.want(r.query(st), cuda.Success, "query of an idle stream")
	if a, b := r.word32(p), r.word32(p+4); a != 99 || b != 99 {
		t.Errorf("last values %d, %d", a, b)
	}
}

// TestLegacyStream tells which streams wait for the legacy stream, and which it waits for.
func TestLegacyStream(t *testing.T) {
	for _, c := range []struct {
		name    string
		stream  func(*rig) wire.Stream
		ordered bool
	}{
		{"blocking", func(r *rig) wire.Stream { return r.stream(0) }, true},
		{"per thread", func(*rig) wire.Stream { return wire.StreamPerThread }, true},
		{"non-blocking", func(r *rig) wire.Stream { return r.stream(cuda.StreamNonBlocking) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, driver.Options{})
			p, st := r.alloc(8), c.stream(r)
			for _, pair := range [][2]wire.Stream{{wire.StreamLegacy, st}, {st, wire.StreamLegacy}} {
				open := r.hold(pair[0])
				r.ok(r.set(p, 1, 1, pair[1]))
				if busy := r.query(pair[1]) == cuda.ErrorNotReady; busy != c.ordered {
					t.Errorf("stream %d waits for %d: %v", pair[1], pair[0], busy)
				}
				open()
				r.ok(r.sync())
			}
		})
	}
}

func TestThreadsHaveStreams(t *testing.T) {
	r := newRig(t, driver.Options{})
	open := r.hold(wire.StreamPerThread)
	c := r.call(wire.OpStreamQuery)
	r.want(r.s.StreamQuery(c, &wire.StreamQueryArgs{Stream: wire.StreamPerThread}), cuda.ErrorNotReady, "own stream")
	c.Thread = 2
	r.want(r.s.StreamQuery(c, &wire.StreamQueryArgs{Stream: wire.StreamPerThread}), cuda.Success, "stream of another thread")
	open()
	r.ok(r.sync())
}

func TestEvents(t *testing.T) {
	r := newRig(t, driver.Options{})
	p := r.alloc(4)
	a, b := r.stream(cuda.StreamNonBlocking), r.stream(cuda.StreamNonBlocking)
	begin, end, untimed := r.event(0), r.event(0), r.event(cuda.EventDisableTiming)
	query := func(e wire.ID) cuda.Result {
		return r.s.EventQuery(r.call(wire.OpEventQuery), &wire.EventQueryArgs{Event: e})
	}
	var ms wire.EventElapsedTimeReply
	elapsed := func(x, y wire.ID) cuda.Result {
		return r.s.EventElapsedTime(r.call(wire.OpEventElapsedTime), &wire.EventElapsedTimeArgs{Start: x, End: y}, &ms)
	}
	r.want(query(end), cuda.Success, "event that was never recorded")
	r.want(elapsed(begin, end), cuda.ErrorInvalidHandle, "time of events that were never recorded")

	r.ok(r.recordEvent(begin, a))
	open := r.hold(a)
	r.ok(r.recordEvent(end, a))
	r.ok(r.recordEvent(untimed, a))
	r.want(query(end), cuda.ErrorNotReady, "event behind work")
	r.want(elapsed(begin, end), cuda.ErrorNotReady, "time of an event behind work")
	r.want(elapsed(begin, untimed), cuda.ErrorInvalidHandle, "time of an untimed event")

	r.ok(r.waitEvent(b, end))
	r.ok(r.set(p, 5, 1, b))
	r.want(r.query(b), cuda.ErrorNotReady, "stream that waits for an event")
	ch := r.begin(wire.OpEventSynchronize, func(c *wire.Call) cuda.Result {
		return r.s.EventSynchronize(c, &wire.EventSynchronizeArgs{Event: end})
	})
	r.open(ch)
	time.Sleep(5 * time.Millisecond)
	open()
	r.ok(r.finish(ch).res)
	r.ok(r.finish(r.syncStream(b)).res)
	if v := r.word32(p); v != 5 {
		t.Errorf("behind the event: %d", v)
	}
	r.ok(elapsed(begin, end))
	if ms.Ms < 5 || ms.Ms > 5000 {
		t.Errorf("%v ms between the events", ms.Ms)
	}
	r.ok(r.s.EventDestroy(r.call(wire.OpEventDestroy), &wire.EventDestroyArgs{Event: end}))
	r.want(query(end), cuda.ErrorInvalidHandle, "destroyed event")
}

func TestWaitValue(t *testing.T) {
	for _, c := range []struct {
		v, want uint64
		width   uint32
		flags   uint32
		ok      bool
	}{
		{5, 5, 4, cuda.StreamWaitValueGeq, true},
		{4, 5, 4, cuda.StreamWaitValueGeq, false},
		{0, 0xffffffff, 4, cuda.StreamWaitValueGeq, true}, // cyclic
		{0, 1 << 63, 8, cuda.StreamWaitValueGeq, false},
		{6, 5, 4, cuda.StreamWaitValueEq, false},
		{6, 4, 8, cuda.StreamWaitValueAnd, true},
		{6, 1, 8, cuda.StreamWaitValueAnd, false},
		{0xfffffff0, 0xf, 4, cuda.StreamWaitValueNor, false},
		{0xfffffff0, 0x7, 4, cuda.StreamWaitValueNor, true},
	} {
		if got := satisfies(c.v, c.want, c.width, c.flags); got != c.ok {
			t.Errorf("%+v: %v", c, got)
		}
	}
	r := newRig(t, driver.Options{})
	p := r.alloc(16)
	r.ok(r.set(p, 0, 4, 1))
	wait := func(addr uint64, width, flags uint32) cuda.Result {
		return r.s.StreamWaitValue(r.call(wire.OpStreamWaitValue), &wire.StreamWaitValueArgs{Stream: 1, Addr: addr, Width: width, Flags: flags})
	}
	r.want(wait(p+2, 4, 0), cuda.ErrorInvalidValue, "misaligned")
	r.want(wait(p+16, 4, 0), cuda.ErrorInvalidValue, "beyond")
	r.want(wait(p, 2, 0), cuda.ErrorInvalidValue, "width 2")
	r.want(wait(p, 4, 9), cuda.ErrorInvalidValue, "unknown flags")
	r.ok(wait(p+8, 8, cuda.StreamWaitValueEq|cuda.StreamWaitValueFlush))
	r.ok(r.sync())
}

// TestCloseEndsEverything closes while a kernel runs forever and streams wait for what never comes.
func TestCloseEndsEverything(t *testing.T) {
	r := newRig(t, driver.Options{})
	kernel := r.kernels()
	r.ok(r.launch(kernel("forever"), r.stream(cuda.StreamNonBlocking), 4, 64))
	r.hold(1)
	p := r.alloc(4)
	r.ok(r.set(p, 1, 1, 1))
	ch := r.syncing()
	r.open(ch)
	began := time.Now()
	r.close()
	if d := time.Since(began); d > time.Minute {
		t.Errorf("closing took %v", d)
	}
	if a := r.finish(ch); a.res == cuda.Success {
		t.Error("synchronisation succeeds although work was dropped")
	}
}

func TestHandles(t *testing.T) {
	r := newRig(t, driver.Options{})
	st, e := r.stream(0), r.event(0)
	for _, c := range []struct {
		what string
		res  cuda.Result
		want cuda.Result
	}{
		{"stream 0", r.query(0), cuda.ErrorInvalidHandle},
		{"event as stream", r.query(e), cuda.ErrorInvalidHandle},
		{"stream as event", r.recordEvent(st, 1), cuda.ErrorInvalidHandle},
		{"number in use", r.s.StreamCreate(r.call(wire.OpStreamCreate), &wire.StreamCreateArgs{Stream: st}), cuda.ErrorInvalidHandle},
		{"reserved number", r.s.EventCreate(r.call(wire.OpEventCreate), &wire.EventCreateArgs{Event: 1}), cuda.ErrorInvalidHandle},
		{"stream flags", r.s.StreamCreate(r.call(wire.OpStreamCreate), &wire.StreamCreateArgs{Stream: 99, Flags: 4}), cuda.ErrorInvalidValue},
		{"event flags", r.s.EventCreate(r.call(wire.OpEventCreate), &wire.EventCreateArgs{Event: 99, Flags: 16}), cuda.ErrorInvalidValue},
		{"module", r.s.ModuleUnload(r.call(wire.OpModuleUnload), &wire.ModuleUnloadArgs{Module: st}), cuda.ErrorInvalidHandle},
		{"library", r.s.LibraryUnload(r.call(wire.OpLibraryUnload), &wire.LibraryUnloadArgs{Library: st}), cuda.ErrorInvalidHandle},
		{"pool", r.s.PoolTrimTo(r.call(wire.OpPoolTrimTo), &wire.PoolTrimToArgs{Pool: st}), cuda.ErrorInvalidHandle},
		{"context", r.s.CtxDestroy(r.call(wire.OpCtxDestroy), &wire.CtxDestroyArgs{Ctx: st}), cuda.ErrorInvalidContext},
		{"primary context", r.s.CtxDestroy(r.call(wire.OpCtxDestroy), &wire.CtxDestroyArgs{Ctx: r.ctx}), cuda.ErrorInvalidContext},
		{"device", r.s.CtxCreate(r.call(wire.OpCtxCreate), &wire.CtxCreateArgs{Ctx: 99, Dev: 7}), cuda.ErrorInvalidDevice},
	} {
		r.want(c.res, c.want, c.what)
	}
	r.ctx = 4711
	_, res := r.tryAlloc(4)
	r.want(res, cuda.ErrorInvalidContext, "no current context")
	r.want(r.query(wire.StreamLegacy), cuda.ErrorInvalidContext, "legacy stream without a context")
	r.want(r.sync(), cuda.ErrorInvalidContext, "synchronise without a context")
}

func BenchmarkCtxSynchronizeIdle(b *testing.B) {
	r := newRig(b, driver.Options{})
	c := r.call(wire.OpCtxSynchronize)
	for b.Loop() {
		if res := r.s.CtxSynchronize(c); res != cuda.Success {
			b.Fatal(res)
		}
	}
}

func BenchmarkLaunchEmpty(b *testing.B) {
	r := newRig(b, driver.Options{})
	f := r.kernels()("bounded")
	for b.Loop() {
		if res := r.launch(f, 1, 1, 32); res != cuda.Success {
			b.Fatal(res)
		}
	}
	r.ok(r.sync())
}

func BenchmarkLaunchSynchronize(b *testing.B) {
	r := newRig(b, driver.Options{})
	f := r.kernels()("bounded")
	for b.Loop() {
		if res := r.launch(f, 1, 1, 32); res != cuda.Success {
			b.Fatal(res)
		}
		r.ok(r.sync())
	}
}

// TestStreamsOfThreads: a program may have any number of threads one after another, each with a
// default stream of its own, and not more of these stay than are enough; those with work do.
func TestStreamsOfThreads(t *testing.T) {
	r := newRig(t, driver.Options{})
	g := r.s.ctxs[r.ctx]
	p := r.alloc(1 << 20)
	as := func(thread uint32) *wire.Call {
		c := r.call(wire.OpMemset)
		c.Thread = thread
		return c
	}
	open := r.hold(wire.StreamLegacy) // every thread's work waits
	for i := range uint32(300) {
		r.ok(r.s.Memset(as(i+1), &wire.MemsetArgs{Dst: p, Value: i, Element: 4, Width: 1, Height: 1, Stream: wire.StreamPerThread}))
	}
	open()
	if n := len(g.threads); n != 300 {
		t.Errorf("%d threads with work have streams", n)
	}
	r.ok(r.finish(r.syncStream(wire.StreamLegacy)).res)
	for i := range uint32(70000) {
		if _, res := r.s.findStream(as(1000+i), wire.StreamPerThread); res != cuda.Success {
			t.Fatalf("thread %d: %v", i, res)
		}
	}
	if n := len(g.threads); n > 300 || len(g.ofThreads.Keys()) != n {
		t.Errorf("%d streams of %d threads are left", n, len(g.ofThreads.Keys()))
	}
}
