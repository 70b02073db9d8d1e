package cuda

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

// adoptGraph gives a graph of the driver the id that the guest offers, unless it has one.
func (s *session) adoptGraph(handle bind.Graph, id uint32, parent *graphNode) (*graph, cuda.Result) {
	if g := s.graphOf[handle]; g != nil {
		return g, cuda.Success
	}
	g := &graph{id: id, handle: handle, parent: parent}
	if !s.graphs.put(id, g) {
		return nil, cuda.ErrorInvalidHandle
	}
	delete(s.lost.graphs, id)
	if s.graphOf == nil {
		s.graphOf = map[bind.Graph]*graph{}
	}
	s.graphOf[handle] = g
	return g, cuda.Success
}

// adoptNode does the same for a node.
func (s *session) adoptNode(g *graph, handle bind.GraphNode, id uint32) (*graphNode, cuda.Result) {
	if n := s.nodeOf[handle]; n != nil {
		return n, cuda.Success
	}
	n := &graphNode{id: id, handle: handle, graph: g}
	if !s.nodes.put(id, n) {
		return nil, cuda.ErrorInvalidHandle
	}
	if s.nodeOf == nil {
		s.nodeOf = map[bind.GraphNode]*graphNode{}
	}
	s.nodeOf[handle] = n
	if g.nodes == nil {
		g.nodes = map[bind.GraphNode]*graphNode{}
	}
	g.nodes[handle] = n
	return n, cuda.Success
}

// forgetGraph drops the ids of a graph that is gone, of its nodes and of the graphs inside them.
func (s *session) forgetGraph(g *graph) {
	g.endClones()
	s.dropMemNodes(func(n *memNode) bool { return n.in == g.handle || n.of != nil && n.of.root() == g })
	for _, n := range g.nodes {
		s.forgetNode(n)
	}
	for _, ptr := range g.allocs {
		s.space.DropGraph(ptr)
	}
	maps.DeleteFunc(s.conditions, func(_ uint64, c condition) bool { return c.graph == g })
	s.graphs.remove(g.id)
	delete(s.graphOf, g.handle)
	s.endKept()
}

func (s *session) forgetNode(n *graphNode) {
	for _, g := range n.inner {
		s.forgetGraph(g)
	}
	if n.alloc != 0 {
		s.space.DropGraph(n.alloc)
	}
	n.endCopies()
	s.nodes.remove(n.id)
	delete(s.nodeOf, n.handle)
	delete(n.graph.nodes, n.handle)
}

// forget drops a graph inside the node that has no id any more.
func (n *graphNode) forget(g *graph) {
	n.inner = slices.DeleteFunc(n.inner, func(x *graph) bool { return x == g })
}

// GraphCreate makes an empty graph.
func (s *session) GraphCreate(c *wire.Call, a *wire.GraphCreateArgs) cuda.Result {
	h, res := s.drv.GraphCreate(a.Flags)
	if res != cuda.Success {
		return res
	}
	return s.ownGraph(h, a.Graph)
}

func (s *session) ownGraph(handle bind.Graph, id uint32) cuda.Result {
	_, res := s.adoptGraph(handle, id, nil)
	if res != cuda.Success {
		s.drv.GraphDestroy(handle)
	}
	return res
}

// GraphDestroy destroys a graph of the guest's own. What was instantiated from it lives on.
func (s *session) GraphDestroy(c *wire.Call, a *wire.GraphDestroyArgs) cuda.Result {
	g, ok := s.graphs.get(a.Graph)
	if _, lost := s.lost.graphs[a.Graph]; lost && !ok {
		delete(s.lost.graphs, a.Graph)
		return cuda.Success
	}
	if !ok || g.parent != nil {
		return cuda.ErrorInvalidValue
	}
	res := s.drv.GraphDestroy(g.handle)
	if res == cuda.Success {
		s.forgetGraph(g)
	}
	return res
}

// GraphClone copies a graph. Its nodes have no ids yet.
func (s *session) GraphClone(c *wire.Call, a *wire.GraphCloneArgs) cuda.Result {
	g, ok := s.graphs.get(a.Original)
	if !ok {
		return s.noGraph(a.Original)
	}
	if s.memoryOf(g) != nil {
		return cuda.ErrorNotSupported
	}
	h, res := s.drv.GraphClone(g.handle)
	if res != cuda.Success {
		return res
	}
	if res := s.ownGraph(h, a.Graph); res != cuda.Success {
		return res
	}
	s.graphOf[h].needs = g.allNeeds()
	return s.cloned(g, s.graphOf[h])
}

// dependencies are nodes and, perhaps, edge data as the driver takes them.
type dependencies struct {
	nodes []bind.GraphNode
	edges []bind.GraphEdgeData // nil: all are plain
}

