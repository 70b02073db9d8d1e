package cuda

import (
	"cmp"
	"encoding/binary"
	"slices"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

const (
	maxAccess     = 64
	maxBatchOps   = 256
	maxCondBodies = 1 << 16
)

// nodeParams is a node's parameters for the driver, and what is to be remembered of them.
type nodeParams struct {
	*bind.Node
	kind   uint32
	alloc  uint64 // bytes that an allocation node takes
	cond   *wire.ConditionalNode
	bodies []uint32 // ids for the graphs of a conditional node
	moved  *graph   // what a child node takes over
	copied *graph   // or has a clone of
	needs  needs
}

// nodeParams builds the driver's form of a node's parameters. To be freed.
func (s *session) nodeParams(c *wire.Call, kind uint32, b []byte) (*nodeParams, cuda.Result) {
	p := &nodeParams{Node: bind.NewNode(kind), kind: kind}
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
		res = s.freeNode(p, b)
	case wire.NodeBatchMemOp:
		res = s.batchNode(c, p, b)
	case wire.NodeConditional:
		res = s.conditionalNode(c, p, b)
	default:
		res = cuda.ErrorNotSupported
	}
	if res != cuda.Success {
		p.Free()
		return nil, res
	}
	return p, cuda.Success
}

func (s *session) kernelNode(c *wire.Call, p *nodeParams, b []byte) cuda.Result {
	var v wire.KernelNode
	if v.Decode(b) != nil || len(b)-wire.KernelNodeSize < int(v.Size) || v.Size > bind.MaxParameters {
		return cuda.ErrorInvalidValue
	}
	f, ok := s.funcs.get(v.Func)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	args, ok := f.layout.Arguments(b[wire.KernelNodeSize:][:v.Size])
	if !ok {
		return cuda.ErrorInvalidValue
	}
	ctx, res := s.contextOf(c, p, v.Ctx)
	if res != cuda.Success {
		return res
	}
	in := cmp.Or(v.Ctx, c.Ctx)
	if res := s.instanceAt(c, f, in); res != cuda.Success {
		return res
	}
	p.needs.add(s.ofLaunch(f, cmp.Or(f.ctx, in))...)
	p.SetKernel(f.handle, f.kernel, ctx, bind.Dims{v.Gx, v.Gy, v.Gz, v.Bx, v.By, v.Bz, v.Shared}, args)
	return cuda.Success
}

// contextOf is nodeContext for a node that keeps it.
func (s *session) contextOf(c *wire.Call, p *nodeParams, id uint32) (bind.Context, cuda.Result) {
	p.needs.add(need{ctx: cmp.Or(id, c.Ctx)})
	return s.nodeContext(c, id)
}

func (s *session) memcpyNode(c *wire.Call, p *nodeParams, b []byte) cuda.Result {
	var src, dst wire.MemcpyOperand
	var v wire.MemcpyNode
	const half = wire.MemcpyOperandSize
	if len(b) < 2*half || src.Decode(b) != nil || dst.Decode(b[half:]) != nil || v.Decode(b[2*half:]) != nil {
		return cuda.ErrorInvalidValue
	}
	ctx, res := s.contextOf(c, p, v.Ctx)
	if res != cuda.Success {
		return res
	}
	e := bind.Box{Width: v.Width, Height: v.Height, Depth: v.Depth}
	to, res := s.nodeOperand(&dst, e)
	if res != cuda.Success {
		return res
	}
	from, res := s.nodeOperand(&src, e)
	if res != cuda.Success {
		return res
	}
	m, res := bind.Copy3D(to, from, e)
	if res == cuda.Success {
		for _, v := range []*wire.MemcpyOperand{&dst, &src} {
			if v.Type == cuda.MemoryTypeArray {
				p.needs.add(s.ofArray(v.Array)...)
			}
		}
		p.SetMemcpy(ctx, m)
	}
	return res
}

// nodeOperand is an operand of a copy of which all lies in memory that the guest may name.
func (s *session) nodeOperand(v *wire.MemcpyOperand, e bind.Box) (bind.Operand, cuda.Result) {
	x := operand{kind: wire.OperandAddress, ptr: v.Ptr, Placement: bind.Placement{X: v.X, Y: v.Y, Z: v.Z, Pitch: v.Pitch, Height: v.Height}}
	switch v.Type {
	case cuda.MemoryTypeArray:
		x.kind, x.ptr = wire.OperandArray, uint64(v.Array)
	case cuda.MemoryTypeHost, cuda.MemoryTypeDevice, cuda.MemoryTypeUnified:
	default:
		return bind.Operand{}, cuda.ErrorNotSupported
	}
	return s.operand(x, e)
}

