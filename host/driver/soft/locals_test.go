package soft

import (
	"fmt"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// localPTX has a kernel that needs so many bytes of local memory for each thread, and a variable.
func localPTX(bytes int) []byte {
	return fmt.Appendf(nil, `.version 8.0
.target sm_90
.address_size 64
.visible .global .align 4 .u32 x;
.visible .entry needs(.param .u64 at)
{
	.local .align 4 .b8 room[%d];
	.reg .b64 %%a; .reg .b32 %%v;
	mov.u64 %%a, room; mov.u32 %%v, 1; st.local.u32 [%%a], %%v;
	ret;
}
`, bytes)
}

// TestLocalMovesVariables: variables that are loaded behind what has a driver take local memory lie
// elsewhere than ahead of it, farther the more that is; and where they would have without when it
// was given back.
func TestLocalMovesVariables(t *testing.T) {
	const cores = 2
	for name, x := range map[string]struct {
		take  func(r *rig, f wire.ID)
		bytes uint64 // for each thread, beside what a context has
	}{
		"nothing": {func(*rig, wire.ID) {}, 0},
		"a launch": {func(r *rig, f wire.ID) {
			r.ok(r.launch(f, wire.StreamLegacy, 1, 1, 0))
			r.ok(r.launch(f, wire.StreamLegacy, 1, 1, 0))
		}, 8192 - 1024},
		"a graph":     {func(r *rig, f wire.ID) { r.graphOf(f) }, 8192 - 1024},
		"a limit":     {func(r *rig, _ wire.ID) { r.stack(4096) }, 3072},
		"a low limit": {func(r *rig, f wire.ID) { r.ok(r.launch(f, wire.StreamLegacy, 1, 1, 0)); r.stack(4096); r.stack(1024) }, 0},
		"once more":   {func(r *rig, f wire.ID) { r.stack(1024); r.ok(r.launch(f, wire.StreamLegacy, 1, 1, 0)) }, 8192 - 1024},
		"made again": {func(r *rig, _ wire.ID) {
			c := r.call(wire.OpLocalMemory)
			r.want(r.s.LocalMemory(c, &wire.LocalMemoryArgs{Bytes: 8192}), cuda.ErrorInvalidValue, "of a guest")
			c.Replay = true
			r.ok(r.s.LocalMemory(c, &wire.LocalMemoryArgs{Bytes: 8192}))
		}, 8192 - 1024},
		"of a context that is gone": {func(r *rig, _ wire.ID) {
			first, other := r.ctx, r.id()
			r.ok(r.s.CtxCreate(r.call(wire.OpCtxCreate), &wire.CtxCreateArgs{Ctx: other}))
			r.ctx = other
			r.stack(1 << 16)
			r.ctx = first
			r.ok(r.s.CtxDestroy(r.call(wire.OpCtxDestroy), &wire.CtxDestroyArgs{Ctx: other}))
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, driver.Options{Cores: cores})
			mod, _, res := r.load(localPTX(8192))
			r.ok(res)
			first := r.variable(mod)
			x.take(r, r.function(mod, "needs"))
			next, _, res := r.load(localPTX(8))
			r.ok(res)
			begin := first &^ (chunkSize - 1)
			if got, far := r.variable(next), x.bytes*cores*threadsPerSM; far == 0 && got-begin >= 1024 || far > 0 && got != begin+far {
				t.Errorf("the first variable is at %#x, the next at %#x, which is %d behind and should be %d", first, got, got-first, far)
			}
		})
	}
}

// TestLocalTooMuch: more than there are addresses for is refused to the launch.
func TestLocalTooMuch(t *testing.T) {
	r := newRig(t, driver.Options{Cores: 1 << 10})
	r.want(r.s.CtxSetLimit(r.call(wire.OpCtxSetLimit), &wire.CtxSetLimitArgs{Limit: cuda.LimitStackSize, Value: maxStackLimit}), cuda.ErrorOutOfMemory, "half a MiB for two million threads")
	var v wire.CtxGetLimitReply
	r.ok(r.s.CtxGetLimit(r.call(wire.OpCtxGetLimit), &wire.CtxGetLimitArgs{Limit: cuda.LimitStackSize}, &v))
	if v.Value != 1024 {
		t.Errorf("the limit is %d then", v.Value)
	}
}

// variable is where a module's is.
func (r *rig) variable(mod wire.ID) uint64 {
	r.t.Helper()
	var v wire.ModuleGetGlobalReply
	r.ok(r.s.ModuleGetGlobal(r.call(wire.OpModuleGetGlobal), &wire.ModuleGetGlobalArgs{Module: mod, Name: []byte("x")}, &v))
	return v.Ptr
}

func (r *rig) stack(bytes uint64) {
	r.t.Helper()
	r.ok(r.s.CtxSetLimit(r.call(wire.OpCtxSetLimit), &wire.CtxSetLimitArgs{Limit: cuda.LimitStackSize, Value: bytes}))
}

// graphOf makes a graph of a kernel executable, and no more.
func (r *rig) graphOf(f wire.ID) {
	r.t.Helper()
	g, n, x := r.id(), r.id(), r.id()
	v := wire.KernelNode{Func: f, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1, Size: 8}
	r.ok(r.s.GraphCreate(r.call(wire.OpGraphCreate), &wire.GraphCreateArgs{Graph: g}))
	r.ok(r.s.GraphAddNode(r.call(wire.OpGraphAddNode), &wire.GraphAddNodeArgs{Graph: g, Node: n, Type: wire.NodeKernel, Params: append(v.Append(nil), make([]byte, 8)...)}, &wire.GraphAddNodeReply{}))
	r.ok(r.s.GraphInstantiate(r.call(wire.OpGraphInstantiate), &wire.GraphInstantiateArgs{Graph: g, Exec: x, Form: wire.GraphFormFlags}, &wire.GraphInstantiateReply{}))
}
