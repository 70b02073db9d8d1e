package conformance

import (
	"sync/atomic"
	"testing"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// testContexts ends the context that has registered the guest's memory while a stream of another
// waits for a word of that memory: the end waits for nothing, the word still counts, and the other
// context goes on with the memory.
func testContexts(t *testing.T, g *Guest) {
	const size = 1 << 20
	mem := g.AddRegion(2, wire.RegionPinned, size)
	var r wire.RegionAddReply
	g.ok(g.Session.RegionAdd(g.call(wire.OpRegionAdd), &wire.RegionAddArgs{Region: 2, Kind: wire.RegionPinned, Va: address(mem), Size: size}, &r), "RegionAdd")
	first, st := g.ctx, g.ID()
	g.ctx = g.ID()
	g.ok(g.Session.CtxCreate(g.call(wire.OpCtxCreate), &wire.CtxCreateArgs{Ctx: g.ctx}), "CtxCreate")
	g.ok(g.Session.StreamCreate(g.call(wire.OpStreamCreate), &wire.StreamCreateArgs{Stream: st, Flags: 1}), "StreamCreate")
	p := g.alloc(size)
	g.ok(g.sync(), "CtxSynchronize")
	g.ok(g.Session.StreamWaitValue(g.call(wire.OpStreamWaitValue), &wire.StreamWaitValueArgs{Stream: wire.Stream(st), Addr: r.Dev, Value: 1, Width: 4, Flags: 1}), "StreamWaitValue")
	g.ok(g.Session.Memset(g.call(wire.OpMemset), &wire.MemsetArgs{Dst: p, Value: 5, Element: 1, Width: size, Height: 1, Stream: wire.Stream(st)}), "Memset")

	var late atomic.Bool
	release := time.AfterFunc(5*time.Second, func() {
		late.Store(true)
		storeWord(mem, 0, 1)
	})
	g.ok(g.Session.PrimaryCtxRelease(g.call(wire.OpPrimaryCtxRelease), &wire.PrimaryCtxReleaseArgs{Ctx: first}), "PrimaryCtxRelease")
	if !release.Stop() || late.Load() {
		t.Error("the end of a context waits for the work of another")
	}
	storeWord(mem, 0, 1)
	g.ok(g.sync(), "CtxSynchronize")
	for round, b := range []byte{5, 6} {
		res, _ := g.wait(wire.OpMemcpyWait, func(c *wire.Call) cuda.Result {
			if o, ok := g.Session.(driver.Ordered); ok {
				o.Before(c.Op, false)
			}
			return g.Session.MemcpyWait(c, &wire.MemcpyWaitArgs{Dst: r.Dev, Src: p, Size: size, Stream: 1})
		})
		g.ok(res, "MemcpyWait")
		if mem[0] != b || mem[size-1] != b {
			t.Errorf("copy %d into the memory brings %d and %d, want %d", round, mem[0], mem[size-1], b)
		}
		g.ok(g.Session.Memset(g.call(wire.OpMemset), &wire.MemsetArgs{Dst: p, Value: 6, Element: 1, Width: size, Height: 1, Stream: 1}), "Memset")
	}
	g.ok(g.Session.CtxDestroy(g.call(wire.OpCtxDestroy), &wire.CtxDestroyArgs{Ctx: g.ctx}), "CtxDestroy")
}
