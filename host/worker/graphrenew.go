package worker

import (
	"errors"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// Drivers look up once, when a copy becomes part of a graph, where registered memory is. When that
// memory has been let go of and come back, a session's graphs are made again, as in another
// process.

// awaits reports whether graphs cannot be made before the session's pages are there, and what
// others share with it: drivers take no copies of memory that is not registered, or not there, and
// no events without a handle.
func (g *graphs) awaits(s *graphsState) bool {
	if g.keeper == nil || !g.keeper.HoldsPages() || !g.w.away.Load() {
		return false
	}
	c, ok := g.w.session.(driver.Companion)
	return ok && len(c.Foreign()) > 0 || s.copiesHost()
}

// copiesHost reports whether graphs copy memory that may be the program's own.
func (s *graphsState) copiesHost() bool {
	for i := range s.graphs {
		if s.graphs[i].plan.copiesHost() {
			return true
		}
	}
	for i := range s.execs {
		for _, p := range s.execs[i].params {
			if copiesHost(p.kind, p.params) {
				return true
			}
		}
	}
	return false
}

// renew does so behind a park, or a move that came to nothing. The session stands still.
func (g *graphs) renew() {
	if late := g.late; late != nil {
		g.late = nil
		if err := g.restore(late); err != nil {
			g.w.log.Error("the session's graphs cannot be made here", "error", err)
			g.w.SetSticky(cuda.ErrorUnknown)
		}
		return
	}
	if g.keeper == nil || !g.keeper.HoldsPages() || g.w.sticky.Load() != 0 {
		return
	}
	if len(g.live)+len(g.execs) == 0 {
		return
	}
	st, err := g.state()
	if err == nil && !st.copiesHost() {
		return
	}
	if err == nil && len(st.objects) > 0 {
		err = errors.New("they have user objects")
	}
	for i := range st.graphs {
		st.graphs[i].plan.memory(func(uint64) { err = errAllocates }, func(uint64) { err = errAllocates })
	}
	if err == nil {
		g.forget()
		err = g.restore(&st)
	}
	if err != nil {
		g.w.log.Warn("graphs may not reach the program's memory any more", "error", err)
	}
}

var errAllocates = errors.New("they allocate memory")

// forget ends all graphs, and what is executable of them.
func (g *graphs) forget() {
	s, kept := g.w.session, map[*template]bool{}
	for id, x := range g.execs {
		s.GraphExecDestroy(g.call(wire.OpGraphExecDestroy, x.ctx), &wire.GraphExecDestroyArgs{Exec: id})
		g.w.host.release(x.cost)
		kept[x.origin], kept[x.last] = true, true
	}
	for t := range kept {
		if t.hidden {
			s.GraphDestroy(g.call(wire.OpGraphDestroy, t.ctx), &wire.GraphDestroyArgs{Graph: t.graph})
		}
		g.w.host.release(t.cost)
	}
	for id, l := range g.live {
		s.GraphDestroy(g.call(wire.OpGraphDestroy, l.ctx), &wire.GraphDestroyArgs{Graph: id})
		g.w.host.release(l.cost)
	}
	g.live, g.execs = map[wire.ID]*liveGraph{}, map[wire.ID]*execGraph{}
}

// copiesHost reports whether nodes copy memory that may be the program's own.
func (p *graphPlan) copiesHost() (does bool) {
	p.walk(func(_ uint32, n *planNode) { does = does || copiesHost(n.kind, n.params) })
	return does
}

func copiesHost(kind uint32, params []byte) bool {
	if kind != wire.NodeMemcpy {
		return false
	}
	for range 2 {
		var v wire.MemcpyOperand
		_ = v.Decode(params)
		if params = params[min(len(params), wire.MemcpyOperandSize):]; v.Type == cuda.MemoryTypeHost || v.Type == cuda.MemoryTypeUnified {
			return true
		}
	}
	return false
}
