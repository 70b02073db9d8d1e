package conformance

import (
	"encoding/binary"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
)

const managedKernels = `.version 6.4
.target sm_75
.address_size 64
.global .attribute(.managed) .align 4 .u32 count = 5;
.global .attribute(.managed) .align 4 .b8 list[16] = {1, 2, 3};
.visible .entry next()
{
	.reg .b32 %r<3>; .reg .b64 %d<2>;
	ld.global.u32 %r1, [count];
	add.u32 %r1, %r1, 1;
	st.global.u32 [count], %r1;
	mov.u64 %d1, list;
	st.global.u32 [%d1+12], %r1;
	ret;
}
`

// pinned adds a pinned region of a page.
func (g *Guest) pinned(id uint32) []byte {
	g.t.Helper()
	mem := g.AddRegion(id, wire.RegionPinned, 4096)
	var added wire.RegionAddReply
	g.ok(g.Session.RegionAdd(g.call(wire.OpRegionAdd), &wire.RegionAddArgs{Region: id, Kind: wire.RegionPinned, Va: address(mem), Size: 4096}, &added), "RegionAdd")
	return mem
}

// testManagedVariables: they move into guest memory, with their values, and kernels follow.
func testManagedVariables(t *testing.T, g *Guest) {
	lib, kernel, fn := g.ID(), g.ID(), g.ID()
	manage := func(region uint32) (uint64, cuda.Result) {
		var r wire.LibraryManageReply
		res := g.Session.LibraryManage(g.call(wire.OpLibraryManage), &wire.LibraryManageArgs{Library: lib, Region: region}, &r)
		return r.Size, res
	}
	if _, res := manage(0); res != cuda.ErrorInvalidHandle {
		t.Errorf("a library that is not there: %v", res)
	}
	var loaded wire.LibraryLoadReply
	g.ok(g.Session.LibraryLoad(g.call(wire.OpLibraryLoad), &wire.LibraryLoadArgs{Library: lib, Image: []byte(managedKernels)}, &loaded), "LibraryLoad")
	size, res := manage(0)
	g.ok(res, "LibraryManage without a region")
	if size < 20 || size > 4096 || loaded.Managed != size {
		t.Fatalf("20 bytes of variables need %d, told %d", size, loaded.Managed)
	}
	if _, res := manage(9); res != cuda.ErrorInvalidValue {
		t.Errorf("a region that is not there: %v", res)
	}
	mem := g.pinned(9)
	_, res = manage(9)
	g.ok(res, "LibraryManage")
	where := func(name string, size uint64) []byte {
		var r wire.LibraryGetGlobalReply
		g.ok(g.Session.LibraryGetGlobal(g.call(wire.OpLibraryGetGlobal), &wire.LibraryGetGlobalArgs{Library: lib, Managed: 1, Name: []byte(name)}, &r), name)
		if r.Size != size || r.Ptr < address(mem) || r.Ptr+r.Size > address(mem)+4096 {
			t.Fatalf("%s: %d bytes at %#x, region at %#x", name, r.Size, r.Ptr, address(mem))
		}
		return mem[r.Ptr-address(mem):][:size]
	}
	count, list := where("count", 4), where("list", 16)
	if binary.LittleEndian.Uint32(count) != 5 || list[0] != 1 || list[2] != 3 || list[3] != 0 {
		t.Errorf("first values: %v, %v", count, list)
	}
	binary.LittleEndian.PutUint32(count, 100)
	g.ok(g.Session.LibraryGetKernel(g.call(wire.OpLibraryGetKernel), &wire.LibraryGetKernelArgs{Kernel: kernel, Library: lib, Name: []byte("next")}, &wire.LibraryGetKernelReply{}), "LibraryGetKernel")
	g.ok(g.Session.KernelGetFunction(g.call(wire.OpKernelGetFunction), &wire.KernelGetFunctionArgs{Func: fn, Kernel: kernel}, &wire.KernelGetFunctionReply{}), "KernelGetFunction")
	g.ok(g.Session.Launch(g.call(wire.OpLaunch), &wire.LaunchArgs{Func: fn, Stream: 1, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1}), "Launch")
	res, _ = g.wait(wire.OpStreamSynchronize, func(c *wire.Call) cuda.Result {
		return g.Session.StreamSynchronize(c, &wire.StreamSynchronizeArgs{Stream: 1})
	})
	g.ok(res, "StreamSynchronize")
	if binary.LittleEndian.Uint32(count) != 101 || binary.LittleEndian.Uint32(list[12:]) != 101 {
		t.Errorf("after a kernel: %v, %v", count, list)
	}
	g.ok(g.Session.LibraryUnload(g.call(wire.OpLibraryUnload), &wire.LibraryUnloadArgs{Library: lib}), "LibraryUnload")
}