// dependencies looks up a list of node ids.
func (s *session) dependencies(ids, edges []byte) (d dependencies, _ cuda.Result) {
	n := len(ids) / 4
	if len(ids)%4 != 0 || len(edges) != 0 && len(edges) != 8*n {
		return d, cuda.ErrorInvalidValue
	}
	for i := range n {
		node, ok := s.nodes.get(binary.LittleEndian.Uint32(ids[4*i:]))
		if !ok {
			return d, cuda.ErrorInvalidValue
		}
		d.nodes = append(d.nodes, node.handle)
	}
	if len(edges) > 0 {
		d.edges = make([]bind.GraphEdgeData, n)
		_, _ = binary.Decode(edges, binary.LittleEndian, d.edges)
	}
	return d, cuda.Success
}

// useAny makes the calling thread's context current, if it has one: most of the graph functions
// need none.
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
		return s.noGraph(a.Graph)
	}
	if res := s.useAny(c); res != cuda.Success {
		return res
	}
	deps, res := s.dependencies(a.Deps, a.Edges)
	if res != cuda.Success {
		return res
	}
	if s.arenas.on && (a.Type == wire.NodeMemAlloc || a.Type == wire.NodeMemFree) {
		return s.addMemoryNode(c, g, a, deps, r)
	}
	p, res := s.nodeParams(c, a.Type, a.Params)
	if res != cuda.Success {
		return res
	}
	defer p.Free()
	if p.copied != nil && s.memoryOf(p.copied) != nil {
		return cuda.ErrorNotSupported
	}
	if res := s.charge(p.alloc); res != cuda.Success {
		return res
	}
	handle, res := s.drv.AddNode(g.handle, deps.nodes, deps.edges, p.Node)
	if res != cuda.Success {
		s.refund(p.alloc)
		return s.note(res)
	}
	n, res := s.adoptNode(g, handle, a.Node)
	if res == cuda.Success {
		n.needs = p.needs
		res = s.added(n, p, r)
	}
	if res != cuda.Success {
		s.drv.GraphDestroyNode(handle)
	}
	return res
}

// added takes what the driver wrote into the parameters of a new node.
func (s *session) added(n *graphNode, p *nodeParams, r *wire.GraphAddNodeReply) cuda.Result {
	switch p.kind {
	case wire.NodeGraph:
		if p.moved != nil {
			p.moved.parent = n
			n.inner = append(n.inner, p.moved)
		}
	case wire.NodeMemAlloc:
		at := p.Allocated()
		r.Value = at.Value()
		s.space.AddGraph(at, p.alloc)
		n.alloc = r.Value
		s.pooling.graphs += p.alloc
	case wire.NodeConditional:
		bodies := p.Bodies()
		if len(bodies) != len(p.bodies) {
			return cuda.ErrorUnknown
		}
		for i, id := range p.bodies {
			g, res := s.adoptGraph(bodies[i], id, n)
			if res != cuda.Success {
				return res
			}
			n.inner = append(n.inner, g)
		}
		n.cond = p.cond
	}
	return cuda.Success
}

// GraphDestroyNode removes a node from its graph.
func (s *session) GraphDestroyNode(c *wire.Call, a *wire.GraphDestroyNodeArgs) cuda.Result {
	n, ok := s.nodes.get(a.Node)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	if s.memNodes[n.handle] != nil {
		return cuda.ErrorNotSupported
	}
	res := s.drv.GraphDestroyNode(n.handle)
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
		res := s.drv.SetNode(n.handle, p.Node)
		if res == cuda.Success {
			n.needs = p.needs
		}
		return res
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
		grow, res := s.growing(c, p.needs)
		if res == cuda.Success {
			res = s.grown(c, grow, s.drv.SetExecNode(x.handle, n.handle, p.Node))
		}
		if res == cuda.Success {
			x.byNode[n.handle] = p.needs
		}
		return res
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
	defer p.Free()
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
	if len(s.conditions) >= maxObjects {
		return cuda.ErrorOutOfMemory
	}
	h, res := s.drv.GraphConditionalHandleCreate(g.handle, ctx, a.Value, a.Flags)
	if res == cuda.Success {
		r.Handle = h.Value()
		if s.conditions == nil {
			s.conditions = map[uint64]condition{}
		}
		s.conditions[r.Handle] = condition{h, g}
		g.needs.add(need{ctx: cmp.Or(a.Ctx, c.Ctx)})
	}
	return res
}

// nodeContext is the driver's handle of a context, of the current one for 0.
func (s *session) nodeContext(c *wire.Call, id uint32) (bind.Context, cuda.Result) {
	if id == 0 {
		return s.handleOf(c.Ctx), cuda.Success
	}
	ctx, ok := s.ctxs.get(id)
	if !ok || ctx.handle.IsZero() {
		return bind.Context{}, cuda.ErrorInvalidContext
	}
	return ctx.handle, cuda.Success
}
