package cuda

import (
	"encoding/binary"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// CUgraphNodeParams: type, three reserved words, a union of 232 bytes, a reserved word. Offsets of the fields of its members.
const (
	nodeParamsSize = 256
	nodeUnion      = 16

	kernelParamsSize  = 72
	kernelFunc        = 0
	kernelDims        = 8 // grid, block, shared
	kernelParamsArray = 40
	kernelExtra       = 48
	kernelKern        = 56
	kernelCtx         = 64

	memcpyCtx  = 8
	memcpyBody = 16 // CUDA_MEMCPY3D

	memsetSize = 48
	memsetCtx  = 40

	allocProps      = 88 // CUmemPoolProps
	allocAccess     = 88
	allocCount      = 96
	allocBytes      = 104
	allocPtr        = 112
	accessDescSize  = 12
	maxAccess       = 64
	batchOpSize     = 48
	maxBatchOps     = 256
	batchCount      = 8
	batchArray      = 16
	batchFlags      = 24
	condType        = 8
	condSize        = 12
	condBodies      = 16
	condCtx         = 24
	maxCondBodies   = 1 << 16
	maxKernelParams = 32764
)

// nodeParams is a CUgraphNodeParams in C memory with what it points to.
type nodeParams struct {
	buffer
	kind   uint32
	more   []buffer
	alloc  uint64   // bytes that an allocation node takes
	bodies []uint32 // ids for the graphs of a conditional node
	moved  *graph   // what a child node takes over
}

func (p *nodeParams) free() {
	p.buffer.free()
	for _, b := range p.more {
		b.free()
	}
}

func (p *nodeParams) keep(b buffer) uint64 {
	p.more = append(p.more, b)
	return b.addr()
}

func (p *nodeParams) u64(off int) uint64         { return binary.LittleEndian.Uint64(p.bytes()[off:]) }
func (p *nodeParams) put64(off int, v uint64)    { binary.LittleEndian.PutUint64(p.bytes()[off:], v) }
func (p *nodeParams) put32(off int, v uint32)    { binary.LittleEndian.PutUint32(p.bytes()[off:], v) }
func (p *nodeParams) member64(off int, v uint64) { p.put64(nodeUnion+off, v) }
func (p *nodeParams) member32(off int, v uint32) { p.put32(nodeUnion+off, v) }

// nodeParams builds the driver's form of a node's parameters. To be freed.
func (s *session) nodeParams(c *wire.Call, kind uint32, b []byte) (*nodeParams, cuda.Result) {
	p := &nodeParams{buffer: newBuffer(nodeParamsSize), kind: kind}
	p.put32(0, kind)
	var res cuda.Result
	switch kind {
	case wire.NodeKernel:
		res = s.kernelNode(c, p, b)
	case wire.NodeMemcpy:
		res = s.memcpyNode(c, p, b)
	case wire.NodeMemset:
		res = s.memsetNode(c, p, b)
	case wire.NodeHost:
		res = s.hostNode(p, b)
	case wire.NodeGraph:
		res = s.childNode(p, b)
	case wire.NodeEmpty:
	case wire.NodeWaitEvent, wire.NodeEventRecord:
		res = s.eventNode(p, b)
	case wire.NodeMemAlloc:
		res = s.allocNode(p, b)
	case wire.NodeMemFree:
		var v wire.FreeNode
		if v.Decode(b) != nil {
			res = cuda.ErrorInvalidValue
		}
		p.member64(0, v.Ptr)
	case wire.NodeBatchMemOp:
		res = s.batchNode(c, p, b)
	case wire.NodeConditional:
		res = s.conditionalNode(c, p, b)
	default:
		res = cuda.ErrorNotSupported
	}
	if res != cuda.Success {
		p.free()
		return nil, res
	}
	return p, cuda.Success
}

func (s *session) kernelNode(c *wire.Call, p *nodeParams, b []byte) cuda.Result {
	var v wire.KernelNode
	if v.Decode(b) != nil || len(b)-wire.KernelNodeSize < int(v.Size) || v.Size > maxKernelParams {
		return cuda.ErrorInvalidValue
	}
	f, ok := s.funcs.get(v.Func)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	// The driver reads as many bytes as the function's parameters take.
	for _, off := range f.offsets {
		if off >= v.Size {
			return cuda.ErrorInvalidValue
		}
	}
	ctx, res := s.nodeContext(c, v.Ctx)
	if res != cuda.Success {
		return res
	}
	if f.kernel {
		p.member64(kernelKern, f.handle)
		p.member64(kernelCtx, ctx)
	} else {
		p.member64(kernelFunc, f.handle)
	}
	for i, d := range []uint32{v.Gx, v.Gy, v.Gz, v.Bx, v.By, v.Bz, v.Shared} {
		p.member32(kernelDims+4*i, d)
	}
	if v.Size > 0 {
		const extraBuffer, extraSize = 1, 2
		packed := p.keep(bufferOf(b[wire.KernelNodeSize:][:v.Size]))
		extra := newBuffer(48)
		at := p.keep(extra)
		*extra.u64(0), *extra.u64(1), *extra.u64(2), *extra.u64(3) = extraBuffer, packed, extraSize, at+40
		*extra.u64(5) = uint64(v.Size)
		p.member64(kernelExtra, at)
	}
	return cuda.Success
}

func (s *session) memcpyNode(c *wire.Call, p *nodeParams, b []byte) cuda.Result {
	var side [2]wire.MemcpySide
	var v wire.MemcpyNode
	const half = wire.MemcpySideSize
	if len(b) < 2*half || side[0].Decode(b) != nil || side[1].Decode(b[half:]) != nil || v.Decode(b[2*half:]) != nil {
		return cuda.ErrorInvalidValue
	}
	ctx, res := s.nodeContext(c, v.Ctx)
	if res != cuda.Success {
		return res
	}
	p.member64(memcpyCtx, ctx)
	m := p.bytes()[nodeUnion+memcpyBody:]
	for i := range side {
		if res := s.memcpySide(m[memcpy3DHalf*i:], &side[i], &v); res != cuda.Success {
			return res
		}
	}
	binary.LittleEndian.PutUint64(m[memcpy3DExtents:], v.Width)
	binary.LittleEndian.PutUint64(m[memcpy3DExtents+8:], v.Height)
	binary.LittleEndian.PutUint64(m[memcpy3DExtents+16:], v.Depth)
	return cuda.Success
}

// memcpySide writes half of a CUDA_MEMCPY3D after checking that the guest may name that memory.
func (s *session) memcpySide(m []byte, v *wire.MemcpySide, n *wire.MemcpyNode) cuda.Result {
	le := binary.LittleEndian
	for i, x := range []uint64{v.X, v.Y, v.Z, v.Lod} {
		le.PutUint64(m[8*i:], x)
	}
	le.PutUint32(m[half3DType:], v.Type)
	le.PutUint64(m[half3DPitch:], v.Pitch)
	le.PutUint64(m[half3DHeight:], v.Height)
	if v.Type == memoryTypeArray {
		return s.putArray(m, box{ptr: uint64(v.Array), x: v.X, y: v.Y, z: v.Z})
	}
	x := box{ptr: v.Ptr, pitch: v.Pitch, height: v.Height, x: v.X, y: v.Y, z: v.Z}
	span, ok := x.span(n.Width, n.Height, n.Depth)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	switch v.Type {
	case memoryTypeHost:
		le.PutUint64(m[half3DHost:], v.Ptr)
	case memoryTypeDevice, memoryTypeUVA:
		le.PutUint64(m[half3DDevice:], v.Ptr)
	default:
		return cuda.ErrorNotSupported
	}
	return s.reachable(v.Ptr, span)
}

func (s *session) memsetNode(c *wire.Call, p *nodeParams, b []byte) cuda.Result {
	var v wire.MemsetNode
	if v.Decode(b) != nil {
		return cuda.ErrorInvalidValue
	}
	ctx, res := s.nodeContext(c, v.Ctx)
	if res != cuda.Success {
		return res
	}
	copy(p.bytes()[nodeUnion:], b[:memsetCtx])
	p.member64(memsetCtx, ctx)
	const bound = 1 << 40
	if v.Width > bound || v.Height > bound || v.Pitch > bound || v.Height > 1 && v.Pitch > 0 && v.Height > (1<<62)/v.Pitch {
		return cuda.ErrorInvalidValue
	}
	size := v.Width * uint64(v.Element)
	if v.Height > 1 {
		size += (v.Height - 1) * v.Pitch
	}
	return s.reachable(v.Dst, size)
}

func (s *session) hostNode(p *nodeParams, b []byte) cuda.Result {
	var v wire.HostNode
	if v.Decode(b) != nil {
		return cuda.ErrorInvalidValue
	}
	s.openHostFuncs()
	p.member64(0, hostFuncEntry())
	p.member64(8, v.ID)
	return cuda.Success
}

func (s *session) childNode(p *nodeParams, b []byte) cuda.Result {
	var v wire.ChildNode
	if v.Decode(b) != nil {
		return cuda.ErrorInvalidValue
	}
	g, ok := s.graphs.get(v.Graph)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	switch v.Ownership {
	case wire.ChildCloned:
	case wire.ChildMoved:
		if g.inner {
			return cuda.ErrorInvalidValue
		}
		p.moved = g
	default:
		return cuda.ErrorInvalidValue
	}
	p.member64(0, g.handle)
	p.member32(8, v.Ownership)
	return cuda.Success
}

func (s *session) eventNode(p *nodeParams, b []byte) cuda.Result {
	var v wire.EventNode
	if v.Decode(b) != nil {
		return cuda.ErrorInvalidValue
	}
	e, ok := s.events.get(v.Event)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	p.member64(0, e.handle)
	return cuda.Success
}

func (s *session) allocNode(p *nodeParams, b []byte) cuda.Result {
	var v wire.AllocNode
	if v.Decode(b) != nil || v.Access > maxAccess || len(b) < wire.AllocNodeSize+allocProps+int(v.Access)*accessDescSize {
		return cuda.ErrorInvalidValue
	}
	rest := b[wire.AllocNodeSize:]
	copy(p.bytes()[nodeUnion:], rest[:allocProps])
	p.member64(16, 0) // win32SecurityAttributes, a pointer
	if v.Access > 0 {
		p.member64(allocAccess, p.keep(bufferOf(rest[allocProps:][:v.Access*accessDescSize])))
		p.member64(allocCount, uint64(v.Access))
	}
	p.member64(allocBytes, v.Size)
	p.alloc = v.Size
	return cuda.Success
}

func (s *session) batchNode(c *wire.Call, p *nodeParams, b []byte) cuda.Result {
	var v wire.BatchNode
	if v.Decode(b) != nil || v.Count > maxBatchOps || len(b) < wire.BatchNodeSize+int(v.Count)*batchOpSize {
		return cuda.ErrorInvalidValue
	}
	ctx, res := s.nodeContext(c, v.Ctx)
	if res != cuda.Success {
		return res
	}
	ops := b[wire.BatchNodeSize:][:v.Count*batchOpSize]
	for o := ops; len(o) > 0; o = o[batchOpSize:] {
		if res := s.checkMemOp(o); res != cuda.Success {
			return res
		}
	}
	p.member64(0, ctx)
	p.member32(batchCount, v.Count)
	p.member64(batchArray, p.keep(bufferOf(ops)))
	p.member32(batchFlags, v.Flags)
	return cuda.Success
}

// checkMemOp checks the address in a CUstreamBatchMemOpParams: operation u32, pad, address, value, flags.
func (s *session) checkMemOp(o []byte) cuda.Result {
	const wait32, write32, flush, wait64, write64, barrier = 1, 2, 3, 4, 5, 6
	addr := binary.LittleEndian.Uint64(o[8:])
	switch binary.LittleEndian.Uint32(o) {
	case wait32, write32:
		return s.reachable(addr, 4)
	case wait64, write64:
		return s.reachable(addr, 8)
	case flush, barrier:
		return cuda.Success
	}
	return cuda.ErrorInvalidValue
}

func (s *session) conditionalNode(c *wire.Call, p *nodeParams, b []byte) cuda.Result {
	var v wire.ConditionalNode
	if v.Decode(b) != nil || v.Size > maxCondBodies || len(b) < wire.ConditionalNodeSize+4*int(v.Size) {
		return cuda.ErrorInvalidValue
	}
	ctx, res := s.nodeContext(c, v.Ctx)
	if res != cuda.Success {
		return res
	}
	for i := range int(v.Size) {
		p.bodies = append(p.bodies, binary.LittleEndian.Uint32(b[wire.ConditionalNodeSize+4*i:]))
	}
	p.member64(0, v.Handle)
	p.member32(condType, v.Type)
	p.member32(condSize, v.Size)
	p.member64(condCtx, ctx)
	return cuda.Success
}
