package soft

import (
	"bytes"
	"maps"
	"slices"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// graphExec is an executable graph: work in an order that respects the edges.
type graphExec struct {
	plan  *plan
	last  *task // of its latest launch: launches of one graph follow each other
	users map[*userObject]uint32
}

// plan is a graph with its child graphs flattened.
type plan struct {
	nodes  []planNode
	places map[*graphNode]int
	conds  []*condition
	shape  []*graphNode // the nodes in the order in which the graph has them
}

type planNode struct {
	node   *graphNode
	work   work
	before []int
	last   bool // nothing follows it
	off    bool
	bodies []*plan
}

// build plans a graph. ErrorInvalidValue: it has a cycle.
func (p *plan) build(g *graph, roots []int) ([]int, cuda.Result) {
	done := make(map[*graphNode][]int, len(g.nodes)) // what stands for a node that is planned
	var leaves []int
	waits := map[*graphNode]int{}
	after := map[*graphNode][]*graphNode{}
	var ready []*graphNode
	for _, n := range g.nodes {
		p.shape = append(p.shape, n)
		waits[n] = len(n.before)
		for _, e := range n.before {
			after[e.node] = append(after[e.node], n)
		}
		if len(n.before) == 0 {
			ready = append(ready, n)
		}
	}
	for ; len(ready) > 0; ready = ready[1:] {
		n := ready[0]
		before := slices.Clone(roots)
		if len(n.before) > 0 {
			before = nil
			for _, e := range n.before {
				before = append(before, done[e.node]...)
			}
		}
		stands, res := p.add(n, before)
		if res != cuda.Success {
			return nil, res
		}
		done[n] = stands
		if len(after[n]) == 0 {
			leaves = append(leaves, stands...)
		}
		for _, x := range after[n] {
			if waits[x]--; waits[x] == 0 {
				ready = append(ready, x)
			}
		}
	}
	if len(done) != len(g.nodes) {
		return nil, cuda.ErrorInvalidValue
	}
	return leaves, cuda.Success
}

// add plans one node and returns what its successors wait for.
func (p *plan) add(n *graphNode, before []int) ([]int, cuda.Result) {
	if len(p.nodes) >= maxGraphNodes {
		return nil, cuda.ErrorOutOfMemory
	}
	x := planNode{node: n, work: n.work, before: before}
	if n.kind == wire.NodeConditional {
		p.conds = append(p.conds, n.work.cond)
		for _, g := range n.inner {
			body := &plan{places: map[*graphNode]int{}}
			if _, res := body.build(g, nil); res != cuda.Success {
				return nil, res
			}
			p.conds = append(p.conds, body.conds...)
			x.bodies = append(x.bodies, body)
		}
	}
	p.places[n] = len(p.nodes)
	p.nodes = append(p.nodes, x)
	at := []int{len(p.nodes) - 1}
	if n.kind != wire.NodeGraph {
		return at, cuda.Success
	}
	leaves, res := p.build(n.inner[0], at)
	if len(leaves) == 0 {
		leaves = at
	}
	return leaves, res
}

func newPlan(g *graph) (*plan, cuda.Result) {
	p := &plan{places: map[*graphNode]int{}}
	if _, res := p.build(g, nil); res != cuda.Success {
		return nil, res
	}
	p.ends()
	return p, cuda.Success
}

// ends marks the nodes that nothing follows.
func (p *plan) ends() {
	for i := range p.nodes {
		p.nodes[i].last = true
	}
	for i := range p.nodes {
		for _, b := range p.nodes[i].before {
			p.nodes[b].last = false
		}
	}
}

// run does a node's work. Any goroutine.
func (x *planNode) run(s *session) cuda.Result {
	if x.work.cond != nil {
		return x.branch(s)
	}
	for _, step := range x.work.steps {
		if res := step(); res != cuda.Success {
			return res
		}
	}
	return cuda.Success
}

// branch runs the bodies that a condition chooses, their nodes one after the other.
func (x *planNode) branch(s *session) cuda.Result {
	const formIf, formWhile = 0, 1
	all := func(p *plan) cuda.Result {
		for i := range p.nodes {
			if p.nodes[i].off {
				continue
			}
			if res := p.nodes[i].run(s); res != cuda.Success {
				return res
			}
		}
		return cuda.Success
	}
	v := x.work.cond.value.Load()
	switch x.work.form {
	case formIf:
		if v != 0 {
			return all(x.bodies[0])
		}
		if len(x.bodies) > 1 {
			return all(x.bodies[1])
		}
	case formWhile:
		for ; v != 0 && s.running.Err() == nil; v = x.work.cond.value.Load() {
			if res := all(x.bodies[0]); res != cuda.Success {
				return res
			}
		}
	default:
		if uint64(v) < uint64(len(x.bodies)) {
			return all(x.bodies[v])
		}
	}
	return cuda.Success
}

// GraphInstantiate makes a graph executable.
func (s *session) GraphInstantiate(c *wire.Call, a *wire.GraphInstantiateArgs, r *wire.GraphInstantiateReply) cuda.Result {
	const autoFree, upload, deviceLaunch, nodePriority, failed = 1, 2, 4, 8, 1
	g := s.graphs[a.Graph]
	if g == nil || s.beingCaptured(g) {
		return cuda.ErrorInvalidValue
	}
	r.Result = failed
	switch {
	case a.Flags&^(autoFree|upload|deviceLaunch|nodePriority) != 0, a.Flags&upload != 0 && a.Form == wire.GraphFormFlags:
		return cuda.ErrorInvalidValue
	case a.Flags&deviceLaunch != 0:
		return cuda.ErrorNotSupported
	}
	p, res := newPlan(g)
	if res != cuda.Success {
		return res
	}
	if s.execs == nil {
		s.execs = map[wire.ID]*graphExec{}
	}
	if _, used := s.execs[a.Exec]; used || len(s.execs) >= maxObjects {
		return cuda.ErrorInvalidHandle
	}
	if res := s.takeLocalOf(p); res != cuda.Success {
		return res
	}
	x := &graphExec{plan: p}
	x.retain(g)
	s.execs[a.Exec] = x
	r.Result = 0
	return cuda.Success
}

// retain takes the references of a graph along.
func (x *graphExec) retain(g *graph) {
	x.users = maps.Clone(g.users)
	for o, n := range g.users {
		o.count += uint64(n)
	}
}

// GraphExecDestroy forgets an executable graph; what was launched runs to its end.
func (s *session) GraphExecDestroy(c *wire.Call, a *wire.GraphExecDestroyArgs) cuda.Result {
	x := s.execs[a.Exec]
	if x == nil {
		return cuda.ErrorInvalidValue
	}
	delete(s.execs, a.Exec)
	if s.pruneEnding(); !x.last.finished() {
		s.ending = append(s.ending, x)
	}
	for o, n := range x.users {
		s.releaseObject(o, n)
	}
	return cuda.Success
}

// GraphUpload has nothing to bring anywhere.
func (s *session) GraphUpload(c *wire.Call, a *wire.GraphUploadArgs) cuda.Result {
	if s.execs[a.Exec] == nil {
		return cuda.ErrorInvalidValue
	}
	_, res := s.stream(c, a.Stream)
	return res
}

// GraphLaunch queues the tasks of a graph behind a stream's work.
func (s *session) GraphLaunch(c *wire.Call, a *wire.GraphLaunchArgs) cuda.Result {
	x := s.execs[a.Exec]
	if x == nil {
		return cuda.ErrorInvalidValue
	}
	st, res := s.stream(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	before := slices.Clone(s.before(st))
	if !x.last.finished() {
		before = append(before, x.last)
	}
	p := x.plan
	if res := s.takeLocalOf(p); res != cuda.Success {
		return res
	}
	first := &task{ctx: st.ctx, run: func() cuda.Result {
		for _, cond := range p.conds {
			if cond.assigned {
				cond.value.Store(cond.initial)
			}
		}
		return cuda.Success
	}}
	s.queue.submit(first, before)
	tasks := make([]*task, len(p.nodes))
	ends := []*task{first}
	var deps []*task
	for i := range p.nodes {
		n := &p.nodes[i]
		deps = append(deps[:0], first)
		for _, b := range n.before {
			deps = append(deps, tasks[b])
		}
		tasks[i] = s.nodeTask(st, n, &deps)
		s.queue.submit(tasks[i], deps)
		if n.last {
			ends = append(ends, tasks[i])
		}
	}
	x.last = &task{}
	s.enqueue(st, x.last, ends)
	return cuda.Success
}

// nodeTask makes the task of one node of one launch.
func (s *session) nodeTask(st *stream, n *planNode, deps *[]*task) *task {
	g := n.work.ctx
	if g == nil {
		g = st.ctx
	}
	t := &task{ctx: g}
	if n.off {
		return t
	}
	e := n.work.event
	switch {
	case e != nil && n.work.wait:
		if e.mark != nil && !e.mark.task.finished() {
			*deps = append(*deps, e.mark.task)
		}
	case e != nil:
		m := &mark{task: t}
		t.always = true
		t.run = func() cuda.Result {
			m.at = time.Now()
			return cuda.Success
		}
		e.mark = m
	default:
		work := *n // an update of the executable graph does not reach launches that are queued
		t.run = func() cuda.Result { return work.run(s) }
	}
	return t
}

// planned finds a node's place in an executable graph.
func (s *session) planned(exec, node wire.ID) (*planNode, *graphNode) {
	x, n := s.execs[exec], s.nodes[node]
	if x == nil || n == nil {
		return nil, nil
	}
	if i, ok := x.plan.places[n]; ok {
		return &x.plan.nodes[i], n
	}
	return nil, nil
}

// GraphExecNodeSetParams changes a node of an executable graph.
func (s *session) GraphExecNodeSetParams(c *wire.Call, a *wire.GraphExecNodeSetParamsArgs) cuda.Result {
	p, n := s.planned(a.Exec, a.Node)
	if p == nil || n.kind != a.Type || !changeable(n.kind) {
		return cuda.ErrorInvalidValue
	}
	fresh := &graphNode{graph: n.graph, attrs: n.attrs}
	if res := s.prepare(c, fresh, a.Type, bytes.Clone(a.Params)); res != cuda.Success {
		return res
	}
	if e := fresh.work.entry; e != nil {
		if res := s.takeLocal(fresh.work.ctx, e.code.Attributes().LocalBytes); res != cuda.Success {
			return res
		}
	}
	p.work = fresh.work
	return cuda.Success
}

// GraphNodeSetEnabled switches a node of an executable graph on or off.
func (s *session) GraphNodeSetEnabled(c *wire.Call, a *wire.GraphNodeSetEnabledArgs) cuda.Result {
	p, n := s.planned(a.Exec, a.Node)
	if p == nil || n.kind != wire.NodeKernel && n.kind != wire.NodeMemcpy && n.kind != wire.NodeMemset {
		return cuda.ErrorInvalidValue
	}
	p.off = a.Enabled == 0
	return cuda.Success
}

// GraphNodeGetEnabled tells whether a node is on.
func (s *session) GraphNodeGetEnabled(c *wire.Call, a *wire.GraphNodeGetEnabledArgs, r *wire.GraphNodeGetEnabledReply) cuda.Result {
	p, n := s.planned(a.Exec, a.Node)
	if p == nil || n.kind != wire.NodeKernel && n.kind != wire.NodeMemcpy && n.kind != wire.NodeMemset {
		return cuda.ErrorInvalidValue
	}
	if !p.off {
		r.Enabled = 1
	}
	return cuda.Success
}
