package cuda

import (
	"encoding/binary"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// GraphNodeGetParams tells what a node does that the guest did not add itself.
func (s *session) GraphNodeGetParams(c *wire.Call, a *wire.GraphNodeGetParamsArgs, r *wire.GraphNodeGetParamsReply) cuda.Result {
	n, ok := s.nodes.get(a.Node)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	if res := s.fn.cuGraphNodeGetType.call(n.handle, s.out.addr()); res != cuda.Success {
		return res
	}
	r.Type = uint32(*s.out.i32(0))
	if res := s.useAny(c); res != cuda.Success {
		return res
	}
	p := newBuffer(nodeParamsSize)
	defer p.free()
	res := cuda.Success
	switch r.Type {
	case wire.NodeKernel:
		res = s.kernelNodeOf(n, p, r)
	case wire.NodeMemcpy:
		res = s.memcpyNodeOf(n, p, r)
	case wire.NodeMemset:
		if res = s.fn.cuGraphMemsetNodeGetParams.call(n.handle, p.addr()); res == cuda.Success {
			r.Params = append(r.Params, p.bytes()[:memsetCtx+8]...)
		}
	case wire.NodeHost:
		if res = s.fn.cuGraphHostNodeGetParams.call(n.handle, p.addr()); res == cuda.Success {
			r.Params = (&wire.HostNode{ID: *p.u64(1)}).Append(nil)
		}
	case wire.NodeGraph:
		res = s.childNodeOf(n, a.Fresh, r)
	case wire.NodeWaitEvent:
		res = s.fn.cuGraphEventWaitNodeGetEvent.call(n.handle, p.addr())
		r.Params = (&wire.EventNode{Event: s.eventID(*p.u64(0))}).Append(nil)
	case wire.NodeEventRecord:
		res = s.fn.cuGraphEventRecordNodeGetEvent.call(n.handle, p.addr())
		r.Params = (&wire.EventNode{Event: s.eventID(*p.u64(0))}).Append(nil)
	case wire.NodeMemAlloc:
		res = s.allocNodeOf(n, p, r)
	case wire.NodeMemFree:
		res = s.fn.cuGraphMemFreeNodeGetParams.call(n.handle, p.addr())
		r.Params = (&wire.FreeNode{Ptr: *p.u64(0)}).Append(nil)
	case wire.NodeBatchMemOp:
		res = s.batchNodeOf(n, p, r)
	}
	return res
}

func (s *session) kernelNodeOf(n *graphNode, p buffer, r *wire.GraphNodeGetParamsReply) cuda.Result {
	if res := s.fn.cuGraphKernelNodeGetParams_v2.call(n.handle, p.addr()); res != cuda.Success {
		return res
	}
	b := p.bytes()
	word := func(off int) uint64 { return binary.LittleEndian.Uint64(b[off:]) }
	id, f := s.functionOf(word(kernelFunc), word(kernelKern))
	if f == nil {
		return cuda.ErrorInvalidHandle
	}
	d := func(i int) uint32 { return binary.LittleEndian.Uint32(b[kernelDims+4*i:]) }
	v := wire.KernelNode{Func: id, Gx: d(0), Gy: d(1), Gz: d(2), Bx: d(3), By: d(4), Bz: d(5), Shared: d(6),
		Ctx: s.contextID(word(kernelCtx))}
	packed := s.packedParams(f, word(kernelParamsArray), word(kernelExtra))
	v.Size = uint32(len(packed))
	r.Params = append(v.Append(nil), packed...)
	return cuda.Success
}

// packedParams copies a kernel's parameters from the driver's copy.
func (s *session) packedParams(f *function, array, extra uint64) []byte {
	const extraBuffer, extraSize = 1, 2
	if array == 0 {
		var at, size uint64
		for ; extra != 0 && readWord(extra) != 0; extra += 16 {
			switch readWord(extra) {
			case extraBuffer:
				at = readWord(extra + 8)
			case extraSize:
				size = readWord(readWord(extra + 8))
			}
		}
		if at == 0 || size > maxKernelParams {
			return nil
		}
		return append([]byte(nil), hostBytes(at, int(size))...)
	}
	info := s.fn.cuFuncGetParamInfo
	if f.kernel {
		info = s.fn.cuKernelGetParamInfo
	}
	var packed []byte
	for i := range f.offsets {
		if info.call(f.handle, uint64(i), s.out.addr(), s.out.addr()+8) != cuda.Success {
			break
		}
		off, size := *s.out.u64(0), *s.out.u64(1)
		if end := off + size; end <= maxKernelParams && uint64(len(packed)) < end {
			packed = append(packed, make([]byte, end-uint64(len(packed)))...)
		}
		copy(packed[off:], hostBytes(readWord(array+8*uint64(i)), int(size)))
	}
	return packed
}

// functionOf finds the guest's function or kernel behind the driver's handles, of which one may be 0.
func (s *session) functionOf(fn, kern uint64) (uint32, *function) {
	for id, f := range s.funcs.m {
		if f.handle == fn && !f.kernel || f.handle == kern && f.kernel {
			return id, f
		}
	}
	// A launch of a kernel is captured as one of its function.
	for id, f := range s.funcs.m {
		if f.kernel && s.fn.cuKernelGetFunction.call(s.out.addr(), f.handle) == cuda.Success && *s.out.u64(0) == fn {
			return id, f
		}
	}
	return 0, nil
}

func (s *session) eventID(handle uint64) uint32 {
	for id, e := range s.events.m {
		if e.handle == handle {
			return id
		}
	}
	return 0
}

func (s *session) contextID(handle uint64) uint32 {
	for id, x := range s.ctxs.m {
		if handle != 0 && x.handle == handle {
			return id
		}
	}
	return 0
}

func (s *session) memcpyNodeOf(n *graphNode, p buffer, r *wire.GraphNodeGetParamsReply) cuda.Result {
	if res := s.fn.cuGraphMemcpyNodeGetParams.call(n.handle, p.addr()); res != cuda.Success {
		return res
	}
	for i := range 2 {
		m := p.bytes()[memcpy3DHalf*i:]
		u := func(off int) uint64 { return binary.LittleEndian.Uint64(m[off:]) }
		v := wire.MemcpySide{X: u(0), Y: u(8), Z: u(16), Lod: u(24), Type: uint32(u(half3DType)), Ptr: u(half3DDevice),
			Pitch: u(half3DPitch), Height: u(half3DHeight)}
		if v.Type == memoryTypeHost {
			v.Ptr = u(half3DHost)
		}
		r.Params = v.Append(r.Params)
	}
	u := func(off int) uint64 { return binary.LittleEndian.Uint64(p.bytes()[memcpy3DExtents+off:]) }
	r.Params = (&wire.MemcpyNode{Width: u(0), Height: u(8), Depth: u(16)}).Append(r.Params)
	return cuda.Success
}

func (s *session) childNodeOf(n *graphNode, fresh uint32, r *wire.GraphNodeGetParamsReply) cuda.Result {
	if res := s.fn.cuGraphChildGraphNodeGetGraph.call(n.handle, s.out.addr()); res != cuda.Success {
		return res
	}
	g, res := s.adoptGraph(*s.out.u64(0), fresh, true)
	if res != cuda.Success {
		return res
	}
	if g.id == fresh {
		n.inner = append(n.inner, g)
	}
	r.Params = (&wire.ChildNode{Graph: g.id}).Append(nil)
	return cuda.Success
}

func (s *session) allocNodeOf(n *graphNode, p buffer, r *wire.GraphNodeGetParamsReply) cuda.Result {
	if res := s.fn.cuGraphMemAllocNodeGetParams.call(n.handle, p.addr()); res != cuda.Success {
		return res
	}
	u := func(off int) uint64 { return binary.LittleEndian.Uint64(p.bytes()[off:]) }
	count := min(u(allocCount), maxAccess)
	v := wire.AllocNode{Size: u(allocBytes), Ptr: u(allocPtr), Access: uint32(count)}
	r.Params = append(v.Append(nil), p.bytes()[:allocProps]...)
	if count > 0 {
		r.Params = append(r.Params, hostBytes(u(allocAccess), int(count)*accessDescSize)...)
	}
	return cuda.Success
}

func (s *session) batchNodeOf(n *graphNode, p buffer, r *wire.GraphNodeGetParamsReply) cuda.Result {
	if res := s.fn.cuGraphBatchMemOpNodeGetParams.call(n.handle, p.addr()); res != cuda.Success {
		return res
	}
	b := p.bytes()
	v := wire.BatchNode{Ctx: s.contextID(*p.u64(0)), Count: binary.LittleEndian.Uint32(b[batchCount:]),
		Flags: binary.LittleEndian.Uint32(b[batchFlags:])}
	r.Params = v.Append(nil)
	if v.Count > 0 && v.Count <= maxBatchOps {
		r.Params = append(r.Params, hostBytes(*p.u64(2), int(v.Count)*batchOpSize)...)
	}
	return cuda.Success
}
