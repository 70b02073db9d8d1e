package cuda

import (
	"encoding/binary"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// adoptGraph gives a graph of the driver the id that the guest offers, unless it has one.
func (s *session) adoptGraph(handle uint64, id uint32, inner bool) (*graph, cuda.Result) {
	if g := s.graphOf[handle]; g != nil {
		return g, cuda.Success
	}
	g := &graph{id: id, handle: handle, inner: inner}
	if !s.graphs.put(id, g) {
		return nil, cuda.ErrorInvalidHandle
	}
	if s.graphOf == nil {
		s.graphOf = map[uint64]*graph{}
	}
	s.graphOf[handle] = g
	return g, cuda.Success
}

// adoptNode does the same for a node.
func (s *session) adoptNode(g *graph, handle uint64, id uint32) (*graphNode, cuda.Result) {
	if n := s.nodeOf[handle]; n != nil {
		return n, cuda.Success
	}
	n := &graphNode{id: id, handle: handle, graph: g}
	if !s.nodes.put(id, n) {
		return nil, cuda.ErrorInvalidHandle
	}
	if s.nodeOf == nil {
		s.nodeOf = map[uint64]*graphNode{}
	}
	s.nodeOf[handle] = n
	if g.nodes == nil {
		g.nodes = map[uint64]*graphNode{}
	}
	g.nodes[handle] = n
	return n, cuda.Success
}

// forgetGraph drops the ids of a graph that is gone, of its nodes and of the graphs inside them.
func (s *session) forgetGraph(g *graph) {
	for _, n := range g.nodes {
		s.forgetNode(n)
	}
	s.graphs.remove(g.id)
	delete(s.graphOf, g.handle)
}

func (s *session) forgetNode(n *graphNode) {
	for _, g := range n.inner {
		s.forgetGraph(g)
	}
	s.nodes.remove(n.id)
	delete(s.nodeOf, n.handle)
	delete(n.graph.nodes, n.handle)
}

// GraphCreate makes an empty graph.
func (s *session) GraphCreate(c *wire.Call, a *wire.GraphCreateArgs) cuda.Result {
	if res := s.fn.cuGraphCreate.call(s.out.addr(), uint64(a.Flags)); res != cuda.Success {
		return res
	}
	return s.ownGraph(*s.out.u64(0), a.Graph)
}

func (s *session) ownGraph(handle uint64, id uint32) cuda.Result {
	_, res := s.adoptGraph(handle, id, false)
	if res != cuda.Success {
		s.fn.cuGraphDestroy.call(handle)
	}
	return res
}

// GraphDestroy destroys a graph of the guest's own. What was instantiated from it lives on.
func (s *session) GraphDestroy(c *wire.Call, a *wire.GraphDestroyArgs) cuda.Result {
	g, ok := s.graphs.get(a.Graph)
	if !ok || g.inner {
		return cuda.ErrorInvalidValue
	}
	res := s.fn.cuGraphDestroy.call(g.handle)
	if res == cuda.Success {
		s.forgetGraph(g)
	}
	return res
}

// GraphClone copies a graph. Its nodes have no ids yet.
func (s *session) GraphClone(c *wire.Call, a *wire.GraphCloneArgs) cuda.Result {
	g, ok := s.graphs.get(a.Original)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	if res := s.fn.cuGraphClone.call(s.out.addr(), g.handle); res != cuda.Success {
		return res
	}
	return s.ownGraph(*s.out.u64(0), a.Graph)
}

// dependencies are nodes and, perhaps, edge data as the driver takes them.
type dependencies struct {
	mem   buffer
	n     int
	edges bool
}

func (d dependencies) count() uint64 { return uint64(d.n) }
func (d dependencies) free()         { d.mem.free() }

// nodesAddr is the array of handles, NULL if there are none.
func (d dependencies) nodesAddr() uint64 {
	if d.n == 0 {
		return 0
	}
	return d.mem.addr()
}

// edgesAddr is the array of CUgraphEdgeData, NULL if all are plain.
func (d dependencies) edgesAddr() uint64 {
	if d.n == 0 || !d.edges {
		return 0
	}
	return d.mem.addr() + 8*uint64(d.n)
}

// dependencies looks up a list of node ids. To be freed.
func (s *session) dependencies(ids, edges []byte) (dependencies, cuda.Result) {
	n := len(ids) / 4
	if len(ids)%4 != 0 || len(edges) != 0 && len(edges) != 8*n {
		return dependencies{}, cuda.ErrorInvalidValue
	}
	d := dependencies{mem: newBuffer(16 * n), n: n, edges: len(edges) != 0}
	for i := range n {
		node, ok := s.nodes.get(binary.LittleEndian.Uint32(ids[4*i:]))
		if !ok {
			d.free()
			return dependencies{}, cuda.ErrorInvalidValue
		}
		*d.mem.u64(i) = node.handle
	}
	copy(d.mem.bytes()[8*n:], edges)
	return d, cuda.Success
}

// useAny makes the calling thread's context current, if it has one: most of the graph functions need none.
func (s *session) useAny(c *wire.Call) cuda.Result {
	if c.Ctx == 0 {
		return cuda.Success
	}
	return s.use(c)
}

// GraphAddNode adds a node of any type.
func (s *session) GraphAddNode(c *wire.Call, a *wire.GraphAddNodeArgs, r *wire.GraphAddNodeReply) cuda.Result {
	g, ok := s.graphs.get(a.Graph)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	if res := s.useAny(c); res != cuda.Success {
		return res
	}
	deps, res := s.dependencies(a.Deps, a.Edges)
	if res != cuda.Success {
		return res
	}
	defer deps.free()
	p, res := s.nodeParams(c, a.Type, a.Params)
	if res != cuda.Success {
		return res
	}
	defer p.free()
	if res := s.charge(p.alloc); res != cuda.Success {
		return res
	}
	if res := s.fn.cuGraphAddNode_v2.call(s.out.addr(), g.handle, deps.nodesAddr(), deps.edgesAddr(), deps.count(), p.addr()); res != cuda.Success {
		s.refund(p.alloc)
		return s.note(res)
	}
	handle := *s.out.u64(0)
	n, res := s.adoptNode(g, handle, a.Node)
	if res == cuda.Success {
		res = s.added(n, p, r)
	}
	if res != cuda.Success {
		s.fn.cuGraphDestroyNode.call(handle)
	}
	return res
}

// added takes what the driver wrote into the parameters of a new node.
func (s *session) added(n *graphNode, p *nodeParams, r *wire.GraphAddNodeReply) cuda.Result {
	switch p.kind {
	case wire.NodeGraph:
		if p.moved != nil {
			p.moved.inner = true
			n.inner = append(n.inner, p.moved)
		}
	case wire.NodeMemAlloc:
		r.Value = p.u64(nodeUnion + allocPtr)
		s.noteGraphAlloc(r.Value, p.alloc)
		s.pooling.graphs += p.alloc
	case wire.NodeConditional:
		bodies := p.u64(nodeUnion + condBodies)
		for i, id := range p.bodies {
			g, res := s.adoptGraph(readWord(bodies+8*uint64(i)), id, true)
			if res != cuda.Success {
				return res
			}
			n.inner = append(n.inner, g)
		}
	}
	return cuda.Success
}

func (s *session) noteGraphAlloc(ptr, size uint64) {
	if s.graphAllocs == nil {
		s.graphAllocs = map[uint64]uint64{}
	}
	s.graphAllocs[ptr] = size
}

// graphMemory reports whether addresses are those of an allocation node, which the driver may not know before a launch.
func (s *session) graphMemory(addr, size uint64) bool {
	for base, n := range s.graphAllocs {
		if addr >= base && addr-base < n && size <= n-(addr-base) {
			return true
		}
	}
	return false
}

// GraphDestroyNode removes a node from its graph.
func (s *session) GraphDestroyNode(c *wire.Call, a *wire.GraphDestroyNodeArgs) cuda.Result {
	n, ok := s.nodes.get(a.Node)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	res := s.fn.cuGraphDestroyNode.call(n.handle)
	if res == cuda.Success {
		s.forgetNode(n)
	}
	return res
}

// GraphNodeSetParams changes a node.
func (s *session) GraphNodeSetParams(c *wire.Call, a *wire.GraphNodeSetParamsArgs) cuda.Result {
	n, ok := s.nodes.get(a.Node)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	return s.setParams(c, a.Type, a.Params, func(p *nodeParams) cuda.Result {
		return s.fn.cuGraphNodeSetParams.call(n.handle, p.addr())
	})
}

// GraphExecNodeSetParams changes a node of an executable graph.
func (s *session) GraphExecNodeSetParams(c *wire.Call, a *wire.GraphExecNodeSetParamsArgs) cuda.Result {
	n, ok1 := s.nodes.get(a.Node)
	x, ok2 := s.execs.get(a.Exec)
	if !ok1 || !ok2 {
		return cuda.ErrorInvalidValue
	}
	return s.setParams(c, a.Type, a.Params, func(p *nodeParams) cuda.Result {
		return s.fn.cuGraphExecNodeSetParams.call(x.handle, n.handle, p.addr())
	})
}

func (s *session) setParams(c *wire.Call, kind uint32, params []byte, set func(*nodeParams) cuda.Result) cuda.Result {
	if res := s.useAny(c); res != cuda.Success {
		return res
	}
	p, res := s.nodeParams(c, kind, params)
	if res != cuda.Success {
		return res
	}
	defer p.free()
	if p.moved != nil { // a node has its graph from the beginning
		return cuda.ErrorInvalidValue
	}
	return s.note(set(p))
}

// GraphConditionalCreate makes a condition for nodes of a graph.
func (s *session) GraphConditionalCreate(c *wire.Call, a *wire.GraphConditionalCreateArgs, r *wire.GraphConditionalCreateReply) cuda.Result {
	g, ok := s.graphs.get(a.Graph)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	if res := s.useAny(c); res != cuda.Success {
		return res
	}
	ctx, res := s.nodeContext(c, a.Ctx)
	if res != cuda.Success {
		return res
	}
	res = s.fn.cuGraphConditionalHandleCreate.call(s.out.addr(), g.handle, ctx, uint64(a.Value), uint64(a.Flags))
	r.Handle = *s.out.u64(0)
	return res
}

// nodeContext is the driver's handle of a context, of the current one for 0.
func (s *session) nodeContext(c *wire.Call, id uint32) (uint64, cuda.Result) {
	if id == 0 {
		return s.handleOf(c.Ctx), cuda.Success
	}
	ctx, ok := s.ctxs.get(id)
	if !ok || ctx.handle == 0 {
		return 0, cuda.ErrorInvalidContext
	}
	return ctx.handle, cuda.Success
}
