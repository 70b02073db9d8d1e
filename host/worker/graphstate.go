package worker

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// graphsState is what another process needs to have the same graphs.
type graphsState struct {
	last    wire.ID
	modes   map[uint32]uint32
	objects []objectState
	graphs  []graphState
	execs   []execState
	clones  []graphClone
}

// graphClone says of which node another is a clone.
type graphClone struct{ node, original graphPlace }

// graphPlace is a node: its graph, and its place there.
type graphPlace struct{ graph, place uint32 }

type objectState struct {
	id         wire.ID
	destructor uint64
	flags      uint32
	guest      uint64
}

// What a graphState is of.
const (
	graphLive   = iota // the guest's
	graphHidden        // that the guest has destroyed
	graphPast          // that the guest has changed since
)

type graphState struct {
	kind   uint32
	id     wire.ID // 0 of a past one
	ctx    wire.ID
	nested bool
	plan   *graphPlan
	conds  []graphCondition
	users  map[wire.ID]uint32
	twins  []graphTwin
}

// graphTwin is a node of a graph that the guest has no more, and the one of its own that names it.
type graphTwin struct {
	place       uint32 // in this graph
	graph, live uint32 // the guest's graph, and the node's place there
}

type execState struct {
	id, ctx      wire.ID
	flags        uint64
	origin, last uint32 // places in graphs
	users        map[wire.ID]uint32
	params       []paramsState
	off          []uint32 // places in origin
	nameless     bool
}

type paramsState struct {
	place  uint32 // in origin
	ctx    wire.ID
	kind   uint32
	params []byte
}

// state describes everything. The session stands still. What cannot be made again elsewhere is an
// error that names it.
func (g *graphs) state() (s graphsState, err error) {
	if g.late != nil {
		return *g.late, nil
	}
	s = graphsState{last: g.last, modes: g.modes}
	if g.keeper == nil || g.w.sticky.Load() != 0 { // nothing can be used any more
		return s, nil
	}
	if g.keeper.Capturing() {
		return s, errors.New("a stream captures")
	}
	objects := g.objects.list()
	for _, id := range slices.Sorted(maps.Keys(objects)) {
		o := objects[id]
		s.objects = append(s.objects, objectState{id, o.destructor, o.flags, o.guest})
	}
	st := stater{graphs: g, s: &s, at: map[*template]uint32{}, live: map[*liveGraph]uint32{}, nodes: map[uint32]map[uint64]uint32{}}
	if err := st.stateLive(); err != nil {
		return s, err
	}
	st.stateClones()
	for _, id := range slices.Sorted(maps.Keys(g.execs)) {
		x := g.execs[id]
		if err := st.stateExec(x); err != nil {
			return s, fmt.Errorf("executable graph %d: %w", id, err)
		}
	}
	return s, s.referred()
}

// stater describes what there is, once.
type stater struct {
	*graphs
	s     *graphsState
	at    map[*template]uint32         // places in s.graphs
	live  map[*liveGraph]uint32        // and of the guest's
	nodes map[uint32]map[uint64]uint32 // places of nodes in those graphs, by their serials
}

// add puts a graph into the state.
func (st *stater) add(v graphState) uint32 {
	at := uint32(len(st.s.graphs))
	st.s.graphs = append(st.s.graphs, v)
	st.nodes[at] = v.plan.places()
	return at
}

func (st *stater) stateLive() error {
	for _, l := range st.sortedLive() {
		if l.nested && len(st.s.objects) > 0 {
			return fmt.Errorf("graph %d: user objects may belong to graphs inside it", l.id)
		}
		p, err := st.describe(l.id)
		if err != nil {
			return fmt.Errorf("graph %d: %w", l.id, err)
		}
		at := st.add(graphState{graphLive, l.id, l.ctx, l.nested, p, l.conds, l.users, nil})
		st.live[l] = at
		if l.made != nil {
			st.at[l.made] = at
		}
	}
	return nil
}

// stateClones notes which nodes are clones of which.
func (st *stater) stateClones() {
	of := map[uint64]graphPlace{}
	for at, nodes := range st.nodes {
		for serial, place := range nodes {
			of[serial] = graphPlace{at, place}
		}
	}
	for at := range st.s.graphs {
		st.s.graphs[at].plan.walk(func(place uint32, n *planNode) {
			if original, ok := of[n.clone]; ok && n.clone != 0 {
				st.s.clones = append(st.s.clones, graphClone{graphPlace{uint32(at), place}, original})
			}
		})
	}
}