func (s *session) memsetNode(c *wire.Call, p *nodeParams, b []byte) cuda.Result {
	var v wire.MemsetNode
	if v.Decode(b) != nil {
		return cuda.ErrorInvalidValue
	}
	ctx, res := s.contextOf(c, p, v.Ctx)
	if res != cuda.Success {
		return res
	}
	r, res := s.space.Rect(v.Dst, v.Pitch, v.Width, uint64(v.Element), v.Height)
	if res == cuda.Success && !p.SetMemset(ctx, r, v.Element, v.Value) {
		res = cuda.ErrorInvalidValue
	}
	return res
}

func (s *session) hostNode(p *nodeParams, b []byte) cuda.Result {
	var v wire.HostNode
	if v.Decode(b) != nil {
		return cuda.ErrorInvalidValue
	}
	s.openHostFuncs()
	p.SetHost(hostFuncEntry(), v.ID)
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
		p.copied = g
		p.needs = g.allNeeds()
	case wire.ChildMoved:
		if g.parent != nil {
			return cuda.ErrorInvalidValue
		}
		p.moved = g
	default:
		return cuda.ErrorInvalidValue
	}
	p.SetGraph(g.handle, v.Ownership)
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
	e.recorded()
	p.needs.add(need{event: e}, need{ctx: e.ctx})
	p.SetEvent(e.handle)
	return cuda.Success
}

func (s *session) allocNode(p *nodeParams, b []byte) cuda.Result {
	var v wire.AllocNode
	if v.Decode(b) != nil || v.Access > maxAccess || len(b) < wire.AllocNodeSize+bind.PoolPropsSize+int(v.Access)*bind.AccessDescSize {
		return cuda.ErrorInvalidValue
	}
	rest := b[wire.AllocNodeSize:]
	// Elsewhere it would be the host's memory, and count as the device's.
	if !s.onDevices(rest[8:16]) {
		return cuda.ErrorNotSupported
	}
	for desc := range slices.Chunk(rest[bind.PoolPropsSize:][:int(v.Access)*bind.AccessDescSize], bind.AccessDescSize) {
		if !s.onDevices(desc[:8]) {
			return cuda.ErrorNotSupported
		}
	}
	if !p.SetAlloc(rest[:bind.PoolPropsSize], rest[bind.PoolPropsSize:][:int(v.Access)*bind.AccessDescSize], v.Size) {
		return cuda.ErrorInvalidValue
	}
	p.alloc = v.Size
	return cuda.Success
}

// onDevices reports whether a guest's CUmemLocation is one of the session's devices.
func (s *session) onDevices(location []byte) bool {
	le := binary.LittleEndian
	return le.Uint32(location) == deviceLocation && (len(s.devices) == 0 || uint64(le.Uint32(location[4:])) < uint64(len(s.devices)))
}

func (s *session) freeNode(p *nodeParams, b []byte) cuda.Result {
	var v wire.FreeNode
	if v.Decode(b) != nil {
		return cuda.ErrorInvalidValue
	}
	m, ok := s.space.Graph(v.Ptr)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	p.SetFree(m)
	return cuda.Success
}

func (s *session) batchNode(c *wire.Call, p *nodeParams, b []byte) cuda.Result {
	var v wire.BatchNode
	if v.Decode(b) != nil || v.Count > maxBatchOps || len(b) < wire.BatchNodeSize+int(v.Count)*bind.MemOpSize {
		return cuda.ErrorInvalidValue
	}
	ctx, res := s.contextOf(c, p, v.Ctx)
	if res != cuda.Success {
		return res
	}
	ops, res := s.space.MemOps(b[wire.BatchNodeSize:][:int(v.Count)*bind.MemOpSize])
	if res == cuda.Success {
		p.SetBatch(ctx, ops, v.Flags)
	}
	return res
}

func (s *session) conditionalNode(c *wire.Call, p *nodeParams, b []byte) cuda.Result {
	var v wire.ConditionalNode
	if v.Decode(b) != nil || v.Size > maxCondBodies || len(b) < wire.ConditionalNodeSize+4*int(v.Size) {
		return cuda.ErrorInvalidValue
	}
	ctx, res := s.contextOf(c, p, v.Ctx)
	if res != cuda.Success {
		return res
	}
	h, ok := s.conditions[v.Handle]
	if !ok {
		return cuda.ErrorInvalidValue
	}
	for i := range int(v.Size) {
		p.bodies = append(p.bodies, binary.LittleEndian.Uint32(b[wire.ConditionalNodeSize+4*i:]))
	}
	p.cond = &v
	p.SetConditional(h.handle, v.Type, v.Size, ctx)
	return cuda.Success
}
