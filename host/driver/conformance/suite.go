package conformance

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// kernels are written by hand: the suite needs no compiler.
const kernels = `.version 6.4
.target sm_75
.address_size 64
.visible .global .align 4 .u32 counter = 7;
.visible .entry add(.param .u64 dst, .param .u64 src, .param .u32 n, .param .u32 k)
{
	.reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %d<8>;
	ld.param.u64 %d1, [dst]; ld.param.u64 %d2, [src]; ld.param.u32 %r1, [n]; ld.param.u32 %r2, [k];
	mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x;
	mad.lo.s32 %r6, %r3, %r4, %r5;
	setp.ge.u32 %p1, %r6, %r1;
	@%p1 bra DONE;
	mul.wide.u32 %d3, %r6, 4;
	add.s64 %d4, %d2, %d3; ld.global.u32 %r7, [%d4];
	add.u32 %r7, %r7, %r2;
	add.s64 %d5, %d1, %d3; st.global.u32 [%d5], %r7;
DONE:
	ret;
}
.visible .entry fault()
{
	.reg .b64 %d<2>; .reg .b32 %r<2>;
	mov.u64 %d1, 16; mov.u32 %r1, 1;
	st.global.u32 [%d1], %r1;
	ret;
}
`

// Run runs the suite. open gives a fresh backend for each test; a real driver needs a process of
// its own for the tests that poison it, so those are named Poison and run last.
func Run(t *testing.T, open func(t *testing.T) driver.Backend) {
	t.Run("Budget", func(t *testing.T) { testBudget(t, open(t)) })
	for _, c := range []struct {
		name string
		test func(*testing.T, *Guest)
	}{
		{"Copies", testCopies},
		{"Memset", testMemset},
		{"LargeMemory", testLargeMemory},
		{"Launch", testLaunch},
		{"Staged", testStaged},
		{"Pinned", testPinned},
		{"Box", testBox},
		{"StreamsAndEvents", testStreamsAndEvents},
		{"Contexts", testContexts},
		{"Errors", testErrors},
		{"Graphs", testGraphs},
		{"Forbidden", testForbidden},
		{"MovedGraph", testMovedGraph},
		{"GraphRefusals", testGraphRefusals},
		{"HostFunc", testHostFunc},
		{"ManagedVariables", testManagedVariables},
		{"ManagedOfModules", testManagedOfModules},
		{"ManagedAtGPU", testManagedAtGPU},
		{"VirtualMemory", testVirtualMemory},
		{"MemoryOnHost", testMemoryOnHost},
		{"Pools", testPools},
		{"Arrays", testArrays},
		{"Link", testLink},
		{"Instructions", testForms},
		{"Arithmetic", testArithmetic},
		{"PoisonIllegalAddress", testPoison},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, Open(t, open(t), driver.Options{MemoryLimit: 1 << 30})) })
	}
}

func (g *Guest) alloc(size uint64) uint64 {
	g.t.Helper()
	var r wire.MemAllocReply
	g.ok(g.Session.MemAlloc(g.call(wire.OpMemAlloc), &wire.MemAllocArgs{Size: size}, &r), "MemAlloc")
	return r.Ptr
}

func (g *Guest) put(dst uint64, b []byte) {
	g.t.Helper()
	g.ok(g.Session.MemcpyHtoD(g.call(wire.OpMemcpyHtoD), &wire.MemcpyHtoDArgs{Dst: dst, Stream: 1, Src: b}), "MemcpyHtoD")
}

// get reads device memory in reply-sized pieces.
func (g *Guest) get(src uint64, n int) []byte {
	g.t.Helper()
	var out []byte
	for len(out) < n {
		size := min(n-len(out), 4000)
		var r wire.MemcpyDtoHReply
		res, payload := g.wait(wire.OpMemcpyDtoH, func(c *wire.Call) cuda.Result {
			return g.Session.MemcpyDtoH(c, &wire.MemcpyDtoHArgs{Src: src + uint64(len(out)), Size: uint32(size), Stream: 1}, &r)
		})
		g.ok(res, "MemcpyDtoH")
		if payload != nil {
			span := binary.LittleEndian.Uint32(payload)
			off := binary.LittleEndian.Uint32(payload[4:])
			out = append(out, payload[off:off+span]...)
			continue
		}
		out = append(out, r.Dst...)
	}
	return out
}

