package cuda

import (
	"encoding/binary"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

// maxListed bounds the nodes that one reply lists.
const maxListed = 1 << 22

// nodeList encodes nodes for the guest, giving the ids it offered to those that have none.
type nodeList struct {
	s       *session
	graph   *graph
	names   []byte
	list    []byte
	unnamed uint32
	seen    map[bind.GraphNode]bool // unnamed nodes that were counted
	res     cuda.Result
}

// node is the id and type of a node.
func (l *nodeList) node(handle bind.GraphNode) (id, kind uint32) {
	if handle.IsZero() {
		return 0, 0
	}
	kind, _ = l.s.typeOf(handle)
	if n := l.s.nodeOf[handle]; n != nil {
		return n.id, kind
	}
	if len(l.names) < 4 || l.graph == nil {
		if l.seen == nil {
			l.seen = map[bind.GraphNode]bool{}
		}
		if !l.seen[handle] {
			l.seen[handle] = true
			l.unnamed++
		}
		return 0, kind
	}
	n, res := l.s.adoptNode(l.graph, handle, binary.LittleEndian.Uint32(l.names))
	l.names = l.names[4:]
	if res != cuda.Success {
		l.res = res
		return 0, kind
	}
	return n.id, kind
}

// add lists a node, or an edge.
func (l *nodeList) add(from, to bind.GraphNode, data bind.GraphEdgeData) {
	var e wire.GraphEdge
	e.From, e.FromType = l.node(from)
	e.To, e.ToType = l.node(to)
	_, _ = binary.Encode(e.Data[:], binary.LittleEndian, data)
	l.list = e.Append(l.list)
}

// GraphList lists nodes or edges.
func (s *session) GraphList(c *wire.Call, a *wire.GraphListArgs, r *wire.GraphListReply) cuda.Result {
	l := nodeList{s: s, names: a.Names}
	var ask lister
	switch a.What {
	case wire.GraphListNodes, wire.GraphListRoots, wire.GraphListEdges:
		g, ok := s.graphs.get(a.Graph)
		if !ok {
			return cuda.ErrorInvalidValue
		}
		l.graph, ask = g, s.ofGraph(a.What, g.handle)
	case wire.GraphListBefore, wire.GraphListAfter:
		n, ok := s.nodes.get(a.Node)
		if !ok {
			return cuda.ErrorInvalidValue
		}
		l.graph, ask = n.graph, s.ofNode(a.What, n.handle)
	default:
		return cuda.ErrorInvalidValue
	}
	if res := l.fill(ask); res != cuda.Success {
		return res
	}
	r.Unnamed, r.Nodes = l.unnamed, l.list
	return l.res
}

// lister asks the driver for as many nodes, or edges, as there is room for, or for how many there
// are if there is none.
type lister func(from, to []bind.GraphNode, data []bind.GraphEdgeData) (uint64, cuda.Result)

func (s *session) ofGraph(what uint32, g bind.Graph) lister {
	return func(from, to []bind.GraphNode, data []bind.GraphEdgeData) (uint64, cuda.Result) {
		switch what {
		case wire.GraphListNodes:
			return s.drv.GraphGetNodes(g, from)
		case wire.GraphListRoots:
			return s.drv.GraphGetRootNodes(g, from)
		}
		return s.drv.GraphGetEdges(g, from, to, data)
	}
}

func (s *session) ofNode(what uint32, n bind.GraphNode) lister {
	return func(from, _ []bind.GraphNode, data []bind.GraphEdgeData) (uint64, cuda.Result) {
		if what == wire.GraphListBefore {
			return s.drv.GraphNodeGetDependencies(n, from, data)
		}
		return s.drv.GraphNodeGetDependentNodes(n, from, data)
	}
}

// fill asks how many there are, then which.
func (l *nodeList) fill(ask lister) cuda.Result {
	n, res := ask(nil, nil, nil)
	if res != cuda.Success || n == 0 {
		return res
	}
	if n > maxListed {
		return cuda.ErrorOutOfMemory
	}
	from, to, data := make([]bind.GraphNode, n), make([]bind.GraphNode, n), make([]bind.GraphEdgeData, n)
	if _, res := ask(from, to, data); res != cuda.Success {
		return res
	}
	for i := range from {
		l.add(from[i], to[i], data[i]) // without edges the other end is none
	}
	return cuda.Success
}

// GraphSetEdges adds or removes edges.
func (s *session) GraphSetEdges(c *wire.Call, a *wire.GraphSetEdgesArgs) cuda.Result {
	g, ok := s.graphs.get(a.Graph)
	if !ok || len(a.Before) != len(a.After) {
		return cuda.ErrorInvalidValue
	}
	from, res := s.dependencies(a.Before, a.Edges)
	if res != cuda.Success {
		return res
	}
	to, res := s.dependencies(a.After, nil)
	if res != cuda.Success {
		return res
	}
	if a.Remove != 0 {
		return s.drv.GraphRemoveDependencies(g.handle, from.nodes, to.nodes, from.edges)
	}
	return s.drv.GraphAddDependencies(g.handle, from.nodes, to.nodes, from.edges)
}

// GraphFindInClone finds a node's copy.
func (s *session) GraphFindInClone(c *wire.Call, a *wire.GraphFindInCloneArgs, r *wire.GraphFindInCloneReply) cuda.Result {
	n, ok1 := s.nodes.get(a.Node)
	g, ok2 := s.graphs.get(a.Graph)
	if !ok1 || !ok2 {
		return cuda.ErrorInvalidValue
	}
	h, ok := g.copyOf(n)
	if !ok {
		var res cuda.Result
		if h, res = s.drv.GraphNodeFindInClone(n.handle, g.handle); res != cuda.Success {
			return res
		}
	}
	found, res := s.adoptNode(g, h, a.Fresh)
	if res == cuda.Success {
		r.Found = found.id
	}
	return res
}
