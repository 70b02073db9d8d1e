package cuda

import (
	"slices"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

// A driver finds a node's copy in a clone, and only in one that it made itself. A session that may
// move asks for all of them when a graph is cloned, and answers by itself where the clone is one
// that was rebuilt.

// clone is of which graph another is a clone. Its zero value: of none.
type clone struct {
	of    *graph
	nodes map[bind.GraphNode]bind.GraphNode // those of the original, by their copies
}

// cloned notes what is whose copy. What the driver does not find is nobody's.
func (s *session) cloned(from, to *graph) cuda.Result {
	if !s.arenas.on {
		return cuda.Success
	}
	n, res := s.drv.GraphGetNodes(from.handle, nil)
	if res != cuda.Success {
		return res
	}
	if n > maxListed {
		return cuda.ErrorOutOfMemory
	}
	list := make([]bind.GraphNode, n)
	if n > 0 {
		if n, res = s.drv.GraphGetNodes(from.handle, list); res != cuda.Success {
			return res
		}
	}
	for _, original := range list[:min(n, uint64(len(list)))] {
		if h, res := s.drv.GraphNodeFindInClone(original, to.handle); res == cuda.Success {
			to.isCopy(h, from, original)
		}
	}
	return cuda.Success
}

// isCopy notes that a node of g is the copy of one of another graph.
func (g *graph) isCopy(node bind.GraphNode, of *graph, original bind.GraphNode) {
	if g.clone.of != of {
		g.clone = clone{of, map[bind.GraphNode]bind.GraphNode{}}
		of.clones = append(of.clones, g)
	}
	g.clone.nodes[node] = original
}

// endClones has the clones of a graph that is gone be of none, and those of which it is one forget
// it.
func (g *graph) endClones() {
	for _, c := range g.clones {
		c.clone = clone{}
	}
	if of := g.clone.of; of != nil {
		of.clones = slices.DeleteFunc(of.clones, func(c *graph) bool { return c == g })
	}
	g.clones, g.clone = nil, clone{}
}

// endCopies does so for a node alone, whose handle others may have from now on.
func (n *graphNode) endCopies() {
	delete(n.graph.clone.nodes, n.handle)
	for _, c := range n.graph.clones {
		if h, ok := c.copyOf(n); ok {
			delete(c.clone.nodes, h)
		}
	}
}

// copyOf is the copy of a node in g.
func (g *graph) copyOf(n *graphNode) (bind.GraphNode, bool) {
	if g.clone.of == n.graph {
		for h, original := range g.clone.nodes {
			if original == n.handle {
				return h, true
			}
		}
	}
	return bind.GraphNode{}, false
}

// CloneOf implements driver.GraphKeeper.
func (s *session) CloneOf(id wire.ID) uint64 {
	if n, ok := s.nodes.get(id); ok {
		if original, ok := n.graph.clone.nodes[n.handle]; ok {
			return original.Value()
		}
	}
	return 0
}

// SetCloneOf implements driver.GraphKeeper.
func (s *session) SetCloneOf(id, original wire.ID) {
	n, ok1 := s.nodes.get(id)
	o, ok2 := s.nodes.get(original)
	if ok1 && ok2 {
		n.graph.isCopy(n.handle, o.graph, o.handle)
	}
}
