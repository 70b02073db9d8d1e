package soft

import (
	"encoding/binary"
	"strings"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// container is a fatbin with stored entries.
func container(entries ...[]byte) []byte {
	var body []byte
	for _, e := range entries {
		body = append(body, e...)
	}
	le := binary.LittleEndian
	b := le.AppendUint32(nil, 0xba55ed50)
	b = le.AppendUint16(b, 1)
	b = le.AppendUint16(b, 16)
	b = le.AppendUint64(b, uint64(len(body)))
	return append(b, body...)
}

// stored is a fatbin entry: kind 1 is PTX, 2 machine code.
func stored(kind uint16, sm uint32, payload []byte) []byte {
	le := binary.LittleEndian
	for len(payload)%8 != 0 {
		payload = append(payload, 0)
	}
	b := make([]byte, 64, 64+len(payload))
	le.PutUint16(b, kind)
	le.PutUint16(b[2:], 0x0101)
	le.PutUint32(b[4:], 64)
	le.PutUint64(b[8:], uint64(len(payload)))
	le.PutUint32(b[24:], 8<<16)
	le.PutUint32(b[28:], sm)
	le.PutUint64(b[40:], 0x11)
	return append(b, payload...)
}

func ptxFor(sm string) []byte {
	return []byte(".version 8.0\n.target sm_" + sm + "\n.address_size 64\n.visible .entry of" + sm + "() { ret; }\n")
}

func TestImages(t *testing.T) {
	cubin := append([]byte("\x7fELF\x02\x01"), make([]byte, 100)...)
	for _, c := range []struct {
		name  string
		image []byte
		want  cuda.Result
		log   string // part of the error log
		entry string
	}{
		{"PTX", ptxFor("75"), cuda.Success, "", "of75"},
		{"PTX behind a NUL", append(ptxFor("75"), "\x00garbage"...), cuda.Success, "", "of75"},
		{"nothing", nil, cuda.ErrorInvalidImage, "neither", ""},
		{"garbage", []byte("garbage"), cuda.ErrorInvalidImage, "neither", ""},
		{"cubin", cubin, cuda.ErrorNoBinaryForGPU, "runs PTX only", ""},
		{"best of a fatbin", container(stored(1, 75, ptxFor("75")), stored(2, 90, cubin), stored(1, 90, ptxFor("90")), stored(1, 100, ptxFor("100"))), cuda.Success, "", "of90"},
		{"fatbin without PTX", container(stored(2, 90, cubin)), cuda.ErrorNoBinaryForGPU, "machine code for sm_90", ""},
		{"fatbin for newer GPUs", container(stored(1, 120, ptxFor("120"))), cuda.ErrorNoBinaryForGPU, "PTX for sm_120", ""},
		{"cut fatbin", container(stored(1, 75, ptxFor("75")))[:50], cuda.ErrorInvalidImage, "fatbin", ""},
		{"syntax error", []byte(".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry f( { ret; }\n"), cuda.ErrorInvalidPTX, "line 4", ""},
		{"unknown instruction", []byte(strings.Replace(string(ptxFor("75")), "ret", "frob.u32 %r1", 1)), cuda.ErrorInvalidPTX, "", ""},
		{"too new a target", ptxFor("100"), cuda.ErrorInvalidPTX, "sm_100", ""},
		{"too new a version", []byte(strings.Replace(string(ptxFor("75")), "8.0", "12.0", 1)), cuda.ErrorUnsupportedPTXVersion, "12.0", ""},
		{"too much shared memory", []byte(".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry f() { .shared .align 4 .b8 s[50000]; .reg .b32 %r<2>; mov.u32 %r1, 0; st.shared.u32 [s], %r1; ret; }\n"), cuda.ErrorInvalidPTX, "too much shared data", ""},
		{"a vast variable", []byte(".version 8.0\n.target sm_75\n.address_size 64\n.global .b8 v[1099511627776];\n"), cuda.ErrorOutOfMemory, "v", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, driver.Options{MemoryLimit: 1 << 30})
			mod, reply, res := r.load(c.image)
			errs := string(reply.Logs[reply.InfoLen:])
			if res != c.want || !strings.Contains(errs, c.log) || (res == cuda.Success) != (errs == "") {
				t.Fatalf("%v, log %q", res, errs)
			}
			if uint32(len(errs)) != reply.ErrLen {
				t.Errorf("log of %d bytes, said to have %d", len(errs), reply.ErrLen)
			}
			if res == cuda.Success {
				r.ok(r.launch(r.function(mod, c.entry), 1, 1, 1))
				r.ok(r.sync())
			}
		})
	}
}

