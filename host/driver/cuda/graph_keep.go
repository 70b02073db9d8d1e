package cuda

import (
	"causeway/cuda/wire"
	"causeway/host/driver"
)

var _ driver.GraphKeeper = (*session)(nil)

// Capturing implements driver.GraphKeeper.
func (s *session) Capturing() bool { return s.capturing() }

func (g *graph) root() *graph {
	for g.parent != nil {
		g = g.parent.graph
	}
	return g
}

// HoldsPages implements driver.GraphKeeper. On an H200 a launch fails (719) after a captured copy's
// pinned memory was registered again.
func (s *session) HoldsPages() bool { return true }

// GraphRoot implements driver.GraphKeeper.
func (s *session) GraphRoot(id wire.ID) wire.ID {
	if g, ok := s.graphs.get(id); ok {
		return g.root().id
	}
	return 0
}

// NodeRoot implements driver.GraphKeeper.
func (s *session) NodeRoot(id wire.ID) wire.ID {
	if n, ok := s.nodes.get(id); ok {
		return n.graph.root().id
	}
	return 0
}

// NodeSerial implements driver.GraphKeeper.
func (s *session) NodeSerial(id wire.ID) uint64 {
	if n, ok := s.nodes.get(id); ok {
		return n.handle.Value()
	}
	return 0
}

// RenameGraph implements driver.GraphKeeper.
func (s *session) RenameGraph(id, to wire.ID, fresh func() wire.ID, told func(old, name wire.ID)) bool {
	g, ok := s.graphs.get(id)
	if !ok || !s.graphs.put(to, g) {
		return false
	}
	s.graphs.remove(id)
	g.id = to
	s.renameNodes(g, fresh, told)
	return true
}

// rename gives what is in a table another id.
func rename[T any](t *table[T], id wire.ID, fresh func() wire.ID) wire.ID {
	v, _ := t.remove(id)
	for {
		if to := fresh(); t.put(to, v) {
			return to
		}
	}
}

func (s *session) renameNodes(g *graph, fresh func() wire.ID, told func(old, name wire.ID)) {
	for _, n := range g.nodes {
		n.id = rename(&s.nodes, n.id, fresh)
		for _, in := range n.inner {
			old := in.id
			in.id = rename(&s.graphs, old, fresh)
			told(old, in.id)
			s.renameNodes(in, fresh, told)
		}
	}
}

// Unname implements driver.GraphKeeper.
func (s *session) Unname(ids []wire.ID) {
	for _, id := range ids {
		if n, ok := s.nodes.remove(id); ok {
			delete(s.nodeOf, n.handle)
			delete(n.graph.nodes, n.handle)
		}
		if g, ok := s.graphs.remove(id); ok {
			delete(s.graphOf, g.handle)
			if g.parent != nil {
				g.parent.forget(g)
			}
		}
	}
}
