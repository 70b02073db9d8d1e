package bind

import (
	"unsafe"

	"causeway/cuda"
)

// MaxParameters bounds a kernel's parameters in bytes.
const MaxParameters = 32764

// What the extra list of a launch names (CU_LAUNCH_PARAM_).
const extraBuffer, extraSize = 1, 2

// Launch is what a kernel node launches.
type Launch struct {
	Function Function
	Kernel   Kernel // one of the two is none
	Context  Context
	Dims     Dims
	args     HostAddress
	extra    HostAddress
}

// LaunchOf asks what a kernel node launches.
func (d *Driver) LaunchOf(n GraphNode) (Launch, cuda.Result) {
	var p KernelNodeParams
	res := d.GraphKernelNodeGetParams(n, &p)
	l := Launch{Function: p.func_, Kernel: p.kern, Context: p.ctx, args: p.args, extra: p.extra}
	copy(l.Dims[:], p.grid[:])
	copy(l.Dims[3:], p.block[:])
	l.Dims[6] = p.shared
	return l, res
}

// Packed copies the parameters from the driver's copy, which is as the kernel's layout says.
func (l *Launch) Packed(layout *Layout) []byte {
	if l.args.v == 0 {
		return l.fromExtra()
	}
	packed := make([]byte, layout.need)
	for i, offset := range layout.offsets {
		at := *(*uint64)(pointerTo(l.args.v + 8*uint64(i)))
		copy(packed[offset:], unsafe.Slice((*byte)(pointerTo(at)), layout.sizes[i]))
	}
	return packed
}

func (l *Launch) fromExtra() []byte {
	var at, size uint64
	for p := l.extra.v; p != 0; p += 16 {
		pair := *(*[2]uint64)(pointerTo(p))
		if pair[0] == 0 {
			break
		}
		switch pair[0] {
		case extraBuffer:
			at = pair[1]
		case extraSize:
			size = *(*uint64)(pointerTo(pair[1]))
		}
	}
	if size > MaxParameters {
		return nil
	}
	return copied[byte](at, size)
}

// NodeOperand is an operand of a copy, as the driver says it.
type NodeOperand struct {
	Type     uint32 // CUmemorytype
	Ptr, Lod uint64
	Placement
}

// Operands are what a copy moves, and where.
func (m *Memcpy3D) Operands() (src, dst NodeOperand, e Box) {
	ptr := func(kind uint32, host HostAddress, dev Address) uint64 {
		if kind == cuda.MemoryTypeHost {
			return host.v
		}
		return dev.v
	}
	src = NodeOperand{m.srcMemoryType, ptr(m.srcMemoryType, m.srcHost, m.srcDevice), m.srcLOD, Placement{m.srcXInBytes, m.srcY, m.srcZ, m.srcPitch, m.srcHeight}}
	dst = NodeOperand{m.dstMemoryType, ptr(m.dstMemoryType, m.dstHost, m.dstDevice), m.dstLOD, Placement{m.dstXInBytes, m.dstY, m.dstZ, m.dstPitch, m.dstHeight}}
	return src, dst, Box{m.widthInBytes, m.height, m.depth}
}

// Fill is what a memset node writes.
type Fill struct {
	Ptr, Pitch, Width, Height uint64 // width in elements
	Value, Element            uint32
}

// FillOf asks what a memset node writes.
func (d *Driver) FillOf(n GraphNode) (Fill, cuda.Result) {
	var p MemsetNodeParams
	res := d.GraphMemsetNodeGetParams(n, &p)
	return Fill{p.dst.v, p.pitch, p.width, p.height, p.value, p.element}, res
}

// Allocation is what an allocation node takes, in the guest's form.
type Allocation struct {
	Ptr, Size     uint64
	Props, Access []byte
}

// AllocationOf asks what an allocation node takes, with the rights of at most so many devices.
func (d *Driver) AllocationOf(n GraphNode, most uint64) (Allocation, cuda.Result) {
	var p MemAllocNodeParams
	if res := d.GraphMemAllocNodeGetParams(n, &p); res != cuda.Success {
		return Allocation{}, res
	}
	props := append([]byte(nil), unsafe.Slice((*byte)(unsafe.Pointer(&p.Props)), unsafe.Sizeof(p.Props))...)
	access := copied[byte](p.Access.v, min(p.AccessCount, most)*uint64(AccessDescSize))
	return Allocation{p.Ptr.v, p.Size, props, access}, cuda.Success
}

// MemOpsOf asks for the operations of a batch node, at most so many, in the guest's form.
func (d *Driver) MemOpsOf(n GraphNode, most uint32) (ctx Context, count, flags uint32, ops []byte, res cuda.Result) {
	var p BatchMemOpNodeParams
	if res = d.GraphBatchMemOpNodeGetParams(n, &p); res == cuda.Success && p.count <= most {
		ops = copied[byte](p.ops.v, uint64(p.count)*uint64(MemOpSize))
	}
	return p.ctx, p.count, p.flags, ops, res
}

// HostOf asks for what a host node gives the function of ours that it calls.
func (d *Driver) HostOf(n GraphNode) (id uint64, _ cuda.Result) {
	var p HostNodeParams
	res := d.GraphHostNodeGetParams(n, &p)
	return p.Data.v, res
}