func TestLogsFit(t *testing.T) {
	r := newRig(t, driver.Options{})
	for _, limit := range []uint32{0, 1, 20, 1 << 31} {
		var reply wire.ModuleLoadReply
		res := r.s.ModuleLoad(r.call(wire.OpModuleLoad), &wire.ModuleLoadArgs{Module: r.id(), ErrCap: limit, Image: []byte("garbage")}, &reply)
		r.want(res, cuda.ErrorInvalidImage, "garbage")
		if n := uint32(len(reply.Logs)); n != reply.ErrLen || n > 0 && n >= limit {
			t.Errorf("log of %d bytes for a buffer of %d", n, limit)
		}
	}
}

func TestOptions(t *testing.T) {
	pair := func(opt, value uint64) []byte {
		return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, opt), value)
	}
	r := newRig(t, driver.Options{})
	for _, c := range []struct {
		options []byte
		want    cuda.Result
	}{
		{pair(cuda.JITMaxRegisters, 32), cuda.Success},
		{append(pair(cuda.JITOptimizationLevel, 4), pair(cuda.JITGenerateLineInfo, 1)...), cuda.Success},
		{pair(cuda.JITGlobalSymbolCount, 1), cuda.ErrorNotSupported},
		{pair(1<<40, 1), cuda.ErrorInvalidValue},
	} {
		res := r.s.ModuleLoad(r.call(wire.OpModuleLoad), &wire.ModuleLoadArgs{Module: r.id(), Options: c.options, Image: ptxFor("75")}, new(wire.ModuleLoadReply))
		r.want(res, c.want, string(c.options))
	}
}

func TestLibrary(t *testing.T) {
	r := newRig(t, driver.Options{})
	current := r.ctx
	r.ctx = 0 // libraries need no context
	lib, kern := r.id(), r.id()
	r.ok(r.s.LibraryLoad(r.call(wire.OpLibraryLoad), &wire.LibraryLoadArgs{Library: lib, Image: []byte(testPTX)}, new(wire.LibraryLoadReply)))
	r.ok(r.s.LibraryGetKernel(r.call(wire.OpLibraryGetKernel), &wire.LibraryGetKernelArgs{Library: lib, Kernel: kern, Name: []byte("bump")}, new(wire.LibraryGetKernelReply)))
	r.want(r.launch(kern, 1, 1, 1), cuda.ErrorInvalidContext, "launch without a context")

	second := r.id()
	r.ok(r.s.CtxCreate(r.call(wire.OpCtxCreate), &wire.CtxCreateArgs{Ctx: second}))
	seen := map[uint64]bool{}
	for i, ctx := range []wire.ID{current, second} {
		r.ctx = ctx
		for range i + 1 {
			r.ok(r.launch(kern, 1, 1, 1))
		}
		var g wire.LibraryGetGlobalReply
		r.ok(r.s.LibraryGetGlobal(r.call(wire.OpLibraryGetGlobal), &wire.LibraryGetGlobalArgs{Library: lib, Name: []byte("counter")}, &g))
		if v := r.word32(g.Ptr); v != uint32(7+5*(i+1)) || seen[g.Ptr] {
			t.Errorf("context %d: counter at %#x is %d", i, g.Ptr, v)
		}
		seen[g.Ptr] = true
		fn := r.id()
		r.ok(r.s.KernelGetFunction(r.call(wire.OpKernelGetFunction), &wire.KernelGetFunctionArgs{Kernel: kern, Func: fn}, new(wire.KernelGetFunctionReply)))
		mod := r.id()
		r.ok(r.s.FuncGetModule(r.call(wire.OpFuncGetModule), &wire.FuncGetModuleArgs{Func: fn, Module: mod}))
		r.want(r.s.ModuleUnload(r.call(wire.OpModuleUnload), &wire.ModuleUnloadArgs{Module: mod}), cuda.ErrorInvalidHandle, "unload of a library's module")
	}
	var names wire.LibraryListKernelsReply
	r.ok(r.s.LibraryListKernels(r.call(wire.OpLibraryListKernels), &wire.LibraryListKernelsArgs{Library: lib}, &names))
	if !strings.HasPrefix(string(names.Names), "vadd\x00bump\x00store\x00") {
		t.Errorf("kernels %q", names.Names)
	}
	r.ok(r.s.CtxDestroy(r.call(wire.OpCtxDestroy), &wire.CtxDestroyArgs{Ctx: second}))
	r.ctx = current
	r.ok(r.launch(kern, 1, 1, 1))
	r.ok(r.s.LibraryUnload(r.call(wire.OpLibraryUnload), &wire.LibraryUnloadArgs{Library: lib}))
	r.want(r.launch(kern, 1, 1, 1), cuda.ErrorInvalidHandle, "kernel of an unloaded library")
	r.ok(r.sync())
	if used, _ := r.s.space.usage(); used != 0 {
		t.Errorf("%d bytes are left of the library", used)
	}
}