// testManagedOfModules: the same for modules, each of which has its own, and only before anything
// is looked up.
func testManagedOfModules(t *testing.T, g *Guest) {
	load := func() wire.ID {
		g.t.Helper()
		mod := g.ID()
		var r wire.ModuleLoadReply
		g.ok(g.Session.ModuleLoad(g.call(wire.OpModuleLoad), &wire.ModuleLoadArgs{Module: mod, Image: []byte(managedKernels)}, &r), "ModuleLoad")
		if r.Managed < 20 || r.Managed > 4096 {
			t.Fatalf("20 bytes of variables need %d", r.Managed)
		}
		return mod
	}
	manage := func(mod wire.ID, region uint32) cuda.Result {
		return g.Session.ModuleManage(g.call(wire.OpModuleManage), &wire.ModuleManageArgs{Module: mod, Region: region}, &wire.ModuleManageReply{})
	}
	count := func(mod wire.ID) (uint64, cuda.Result) {
		var r wire.ModuleGetGlobalReply
		res := g.Session.ModuleGetGlobal(g.call(wire.OpModuleGetGlobal), &wire.ModuleGetGlobalArgs{Module: mod, Name: []byte("count")}, &r)
		return r.Ptr, res
	}
	if res := manage(g.ID(), 9); res != cuda.ErrorInvalidHandle {
		t.Errorf("a module that is not there: %v", res)
	}
	one, two, late := load(), load(), load()
	if _, res := count(one); res != cuda.ErrorNotSupported {
		t.Errorf("a variable out of the guest's reach: %v", res)
	}
	first, second := g.pinned(9), g.pinned(10)
	g.ok(manage(one, 9), "ModuleManage")
	g.ok(manage(two, 10), "ModuleManage of a second copy")
	if res := manage(one, 9); res != cuda.ErrorInvalidValue {
		t.Errorf("moved twice: %v", res)
	}
	fn := g.kernel(one, "next")
	for range 2 {
		g.ok(g.Session.Launch(g.call(wire.OpLaunch), &wire.LaunchArgs{Func: fn, Stream: 1, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1}), "Launch")
	}
	g.ok(g.sync(), "CtxSynchronize")
	check := func(mod wire.ID, mem []byte, want uint32) {
		g.t.Helper()
		at, res := count(mod)
		g.ok(res, "ModuleGetGlobal")
		if off := at - address(mem); off > 4092 || binary.LittleEndian.Uint32(mem[off:]) != want {
			t.Errorf("count at %#x of a region at %#x, want %d there", at, address(mem), want)
		}
	}
	check(one, first, 7)
	check(two, second, 5)
	g.kernel(late, "next")
	if res := manage(late, 9); res != cuda.ErrorNotSupported {
		t.Errorf("moved under a function: %v", res)
	}
	for _, mod := range []wire.ID{one, two, late} {
		g.ok(g.Session.ModuleUnload(g.call(wire.OpModuleUnload), &wire.ModuleUnloadArgs{Module: mod}), "ModuleUnload")
	}
}

// testManagedAtGPU: a module's variables in device memory, with their first values.
func testManagedAtGPU(t *testing.T, g *Guest) {
	mod, fn := g.ID(), g.ID()
	var loaded wire.ModuleLoadReply
	g.ok(g.Session.ModuleLoad(g.call(wire.OpModuleLoad), &wire.ModuleLoadArgs{Module: mod, Image: []byte(managedKernels)}, &loaded), "ModuleLoad")
	manage := func(at uint64) cuda.Result {
		return g.Session.ModuleManage(g.call(wire.OpModuleManage), &wire.ModuleManageArgs{Module: mod, At: at}, &wire.ModuleManageReply{})
	}
	at := g.alloc(4096)
	g.ok(g.Session.Memset(g.call(wire.OpMemset), &wire.MemsetArgs{Dst: at, Element: 1, Width: 4096, Height: 1, Stream: 1}), "Memset")
	if res := manage(at + 4096 - 8); res != cuda.ErrorInvalidValue {
		t.Errorf("memory that ends before the variables do: %v", res)
	}
	if res := manage(64); res != cuda.ErrorInvalidValue {
		t.Errorf("no memory: %v", res)
	}
	g.ok(manage(at), "ModuleManage")
	if res := manage(at); res != cuda.ErrorInvalidValue {
		t.Errorf("again: %v", res)
	}
	where := func(name string) uint64 {
		var r wire.ModuleGetGlobalReply
		g.ok(g.Session.ModuleGetGlobal(g.call(wire.OpModuleGetGlobal), &wire.ModuleGetGlobalArgs{Module: mod, Name: []byte(name)}, &r), name)
		if r.Ptr < at || r.Ptr+r.Size > at+4096 {
			t.Fatalf("%s: %d bytes at %#x, memory at %#x", name, r.Size, r.Ptr, at)
		}
		return r.Ptr
	}
	count, list := where("count"), where("list")
	if v, l := binary.LittleEndian.Uint32(g.get(count, 4)), g.get(list, 16); v != 5 || l[0] != 1 || l[2] != 3 || l[3] != 0 {
		t.Errorf("first values: %v, %v", v, l)
	}
	g.ok(g.Session.ModuleGetFunction(g.call(wire.OpModuleGetFunction), &wire.ModuleGetFunctionArgs{Func: fn, Module: mod, Name: []byte("next")}, &wire.ModuleGetFunctionReply{}), "ModuleGetFunction")
	g.ok(g.Session.Launch(g.call(wire.OpLaunch), &wire.LaunchArgs{Func: fn, Stream: 1, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1}), "Launch")
	if v, l := binary.LittleEndian.Uint32(g.get(count, 4)), g.get(list, 16); v != 6 || binary.LittleEndian.Uint32(l[12:]) != 6 {
		t.Errorf("after a kernel: %v, %v", v, l)
	}
	g.ok(g.Session.ModuleUnload(g.call(wire.OpModuleUnload), &wire.ModuleUnloadArgs{Module: mod}), "ModuleUnload")
}
