package cuda

import (
	"encoding/binary"

	"causeway/cuda"
	"causeway/cuda/wire"
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
	seen    map[uint64]bool // unnamed nodes that were counted
	res     cuda.Result
}

// node is the id and type of a node.
func (l *nodeList) node(handle uint64) (id, kind uint32) {
	if handle == 0 {
		return 0, 0
	}
	if res := l.s.fn.cuGraphNodeGetType.call(handle, l.s.out.addr()+2048); res == cuda.Success {
		kind = uint32(*l.s.out.i32(512))
	}
	if n := l.s.nodeOf[handle]; n != nil {
		return n.id, kind
	}
	if len(l.names) < 4 || l.graph == nil {
		if l.seen == nil {
			l.seen = map[uint64]bool{}
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
func (l *nodeList) add(from, to uint64, data []byte) {
	var e wire.GraphEdge
	e.From, e.FromType = l.node(from)
	e.To, e.ToType = l.node(to)
	copy(e.Data[:], data)
	l.list = e.Append(l.list)
}

// GraphList lists nodes or edges.
func (s *session) GraphList(c *wire.Call, a *wire.GraphListArgs, r *wire.GraphListReply) cuda.Result {
	l := nodeList{s: s, names: a.Names}
	var subject uint64
	switch a.What {
	case wire.GraphListNodes, wire.GraphListRoots, wire.GraphListEdges:
		g, ok := s.graphs.get(a.Graph)
		if !ok {
			return cuda.ErrorInvalidValue
		}
		l.graph, subject = g, g.handle
	case wire.GraphListBefore, wire.GraphListAfter:
		n, ok := s.nodes.get(a.Node)
		if !ok {
			return cuda.ErrorInvalidValue
		}
		l.graph, subject = n.graph, n.handle
	default:
		return cuda.ErrorInvalidValue
	}
	if res := s.list(a.What, subject, &l); res != cuda.Success {
		return res
	}
	r.Unnamed, r.Nodes = l.unnamed, l.list
	return l.res
}

// list asks the driver how many there are, then which.
func (s *session) list(what uint32, subject uint64, l *nodeList) cuda.Result {
	count := s.out.addr()
	ask := func(from, to, data uint64) cuda.Result {
		switch what {
		case wire.GraphListNodes:
			return s.fn.cuGraphGetNodes.call(subject, from, count)
		case wire.GraphListRoots:
			return s.fn.cuGraphGetRootNodes.call(subject, from, count)
		case wire.GraphListEdges:
			return s.fn.cuGraphGetEdges_v2.call(subject, from, to, data, count)
		case wire.GraphListBefore:
			return s.fn.cuGraphNodeGetDependencies_v2.call(subject, from, data, count)
		}
		return s.fn.cuGraphNodeGetDependentNodes_v2.call(subject, from, data, count)
	}
	*s.out.u64(0) = 0
	if res := ask(0, 0, 0); res != cuda.Success {
		return res
	}
	n := *s.out.u64(0)
	if n == 0 {
		return cuda.Success
	}
	if n > maxListed {
		return cuda.ErrorOutOfMemory
	}
	b := newBuffer(24 * int(n))
	defer b.free()
	if res := ask(b.addr(), b.addr()+8*n, b.addr()+16*n); res != cuda.Success {
		return res
	}
	for i := range int(n) {
		to := uint64(0)
		if what == wire.GraphListEdges {
			to = *b.u64(int(n) + i)
		}
		l.add(*b.u64(i), to, b.bytes()[16*int(n)+8*i:][:8])
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
	defer from.free()
	to, res := s.dependencies(a.After, nil)
	if res != cuda.Success {
		return res
	}
	defer to.free()
	f := s.fn.cuGraphAddDependencies_v2
	if a.Remove != 0 {
		f = s.fn.cuGraphRemoveDependencies_v2
	}
	return f.call(g.handle, from.nodesAddr(), to.nodesAddr(), from.edgesAddr(), from.count())
}

// GraphFindInClone finds a node's copy.
func (s *session) GraphFindInClone(c *wire.Call, a *wire.GraphFindInCloneArgs, r *wire.GraphFindInCloneReply) cuda.Result {
	n, ok1 := s.nodes.get(a.Node)
	g, ok2 := s.graphs.get(a.Graph)
	if !ok1 || !ok2 {
		return cuda.ErrorInvalidValue
	}
	if res := s.fn.cuGraphNodeFindInClone.call(s.out.addr(), n.handle, g.handle); res != cuda.Success {
		return res
	}
	found, res := s.adoptNode(g, *s.out.u64(0), a.Fresh)
	if res == cuda.Success {
		r.Found = found.id
	}
	return res
}

// readWord reads 64 bits of the driver's memory.
func readWord(addr uint64) uint64 { return binary.LittleEndian.Uint64(hostBytes(addr, 8)) }
