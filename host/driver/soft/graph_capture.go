package soft

import (
	"slices"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// streamCapture is a capture that was begun and not ended. Work put on its streams becomes nodes of
// its graph.
type streamCapture struct {
	id      uint64
	graph   *graph
	origin  *stream
	thread  uint32 // guest thread that began it
	mode    uint32
	invalid bool
	streams map[*stream][]graphEdge // what the next node of each depends on
	into    bool                    // the graph was there before
}

// captureMark is what an event recorded in a capture marks.
type captureMark struct {
	capture *streamCapture
	before  []graphEdge
}

func (s *session) capturing() bool { return len(s.captures) > 0 }

// capture is the one that a stream is part of, or nil.
func (s *session) captureOf(st *stream) *streamCapture {
	for _, x := range s.captures {
		if _, ok := x.streams[st]; ok {
			return x
		}
	}
	return nil
}

func (s *session) beingCaptured(g *graph) bool {
	return slices.ContainsFunc(s.captures, func(x *streamCapture) bool { return x.graph == g })
}

// invalidate ends what a capture can come to, and returns why.
func invalidate(x *streamCapture, why cuda.Result) cuda.Result {
	if x.invalid {
		return cuda.ErrorStreamCaptureInvalidated
	}
	x.invalid = true
	return why
}

// implicit reports the captures that work on a legacy stream would become part of.
func (s *session) implicit(st *stream) []*streamCapture {
	if st != st.ctx.legacy {
		return nil
	}
	var list []*streamCapture
	for _, x := range s.captures {
		for o := range x.streams {
			if o.blocking && o.ctx == st.ctx {
				list = append(list, x)
				break
			}
		}
	}
	return list
}

// admit judges an operation on a stream that is not made for capturing.
func (s *session) admit(st *stream) cuda.Result {
	if s.recording != nil {
		return cuda.Success
	}
	if x := s.captureOf(st); x != nil {
		return invalidate(x, cuda.ErrorStreamCaptureUnsupported)
	}
	res := cuda.Success
	for _, x := range s.implicit(st) {
		invalidate(x, cuda.Success)
		res = cuda.ErrorStreamCaptureImplicit
	}
	return res
}

// forbidden judges a potentially unsafe call of a guest thread (CUDA Driver API,
// cuThreadExchangeStreamCaptureMode).
func (s *session) forbidden(c *wire.Call) cuda.Result {
	mode := s.modes[c.Thread]
	if mode == cuda.CaptureModeRelaxed {
		return cuda.Success
	}
	res := cuda.Success
	for _, x := range s.captures {
		own := x.thread == c.Thread && x.mode != cuda.CaptureModeRelaxed
		other := x.thread != c.Thread && mode == cuda.CaptureModeGlobal && x.mode == cuda.CaptureModeGlobal
		if own || other {
			x.invalid = true
			res = cuda.ErrorStreamCaptureUnsupported
		}
	}
	return res
}

// ThreadCaptureMode follows the mode of a guest thread.
func (s *session) ThreadCaptureMode(c *wire.Call, a *wire.ThreadCaptureModeArgs) cuda.Result {
	if a.Mode > cuda.CaptureModeRelaxed {
		return cuda.ErrorInvalidValue
	}
	if s.modes == nil {
		s.modes = map[uint32]uint32{}
	}
	if a.Mode == cuda.CaptureModeGlobal {
		delete(s.modes, c.Thread)
	} else if len(s.modes) < maxObjects {
		s.modes[c.Thread] = a.Mode
	}
	return cuda.Success
}

// StreamBeginCapture begins a capture.
func (s *session) StreamBeginCapture(c *wire.Call, a *wire.StreamBeginCaptureArgs) cuda.Result {
	st, res := s.findStream(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	switch {
	case a.Mode > cuda.CaptureModeRelaxed:
		return cuda.ErrorInvalidValue
	case st == st.ctx.legacy:
		return cuda.ErrorStreamCaptureUnsupported
	case s.captureOf(st) != nil:
		return cuda.ErrorIllegalState
	}
	x := &streamCapture{origin: st, thread: c.Thread, mode: a.Mode, streams: map[*stream][]graphEdge{}}
	var before []graphEdge
	if a.Graph != 0 {
		x.graph, x.into = s.graphs[a.Graph], true
		if x.graph == nil {
			return cuda.ErrorInvalidValue
		}
		if before, res = s.edges(x.graph, a.Deps, a.Edges); res != cuda.Success {
			return res
		}
	} else {
		x.graph = &graph{}
	}
	s.lastCapture++
	x.id = s.lastCapture
	x.streams[st] = before
	s.captures = append(s.captures, x)
	return cuda.Success
}

// StreamEndCapture ends a capture and names its graph.
func (s *session) StreamEndCapture(c *wire.Call, a *wire.StreamEndCaptureArgs, r *wire.StreamEndCaptureReply) cuda.Result {
	st, res := s.findStream(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	x := s.captureOf(st)
	switch {
	case x == nil:
		return cuda.ErrorIllegalState
	case x.origin != st:
		return invalidate(x, cuda.ErrorStreamCaptureUnmatched)
	}
	switch {
	case x.mode != cuda.CaptureModeRelaxed && x.thread != c.Thread:
		res = cuda.ErrorStreamCaptureWrongThread
	case x.invalid:
		res = cuda.ErrorStreamCaptureInvalidated
	case x.unjoined():
		res = cuda.ErrorStreamCaptureUnjoined
	}
	r.Ended = 1
	s.captures = slices.DeleteFunc(s.captures, func(y *streamCapture) bool { return x == y })
	for e, m := range s.marks {
		if m.capture == x {
			delete(s.marks, e)
		}
	}
	if res == cuda.Success && x.graph.id == 0 && a.Fresh == 0 {
		s.dropGraph(x.graph)
		return cuda.Success
	}
	if res == cuda.Success {
		res = s.nameGraph(x.graph, a.Fresh)
	}
	if res != cuda.Success {
		if !x.into {
			r.Graph = x.graph.id // gone, if the guest has seen it
			s.dropGraph(x.graph)
		}
		return res
	}
	r.Graph = x.graph.id
	return cuda.Success
}

// nameGraph gives a graph of a capture its id.
func (s *session) nameGraph(g *graph, id wire.ID) cuda.Result {
	if g.id != 0 {
		return cuda.Success
	}
	if s.graphs == nil {
		s.graphs = map[wire.ID]*graph{}
	}
	if _, used := s.graphs[id]; used || id <= wire.StreamPerThread || len(s.graphs) >= maxObjects {
		return cuda.ErrorInvalidHandle
	}
	g.id = id
	s.graphs[id] = g
	return cuda.Success
}

// unjoined reports whether a stream of the capture has work that its origin does not wait for.
func (x *streamCapture) unjoined() bool {
	joined := map[*graphNode]bool{}
	var visit []*graphNode
	for _, e := range x.streams[x.origin] {
		visit = append(visit, e.node)
	}
	for len(visit) > 0 {
		n := visit[len(visit)-1]
		visit = visit[:len(visit)-1]
		if joined[n] {
			continue
		}
		joined[n] = true
		for _, e := range n.before {
			visit = append(visit, e.node)
		}
	}
	for _, edges := range x.streams {
		for _, e := range edges {
			if !joined[e.node] {
				return true
			}
		}
	}
	return false
}

// StreamCaptureInfo tells whether a stream captures, into which graph and behind which nodes.
func (s *session) StreamCaptureInfo(c *wire.Call, a *wire.StreamCaptureInfoArgs, r *wire.StreamCaptureInfoReply) cuda.Result {
	st, res := s.findStream(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	x := s.captureOf(st)
	switch {
	case x == nil && len(s.implicit(st)) > 0:
		return cuda.ErrorStreamCaptureImplicit
	case x == nil:
		return cuda.Success
	case x.invalid:
		r.Status = cuda.CaptureStatusInvalidated
		return cuda.Success
	}
	r.Status, r.ID = cuda.CaptureStatusActive, x.id
	if a.Want&wire.CaptureWantGraph == 0 {
		return cuda.Success
	}
	if res := s.nameGraph(x.graph, a.Fresh); res != cuda.Success {
		return res
	}
	l := nodeList{s: s, names: a.Names}
	for _, e := range x.streams[st] {
		l.add(e.node, nil, e.data)
	}
	r.Graph, r.Unnamed, r.Nodes = x.graph.id, uint32(len(l.unnamed)), l.list
	return l.res
}

// StreamUpdateCapture changes what a capturing stream's next node depends on.
func (s *session) StreamUpdateCapture(c *wire.Call, a *wire.StreamUpdateCaptureArgs) cuda.Result {
	const add, set = 0, 1
	st, res := s.findStream(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	x := s.captureOf(st)
	switch {
	case x == nil:
		return cuda.ErrorIllegalState
	case x.invalid:
		return cuda.ErrorStreamCaptureInvalidated
	case a.Flags > set:
		return cuda.ErrorInvalidValue
	}
	edges, res := s.edges(x.graph, a.Deps, a.Edges)
	if res != cuda.Success {
		return res
	}
	if a.Flags == add {
		edges = union(x.streams[st], edges)
	}
	x.streams[st] = edges
	return cuda.Success
}

// union adds the edges that are not there yet.
func union(a, b []graphEdge) []graphEdge {
	a = slices.Clone(a)
	for _, e := range b {
		if !slices.ContainsFunc(a, func(x graphEdge) bool { return x.node == e.node }) {
			a = append(a, e)
		}
	}
	return a
}

// StreamCaptureCheck answers what a synchronous copy on the stream is told.
func (s *session) StreamCaptureCheck(c *wire.Call, a *wire.StreamCaptureCheckArgs) cuda.Result {
	_, res := s.stream(c, a.Stream)
	return res
}

// CaptureUnsafe answers a potentially unsafe call that the guest does by itself: Admit has judged
// it.
func (s *session) CaptureUnsafe(*wire.Call) cuda.Result { return cuda.Success }

// CaptureSettle brings the error of an asynchronous operation before it.
func (s *session) CaptureSettle(*wire.Call) cuda.Result { return cuda.Success }

// strayFill is the node of a captured fill of an address where no memory is: real drivers take it
// up, and only a launch fails.
func (s *session) strayFill(g *graph, ctx *gpuContext, params []byte, before []graphEdge) (*graphNode, cuda.Result) {
	var v wire.MemsetNode
	if v.Decode(params) != nil {
		return nil, cuda.ErrorInvalidValue
	}
	if _, known := s.space.bytes(v.Dst, 1); known { // it is something else that is wrong
		return nil, cuda.ErrorInvalidValue
	}
	n, res := s.bareNode(g, wire.NodeMemset, params, before)
	if res != cuda.Success {
		return nil, res
	}
	s.nodeCall(&wire.Call{Ctx: ctx.id}, wire.NodeMemset, n.params)
	n.work.ctx = ctx
	n.work.steps = []func() cuda.Result{stray}
	return n, cuda.Success
}

// capture adds a node behind what a stream has captured so far.
func (s *session) capture(c *wire.Call, x *streamCapture, st *stream, kind uint32, params []byte) (*graphNode, cuda.Result) {
	if x.invalid {
		return nil, cuda.ErrorStreamCaptureInvalidated
	}
	n, res := s.newNode(c.In(st.ctx.id), x.graph, kind, params, x.streams[st])
	if res == cuda.ErrorInvalidValue && kind == wire.NodeMemset {
		n, res = s.strayFill(x.graph, st.ctx, params, x.streams[st])
	}
	if res != cuda.Success {
		return nil, invalidate(x, res)
	}
	x.streams[st] = []graphEdge{{node: n}}
	return n, cuda.Success
}
