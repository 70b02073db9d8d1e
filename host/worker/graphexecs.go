package worker

import (
	"bytes"
	"errors"
	"fmt"
	"maps"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// template is a graph as it was when something executable was made of it, or updated from it. While
// the guest's graph is like that still, it is that. When the guest destroys the graph, the driver
// keeps it under an id of the worker's until nothing executable needs it any more; when the guest
// changes it, a description is taken first. Neither costs anything for graphs that are never
// executable, nor for those that are left as they are.
type template struct {
	of     *liveGraph // the guest's graph; nil: it is gone
	graph  wire.ID    // in the driver; 0: there is the plan alone
	hidden bool       // the guest does not know it
	ctx    wire.ID
	plan   *graphPlan
	since  uint64 // when the plan was made, by the recorder's clock
	conds  []graphCondition
	// After a move: its nodes by the serials of the guest's, which name them.
	alias map[uint64]wire.ID
	uses  map[*execGraph]int
	cost  uint64
	err   error // why it cannot be made again
}

// execGraph is an executable graph.
type execGraph struct {
	id, ctx      wire.ID
	flags        uint64
	origin, last *template // what it was instantiated from, and last updated from
	users        map[wire.ID]uint32
	params       map[uint64]execParams // by serials of origin's nodes
	off          map[uint64]struct{}   // nodes of origin that do nothing
	// The guest has destroyed what it was instantiated from: it cannot name its nodes.
	nameless bool
	cost     uint64
	nodes    uint64 // of it, for what is in it
	err      error
}

// execParams is the last change of a node of an executable graph.
type execParams struct {
	ctx    wire.ID
	kind   uint32
	params []byte
	since  uint64
}

var errChanged = errors.New("it changed after something executable was made of it")

// template is the one of a graph as it is now.
func (g *graphs) template(id wire.ID) *template {
	l := g.live[id]
	if l == nil { // inside a node
		t := &template{of: g.root(id), graph: id, uses: map[*execGraph]int{}}
		if t.of == nil {
			t.err = errors.New("its graph is not known")
			return t
		}
		t.ctx, t.conds = t.of.ctx, t.of.conds
		g.describeTemplate(t)
		return t
	}
	if l.made == nil {
		l.made = &template{of: l, graph: id, ctx: l.ctx, uses: map[*execGraph]int{}}
	}
	return l.made
}

// freeze keeps what a graph is as the template of what is executable of it: the graph is about to
// change.
func (g *graphs) freeze(l *liveGraph) {
	if l == nil || l.made == nil {
		return
	}
	t := l.made
	l.made = nil
	t.conds = l.conds[:len(l.conds):len(l.conds)]
	g.describeTemplate(t)
}

// describeTemplate replaces the graph of a template by its description.
func (g *graphs) describeTemplate(t *template) {
	id := t.graph
	t.graph = 0
	t.of.keepPast(t)
	p, err := g.describe(id)
	if err != nil {
		t.err = errors.Join(errChanged, err)
		return
	}
	if n := p.size(); !g.w.host.reserve(n) {
		t.err = errors.Join(errChanged, errors.New("the budget of host memory is exhausted"))
		return
	} else {
		t.cost = n
	}
	t.plan, t.since = p, g.w.record.clock
}

// hide keeps a graph that the guest destroys. False: nothing needs it, or it cannot be kept.
func (g *graphs) hide(l *liveGraph) bool {
	t := l.made
	g.dropOrigin(t)
	if len(t.uses) == 0 {
		return false
	}
	if l.nested {
		t.graph, t.err = 0, errors.New("graphs inside it had user objects")
		return false
	}
	to := g.fresh()
	names := map[wire.ID]wire.ID{l.id: to}
	if !g.keeper.RenameGraph(l.id, to, g.fresh, func(old, name wire.ID) { names[old] = name }) {
		t.graph, t.err = 0, errors.New("it is gone")
		return false
	}
	for object, n := range l.users { // what is executable has its own
		g.retain(to, object, n, true)
	}
	t.conds = l.conds
	for i := range t.conds {
		if id, ok := names[t.conds[i].graph]; ok {
			t.conds[i].graph = id
		}
	}
	t.cost, l.cost = l.cost, 0
	t.of, t.graph, t.hidden = nil, to, true
	g.remove(l)
	return true
}

// dropOrigin lets go of a template from which something was only instantiated: nobody can name its
// nodes any more.
func (g *graphs) dropOrigin(t *template) {
	for x := range t.uses {
		if x.origin == t && x.last != t && !x.named() {
			x.nameless = true
			g.use(x, &x.origin, x.last)
		}
	}
}

// named reports whether changes name nodes of the graph from which it was instantiated.
func (x *execGraph) named() bool { return len(x.params)+len(x.off) > 0 }

// use has an executable graph refer to another template, or none.
func (g *graphs) use(x *execGraph, at **template, t *template) {
	old := *at
	if old == t {
		return
	}
	if *at = t; t != nil {
		t.uses[x]++
	}
	if old == nil {
		return
	}
	if old.uses[x]--; old.uses[x] > 0 {
		return
	}
	if delete(old.uses, x); len(old.uses) > 0 {
		return
	}
	if old.of != nil {
		delete(old.of.past, old)
		if old.of.made == old {
			old.of.made = nil
		}
	}
	if old.hidden {
		if res := g.w.session.GraphDestroy(g.call(wire.OpGraphDestroy, old.ctx), &wire.GraphDestroyArgs{Graph: old.graph}); res != cuda.Success {
			g.w.log.Warn("a graph that nothing needs is not destroyed", "error", res)
		}
	}
	g.w.host.release(old.cost)
}

// GraphInstantiate implements wire.Driver.
func (f *front) GraphInstantiate(c *wire.Call, a *wire.GraphInstantiateArgs, r *wire.GraphInstantiateReply) cuda.Result {
	g := &f.w.graphs
	if g.keeper == nil {
		return f.Session.GraphInstantiate(c, a, r)
	}
	nodes := g.execOf(a.Graph)
	res := f.within(execBytes+nodes, func() cuda.Result { return f.Session.GraphInstantiate(c, a, r) })
	if res != cuda.Success {
		return res
	}
	x := &execGraph{id: a.Exec, ctx: c.Ctx, flags: a.Flags, cost: execBytes + nodes, nodes: nodes}
	t := g.template(a.Graph)
	g.use(x, &x.origin, t)
	g.use(x, &x.last, t)
	x.take(g.live[a.Graph])
	g.execs[a.Exec] = x
	return res
}

// take copies the references of a graph to user objects.
func (x *execGraph) take(l *liveGraph) {
	if x.users = nil; l != nil {
		x.users = maps.Clone(l.users)
	}
}

// GraphExecDestroy implements wire.Driver.
func (f *front) GraphExecDestroy(c *wire.Call, a *wire.GraphExecDestroyArgs) cuda.Result {
	res := f.Session.GraphExecDestroy(c, a)
	g := &f.w.graphs
	if x := g.execs[a.Exec]; x != nil && res != cuda.ErrorInvalidValue {
		// It is gone, whatever else its end brings to light.
		delete(g.execs, a.Exec)
		g.use(x, &x.origin, nil)
		g.use(x, &x.last, nil)
		f.w.host.release(x.cost)
	}
	return res
}

// GraphExecUpdate implements wire.Driver.
func (f *front) GraphExecUpdate(c *wire.Call, a *wire.GraphExecUpdateArgs, r *wire.GraphExecUpdateReply) cuda.Result {
	res := f.Session.GraphExecUpdate(c, a, r)
	g := &f.w.graphs
	x := g.execs[a.Exec]
	if x == nil || res != cuda.Success {
		return res
	}
	for n := range x.params {
		g.forgetParams(x, n)
	}
	g.use(x, &x.last, g.template(a.Graph))
	if x.origin.of == nil {
		g.dropOrigin(x.origin)
	}
	x.take(g.live[a.Graph])
	return res
}

func (g *graphs) forgetParams(x *execGraph, n uint64) {
	cost := partBytes + uint64(len(x.params[n].params))
	delete(x.params, n)
	x.cost -= cost
	g.w.host.release(cost)
}

// node finds what the driver calls a node of the graph from which something executable was
// instantiated, and the serial by which changes of it are kept.
func (g *graphs) node(x *execGraph, id wire.ID) (wire.ID, uint64, cuda.Result) {
	if x.nameless {
		return 0, 0, cuda.ErrorInvalidValue
	}
	serial := g.keeper.NodeSerial(id)
	if to, ok := x.origin.alias[serial]; ok {
		return to, g.keeper.NodeSerial(to), cuda.Success
	}
	return id, serial, cuda.Success
}

// known notes that a change cannot be made again: its node is of another graph.
func (g *graphs) known(x *execGraph, node wire.ID) {
	if t := x.origin; t.graph != 0 && t.graph != g.keeper.NodeRoot(node) {
		x.err = fmt.Errorf("its node %d is of another graph", node)
	}
}

// GraphExecNodeSetParams implements wire.Driver. The last change of a node is kept.
func (f *front) GraphExecNodeSetParams(c *wire.Call, a *wire.GraphExecNodeSetParamsArgs) cuda.Result {
	g := &f.w.graphs
	x := g.execs[a.Exec]
	if x == nil {
		return f.Session.GraphExecNodeSetParams(c, a)
	}
	node, serial, res := g.node(x, a.Node)
	if res != cuda.Success {
		return res
	}
	cost := partBytes + uint64(len(a.Params))
	if !f.w.host.reserve(cost) {
		return cuda.ErrorOutOfMemory
	}
	call := *a
	call.Node = node
	if res := f.Session.GraphExecNodeSetParams(c, &call); res != cuda.Success {
		f.w.host.release(cost)
		return res
	}
	g.known(x, node)
	if _, ok := x.params[serial]; ok {
		g.forgetParams(x, serial)
	}
	if x.params == nil {
		x.params = map[uint64]execParams{}
	}
	x.params[serial] = execParams{c.Ctx, a.Type, bytes.Clone(a.Params), g.w.record.clock}
	x.cost += cost
	return cuda.Success
}

// GraphNodeSetEnabled implements wire.Driver.
func (f *front) GraphNodeSetEnabled(c *wire.Call, a *wire.GraphNodeSetEnabledArgs) cuda.Result {
	g := &f.w.graphs
	x := g.execs[a.Exec]
	if x == nil {
		return f.Session.GraphNodeSetEnabled(c, a)
	}
	node, serial, res := g.node(x, a.Node)
	if res != cuda.Success {
		return res
	}
	call := *a
	call.Node = node
	if res := f.Session.GraphNodeSetEnabled(c, &call); res != cuda.Success {
		return res
	}
	g.known(x, node)
	_, was := x.off[serial]
	switch {
	case a.Enabled == 0 && !was:
		if x.off == nil {
			x.off = map[uint64]struct{}{}
		}
		x.off[serial] = struct{}{}
		f.w.host.book(partBytes) // as many as it has nodes
		x.cost += partBytes
	case a.Enabled != 0 && was:
		delete(x.off, serial)
		f.w.host.release(partBytes)
		x.cost -= partBytes
	}
	return cuda.Success
}

// GraphNodeGetEnabled implements wire.Driver.
func (f *front) GraphNodeGetEnabled(c *wire.Call, a *wire.GraphNodeGetEnabledArgs, r *wire.GraphNodeGetEnabledReply) cuda.Result {
	x := f.w.graphs.execs[a.Exec]
	if x == nil {
		return f.Session.GraphNodeGetEnabled(c, a, r)
	}
	call := *a
	var res cuda.Result
	if call.Node, _, res = f.w.graphs.node(x, a.Node); res != cuda.Success {
		return res
	}
	return f.Session.GraphNodeGetEnabled(c, &call, r)
}
