package soft

import (
	"encoding/binary"
	"strings"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

func TestVectorAdd(t *testing.T) {
	const n = 4096
	r := newRig(t, driver.Options{})
	f := r.kernels()("vadd")
	a, b, c := r.alloc(4*n), r.alloc(4*n), r.alloc(4*n)
	var x, y []byte
	for i := range uint32(n) {
		x = binary.LittleEndian.AppendUint32(x, i)
		y = binary.LittleEndian.AppendUint32(y, 3*i+1)
	}
	r.ok(r.put(a, x, 1))
	r.ok(r.put(b, y, 1))
	r.ok(r.launch(f, 1, n/128, 128, c, a, b))
	z, res := r.get(c, 4*n)
	r.ok(res)
	for i := range uint32(n) {
		if v := binary.LittleEndian.Uint32(z[4*i:]); v != 4*i+1 {
			t.Fatalf("c[%d] = %d", i, v)
		}
	}
}

func TestGlobals(t *testing.T) {
	r := newRig(t, driver.Options{})
	mod, _, res := r.load([]byte(testPTX))
	r.ok(res)
	global := func(name string) (wire.ModuleGetGlobalReply, cuda.Result) {
		var g wire.ModuleGetGlobalReply
		res := r.s.ModuleGetGlobal(r.call(wire.OpModuleGetGlobal), &wire.ModuleGetGlobalArgs{Module: mod, Name: []byte(name)}, &g)
		return g, res
	}
	counter, res := global("counter")
	r.ok(res)
	fixed, res := global("fixed")
	r.ok(res)
	_, res = global("vadd")
	r.want(res, cuda.ErrorNotFound, "kernel as variable")
	r.ok(r.set(fixed.Ptr, 11, 1, 1))
	f := r.function(mod, "bump")
	r.ok(r.launch(f, 1, 2, 1))
	if v := r.word32(counter.Ptr); v != 7+2*11 {
		t.Errorf("counter is %d", v)
	}
	r.want(r.freeMem(counter.Ptr), cuda.ErrorInvalidValue, "free of a variable")
	r.ok(r.launch(f, 1, 1, 1)) // queued, then unloaded
	r.ok(r.s.ModuleUnload(r.call(wire.OpModuleUnload), &wire.ModuleUnloadArgs{Module: mod}))
	r.want(r.launch(f, 1, 1, 1), cuda.ErrorInvalidHandle, "function of an unloaded module")
	r.ok(r.sync())
	if used, _ := r.s.space.usage(); used != 0 {
		t.Errorf("%d bytes are left of the module", used)
	}
}

func TestConstantIsReadOnlyForKernels(t *testing.T) {
	r := newRig(t, driver.Options{})
	mod, _, res := r.load([]byte(testPTX))
	r.ok(res)
	var g wire.ModuleGetGlobalReply
	r.ok(r.s.ModuleGetGlobal(r.call(wire.OpModuleGetGlobal), &wire.ModuleGetGlobalArgs{Module: mod, Name: []byte("fixed")}, &g))
	r.ok(r.launch(r.function(mod, "store"), 1, 1, 1, g.Ptr))
	r.want(r.sync(), cuda.ErrorIllegalAddress, "store to constant memory")
}

func TestLaunchErrors(t *testing.T) {
	r := newRig(t, driver.Options{Cores: 2})
	kernel := r.kernels()
	bounded, store := kernel("bounded"), kernel("store")
	for _, c := range []struct {
		what string
		a    wire.LaunchArgs
		want cuda.Result
	}{
		{"good", wire.LaunchArgs{Func: bounded, Gx: 1, Bx: 64}, cuda.Success},
		{"more threads than .maxntid", wire.LaunchArgs{Func: bounded, Gx: 1, Bx: 65}, cuda.ErrorLaunchOutOfResources},
		{"more threads than any block", wire.LaunchArgs{Func: bounded, Gx: 1, Bx: 1025}, cuda.ErrorInvalidValue},
		{"empty grid", wire.LaunchArgs{Func: bounded, Bx: 1}, cuda.ErrorInvalidValue},
		{"empty block", wire.LaunchArgs{Func: bounded, Gx: 1}, cuda.ErrorInvalidValue},
		{"wide grid", wire.LaunchArgs{Func: bounded, Gx: 1 << 31, Bx: 1}, cuda.ErrorInvalidValue},
		{"dynamic shared memory", wire.LaunchArgs{Func: bounded, Gx: 1, Bx: 1, Shared: 40 << 10}, cuda.Success},
		{"more than was asked for", wire.LaunchArgs{Func: bounded, Gx: 1, Bx: 1, Shared: 40<<10 + 1}, cuda.ErrorInvalidValue},
		{"missing parameters", wire.LaunchArgs{Func: store, Gx: 1, Bx: 1}, cuda.ErrorInvalidValue},
		{"too many parameters", wire.LaunchArgs{Func: bounded, Gx: 1, Bx: 1, Params: make([]byte, 40000)}, cuda.ErrorInvalidValue},
		{"unknown stream", wire.LaunchArgs{Func: bounded, Gx: 1, Bx: 1, Stream: 99999}, cuda.ErrorInvalidHandle},
		{"cooperative", wire.LaunchArgs{Func: bounded, Gx: 32, Bx: 64, Flags: wire.LaunchCooperative}, cuda.Success},
		{"cooperative, too many", wire.LaunchArgs{Func: bounded, Gx: 33, Bx: 64, Flags: wire.LaunchCooperative}, cuda.ErrorCooperativeLaunchTooLarge},
		{"cooperative, vast", wire.LaunchArgs{Func: bounded, Gx: 1<<31 - 1, Gy: 65535, Gz: 65535, Bx: 1, Flags: wire.LaunchCooperative}, cuda.ErrorCooperativeLaunchTooLarge},
		{"half an attribute", wire.LaunchArgs{Func: bounded, Gx: 1, Bx: 1, Attrs: make([]byte, 71)}, cuda.ErrorInvalidValue},
		{"unknown attribute", wire.LaunchArgs{Func: bounded, Gx: 1, Bx: 1, Attrs: attribute(77)}, cuda.ErrorInvalidValue},
		{"cluster of one", wire.LaunchArgs{Func: bounded, Gx: 1, Bx: 1, Attrs: attribute(cuda.LaunchAttrClusterDimension, 1, 1, 1)}, cuda.Success},
		{"cluster of two", wire.LaunchArgs{Func: bounded, Gx: 2, Bx: 1, Attrs: attribute(cuda.LaunchAttrClusterDimension, 2, 1, 1)}, cuda.Success},
		{"half a cluster", wire.LaunchArgs{Func: bounded, Gx: 3, Bx: 1, Attrs: attribute(cuda.LaunchAttrClusterDimension, 2, 1, 1)}, cuda.ErrorInvalidClusterSize},
		{"cluster of nine", wire.LaunchArgs{Func: bounded, Gx: 9, Bx: 1, Attrs: attribute(cuda.LaunchAttrClusterDimension, 9, 1, 1)}, cuda.ErrorInvalidClusterSize},
		{"vast cluster", wire.LaunchArgs{Func: bounded, Gx: 1 << 30, Bx: 1, Attrs: attribute(cuda.LaunchAttrClusterDimension, 1<<30, 1<<30, 1<<4)}, cuda.ErrorInvalidClusterSize},
		{"cooperative by attribute", wire.LaunchArgs{Func: bounded, Gx: 33, Bx: 1, Attrs: attribute(cuda.LaunchAttrCooperative, 1)}, cuda.ErrorCooperativeLaunchTooLarge},
		{"event that is not there", wire.LaunchArgs{Func: bounded, Gx: 1, Bx: 1, Attrs: attribute(cuda.LaunchAttrLaunchCompletionEvent, 9)}, cuda.ErrorInvalidHandle},
		{"instruction that is not there", wire.LaunchArgs{Func: kernel("lacking"), Gx: 1, Bx: 1}, cuda.ErrorNotSupported},
	} {
		a := c.a
		if a.Stream == 0 {
			a.Stream = 1
		}
		for _, d := range []*uint32{&a.Gy, &a.Gz, &a.By, &a.Bz} {
			*d = max(*d, 1)
		}
		r.want(r.s.Launch(r.call(wire.OpLaunch), &a), c.want, c.what)
	}
	r.ok(r.sync())
	if out := string(r.host.Output); !strings.Contains(out, "wgmma") {
		t.Errorf("console does not name the instruction: %q", out)
	}
}

// attribute is a CUlaunchAttribute with words as its value.
func attribute(id uint32, words ...uint32) []byte {
	b := make([]byte, attributeSize)
	binary.LittleEndian.PutUint32(b, id)
	for i, w := range words {
		binary.LittleEndian.PutUint32(b[8+4*i:], w)
	}
	return b
}

func TestPrintfComesBeforeTheAnswer(t *testing.T) {
	r := newRig(t, driver.Options{})
	f := r.kernels()("hello")
	for range 20 {
		r.ok(r.launch(f, 1, 1, 1))
		r.ok(r.sync())
		r.host.Deferred(0) // takes the host's lock
		if string(r.host.Output) != "hi\n" {
			t.Fatalf("console %q", r.host.Output)
		}
		r.host.Output = nil
	}
}

func TestFaultsAreSticky(t *testing.T) {
	for _, c := range []struct {
		kernel string
		param  uint64
		want   cuda.Result
	}{
		{"store", 16, cuda.ErrorIllegalAddress},
		{"store", arenaBase + 64, cuda.ErrorIllegalAddress},
		{"store", ^uint64(3), cuda.ErrorIllegalAddress},
		{"trap", 0, cuda.ErrorLaunchFailed},
	} {
		r := newRig(t, driver.Options{})
		kernel := r.kernels()
		st, other := r.stream(0), r.stream(cuda.StreamNonBlocking)
		p := r.alloc(4)
		open := r.hold(other)
		r.ok(r.set(p, 1, 1, other))
		held := r.syncStream(other)
		r.ok(r.launch(kernel(c.kernel), st, 1, 1, c.param))
		r.want(r.finish(r.syncStream(st)).res, c.want, c.kernel)
		r.want(r.host.Sticky, c.want, "told the host")
		_, res := r.tryAlloc(4)
		r.want(res, c.want, "allocation after the fault")
		r.want(r.query(st), c.want, "query after the fault")
		r.want(r.put(p, []byte{1}, 1), c.want, "copy after the fault")
		r.s.cancel() // what waits in the other stream cannot be let go of any more
		r.want(r.finish(held).res, c.want, "wait across the fault")
		_ = open
		r.close()
	}
}

func TestMisalignedStore(t *testing.T) {
	r := newRig(t, driver.Options{})
	r.ok(r.launch(r.kernels()("store"), 1, 1, 1, r.alloc(8)+1))
	r.want(r.sync(), cuda.ErrorMisalignedAddress, "misaligned store")
}

func TestResetHeals(t *testing.T) {
	r := newRig(t, driver.Options{})
	r.ok(r.launch(r.kernels()("trap"), 1, 1, 1))
	r.want(r.sync(), cuda.ErrorLaunchFailed, "trap")
	r.ok(r.s.PrimaryCtxReset(r.call(wire.OpPrimaryCtxReset), &wire.PrimaryCtxResetArgs{Ctx: r.ctx}))
	r.want(r.host.Sticky, cuda.Success, "sticky error after the reset")
	if used, _ := r.s.space.usage(); used != 0 {
		t.Errorf("%d bytes are left after the reset", used)
	}
	r.ok(r.launch(r.kernels()("bump"), 1, 1, 1))
	r.ok(r.sync())
}

func TestOccupancy(t *testing.T) {
	r := newRig(t, driver.Options{})
	kernel := r.kernels()
	bounded, vadd := kernel("bounded"), kernel("vadd")
	for _, c := range []struct {
		f       wire.ID
		block   int32
		dynamic uint64
		want    int32
		res     cuda.Result
	}{
		{vadd, 1024, 0, 2, 0},
		{vadd, 256, 0, 8, 0},
		{vadd, 33, 0, 16, 0},
		{vadd, 32, 48 << 10, 4, 0},
		{vadd, 32, 49 << 10, 0, 0},
		{vadd, 2048, 0, 0, 0},
		{bounded, 64, 0, 16, 0},
		{bounded, 64, 40 << 10, 4, 0},
		{bounded, 128, 0, 0, 0},
		{vadd, 0, 0, 0, cuda.ErrorInvalidValue},
		{vadd, -5, 0, 0, cuda.ErrorInvalidValue},
	} {
		var o wire.OccupancyMaxActiveBlocksReply
		res := r.s.OccupancyMaxActiveBlocks(r.call(wire.OpOccupancyMaxActiveBlocks), &wire.OccupancyMaxActiveBlocksArgs{Func: c.f, Block: c.block, Dynamic: c.dynamic}, &o)
		if res != c.res || o.Blocks != c.want {
			t.Errorf("%+v: %d blocks, %v", c, o.Blocks, res)
		}
	}
}

func TestFunctionAttributes(t *testing.T) {
	r := newRig(t, driver.Options{})
	f := r.kernels()("bounded")
	set := func(attr, value int32) cuda.Result {
		return r.s.FuncSetAttribute(r.call(wire.OpFuncSetAttribute), &wire.FuncSetAttributeArgs{Func: f, Attr: attr, Value: value})
	}
	get := func(attr int32) int32 {
		var v wire.FuncGetAttributeReply
		r.ok(r.s.FuncGetAttribute(r.call(wire.OpFuncGetAttribute), &wire.FuncGetAttributeArgs{Func: f, Attr: attr}, &v))
		return v.Value
	}
	if get(cuda.FuncAttrMaxThreadsPerBlock) != 64 || get(cuda.FuncAttrSharedSizeBytes) != 8192 || get(cuda.FuncAttrMaxDynamicSharedSizeBytes) != 40<<10 {
		t.Errorf("threads %d, shared %d, dynamic %d", get(0), get(1), get(8))
	}
	r.want(set(cuda.FuncAttrMaxDynamicSharedSizeBytes, sharedOptIn-8192), cuda.Success, "all shared memory")
	r.want(set(cuda.FuncAttrMaxDynamicSharedSizeBytes, sharedOptIn-8191), cuda.ErrorInvalidValue, "more than all")
	r.want(set(cuda.FuncAttrMaxDynamicSharedSizeBytes, -1), cuda.ErrorInvalidValue, "negative")
	r.want(set(cuda.FuncAttrNumRegs, 3), cuda.ErrorInvalidValue, "read-only attribute")
	r.want(set(77, 3), cuda.ErrorInvalidValue, "unknown attribute")
	a := wire.LaunchArgs{Func: f, Stream: 1, Gx: 1, Gy: 1, Gz: 1, Bx: 64, By: 1, Bz: 1, Shared: sharedOptIn - 8192}
	r.ok(r.s.Launch(r.call(wire.OpLaunch), &a))
	r.ok(r.sync())
}

// TestCopyBehindFault copies at once behind a kernel that fails: whether the copy finds the kernel
// running or just ended, it reports the fault.
func TestCopyBehindFault(t *testing.T) {
	for range 30 {
		r := newRig(t, driver.Options{})
		f, p := r.kernels()("trap"), r.alloc(64)
		r.ok(r.launch(f, 1, 1, 1))
		if _, res := r.get(p, 4); res != cuda.ErrorLaunchFailed {
			t.Fatalf("copy behind a trap: %v", res)
		}
		r.close()
	}
}