// place is where a template's graph is in the state.
func (st *stater) place(t *template) (uint32, error) {
	if at, ok := st.at[t]; ok {
		return at, nil
	}
	v := graphState{kind: graphPast, ctx: t.ctx, plan: t.plan, conds: t.conds}
	switch {
	case t.err != nil:
		return 0, fmt.Errorf("the graph that it was made of: %w", t.err)
	case t.plan != nil:
		if err := st.standing(t.plan, t.since); err != nil {
			return 0, err
		}
	default:
		p, err := st.describe(t.graph)
		if err != nil {
			return 0, fmt.Errorf("the graph that it was made of: %w", err)
		}
		v.kind, v.id, v.plan = graphHidden, t.graph, p
	}
	at := st.add(v)
	st.at[t] = at
	if t.of != nil {
		st.s.graphs[at].twins = st.twins(t, at)
	}
	return at, nil
}

// twins finds the nodes of a template that the guest's graph has still.
func (st *stater) twins(t *template, at uint32) (list []graphTwin) {
	live := st.live[t.of]
	if t.plan != nil {
		t.plan.walk(func(place uint32, n *planNode) {
			if twin, ok := st.nodes[live][n.serial]; ok && !n.gone {
				list = append(list, graphTwin{place, live, twin})
			}
		})
		return list
	}
	for serial, id := range t.alias {
		twin, ok := st.nodes[live][serial]
		if place, has := st.nodes[at][st.keeper.NodeSerial(id)]; has && ok {
			list = append(list, graphTwin{place, live, twin})
		}
	}
	return list
}

func (st *stater) stateExec(x *execGraph) (err error) {
	v := execState{id: x.id, ctx: x.ctx, flags: x.flags, users: x.users, nameless: x.nameless}
	if x.err != nil {
		return x.err
	}
	if v.origin, err = st.place(x.origin); err != nil {
		return err
	}
	if v.last, err = st.place(x.last); err != nil {
		return err
	}
	nodes := st.nodes[v.origin]
	for serial, p := range x.params {
		place, ok := nodes[serial]
		if !ok {
			return errors.New("a node that was changed is not known")
		}
		if err := st.stands(p.kind, p.params, p.since); err != nil {
			return err
		}
		v.params = append(v.params, paramsState{place, p.ctx, p.kind, p.params})
	}
	for serial := range x.off {
		place, ok := nodes[serial]
		if !ok {
			return errors.New("a node that is switched off is not known")
		}
		v.off = append(v.off, place)
	}
	slices.SortFunc(v.params, func(a, b paramsState) int { return cmp.Compare(a.place, b.place) })
	slices.Sort(v.off)
	st.s.execs = append(st.s.execs, v)
	return nil
}

// standing reports whether everything that a plan names is still what it was when the plan was
// made.
func (g *graphs) standing(p *graphPlan, since uint64) error {
	for i := range p.nodes {
		n := &p.nodes[i]
		if err := g.stands(n.kind, n.params, since); err != nil {
			return err
		}
		for _, in := range n.inner {
			if err := g.standing(in, since); err != nil {
				return err
			}
		}
	}
	return nil
}

// movable says without asking for them what graphs cannot be made again elsewhere.
func (g *graphs) movable() error {
	if g.w.sticky.Load() != 0 {
		return nil
	}
	for _, x := range g.execs {
		for _, err := range []error{x.err, x.origin.err, x.last.err} {
			if err != nil {
				return fmt.Errorf("executable graph %d: %w", x.id, err)
			}
		}
	}
	return nil
}

func (g *graphs) stands(kind uint32, params []byte, since uint64) error {
	var ids []wire.ID
	switch kind {
	case wire.NodeKernel:
		var v wire.KernelNode
		_ = v.Decode(params)
		ids = []wire.ID{v.Func}
	case wire.NodeWaitEvent, wire.NodeEventRecord:
		var v wire.EventNode
		_ = v.Decode(params)
		ids = []wire.ID{v.Event}
	case wire.NodeMemcpy:
		for range 2 {
			var v wire.MemcpyOperand
			_ = v.Decode(params)
			if params = params[min(len(params), wire.MemcpyOperandSize):]; v.Type == cuda.MemoryTypeArray {
				ids = append(ids, v.Array)
			}
		}
	}
	for _, id := range ids {
		if o := g.w.record.objects[objectKey{id: uint64(id)}]; o == nil || o.create.order >= since {
			return fmt.Errorf("what one of its nodes names (%s) is gone", nodeKind(kind))
		}
	}
	return nil
}

// referred checks that each user object is referred to by what is known: else it would end here,
// and does not there.
func (s *graphsState) referred() error {
	refs := map[wire.ID]bool{}
	note := func(users map[wire.ID]uint32) {
		for id := range users {
			refs[id] = true
		}
	}
	for i := range s.graphs {
		note(s.graphs[i].users)
	}
	for i := range s.execs {
		note(s.execs[i].users)
	}
	for _, o := range s.objects {
		if o.guest == 0 && !refs[o.id] {
			return fmt.Errorf("user object %d belongs to something that is not known", o.id)
		}
	}
	return nil
}
