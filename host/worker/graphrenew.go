package worker

import (
	"fmt"
	"maps"
	"slices"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// Drivers look up once, when something executable is made, where copies of registered memory go. When that memory has been let go of and come back, such
// graphs are made executable again.

// awaits reports whether graphs cannot be made before the session's pages are there: drivers take no copies of memory that is not registered.
func (g *graphs) awaits(s *graphsState) bool {
	if g.keeper == nil || !g.keeper.HoldsPages() || !g.w.away.Load() {
		return false
	}
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
	for _, id := range slices.Sorted(maps.Keys(g.execs)) {
		if err := g.renewExec(g.execs[id]); err != nil {
			g.w.log.Warn("an executable graph may not reach the program's memory any more", "graph", id, "error", err)
		}
	}
}

func (g *graphs) renewExec(x *execGraph) error {
	if x.err != nil {
		return x.err
	}
	v := execState{id: x.id, ctx: x.ctx, flags: x.flags, users: x.users, nameless: x.nameless}
	var made []restored
	touches := false
	for _, t := range []*template{x.origin, x.last} {
		if len(made) > 0 && t == x.origin {
			break
		}
		p, err := t.plan, t.err
		if err == nil && p == nil {
			p, err = g.describe(t.graph)
		}
		if err != nil {
			return err
		}
		touches = touches || p.copiesHost()
		r := restored{t: t}
		p.walk(func(_ uint32, n *planNode) {
			r.names, r.serials = append(r.names, n.id), append(r.serials, n.serial)
		})
		made = append(made, r)
	}
	for _, p := range x.params {
		touches = touches || copiesHost(p.kind, p.params)
	}
	if !touches {
		return nil
	}
	v.last = uint32(len(made) - 1)
	for _, t := range []*template{x.origin, x.last} {
		if t.graph == 0 {
			return errChanged
		}
	}
	for place, serial := range made[0].serials {
		if p, ok := x.params[serial]; ok {
			v.params = append(v.params, paramsState{uint32(place), p.ctx, p.kind, p.params})
		}
		if _, ok := x.off[serial]; ok {
			v.off = append(v.off, uint32(place))
		}
	}
	if err := g.retainAll(x.last.graph, x.users, false); err != nil { // nothing ends with the old one
		return err
	}
	if res := g.w.session.GraphExecDestroy(g.call(wire.OpGraphExecDestroy, x.ctx), &wire.GraphExecDestroyArgs{Exec: x.id}); res != cuda.Success {
		return fmt.Errorf("end the old one: %w", res)
	}
	err := g.restoreExec(&v, made)
	if err == nil {
		err = g.retainAll(x.last.graph, x.users, true)
	}
	g.use(x, &x.origin, nil)
	g.use(x, &x.last, nil)
	g.w.host.release(x.cost)
	return err
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
		var v wire.MemcpySide
		_ = v.Decode(params)
		if params = params[min(len(params), wire.MemcpySideSize):]; v.Type == cuda.MemoryTypeHost || v.Type == cuda.MemoryTypeUnified {
			return true
		}
	}
	return false
}
