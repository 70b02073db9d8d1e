package soft

import (
	"encoding/binary"
	"fmt"

	"causeway/cuda/wire"
	"causeway/host/driver"
)

var _ driver.GraphKeeper = (*session)(nil)

// Capturing implements driver.GraphKeeper.
func (s *session) Capturing() bool { return s.capturing() }

// HoldsPages implements driver.GraphKeeper.
func (s *session) HoldsPages() bool { return false }

// root is the graph that g is, or that it is inside of.
func (g *graph) root() *graph {
	for g.parent != nil && g.parent.graph != nil {
		g = g.parent.graph
	}
	return g
}

// GraphRoot implements driver.GraphKeeper.
func (s *session) GraphRoot(id wire.ID) wire.ID {
	if g := s.graphs[id]; g != nil {
		return g.root().id
	}
	return 0
}

// NodeRoot implements driver.GraphKeeper.
func (s *session) NodeRoot(id wire.ID) wire.ID {
	if n := s.nodes[id]; n != nil && n.graph != nil {
		return n.graph.root().id
	}
	return 0
}

// NodeSerial implements driver.GraphKeeper.
func (s *session) NodeSerial(id wire.ID) uint64 {
	if n := s.nodes[id]; n != nil {
		return n.serial
	}
	return 0
}

// CloneOf implements driver.GraphKeeper.
func (s *session) CloneOf(id wire.ID) uint64 {
	if n := s.nodes[id]; n != nil && n.origin != nil && n.origin.graph != nil {
		return n.origin.serial
	}
	return 0
}

// SetCloneOf implements driver.GraphKeeper.
func (s *session) SetCloneOf(id, original wire.ID) {
	if n := s.nodes[id]; n != nil {
		n.origin = s.nodes[original]
	}
}

// RenameGraph implements driver.GraphKeeper.
func (s *session) RenameGraph(id, to wire.ID, fresh func() wire.ID, told func(old, name wire.ID)) bool {
	g := s.graphs[id]
	if _, used := s.graphs[to]; used || g == nil {
		return false
	}
	delete(s.graphs, id)
	g.id = to
	s.graphs[to] = g
	s.renameNodes(g, fresh, told)
	return true
}

func (s *session) renameNodes(g *graph, fresh func() wire.ID, told func(old, name wire.ID)) {
	unused := func(used func(wire.ID) bool) wire.ID {
		id := fresh()
		for used(id) {
			id = fresh()
		}
		return id
	}
	for _, n := range g.nodes {
		if n.id != 0 {
			old := n.id
			n.id = unused(func(id wire.ID) bool { return s.nodes[id] != nil })
			delete(s.nodes, old)
			s.nodes[n.id] = n
		}
		for _, in := range n.inner {
			if in.id != 0 {
				old := in.id
				delete(s.graphs, old)
				in.id = unused(func(id wire.ID) bool { return s.graphs[id] != nil })
				s.graphs[in.id] = in
				told(old, in.id)
			}
			s.renameNodes(in, fresh, told)
		}
	}
}

// Unname implements driver.GraphKeeper.
func (s *session) Unname(ids []wire.ID) {
	for _, id := range ids {
		if n := s.nodes[id]; n != nil {
			n.id = 0
			delete(s.nodes, id)
		}
		if g := s.graphs[id]; g != nil {
			g.id = 0
			delete(s.graphs, id)
		}
	}
}

// contextAt is where the parameters of a node of this kind name its context; negative: they do not.
func contextAt(kind uint32) int {
	switch kind {
	case wire.NodeKernel:
		return 8 * 4 // behind the function, the dimensions and the shared memory
	case wire.NodeMemcpy:
		return 2*wire.MemcpyOperandSize + 3*8
	case wire.NodeMemset:
		return 5 * 8
	case wire.NodeBatchMemOp:
		return 0
	case wire.NodeConditional:
		return 16
	}
	return -1
}

// nodeCall is a call in the context that a node's parameters name, and says in them which it is: a
// node stays in the context in which it was made.
func (s *session) nodeCall(c *wire.Call, kind uint32, p []byte) *wire.Call {
	at := contextAt(kind)
	if at < 0 || len(p) < at+4 {
		return c
	}
	if id := binary.LittleEndian.Uint32(p[at:]); id != 0 && id != c.Ctx {
		return c.In(id)
	}
	binary.LittleEndian.PutUint32(p[at:], c.Ctx)
	return c
}

// standing is a node's parameters as they mean the same still: ids may have been given again.
func (s *session) standing(n *graphNode) []byte {
	p := append([]byte(nil), n.params...)
	switch n.kind {
	case wire.NodeKernel:
		if s.entryIn(n.work.ctx, n.work.fn) != n.work.entry {
			binary.LittleEndian.PutUint32(p, 0)
		}
	case wire.NodeWaitEvent, wire.NodeEventRecord:
		var v wire.EventNode
		if v.Decode(p) == nil && s.events[v.Event] != n.work.event {
			p = (&wire.EventNode{}).Append(nil)
		}
	case wire.NodeConditional:
		for i, g := range n.inner {
			binary.LittleEndian.PutUint32(p[wire.ConditionalNodeSize+4*i:], g.id)
		}
	}
	return p
}

// strayNode is an error that names a graph with a node of a context that has ended: it cannot be
// made again.
func (s *session) strayNode() error {
	var stray wire.ID // a context
	at := func(w *work, kind uint32) {
		if contextAt(kind) >= 0 && w.ctx != nil && s.ctxs[w.ctx.id] != w.ctx {
			stray = w.ctx.id
		}
	}
	var inGraph func(g *graph)
	inGraph = func(g *graph) {
		for _, n := range g.nodes {
			at(&n.work, n.kind)
			for _, in := range n.inner {
				inGraph(in)
			}
		}
	}
	var inPlan func(p *plan)
	inPlan = func(p *plan) {
		for i := range p.nodes {
			at(&p.nodes[i].work, p.nodes[i].node.kind)
			for _, b := range p.nodes[i].bodies {
				inPlan(b)
			}
		}
	}
	for id, g := range s.graphs {
		if inGraph(g); stray != 0 {
			return fmt.Errorf("graph %d has a node of context %d, which was destroyed", id, stray)
		}
	}
	for id, x := range s.execs {
		if inPlan(x.plan); stray != 0 {
			return fmt.Errorf("executable graph %d has a node of context %d, which was destroyed", id, stray)
		}
	}
	return nil
}
