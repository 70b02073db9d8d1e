package soft

import (
	"encoding/binary"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// Kernels that decide conditions. A module like this comes out of nvcc with the function that sets
// them undefined.
const conditionalPTX = `.version 8.0
.target sm_90
.address_size 64
.extern .func cudaGraphSetConditional(.param .b64 h, .param .b32 v);
.visible .entry count(.param .u64 at, .param .u64 handle, .param .u32 limit)
{
	.reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %d<3>;
	ld.param.u64 %d1, [at]; ld.param.u64 %d2, [handle]; ld.param.u32 %r1, [limit];
	ld.global.u32 %r2, [%d1]; add.u32 %r2, %r2, 1; st.global.u32 [%d1], %r2;
	setp.lt.u32 %p1, %r2, %r1; selp.u32 %r3, 1, 0, %p1;
	{
	.param .b64 p0; .param .b32 p1;
	st.param.b64 [p0], %d2; st.param.b32 [p1], %r3;
	call.uni cudaGraphSetConditional, (p0, p1);
	}
	ret;
}
`

func (r *rig) graph() wire.ID {
	r.t.Helper()
	id := r.id()
	r.ok(r.s.GraphCreate(r.call(wire.OpGraphCreate), &wire.GraphCreateArgs{Graph: id}))
	return id
}

func (r *rig) node(g wire.ID, kind uint32, params []byte, deps ...wire.ID) wire.ID {
	r.t.Helper()
	id := r.id()
	var list []byte
	for _, d := range deps {
		list = binary.LittleEndian.AppendUint32(list, d)
	}
	var reply wire.GraphAddNodeReply
	r.ok(r.s.GraphAddNode(r.call(wire.OpGraphAddNode), &wire.GraphAddNodeArgs{Graph: g, Node: id, Type: kind, Deps: list, Params: params}, &reply))
	return id
}

func kernelParams(f wire.ID, params []byte) []byte {
	v := wire.KernelNode{Func: f, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1, Size: uint32(len(params))}
	return append(v.Append(nil), params...)
}

func (r *rig) instantiate(g wire.ID) wire.ID {
	r.t.Helper()
	id := r.id()
	var reply wire.GraphInstantiateReply
	r.ok(r.s.GraphInstantiate(r.call(wire.OpGraphInstantiate), &wire.GraphInstantiateArgs{Exec: id, Graph: g}, &reply))
	return id
}

func TestConditionSetByKernel(t *testing.T) {
	r := newRig(t, driver.Options{})
	mod, _, res := r.load([]byte(conditionalPTX))
	r.ok(res)
	count := r.function(mod, "count")
	at, g := r.alloc(4), r.graph()
	r.ok(r.set(at, 0, 1, wire.StreamLegacy))
	var h wire.GraphConditionalCreateReply
	r.ok(r.s.GraphConditionalCreate(r.call(wire.OpGraphConditionalCreate), &wire.GraphConditionalCreateArgs{Graph: g, Value: 1, Flags: 1}, &h))
	const while = 1
	body := r.id()
	loop := (&wire.ConditionalNode{Handle: h.Handle, Type: while, Size: 1}).Append(nil)
	r.node(g, wire.NodeConditional, binary.LittleEndian.AppendUint32(loop, body))
	params := binary.LittleEndian.AppendUint64(nil, at)
	params = binary.LittleEndian.AppendUint64(params, h.Handle)
	params = binary.LittleEndian.AppendUint32(params, 10)
	r.node(body, wire.NodeKernel, kernelParams(count, params))
	x := r.instantiate(g)
	r.ok(r.s.GraphDestroy(r.call(wire.OpGraphDestroy), &wire.GraphDestroyArgs{Graph: g}))
	for i, want := range []uint32{10, 11} { // the second launch counts once: only then does it look
		r.ok(r.s.GraphLaunch(r.call(wire.OpGraphLaunch), &wire.GraphLaunchArgs{Exec: x, Stream: wire.StreamLegacy}))
		r.ok(r.sync())
		if got := r.word32(at); got != want {
			t.Errorf("after launch %d: %d, want %d", i, got, want)
		}
	}
}

func TestGraphHostile(t *testing.T) {
	r := newRig(t, driver.Options{})
	g := r.graph()
	for _, c := range []struct {
		name   string
		kind   uint32
		params []byte
		want   cuda.Result
	}{
		{"no such kind", 99, nil, cuda.ErrorNotSupported},
		{"kernel cut short", wire.NodeKernel, make([]byte, 8), cuda.ErrorInvalidValue},
		{"kernel with more parameters than sent", wire.NodeKernel, (&wire.KernelNode{Size: 1 << 31}).Append(nil), cuda.ErrorInvalidValue},
		{"kernel that is not there", wire.NodeKernel, (&wire.KernelNode{Func: 77}).Append(nil), cuda.ErrorInvalidHandle},
		{"copy from nowhere", wire.NodeMemcpy, operands(wire.MemcpyOperand{Ptr: 16, Pitch: 4}, wire.MemcpyOperand{Ptr: 32, Pitch: 4}, 4, 1, 1), cuda.ErrorInvalidValue},
		{"fill of nowhere", wire.NodeMemset, (&wire.MemsetNode{Dst: 16, Element: 1, Width: 4, Height: 1}).Append(nil), cuda.ErrorInvalidValue},
		{"more operations than sent", wire.NodeBatchMemOp, (&wire.BatchNode{Count: 9}).Append(nil), cuda.ErrorInvalidValue},
		{"condition that is not there", wire.NodeConditional, append((&wire.ConditionalNode{Handle: 5, Size: 1}).Append(nil), 0, 1, 0, 0), cuda.ErrorInvalidValue},
		{"a graph in itself", wire.NodeGraph, (&wire.ChildNode{Graph: g}).Append(nil), cuda.ErrorInvalidValue},
		{"free of what no graph has", wire.NodeMemFree, (&wire.FreeNode{Ptr: 64}).Append(nil), cuda.ErrorInvalidValue},
		{"event that is not there", wire.NodeEventRecord, (&wire.EventNode{Event: 5}).Append(nil), cuda.ErrorInvalidHandle},
	} {
		var reply wire.GraphAddNodeReply
		got := r.s.GraphAddNode(r.call(wire.OpGraphAddNode), &wire.GraphAddNodeArgs{Graph: g, Node: r.id(), Type: c.kind, Params: c.params}, &reply)
		r.want(got, c.want, c.name)
	}
	if n := len(r.s.graphs[g].nodes); n != 0 {
		t.Errorf("%d nodes are left of refused ones", n)
	}
}
