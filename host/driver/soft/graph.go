package soft

import (
	"bytes"
	"encoding/binary"
	"maps"
	"slices"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// maxGraphNodes bounds the nodes of a session's graphs, and those that one executable graph comes
// to.
const maxGraphNodes = 1 << 20

// graph is a set of nodes and what they depend on.
type graph struct {
	id     wire.ID
	parent *graphNode // of a child graph or a conditional's body
	nodes  []*graphNode
	users  map[*userObject]uint32
}

// graphNode does its work when the nodes before it are done. Nodes of captures and clones have no
// id until a list asks for them.
type graphNode struct {
	id     wire.ID
	serial uint64
	kind   uint32
	graph  *graph
	before []graphEdge
	params []byte // as the wire has them
	work   work
	inner  []*graph
	attrs  map[uint32][]byte
	origin *graphNode // of a clone's
}

type graphEdge struct {
	node *graphNode
	data [8]byte
}

func (s *session) addGraph(id wire.ID, parent *graphNode) (*graph, cuda.Result) {
	if s.graphs == nil {
		s.graphs = map[wire.ID]*graph{}
	}
	if _, used := s.graphs[id]; used || id <= wire.StreamPerThread || len(s.graphs) >= maxObjects {
		return nil, cuda.ErrorInvalidHandle
	}
	g := &graph{id: id, parent: parent}
	s.graphs[id] = g
	return g, cuda.Success
}

// nameNode gives a node its id.
func (s *session) nameNode(n *graphNode, id wire.ID) cuda.Result {
	if s.nodes == nil {
		s.nodes = map[wire.ID]*graphNode{}
	}
	if _, used := s.nodes[id]; used || id <= wire.StreamPerThread {
		return cuda.ErrorInvalidHandle
	}
	n.id = id
	s.nodes[id] = n
	return cuda.Success
}

// append puts a node into a graph.
func (s *session) append(g *graph, n *graphNode) cuda.Result {
	if s.nodeCount >= maxGraphNodes {
		return cuda.ErrorOutOfMemory
	}
	s.nodeCount++
	s.lastSerial++
	n.serial = s.lastSerial
	n.graph = g
	g.nodes = append(g.nodes, n)
	return cuda.Success
}

// dropGraph forgets a graph with all that is in it.
func (s *session) dropGraph(g *graph) {
	for _, n := range g.nodes {
		s.dropNode(n)
	}
	g.nodes = nil
	delete(s.graphs, g.id)
	for o, n := range g.users {
		s.releaseObject(o, n)
	}
	g.users = nil
}

func (s *session) dropNode(n *graphNode) {
	for _, g := range n.inner {
		s.dropGraph(g)
	}
	if n.id != 0 {
		delete(s.nodes, n.id)
	}
	s.nodeCount--
	n.graph = nil
}

// GraphCreate makes an empty graph.
func (s *session) GraphCreate(c *wire.Call, a *wire.GraphCreateArgs) cuda.Result {
	if a.Flags != 0 {
		return cuda.ErrorInvalidValue
	}
	_, res := s.addGraph(a.Graph, nil)
	return res
}

// GraphDestroy ends a graph.
func (s *session) GraphDestroy(c *wire.Call, a *wire.GraphDestroyArgs) cuda.Result {
	g := s.graphs[a.Graph]
	if g == nil || g.parent != nil || s.beingCaptured(g) {
		return cuda.ErrorInvalidValue
	}
	s.dropGraph(g)
	return cuda.Success
}

// GraphClone copies a graph.
func (s *session) GraphClone(c *wire.Call, a *wire.GraphCloneArgs) cuda.Result {
	from := s.graphs[a.Original]
	if from == nil {
		return cuda.ErrorInvalidValue
	}
	g, res := s.addGraph(a.Graph, nil)
	if res != cuda.Success {
		return res
	}
	if res = s.copyInto(g, from); res != cuda.Success {
		s.dropGraph(g)
	}
	return res
}

// copyInto makes g, which is empty, the same as from.
func (s *session) copyInto(g, from *graph) cuda.Result {
	twin := map[*graphNode]*graphNode{}
	for _, o := range from.nodes {
		if o.kind == wire.NodeMemAlloc || o.kind == wire.NodeMemFree || o.kind == wire.NodeConditional {
			return cuda.ErrorNotSupported // as documented for clones and child graphs
		}
		n := &graphNode{kind: o.kind, params: o.params, work: o.work, attrs: maps.Clone(o.attrs), origin: o}
		if res := s.append(g, n); res != cuda.Success {
			return res
		}
		for _, in := range o.inner {
			c := &graph{parent: n}
			n.inner = append(n.inner, c)
			if res := s.copyInto(c, in); res != cuda.Success {
				return res
			}
		}
		twin[o] = n
	}
	for _, o := range from.nodes {
		for _, e := range o.before {
			twin[o].before = append(twin[o].before, graphEdge{twin[e.node], e.data})
		}
	}
	for o, n := range from.users {
		s.retainObject(g, o, n)
	}
	return cuda.Success
}

// edges looks up dependencies of nodes of g.
func (s *session) edges(g *graph, ids, data []byte) ([]graphEdge, cuda.Result) {
	n := len(ids) / 4
	if len(ids)%4 != 0 || len(data) != 0 && len(data) != 8*n {
		return nil, cuda.ErrorInvalidValue
	}
	var list []graphEdge
	for i := range n {
		node := s.nodes[binary.LittleEndian.Uint32(ids[4*i:])]
		if node == nil || node.graph != g {
			return nil, cuda.ErrorInvalidValue
		}
		e := graphEdge{node: node}
		if len(data) > 0 {
			copy(e.data[:], data[8*i:])
		}
		if slices.ContainsFunc(list, func(x graphEdge) bool { return x.node == node }) {
			return nil, cuda.ErrorInvalidValue
		}
		list = append(list, e)
	}
	return list, cuda.Success
}

// GraphAddNode adds a node of any kind.
func (s *session) GraphAddNode(c *wire.Call, a *wire.GraphAddNodeArgs, r *wire.GraphAddNodeReply) cuda.Result {
	g := s.graphs[a.Graph]
	if g == nil {
		return cuda.ErrorInvalidValue
	}
	before, res := s.edges(g, a.Deps, a.Edges)
	if res != cuda.Success {
		return res
	}
	n, res := s.newNode(c, g, a.Type, a.Params, before)
	if res != cuda.Success {
		return res
	}
	if res := s.nameNode(n, a.Node); res != cuda.Success {
		if n.kind == wire.NodeGraph && n.inner[0].parent == nil {
			n.inner = nil // it stays its owner's
		}
		s.removeNode(n)
		return res
	}
	if n.kind == wire.NodeGraph {
		n.inner[0].parent = n
	}
	if n.work.alloc != nil {
		r.Value = n.work.alloc.mem.lo
	}
	return cuda.Success
}

// bareNode adds a node that does nothing yet.
func (s *session) bareNode(g *graph, kind uint32, params []byte, before []graphEdge) (*graphNode, cuda.Result) {
	n := &graphNode{kind: kind, params: bytes.Clone(params), before: before}
	if res := s.append(g, n); res != cuda.Success {
		return nil, res
	}
	return n, cuda.Success
}

// newNode adds a node without an id.
func (s *session) newNode(c *wire.Call, g *graph, kind uint32, params []byte, before []graphEdge) (*graphNode, cuda.Result) {
	n, res := s.bareNode(g, kind, params, before)
	if res != cuda.Success {
		return nil, res
	}
	if res = s.prepare(c, n, kind, n.params); res != cuda.Success {
		s.removeNode(n)
		return nil, res
	}
	return n, res
}

// removeNode takes a node out of its graph.
func (s *session) removeNode(n *graphNode) {
	g := n.graph
	g.nodes = slices.DeleteFunc(g.nodes, func(x *graphNode) bool { return x == n })
	for _, o := range g.nodes {
		o.before = slices.DeleteFunc(o.before, func(e graphEdge) bool { return e.node == n })
	}
	s.dropNode(n)
}

// GraphDestroyNode removes a node and its edges.
func (s *session) GraphDestroyNode(c *wire.Call, a *wire.GraphDestroyNodeArgs) cuda.Result {
	n := s.nodes[a.Node]
	if n == nil || n.kind == wire.NodeMemAlloc || n.kind == wire.NodeMemFree {
		return cuda.ErrorInvalidValue
	}
	s.removeNode(n)
	return cuda.Success
}

// GraphNodeSetParams changes what a node does.
func (s *session) GraphNodeSetParams(c *wire.Call, a *wire.GraphNodeSetParamsArgs) cuda.Result {
	n := s.nodes[a.Node]
	if n == nil || n.kind != a.Type || !changeable(n.kind) {
		return cuda.ErrorInvalidValue
	}
	fresh := &graphNode{graph: n.graph}
	params := bytes.Clone(a.Params)
	if res := s.prepare(c, fresh, a.Type, params); res != cuda.Success {
		return res
	}
	n.params, n.work = params, fresh.work
	return cuda.Success
}

func changeable(kind uint32) bool {
	switch kind {
	case wire.NodeKernel, wire.NodeMemcpy, wire.NodeMemset, wire.NodeHost, wire.NodeWaitEvent, wire.NodeEventRecord, wire.NodeBatchMemOp:
		return true
	}
	return false
}

// GraphNodeGetParams tells what a node does.
func (s *session) GraphNodeGetParams(c *wire.Call, a *wire.GraphNodeGetParamsArgs, r *wire.GraphNodeGetParamsReply) cuda.Result {
	n := s.nodes[a.Node]
	if n == nil {
		return cuda.ErrorInvalidValue
	}
	r.Type, r.Params = n.kind, s.standing(n)
	if n.kind != wire.NodeGraph {
		return cuda.Success
	}
	g := n.inner[0]
	if g.id == 0 {
		if _, used := s.graphs[a.Fresh]; used || a.Fresh <= wire.StreamPerThread {
			return cuda.ErrorInvalidHandle
		}
		g.id = a.Fresh
		s.graphs[g.id] = g
	}
	r.Params = (&wire.ChildNode{Graph: g.id}).Append(nil)
	return cuda.Success
}

// GraphFindInClone finds a node's copy.
func (s *session) GraphFindInClone(c *wire.Call, a *wire.GraphFindInCloneArgs, r *wire.GraphFindInCloneReply) cuda.Result {
	n, g := s.nodes[a.Node], s.graphs[a.Graph]
	if n == nil || g == nil {
		return cuda.ErrorInvalidValue
	}
	for _, x := range g.nodes {
		if x.origin != n {
			continue
		}
		if x.id == 0 {
			if res := s.nameNode(x, a.Fresh); res != cuda.Success {
				return res
			}
		}
		r.Found = x.id
		return cuda.Success
	}
	return cuda.ErrorInvalidValue
}
