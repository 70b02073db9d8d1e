package cuda

import (
	"encoding/binary"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

// GraphNodeGetParams tells what a node does that the guest did not add itself.
func (s *session) GraphNodeGetParams(c *wire.Call, a *wire.GraphNodeGetParamsArgs, r *wire.GraphNodeGetParamsReply) cuda.Result {
	n, ok := s.nodes.get(a.Node)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	kind, res := s.typeOf(n.handle)
	if res != cuda.Success {
		return res
	}
	r.Type = kind
	if s.memParams(n.handle, r) {
		return cuda.Success
	}
	if res := s.useAny(c); res != cuda.Success {
		return res
	}
	switch r.Type {
	case wire.NodeKernel:
		res = s.kernelNodeOf(n, r)
	case wire.NodeMemcpy:
		res = s.memcpyNodeOf(n, r)
	case wire.NodeMemset:
		var f bind.Fill
		if f, res = s.drv.FillOf(n.handle); res == cuda.Success {
			r.Params = (&wire.MemsetNode{Dst: f.Ptr, Pitch: f.Pitch, Value: f.Value, Element: f.Element, Width: f.Width, Height: f.Height}).Append(nil)
		}
	case wire.NodeHost:
		var id uint64
		if id, res = s.drv.HostOf(n.handle); res == cuda.Success {
			r.Params = (&wire.HostNode{ID: id}).Append(nil)
		}
	case wire.NodeGraph:
		res = s.childNodeOf(n, a.Fresh, r)
	case wire.NodeWaitEvent, wire.NodeEventRecord:
		ask := s.drv.GraphEventRecordNodeGetEvent
		if r.Type == wire.NodeWaitEvent {
			ask = s.drv.GraphEventWaitNodeGetEvent
		}
		var e bind.Event
		e, res = ask(n.handle)
		r.Params = (&wire.EventNode{Event: s.eventID(e)}).Append(nil)
	case wire.NodeMemAlloc:
		res = s.allocNodeOf(n, r)
	case wire.NodeMemFree:
		var at bind.Address
		at, res = s.drv.GraphMemFreeNodeGetParams(n.handle)
		r.Params = (&wire.FreeNode{Ptr: at.Value()}).Append(nil)
	case wire.NodeBatchMemOp:
		res = s.batchNodeOf(n, r)
	case wire.NodeConditional: // the driver does not tell
		if n.cond == nil {
			return cuda.ErrorNotSupported
		}
		r.Params = n.cond.Append(nil)
		for _, g := range n.inner {
			r.Params = binary.LittleEndian.AppendUint32(r.Params, g.id)
		}
	}
	return res
}

func (s *session) kernelNodeOf(n *graphNode, r *wire.GraphNodeGetParamsReply) cuda.Result {
	l, res := s.drv.LaunchOf(n.handle)
	if res != cuda.Success {
		return res
	}
	id, f := s.functionOf(l.Function, l.Kernel)
	if f == nil {
		return cuda.ErrorInvalidHandle
	}
	d, packed := l.Dims, l.Packed(f.layout)
	v := wire.KernelNode{Func: id, Gx: d[0], Gy: d[1], Gz: d[2], Bx: d[3], By: d[4], Bz: d[5], Shared: d[6],
		Ctx: s.contextID(l.Context), Size: uint32(len(packed))}
	r.Params = append(v.Append(nil), packed...)
	return cuda.Success
}

// functionOf finds the guest's function or kernel behind the driver's handles, of which one may be
// none.
func (s *session) functionOf(fn bind.Function, kernel bind.Kernel) (uint32, *function) {
	for id, f := range s.funcs.m {
		if f.isKernel() && f.kernel == kernel || !f.isKernel() && f.handle == fn {
			return id, f
		}
	}
	// A launch of a kernel is captured as one of its function.
	for id, f := range s.funcs.m {
		if !f.isKernel() {
			continue
		}
		if h, res := s.drv.KernelGetFunction(f.kernel); res == cuda.Success && h == fn {
			return id, f
		}
	}
	return 0, nil
}

func (s *session) eventID(handle bind.Event) uint32 {
	for id, e := range s.events.m {
		if e.handle == handle {
			return id
		}
	}
	return 0
}

func (s *session) contextID(handle bind.Context) uint32 {
	for id, x := range s.ctxs.m {
		if !handle.IsZero() && x.handle == handle {
			return id
		}
	}
	return 0
}

func (s *session) memcpyNodeOf(n *graphNode, r *wire.GraphNodeGetParamsReply) cuda.Result {
	var m bind.Memcpy3D
	if res := s.drv.GraphMemcpyNodeGetParams(n.handle, &m); res != cuda.Success {
		return res
	}
	src, dst, e := m.Operands()
	for _, x := range []bind.NodeOperand{src, dst} {
		v := wire.MemcpyOperand{X: x.X, Y: x.Y, Z: x.Z, Lod: x.Lod, Type: x.Type, Ptr: x.Ptr, Pitch: x.Pitch, Height: x.Height}
		r.Params = v.Append(r.Params)
	}
	r.Params = (&wire.MemcpyNode{Width: e.Width, Height: e.Height, Depth: e.Depth}).Append(r.Params)
	return cuda.Success
}

func (s *session) childNodeOf(n *graphNode, fresh uint32, r *wire.GraphNodeGetParamsReply) cuda.Result {
	h, res := s.drv.GraphChildGraphNodeGetGraph(n.handle)
	if res != cuda.Success {
		return res
	}
	g, res := s.adoptGraph(h, fresh, n)
	if res != cuda.Success {
		return res
	}
	if g.id == fresh {
		n.inner = append(n.inner, g)
	}
	r.Params = (&wire.ChildNode{Graph: g.id}).Append(nil)
	return cuda.Success
}

func (s *session) allocNodeOf(n *graphNode, r *wire.GraphNodeGetParamsReply) cuda.Result {
	a, res := s.drv.AllocationOf(n.handle, maxAccess)
	if res != cuda.Success {
		return res
	}
	v := wire.AllocNode{Size: a.Size, Ptr: a.Ptr, Access: uint32(len(a.Access) / bind.AccessDescSize)}
	r.Params = append(append(v.Append(nil), a.Props...), a.Access...)
	return cuda.Success
}

func (s *session) batchNodeOf(n *graphNode, r *wire.GraphNodeGetParamsReply) cuda.Result {
	ctx, count, flags, ops, res := s.drv.MemOpsOf(n.handle, maxBatchOps)
	if res != cuda.Success {
		return res
	}
	v := wire.BatchNode{Ctx: s.contextID(ctx), Count: count, Flags: flags}
	r.Params = append(v.Append(nil), ops...)
	return cuda.Success
}
