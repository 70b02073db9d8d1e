package cuda

import (
	"cmp"
	"maps"
	"slices"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

// need is something that a graph's node names and a driver keeps a pointer to, one of these: a
// context, code, an array, an event. Or it is how much local memory a thread of a context must
// have.
type need struct {
	ctx   uint32
	local uint32 // bytes, in ctx
	code  code
	array uint32 // or a mipmapped one
	event *event
}

// needs are those of a node, or of what a graph got without nodes that the guest named.
type needs []need

func (n *needs) add(list ...need) {
	for _, x := range list {
		if x != (need{}) && !slices.Contains(*n, x) {
			*n = append(*n, x)
		}
	}
}

// ofFunction is what a launch of a function needs.
func ofFunction(f *function) needs { return needs{{ctx: f.ctx}, {code: f.code}} }

// ofArray is what a copy from or to an array needs; a part of another goes with that.
func (s *session) ofArray(id uint32) (list needs) {
	for range 3 { // a plane, of a level, of a mipmapped array
		list.add(need{array: id})
		x, ok := s.arrays.get(id)
		if !ok {
			break
		}
		list.add(need{ctx: x.ctx})
		id = x.owner
	}
	return list
}

// events are the needs for events among them, and for their contexts.
func (n needs) events() (list needs) {
	for _, x := range n {
		if x.event != nil {
			list.add(x, need{ctx: x.event.ctx})
		}
	}
	return list
}

// eachNode calls f for the named nodes of a graph and of those inside it, and for what each of
// these graphs got besides.
func (g *graph) eachNode(f func(n *graphNode, list needs)) {
	f(nil, g.needs)
	for _, n := range g.nodes {
		f(n, n.needs)
		for _, in := range n.inner {
			in.eachNode(f)
		}
	}
}

// allNeeds are those of a graph with all in it.
func (g *graph) allNeeds() (all needs) {
	g.eachNode(func(_ *graphNode, list needs) { all.add(list...) })
	return all
}

// graphExec is a CUgraphExec, and what it needs: by the nodes that can be changed in it, and
// besides.
type graphExec struct {
	handle bind.GraphExec
	byNode map[bind.GraphNode]needs
	rest   needs
	memory *execMemory
	roomy  uint64 // when contexts were known to have the local memory that it needs
}

// takes has an executable graph need what a graph does.
func (x *graphExec) takes(g *graph) {
	x.byNode, x.rest = map[bind.GraphNode]needs{}, nil
	g.eachNode(func(n *graphNode, list needs) {
		if n == nil {
			x.rest.add(list...)
		} else if len(list) > 0 {
			x.byNode[n.handle] = slices.Clone(list)
		}
	})
}

// all are what it needs, of whatever nodes.
func (x *graphExec) all() needs {
	list := slices.Clone(x.rest)
	for _, of := range x.byNode {
		list.add(of...)
	}
	return list
}

func (x *graphExec) needs(n need) bool {
	if slices.Contains(x.rest, n) {
		return true
	}
	for list := range maps.Values(x.byNode) {
		if slices.Contains(list, n) {
			return true
		}
	}
	return false
}

// captured notes for the graph of a capture what a stream's operation needs. False, and nothing, if
// the stream does not capture.
func (s *session) captured(st *stream, list ...need) bool {
	if !s.capturing() {
		return false
	}
	status, id, _, _, _, res := s.drv.StreamGetCaptureInfo(st.handle)
	if res != cuda.Success || status != cuda.CaptureStatusActive {
		return false
	}
	for _, x := range s.captures {
		if x.id == id {
			s.needsOf(x).add(need{ctx: st.ctx})
			s.needsOf(x).add(list...)
		}
	}
	return true
}

// needsOf are what the graph of a capture needs so far: one that was there before has it at once.
func (s *session) needsOf(x *streamCapture) *needs {
	if x.into != nil {
		return &x.into.needs
	}
	return &x.needs
}

// endGraphsWith has the driver end the graphs that need what is about to go, and what was made of
// them, as it would follow pointers to nothing in them. Their numbers say why, until the guest ends
// them itself.
func (s *session) endGraphsWith(n need) {
	why := cuda.ErrorInvalidHandle
	if n.ctx != 0 {
		why = cuda.ErrorContextIsDestroyed
	}
	for _, x := range slices.Clone(s.captures) {
		if slices.Contains(*s.needsOf(x), n) {
			s.giveUpCapture(x)
		}
	}
	for id, x := range s.execs.m {
		if x.needs(n) {
			s.drv.GraphExecDestroy(x.handle)
			s.execs.remove(id)
			s.endExecMemory(x.memory)
			s.lost.execs = note(s.lost.execs, id, why)
		}
	}
	for id, g := range s.graphs.m {
		if g.parent != nil || !slices.Contains(g.allNeeds(), n) {
			continue
		}
		s.drv.GraphDestroy(g.handle)
		s.forgetGraph(g)
		s.lost.graphs = note(s.lost.graphs, id, why)
	}
	s.endKept()
}

// giveUpCapture ends a capture whose graph is not to be.
func (s *session) giveUpCapture(x *streamCapture) {
	handle, _ := s.drv.StreamEndCapture(x.stream.handle)
	s.captureEnded(x)
	s.dropAllocs(x)
	if x.into != nil {
		return
	}
	if x.seen != nil {
		s.forgetGraph(x.seen)
	}
	if !handle.IsZero() {
		s.drv.GraphDestroy(handle)
	}
}

// lost are the numbers of graphs, and of what was made of them, that ended with what they need.
type lost struct{ graphs, execs map[uint32]cuda.Result }

func note(list map[uint32]cuda.Result, id uint32, why cuda.Result) map[uint32]cuda.Result {
	if list == nil || len(list) >= maxObjects {
		list = map[uint32]cuda.Result{}
	}
	list[id] = why
	return list
}

// noGraph is why there is no such graph, noExec why there is no such executable graph.
func (s *session) noGraph(id wire.ID) cuda.Result {
	return cmp.Or(s.lost.graphs[id], cuda.ErrorInvalidValue)
}

func (s *session) noExec(id wire.ID) cuda.Result {
	return cmp.Or(s.lost.execs[id], cuda.ErrorInvalidValue)
}

// needed reports whether a graph, or what was made of one, or a capture needs an event.
func (s *session) needed(e *event) bool {
	n := need{event: e}
	for _, x := range s.execs.m {
		if x.needs(n) {
			return true
		}
	}
	for _, g := range s.graphs.m {
		if g.parent == nil && slices.Contains(g.allNeeds(), n) {
			return true
		}
	}
	return slices.ContainsFunc(s.captures, func(x *streamCapture) bool { return slices.Contains(*s.needsOf(x), n) })
}

// endKept ends the events that the guest has ended and that graphs needed, if none does any more,
// or their context is gone.
func (s *session) endKept() {
	s.kept = slices.DeleteFunc(s.kept, func(e *event) bool {
		if ctx, ok := s.ctxs.get(e.ctx); !ok || ctx.handle.IsZero() {
			return true
		}
		if s.needed(e) {
			return false
		}
		s.drv.EventDestroy(e.handle)
		return true
	})
}