func (g *Guest) sync() cuda.Result {
	g.t.Helper()
	res, _ := g.wait(wire.OpCtxSynchronize, func(c *wire.Call) cuda.Result { return g.Session.CtxSynchronize(c) })
	return res
}

func (g *Guest) load(image string) wire.ID {
	g.t.Helper()
	id := g.ID()
	var r wire.ModuleLoadReply
	res := g.Session.ModuleLoad(g.call(wire.OpModuleLoad), &wire.ModuleLoadArgs{Module: id, ErrCap: 4096, Image: []byte(image)}, &r)
	if res != cuda.Success {
		g.t.Fatalf("ModuleLoad: %v: %s", res, r.Logs)
	}
	return id
}

func (g *Guest) kernel(mod wire.ID, name string) wire.ID {
	g.t.Helper()
	id := g.ID()
	var r wire.ModuleGetFunctionReply
	g.ok(g.Session.ModuleGetFunction(g.call(wire.OpModuleGetFunction), &wire.ModuleGetFunctionArgs{Func: id, Module: mod, Name: []byte(name)}, &r), name)
	return id
}

// random is reproducible noise.
func random(n int) []byte {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func (g *Guest) want(got, want []byte, what string) {
	g.t.Helper()
	if !bytes.Equal(got, want) {
		i := 0
		for i < min(len(got), len(want)) && got[i] == want[i] {
			i++
		}
		g.t.Fatalf("%s: %d bytes, want %d; first difference at %d", what, len(got), len(want), i)
	}
}

func testCopies(t *testing.T, g *Guest) {
	for _, n := range []int{1, 4, 4000, 30000} {
		b := random(n)
		p, q := g.alloc(uint64(n)), g.alloc(uint64(n))
		g.put(p, b)
		g.ok(g.Session.Memcpy(g.call(wire.OpMemcpy), &wire.MemcpyArgs{Dst: q, Src: p, Size: uint64(n), Stream: 1}), "Memcpy")
		g.want(g.get(q, n), b, "copy through the device")
		g.ok(g.Session.MemFree(g.call(wire.OpMemFree), &wire.MemFreeArgs{Ptr: p}), "MemFree")
		g.ok(g.Session.MemFree(g.call(wire.OpMemFree), &wire.MemFreeArgs{Ptr: q}), "MemFree")
	}
}

func testMemset(t *testing.T, g *Guest) {
	const pitch, rows = 512, 8
	p := g.alloc(pitch * rows)
	set := func(a wire.MemsetArgs) { a.Stream = 1; g.ok(g.Session.Memset(g.call(wire.OpMemset), &a), "Memset") }
	set(wire.MemsetArgs{Dst: p, Value: 0xaa, Element: 1, Width: pitch * rows, Height: 1})
	set(wire.MemsetArgs{Dst: p + 4, Pitch: pitch, Value: 0x01020304, Element: 4, Width: 5, Height: rows})
	set(wire.MemsetArgs{Dst: p + 100, Value: 0xbeef, Element: 2, Width: 3, Height: 1})
	want := bytes.Repeat([]byte{0xaa}, pitch*rows)
	for y := range rows {
		copy(want[y*pitch+4:], bytes.Repeat([]byte{4, 3, 2, 1}, 5))
	}
	copy(want[100:], []byte{0xef, 0xbe, 0xef, 0xbe, 0xef, 0xbe})
	g.want(g.get(p, pitch*rows), want, "memset")
}

func testLaunch(t *testing.T, g *Guest) {
	const n = 1000
	mod := g.load(kernels)
	f := g.kernel(mod, "add")
	src, dst := g.alloc(4*n), g.alloc(4*n)
	in, want := make([]byte, 4*n), make([]byte, 4*n)
	for i := range uint32(n) {
		binary.LittleEndian.PutUint32(in[4*i:], i*i)
		binary.LittleEndian.PutUint32(want[4*i:], i*i+5)
	}
	g.put(src, in)
	params := binary.LittleEndian.AppendUint64(nil, dst)
	params = binary.LittleEndian.AppendUint64(params, src)
	params = binary.LittleEndian.AppendUint32(params, n)
	params = binary.LittleEndian.AppendUint32(params, 5)
	g.ok(g.Session.Launch(g.call(wire.OpLaunch), &wire.LaunchArgs{Func: f, Stream: 1, Gx: 8, Gy: 1, Gz: 1, Bx: 128, By: 1, Bz: 1, Params: params}), "Launch")
	g.ok(g.sync(), "CtxSynchronize")
	g.want(g.get(dst, 4*n), want, "kernel's output")

	var r wire.ModuleGetGlobalReply
	g.ok(g.Session.ModuleGetGlobal(g.call(wire.OpModuleGetGlobal), &wire.ModuleGetGlobalArgs{Module: mod, Name: []byte("counter")}, &r), "ModuleGetGlobal")
	if r.Size != 4 {
		t.Errorf("counter has %d bytes", r.Size)
	}
	g.want(g.get(r.Ptr, 4), []byte{7, 0, 0, 0}, "initialised variable")
}

func testStaged(t *testing.T, g *Guest) {
	const size = 4 << 20
	mem := g.AddRegion(1, wire.RegionStaging, size)
	var r wire.RegionAddReply
	g.ok(g.Session.RegionAdd(g.call(wire.OpRegionAdd), &wire.RegionAddArgs{Region: 1, Kind: wire.RegionStaging, Va: address(mem), Size: size}, &r), "RegionAdd")
	p := g.alloc(size)
	b := random(size)
	copy(mem, b)
	stage := func(dir, word, value uint32) {
		g.ok(g.Session.MemcpyStaged(g.call(wire.OpMemcpyStaged), &wire.MemcpyStagedArgs{Direction: dir, Region: 1, Size: size, Device: p, Stream: 1, Word: word, Value: value}), "MemcpyStaged")
		g.word(word, value)
	}
	stage(0, 3, 77)
	clear(mem)
	stage(1, 4, 78)
	g.want(mem, b, "staged copy")
	bad := g.Session.MemcpyStaged(g.call(wire.OpMemcpyStaged), &wire.MemcpyStagedArgs{Region: 1, Offset: size - 4, Size: 8, Device: p, Stream: 1, Word: 5, Value: 1})
	if bad != cuda.ErrorInvalidValue {
		t.Errorf("copy beyond the region: %v", bad)
	}
	g.ok(g.Session.RegionDrop(g.call(wire.OpRegionDrop), &wire.RegionDropArgs{Region: 1}), "RegionDrop")
}

func testPinned(t *testing.T, g *Guest) {
	const n = 4096
	mem := g.AddRegion(2, wire.RegionPinned, 1<<20)
	var r wire.RegionAddReply
	g.ok(g.Session.RegionAdd(g.call(wire.OpRegionAdd), &wire.RegionAddArgs{Region: 2, Kind: wire.RegionPinned, Va: address(mem), Size: 1 << 20}, &r), "RegionAdd")
	if r.Dev != address(mem) {
		t.Fatalf("device address %#x, want the guest's %#x", r.Dev, address(mem))
	}
	f := g.kernel(g.load(kernels), "add")
	for i := range n {
		binary.LittleEndian.PutUint32(mem[4*i:], uint32(i))
	}
	params := binary.LittleEndian.AppendUint64(nil, r.Dev+65536)
	params = binary.LittleEndian.AppendUint64(params, r.Dev)
	params = binary.LittleEndian.AppendUint32(params, n)
	params = binary.LittleEndian.AppendUint32(params, 3)
	g.ok(g.Session.Launch(g.call(wire.OpLaunch), &wire.LaunchArgs{Func: f, Stream: 1, Gx: n / 256, Gy: 1, Gz: 1, Bx: 256, By: 1, Bz: 1, Params: params}), "Launch")
	g.ok(g.sync(), "CtxSynchronize")
	for i := range n {
		if v := binary.LittleEndian.Uint32(mem[65536+4*i:]); v != uint32(i)+3 {
			t.Fatalf("pinned[%d] = %d", i, v)
		}
	}
	for _, size := range []uint64{4, 8192, 500000} {
		// From behind a kernel, out of quiet, into device memory and back.
		want := random(int(size))
		copy(mem, want)
		p := g.alloc(size)
		for _, a := range []wire.MemcpyWaitArgs{{Dst: p, Src: r.Dev}, {Dst: r.Dev + 500000, Src: p}} {
			a.Size, a.Stream = size, 1
			res, _ := g.wait(wire.OpMemcpyWait, func(c *wire.Call) cuda.Result { return g.Session.MemcpyWait(c, &a) })
			g.ok(res, "MemcpyWait")
		}
		g.want(mem[500000:][:size], want, "copy that was waited for")
	}
	g.ok(g.Session.RegionDrop(g.call(wire.OpRegionDrop), &wire.RegionDropArgs{Region: 2}), "RegionDrop")
}

func testBox(t *testing.T, g *Guest) {
	const w, h, d, pitch, rows = 24, 3, 2, 64, 5
	mem := g.AddRegion(1, wire.RegionStaging, 1<<16)
	var r wire.RegionAddReply
	g.ok(g.Session.RegionAdd(g.call(wire.OpRegionAdd), &wire.RegionAddArgs{Region: 1, Kind: wire.RegionStaging, Va: address(mem), Size: 1 << 16}, &r), "RegionAdd")
	copy(mem, random(w*h*d))
	p := g.alloc(pitch * rows * 4)
	g.ok(g.Session.Memset(g.call(wire.OpMemset), &wire.MemsetArgs{Dst: p, Element: 1, Width: pitch * rows * 4, Height: 1, Stream: 1}), "Memset")
	g.ok(g.Session.Memcpy3D(g.call(wire.OpMemcpy3D), &wire.Memcpy3DArgs{
		SrcKind: 1, SrcRegion: 1, SrcPitch: w, SrcHeight: h,
		Dst: p, DstPitch: pitch, DstHeight: rows, DstX: 8, DstY: 1, DstZ: 1,
		Width: w, Height: h, Depth: d, Stream: 1, Word: 9, Value: 1,
	}), "Memcpy3D")
	g.word(9, 1)
	want := make([]byte, pitch*rows*4)
	for z := range d {
		for y := range h {
			copy(want[((z+1)*rows+y+1)*pitch+8:], mem[(z*h+y)*w:][:w])
		}
	}
	g.want(g.get(p, len(want)), want, "box")
}

func testStreamsAndEvents(t *testing.T, g *Guest) {
	st, a, b := g.ID(), g.ID(), g.ID()
	g.ok(g.Session.StreamCreate(g.call(wire.OpStreamCreate), &wire.StreamCreateArgs{Stream: st, Flags: 1}), "StreamCreate")
	for _, e := range []wire.ID{a, b} {
		g.ok(g.Session.EventCreate(g.call(wire.OpEventCreate), &wire.EventCreateArgs{Event: e}), "EventCreate")
	}
	p := g.alloc(1 << 20)
	record := func(e wire.ID) {
		g.ok(g.Session.EventRecord(g.call(wire.OpEventRecord), &wire.EventRecordArgs{Event: e, Stream: wire.Stream(st)}), "EventRecord")
	}
	record(a)
	g.ok(g.Session.Memset(g.call(wire.OpMemset), &wire.MemsetArgs{Dst: p, Value: 1, Element: 4, Width: 1 << 18, Height: 1, Stream: wire.Stream(st)}), "Memset")
	record(b)
	res, _ := g.wait(wire.OpEventSynchronize, func(c *wire.Call) cuda.Result {
		return g.Session.EventSynchronize(c, &wire.EventSynchronizeArgs{Event: b})
	})
	g.ok(res, "EventSynchronize")
	g.ok(g.Session.EventQuery(g.call(wire.OpEventQuery), &wire.EventQueryArgs{Event: b}), "EventQuery")
	var r wire.EventElapsedTimeReply
	g.ok(g.Session.EventElapsedTime(g.call(wire.OpEventElapsedTime), &wire.EventElapsedTimeArgs{Start: a, End: b}, &r), "EventElapsedTime")
	if r.Ms < 0 || r.Ms > 10000 {
		t.Errorf("elapsed %v ms", r.Ms)
	}
	res, _ = g.wait(wire.OpStreamSynchronize, func(c *wire.Call) cuda.Result {
		return g.Session.StreamSynchronize(c, &wire.StreamSynchronizeArgs{Stream: wire.Stream(st)})
	})
	g.ok(res, "StreamSynchronize")
	g.ok(g.Session.StreamDestroy(g.call(wire.OpStreamDestroy), &wire.StreamDestroyArgs{Stream: st}), "StreamDestroy")
	if res := g.Session.StreamQuery(g.call(wire.OpStreamQuery), &wire.StreamQueryArgs{Stream: wire.Stream(st)}); res != cuda.ErrorInvalidHandle {
		t.Errorf("query of a destroyed stream: %v", res)
	}
}

func testErrors(t *testing.T, g *Guest) {
	expect := func(got, want cuda.Result, what string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	var m wire.MemAllocReply
	expect(g.Session.MemAlloc(g.call(wire.OpMemAlloc), &wire.MemAllocArgs{Size: 2 << 30}, &m), cuda.ErrorOutOfMemory, "more than the limit")
	expect(g.Session.MemFree(g.call(wire.OpMemFree), &wire.MemFreeArgs{Ptr: 0x1234}), cuda.ErrorInvalidValue, "free of nothing")
	var l wire.ModuleLoadReply
	expect(g.Session.ModuleLoad(g.call(wire.OpModuleLoad), &wire.ModuleLoadArgs{Module: g.ID(), ErrCap: 4096, Image: []byte(strings.Replace(kernels, "add.u32", "frobnicate.u32", 1))}, &l), cuda.ErrorInvalidPTX, "broken PTX")
	if l.ErrLen == 0 {
		t.Errorf("broken PTX leaves no error log")
	}
	mod := g.load(kernels)
	var f wire.ModuleGetFunctionReply
	expect(g.Session.ModuleGetFunction(g.call(wire.OpModuleGetFunction), &wire.ModuleGetFunctionArgs{Func: g.ID(), Module: mod, Name: []byte("nowhere")}, &f), cuda.ErrorNotFound, "unknown kernel")
	expect(g.Session.Launch(g.call(wire.OpLaunch), &wire.LaunchArgs{Func: 999999, Stream: 1, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1}), cuda.ErrorInvalidHandle, "unknown function")
	fault := g.kernel(mod, "fault")
	expect(g.Session.Launch(g.call(wire.OpLaunch), &wire.LaunchArgs{Func: fault, Stream: 1, Gx: 1, Gy: 1, Gz: 1, Bx: 2048, By: 1, Bz: 1}), cuda.ErrorInvalidValue, "too many threads")
	// An address of this very process is not the guest's to name.
	own := random(64)
	expect(g.Session.Memcpy(g.call(wire.OpMemcpy), &wire.MemcpyArgs{Dst: g.alloc(64), Src: address(own), Size: 64, Stream: 1}), cuda.ErrorInvalidValue, "copy from the worker's own memory")
}

func testPoison(t *testing.T, g *Guest) {
	f := g.kernel(g.load(kernels), "fault")
	res := g.Session.Launch(g.call(wire.OpLaunch), &wire.LaunchArgs{Func: f, Stream: 1, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1})
	if res != cuda.ErrorIllegalAddress {
		// The kernel may have failed before its launch returns, which says so then.
		g.ok(res, "Launch")
	}
	if res := g.sync(); res != cuda.ErrorIllegalAddress {
		t.Errorf("after a store to address 16: %v", res)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.sticky != cuda.ErrorIllegalAddress {
		t.Errorf("sticky error: %v", g.sticky)
	}
}
