package bind

import (
	"unsafe"

	"causeway/cuda"
)

// Node is the parameters of a graph node for the driver, with the C memory that they point to. Its
// kind is the driver's number.
type Node struct {
	params *GraphNodeParams // an object of its own, without pointers of Go's
	owned  []Buffer
}

// NewNode is one without parameters yet, to be freed.
func NewNode(kind uint32) *Node { return &Node{params: &GraphNodeParams{type_: kind}} }

// Free gives the memory back. The driver has copied what it wants.
func (n *Node) Free() {
	for _, b := range n.owned {
		b.Free()
	}
}

func (n *Node) keep(b Buffer) HostAddress {
	n.owned = append(n.owned, b)
	return b.Host().Address()
}

// AddNode adds it to a graph, behind others.
func (d *Driver) AddNode(g Graph, deps []GraphNode, edges []GraphEdgeData, n *Node) (GraphNode, cuda.Result) {
	return d.GraphAddNode(g, deps, edges, n.params)
}

// SetNode makes a node of a graph what it says.
func (d *Driver) SetNode(to GraphNode, n *Node) cuda.Result {
	return d.GraphNodeSetParams(to, n.params)
}

// SetExecNode makes a node of an executable graph what it says.
func (d *Driver) SetExecNode(x GraphExec, to GraphNode, n *Node) cuda.Result {
	return d.GraphExecNodeSetParams(x, to, n.params)
}

// SetKernel makes it a launch of a kernel, or of a function if there is no kernel.
func (n *Node) SetKernel(f Function, k Kernel, ctx Context, d Dims, a Arguments) {
	p := n.params.union.Kernel()
	if k.IsZero() {
		p.func_ = f
	} else {
		p.kern, p.ctx = k, ctx
	}
	p.grid, p.block, p.shared = [3]uint32(d[:3]), [3]uint32(d[3:6]), d[6]
	if len(a.b) == 0 {
		return
	}
	packed, list := BufferOf(a.b), NewBuffer(48)
	extra := (*[6]uint64)(list.p)
	*extra = [6]uint64{extraBuffer, packed.addr(), extraSize, list.addr() + 40, 0, uint64(len(a.b))}
	n.keep(packed)
	p.extra = n.keep(list)
}

// SetMemcpy makes it a copy.
func (n *Node) SetMemcpy(ctx Context, m Memcpy3D) {
	p := n.params.union.Memcpy()
	p.ctx, p.copy = ctx, m
}

// SetMemset makes it a fill of rows with elements of so many bytes, false if they have none such.
func (n *Node) SetMemset(ctx Context, r Rect, element, value uint32) bool {
	p := n.params.union.Memset()
	p.ctx = ctx
	if element != 1 && element != 2 && element != 4 || r.width%uint64(element) != 0 {
		return false
	}
	p.v1 = MemsetNodeParams{dst: r.mem.Address(), pitch: r.pitch, value: value, element: element, width: r.width / uint64(element), height: r.height}
	return true
}

// SetHost makes it a call of a function of ours.
func (n *Node) SetHost(f Callback, id uint64) {
	*n.params.union.Host() = HostNodeParams{Fn: f, Data: HostAddress{v: id}}
}

// SetGraph makes it a graph.
func (n *Node) SetGraph(g Graph, ownership uint32) {
	*n.params.union.Graph() = ChildGraphNodeParams{Graph: g, Ownership: int32(ownership)}
}

// SetEvent makes it one that records an event or waits for it.
func (n *Node) SetEvent(e Event) { *n.params.union.Event() = e }

// SetAlloc makes it an allocation, from a guest's CUmemPoolProps and CUmemAccessDesc; false if they
// are too short.
func (n *Node) SetAlloc(props, access []byte, size uint64) bool {
	p := n.params.union.Alloc()
	pool, ok := decode[MemPoolProps](props)
	pool.Win32SecurityAttributes = HostAddress{}
	p.Props, p.Size = pool, size
	if count := len(access) / AccessDescSize; count > 0 {
		p.Access, p.AccessCount = n.keep(BufferOf(access)), uint64(count)
	}
	return ok && len(access)%AccessDescSize == 0
}

// SetFree makes it the end of an allocation.
func (n *Node) SetFree(m Address) { *n.params.union.Free() = m }

// SetBatch makes it memory operations.
func (n *Node) SetBatch(ctx Context, ops []StreamBatchMemOpParams, flags uint32) {
	p := n.params.union.Batch()
	p.ctx, p.count, p.flags = ctx, uint32(len(ops)), flags
	p.ops = n.keep(BufferOf(unsafe.Slice((*byte)(first(ops)), len(ops)*MemOpSize)))
}

// SetConditional makes it a condition with so many bodies.
func (n *Node) SetConditional(h GraphConditionalHandle, kind, size uint32, ctx Context) {
	*n.params.union.Conditional() = ConditionalNodeParams{Handle: h, Type: int32(kind), Size: size, Ctx: ctx}
}

// Allocated is the memory that the driver gave an allocation node when it was added.
func (n *Node) Allocated() Address { return n.params.union.Alloc().Ptr }

// Bodies are the graphs that the driver gave a condition when it was added.
func (n *Node) Bodies() []Graph {
	p := n.params.union.Conditional()
	return copied[Graph](p.Bodies.v, uint64(p.Size))
}

// Value is the condition as kernels know it.
func (h GraphConditionalHandle) Value() uint64 { return h.v }

// Value is what tells a node from the others that there are.
func (h GraphNode) Value() uint64 { return h.v }

// Lengths of a guest's structs in bytes.
const (
	MemOpSize      = int(unsafe.Sizeof(StreamBatchMemOpParams{}))
	PoolPropsSize  = int(unsafe.Sizeof(MemPoolProps{}))
	AccessDescSize = int(unsafe.Sizeof(MemAccessDesc{}))
)

// MemOps are a guest's memory operations, each on memory that it may name.
func (s *Space) MemOps(b []byte) ([]StreamBatchMemOpParams, cuda.Result) {
	const wait32, write32, flush, wait64, write64, barrier = 1, 2, 3, 4, 5, 6 // CUstreamBatchMemOpType
	var list []StreamBatchMemOpParams
	for ; len(b) >= MemOpSize; b = b[MemOpSize:] {
		op, _ := decode[StreamBatchMemOpParams](b[:MemOpSize])
		// Operation; address; value; flags; an alias, the driver's own.
		w, res := op.Pad(), cuda.Success
		w[4], w[5] = 0, 0
		switch *op.Operation() {
		case wait32, write32:
			_, res = s.Mem(w[1], 4)
		case wait64, write64:
			_, res = s.Mem(w[1], 8)
		case flush, barrier:
		default:
			res = cuda.ErrorInvalidValue
		}
		if res != cuda.Success {
			return nil, res
		}
		list = append(list, op)
	}
	if len(b) != 0 {
		return nil, cuda.ErrorInvalidValue
	}
	return list, cuda.Success
}
