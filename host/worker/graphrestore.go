package worker

import (
	"errors"
	"fmt"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// restore makes everything again, in a session that has contexts, functions, streams and events,
// and no graphs.
func (g *graphs) restore(s *graphsState) error {
	if len(s.graphs) == 0 && len(s.execs) == 0 && len(s.objects) == 0 && len(s.modes) == 0 {
		return nil
	}
	if g.keeper == nil {
		return errors.New("this GPU has no graphs that could be made again")
	}
	if s.last >= hiddenIDs && s.last < momentIDs {
		g.last = s.last
	}
	for thread, mode := range s.modes {
		c := wire.Call{Op: wire.OpThreadCaptureMode, Thread: thread, Replay: true}
		if res := g.w.front.ThreadCaptureMode(&c, &wire.ThreadCaptureModeArgs{Mode: mode}); res != cuda.Success {
			return fmt.Errorf("capture mode: %w", res)
		}
	}
	if err := g.makeObjects(s.objects); err != nil {
		return err
	}
	made, err := g.restoreGraphs(s)
	if err != nil {
		return err
	}
	for i := range s.execs {
		if err := g.restoreExec(&s.execs[i], made); err != nil {
			return fmt.Errorf("executable graph %d: %w", s.execs[i].id, err)
		}
	}
	for i := range s.graphs {
		if v := &s.graphs[i]; v.kind == graphLive {
			if err := g.retainAll(v.id, v.users, false); err != nil {
				return err
			}
		}
		switch t := made[i].t; {
		case len(t.uses) > 0:
		case t.hidden:
			return errors.New("a graph that nothing needs")
		default:
			t.of.made = nil
		}
	}
	return g.yieldObjects(s.objects)
}

// restored is a graph of the state that was made, with ids and serials of its nodes by their
// places.
type restored struct {
	t       *template
	names   []wire.ID
	serials []uint64
	nodes   uint64 // what is booked for what is in it
}

var errPlace = errors.New("a node that is not there")

// keeps are the places of nodes that have to have an id in graphs that the guest changed since, by
// graph.
func (s *graphsState) keeps() map[uint32]map[uint32]bool {
	keep := map[uint32]map[uint32]bool{}
	add := func(graph, place uint32) {
		if keep[graph] == nil {
			keep[graph] = map[uint32]bool{}
		}
		keep[graph][place] = true
	}
	for i := range s.graphs {
		for _, t := range s.graphs[i].twins {
			add(uint32(i), t.place)
		}
	}
	for i := range s.execs {
		v := &s.execs[i]
		for _, p := range v.params {
			add(v.origin, p.place)
		}
		for _, place := range v.off {
			add(v.origin, place)
		}
	}
	return keep
}

// restoreGraphs makes the graphs, those that allocate memory ahead of those that free it.
func (g *graphs) restoreGraphs(s *graphsState) ([]restored, error) {
	made := make([]restored, len(s.graphs))
	b := builder{g: g, next: momentIDs}
	defer func() { g.keeper.Unname(b.temp) }()
	there, keep := map[uint64]bool{}, s.keeps()
	for left := len(made); left > 0; {
		before := left
		for i := range s.graphs {
			v := &s.graphs[i]
			if made[i].t != nil {
				continue
			}
			own, ready := map[uint64]bool{}, true
			v.plan.memory(func(at uint64) { own[at] = true }, func(at uint64) { ready = ready && (there[at] || own[at]) })
			if !ready {
				continue
			}
			r, err := g.restoreGraph(&b, v, keep[uint32(i)])
			if err != nil {
				return nil, fmt.Errorf("graph %d: %w", v.id, err)
			}
			for at := range own {
				there[at] = true
			}
			made[i] = *r
			left--
		}
		if left == before {
			return nil, errors.New("graphs free memory of a graph that is gone")
		}
	}
	for i := range s.graphs { // the guest's graphs are all there
		for _, t := range s.graphs[i].twins {
			if err := g.restoreTwin(&t, &made[i], made); err != nil {
				return nil, err
			}
		}
	}
	node := func(p graphPlace) wire.ID {
		if uint64(p.graph) >= uint64(len(made)) || uint64(p.place) >= uint64(len(made[p.graph].names)) {
			return 0
		}
		return made[p.graph].names[p.place]
	}
	for _, c := range s.clones {
		g.keeper.SetCloneOf(node(c.node), node(c.original))
	}
	return made, nil
}

func (g *graphs) restoreGraph(with *builder, v *graphState, keep map[uint32]bool) (*restored, error) {
	b := builder{g: g, ctx: v.ctx, conds: v.conds, past: v.kind == graphPast, keep: keep, next: with.next}
	id := v.id
	if b.past {
		id = g.fresh()
	}
	err := b.build(v.plan, id)
	with.next, with.temp = b.next, append(with.temp, b.temp...)
	if err != nil {
		return nil, err
	}
	nodes, users := v.plan.nodesBytes(), refBytes*uint64(len(v.users))
	cost := graphBytes + partBytes*uint64(len(v.conds)) + nodes + users
	g.w.host.book(cost)
	t := &template{graph: id, hidden: true, ctx: v.ctx, conds: v.conds, uses: map[*execGraph]int{}}
	if v.kind == graphLive {
		l := g.add(id, v.ctx, cost)
		l.nested, l.conds, l.users, l.made, l.nodes = v.nested, v.conds, v.users, t, nodes
		t.of, t.hidden, t.conds = l, false, nil
		return &restored{t, b.names, b.serials, nodes}, nil
	}
	t.cost = cost
	b.graphs[v.plan.id] = id
	for i := range t.conds {
		if to, ok := b.graphs[t.conds[i].graph]; ok {
			t.conds[i].graph = to
		}
	}
	return &restored{t, b.names, b.serials, nodes}, nil
}

// restoreTwin has the guest's name of a node mean that of a graph that it has no more.
func (g *graphs) restoreTwin(v *graphTwin, r *restored, made []restored) error {
	if uint64(v.graph) >= uint64(len(made)) || uint64(v.place) >= uint64(len(r.names)) {
		return errPlace
	}
	of := &made[v.graph]
	if uint64(v.live) >= uint64(len(of.serials)) || of.t.of == nil || r.t.of != nil && (r.t.of != of.t.of || !r.t.hidden) {
		return errPlace
	}
	if r.t.alias == nil {
		r.t.alias = map[uint64]wire.ID{}
	}
	r.t.alias[of.serials[v.live]] = r.names[v.place]
	r.t.of = of.t.of
	r.t.of.keepPast(r.t)
	return nil
}

func (g *graphs) retainAll(graph wire.ID, users map[wire.ID]uint32, release bool) error {
	for object, n := range users {
		if res := g.retain(graph, object, n, release); res != cuda.Success {
			return fmt.Errorf("references of graph %d: %w", graph, res)
		}
	}
	return nil
}

// restoreExec makes something executable again: of what it was made, updated as it was, with the
// changes since.
func (g *graphs) restoreExec(v *execState, made []restored) error {
	n := uint32(len(made))
	if v.origin >= n || v.last >= n {
		return errors.New("it is made of nothing")
	}
	origin, last := made[v.origin].t, made[v.last].t
	if err := g.retainAll(last.graph, v.users, false); err != nil {
		return err
	}
	const upload = 2
	call := g.call(wire.OpGraphInstantiate, v.ctx)
	a := wire.GraphInstantiateArgs{Exec: v.id, Graph: origin.graph, Form: wire.GraphFormFlags, Flags: v.flags &^ upload}
	if res := g.w.session.GraphInstantiate(call, &a, new(wire.GraphInstantiateReply)); res != cuda.Success {
		return res
	}
	x := &execGraph{id: v.id, ctx: v.ctx, flags: v.flags, users: v.users, nameless: v.nameless, cost: execBytes, nodes: execTimes * (made[v.origin].nodes + refBytes*uint64(len(v.users)))}
	x.cost += x.nodes
	g.w.host.book(x.cost)
	g.execs[v.id] = x
	g.use(x, &x.origin, origin)
	g.use(x, &x.last, last)
	if origin != last {
		call, a := g.call(wire.OpGraphExecUpdate, v.ctx), wire.GraphExecUpdateArgs{Exec: v.id, Graph: last.graph}
		if res := g.w.session.GraphExecUpdate(call, &a, new(wire.GraphExecUpdateReply)); res != cuda.Success {
			return fmt.Errorf("update: %w", res)
		}
	}
	if err := g.retainAll(last.graph, v.users, true); err != nil {
		return err
	}
	return g.restoreChanges(x, v, &made[v.origin])
}

func (g *graphs) restoreChanges(x *execGraph, v *execState, of *restored) error {
	for _, p := range v.params {
		if uint64(p.place) >= uint64(len(of.names)) {
			return errPlace
		}
		a := wire.GraphExecNodeSetParamsArgs{Exec: v.id, Node: of.names[p.place], Type: p.kind, Params: p.params}
		call := g.call(wire.OpGraphExecNodeSetParams, p.ctx)
		if res := g.w.session.GraphExecNodeSetParams(call, &a); res != cuda.Success {
			return fmt.Errorf("changed parameters of a node (%s): %w", nodeKind(p.kind), res)
		}
		if x.params == nil {
			x.params = map[uint64]execParams{}
		}
		x.params[of.serials[p.place]] = execParams{p.ctx, p.kind, p.params, g.w.record.clock}
		g.changed(x, partBytes+uint64(len(p.params)))
	}
	for _, place := range v.off {
		if uint64(place) >= uint64(len(of.names)) {
			return errPlace
		}
		a := wire.GraphNodeSetEnabledArgs{Exec: v.id, Node: of.names[place]}
		if res := g.w.session.GraphNodeSetEnabled(g.call(wire.OpGraphNodeSetEnabled, x.ctx), &a); res != cuda.Success {
			return fmt.Errorf("a node that is switched off: %w", res)
		}
		if x.off == nil {
			x.off = map[uint64]struct{}{}
		}
		x.off[of.serials[place]] = struct{}{}
		g.changed(x, partBytes)
	}
	return nil
}

// changed books what is kept of a change.
func (g *graphs) changed(x *execGraph, n uint64) {
	g.w.host.book(n)
	x.cost += n
}
