package soft

import (
	"encoding/binary"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// work is what a node does. It is never changed, only replaced: executable graphs share it.
type work struct {
	ctx   *gpuContext
	steps []func() cuda.Result
	fn    wire.ID // function of a kernel
	entry *entry
	event *event // to record, or to wait for
	wait  bool
	alloc *graphAlloc
	free  *graphAlloc
	cond  *condition
	form  uint32 // of a conditional
}

// condition is the value that a conditional node looks at.
type condition struct {
	value    atomic.Uint32
	initial  uint32
	assigned bool // at each launch
	graph    *graph
}

// graphAlloc is memory of an allocation node. It stays reserved, and its address the same, while
// the node or an executable graph exists.
type graphAlloc struct {
	mem  *allocation
	live atomic.Bool // between allocation and free
}

// recording takes the tasks that an operation would queue: the operations on streams are also what
// makes the work of nodes.
type recording struct {
	tasks []*task
	hold  []*task // a task that is never done: nothing runs at once
}

// record runs an operation without its effect and returns its steps.
func (s *session) recordOp(op func() cuda.Result) ([]func() cuda.Result, cuda.Result) {
	s.recording = &recording{hold: []*task{{}}}
	res := op()
	tasks := s.recording.tasks
	s.recording = nil
	var steps []func() cuda.Result
	for _, t := range tasks {
		if t.run != nil {
			steps = append(steps, t.run)
		}
	}
	return steps, res
}

// prepare makes the work of a node from its parameters.
func (s *session) prepare(c *wire.Call, n *graphNode, kind uint32, p []byte) cuda.Result {
	if kind != wire.NodeEmpty && kind != wire.NodeGraph {
		c = s.nodeCall(c, kind, p)
		g, res := s.context(c)
		if res != cuda.Success {
			return res
		}
		n.work.ctx = g
	}
	var res cuda.Result
	switch kind {
	case wire.NodeEmpty:
	case wire.NodeKernel:
		res = s.prepareKernel(c, n, p)
	case wire.NodeMemcpy:
		n.work.steps, res = s.recordOp(func() cuda.Result { return s.memcpyNode(c, p) })
	case wire.NodeMemset:
		n.work.steps, res = s.recordOp(func() cuda.Result { return s.memsetNode(c, p) })
	case wire.NodeHost:
		var v wire.HostNode
		if v.Decode(p) != nil {
			return cuda.ErrorInvalidValue
		}
		n.work.steps = []func() cuda.Result{s.hostFunc(v.ID)}
	case wire.NodeWaitEvent, wire.NodeEventRecord:
		var v wire.EventNode
		if v.Decode(p) != nil {
			return cuda.ErrorInvalidValue
		}
		if n.work.event = s.events[v.Event]; n.work.event == nil {
			return cuda.ErrorInvalidHandle
		}
		n.work.wait = kind == wire.NodeWaitEvent
	case wire.NodeBatchMemOp:
		n.work.steps, res = s.recordOp(func() cuda.Result { return s.batchNode(c, p) })
	case wire.NodeGraph:
		res = s.prepareChild(n, p)
	case wire.NodeMemAlloc:
		res = s.prepareAlloc(c, n, p)
	case wire.NodeMemFree:
		var v wire.FreeNode
		if v.Decode(p) != nil || s.graphMem[v.Ptr] == nil {
			return cuda.ErrorInvalidValue
		}
		n.work.free = s.graphMem[v.Ptr]
		n.work.steps = []func() cuda.Result{n.work.free.release}
	case wire.NodeConditional:
		res = s.prepareConditional(n, p)
	default:
		res = cuda.ErrorNotSupported
	}
	if res == cuda.ErrorInvalidValue && c.Replay && (kind == wire.NodeMemcpy || kind == wire.NodeMemset) {
		// Its memory is gone since.
		n.work.steps, res = []func() cuda.Result{stray}, cuda.Success
	}
	return res
}

// stray is the work of a node on memory that is not there.
func stray() cuda.Result { return cuda.ErrorIllegalAddress }

func (s *session) prepareKernel(c *wire.Call, n *graphNode, p []byte) cuda.Result {
	var v wire.KernelNode
	if v.Decode(p) != nil || uint64(len(p)-wire.KernelNodeSize) < uint64(v.Size) {
		return cuda.ErrorInvalidValue
	}
	a := wire.LaunchArgs{Func: v.Func, Stream: wire.StreamLegacy, Gx: v.Gx, Gy: v.Gy, Gz: v.Gz, Bx: v.Bx, By: v.By, Bz: v.Bz,
		Shared: v.Shared, Params: p[wire.KernelNodeSize:][:v.Size]}
	for _, id := range slices.Sorted(keys(n.attrs)) {
		if id == cuda.LaunchAttrCooperative || id == cuda.LaunchAttrClusterDimension {
			a.Attrs = append(binary.LittleEndian.AppendUint64(a.Attrs, uint64(id)), n.attrs[id]...)
		}
	}
	f, res := s.function(c, v.Func)
	if res != cuda.Success {
		return res
	}
	n.work.steps, res = s.recordOp(func() cuda.Result { return s.Launch(c, &a) })
	n.work.fn, n.work.entry = v.Func, f.entry
	return res
}

func keys(m map[uint32][]byte) func(func(uint32) bool) {
	return func(yield func(uint32) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func (s *session) memcpyNode(c *wire.Call, p []byte) cuda.Result {
	const memoryTypeArray = 3
	var src, dst wire.MemcpyOperand
	var v wire.MemcpyNode
	const half = wire.MemcpyOperandSize
	if len(p) < 2*half || src.Decode(p) != nil || dst.Decode(p[half:]) != nil || v.Decode(p[2*half:]) != nil {
		return cuda.ErrorInvalidValue
	}
	if src.Type == memoryTypeArray || dst.Type == memoryTypeArray {
		return cuda.ErrorNotSupported
	}
	return s.Memcpy3D(c, &wire.Memcpy3DArgs{
		Src: src.Ptr, SrcPitch: src.Pitch, SrcHeight: src.Height, SrcX: src.X, SrcY: src.Y, SrcZ: src.Z,
		Dst: dst.Ptr, DstPitch: dst.Pitch, DstHeight: dst.Height, DstX: dst.X, DstY: dst.Y, DstZ: dst.Z,
		Width: v.Width, Height: v.Height, Depth: v.Depth, Stream: wire.StreamLegacy,
	})
}

func (s *session) memsetNode(c *wire.Call, p []byte) cuda.Result {
	var v wire.MemsetNode
	if v.Decode(p) != nil {
		return cuda.ErrorInvalidValue
	}
	return s.Memset(c, &wire.MemsetArgs{Dst: v.Dst, Pitch: v.Pitch, Value: v.Value, Element: v.Element, Width: v.Width,
		Height: v.Height, Stream: wire.StreamLegacy})
}

func (s *session) batchNode(c *wire.Call, p []byte) cuda.Result {
	const wait32, write32, wait64, write64, barrier, size = 1, 2, 4, 5, 6, 48
	var v wire.BatchNode
	if v.Decode(p) != nil || v.Count > math.MaxUint16 || len(p) < wire.BatchNodeSize+int(v.Count)*size {
		return cuda.ErrorInvalidValue
	}
	for o := p[wire.BatchNodeSize:][:v.Count*size]; len(o) > 0; o = o[size:] {
		op, addr, value := binary.LittleEndian.Uint32(o), binary.LittleEndian.Uint64(o[8:]), binary.LittleEndian.Uint64(o[16:])
		flags, width := binary.LittleEndian.Uint32(o[24:]), uint32(4)
		if op == wait64 || op == write64 {
			width = 8
		}
		var res cuda.Result
		switch op {
		case wait32, wait64:
			res = s.StreamWaitValue(c, &wire.StreamWaitValueArgs{Stream: wire.StreamLegacy, Addr: addr, Value: value, Width: width, Flags: flags})
		case write32, write64:
			res = s.StreamWriteValue(c, &wire.StreamWriteValueArgs{Stream: wire.StreamLegacy, Addr: addr, Value: value, Width: width, Flags: flags})
		case barrier:
		default:
			res = cuda.ErrorInvalidValue
		}
		if res != cuda.Success {
			return res
		}
	}
	return cuda.Success
}

// prepareChild copies the graph that the node will own, or takes it over.
func (s *session) prepareChild(n *graphNode, p []byte) cuda.Result {
	var v wire.ChildNode
	if v.Decode(p) != nil {
		return cuda.ErrorInvalidValue
	}
	from := s.graphs[v.Graph]
	if from == nil || inside(n.graph, from) {
		return cuda.ErrorInvalidValue
	}
	switch {
	case v.Ownership == wire.ChildMoved && from.parent == nil:
		n.inner = []*graph{from} // whose parent is set when nothing can fail any more
		return cuda.Success
	case v.Ownership != wire.ChildCloned:
		return cuda.ErrorInvalidValue
	}
	g := &graph{parent: n}
	n.inner = []*graph{g}
	return s.copyInto(g, from)
}

// inside reports whether g is outer or inside it.
func inside(g, outer *graph) bool {
	for {
		if g == outer {
			return true
		}
		if g == nil || g.parent == nil {
			return false
		}
		g = g.parent.graph
	}
}

func (s *session) prepareConditional(n *graphNode, p []byte) cuda.Result {
	const formIf, formWhile, formSwitch = 0, 1, 2
	var v wire.ConditionalNode
	if v.Decode(p) != nil || uint64(len(p)-wire.ConditionalNodeSize) < 4*uint64(v.Size) || v.Size == 0 {
		return cuda.ErrorInvalidValue
	}
	if v.Type > formSwitch || v.Type == formIf && v.Size > 2 || v.Type == formWhile && v.Size > 1 {
		return cuda.ErrorInvalidValue
	}
	cond := s.conditions.get(v.Handle)
	if cond == nil || !inside(n.graph, cond.graph) {
		return cuda.ErrorInvalidValue
	}
	n.work.cond, n.work.form = cond, v.Type
	for i := range int(v.Size) {
		g, res := s.addGraph(binary.LittleEndian.Uint32(p[wire.ConditionalNodeSize+4*i:]), n)
		if res != cuda.Success {
			return res
		}
		n.inner = append(n.inner, g)
	}
	return cuda.Success
}

// conditionTable holds conditions under their handles, which are numbers from 1. Kernels that run
// look into it, too.
type conditionTable struct {
	mu   sync.Mutex
	list []*condition
}

func (t *conditionTable) get(handle uint64) *condition {
	t.mu.Lock()
	defer t.mu.Unlock()
	if handle == 0 || handle > uint64(len(t.list)) {
		return nil
	}
	return t.list[handle-1]
}

// add returns 0 when there are too many. at, unless it is 0, is the handle that it must have.
func (t *conditionTable) add(c *condition, at uint64) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at != 0 && at <= maxObjects {
		for uint64(len(t.list)) < at {
			t.list = append(t.list, nil)
		}
		if t.list[at-1] != nil {
			return 0
		}
		t.list[at-1] = c
		return at
	}
	if len(t.list) >= maxObjects {
		return 0
	}
	t.list = append(t.list, c)
	return uint64(len(t.list))
}

// setConditional is what cudaGraphSetConditional does in a kernel. Any goroutine.
func (s *session) setConditional(handle uint64, value uint32) {
	if c := s.conditions.get(handle); c != nil {
		c.value.Store(value)
	}
}

// GraphConditionalCreate makes a condition for nodes of a graph.
func (s *session) GraphConditionalCreate(c *wire.Call, a *wire.GraphConditionalCreateArgs, r *wire.GraphConditionalCreateReply) cuda.Result {
	const assignDefault = 1
	g := s.graphs[a.Graph]
	if g == nil || a.Flags&^assignDefault != 0 {
		return cuda.ErrorInvalidValue
	}
	at, _ := c.Place() // kernels name it by value
	r.Handle = s.conditions.add(&condition{initial: a.Value, assigned: a.Flags&assignDefault != 0, graph: g}, at)
	if r.Handle == 0 {
		return cuda.ErrorOutOfMemory
	}
	return cuda.Success
}
