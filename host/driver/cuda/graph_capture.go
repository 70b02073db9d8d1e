package cuda

import (
	"slices"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

// capturing reports whether any stream of the session captures: waits and helpers must then keep
// off the streams that do, and everything must be issued by the worker's own thread, on which
// captures begin and end. Any goroutine.
func (s *session) capturing() bool { return s.active.Load() != 0 }

// The worker issues the calls of all guest threads from one thread. While it captures, that thread
// is in relaxed mode, so that helper calls of ours disturb nothing; calls of guest threads that
// CUDA prohibits (CUDA Driver API, cuThreadExchangeStreamCaptureMode) are made in global mode,
// where the driver refuses them and invalidates the capture.

// setCaptureMode changes the mode of the worker's thread.
func (s *session) setCaptureMode(mode uint32) cuda.Result {
	_, res := s.drv.ThreadExchangeStreamCaptureMode(mode)
	return res
}

// relaxThread makes the calling thread's own driver calls harmless to captures. Any goroutine that
// is locked to its thread.
func (s *session) relaxThread() {
	_, _ = s.drv.ThreadExchangeStreamCaptureMode(cuda.CaptureModeRelaxed)
}

// prohibited reports whether the calling guest thread may make no potentially unsafe call now.
func (s *session) prohibited(c *wire.Call) bool {
	mode := s.modes[c.Thread]
	if mode == uint32(cuda.CaptureModeRelaxed) {
		return false
	}
	return slices.ContainsFunc(s.captures, func(x *streamCapture) bool {
		if x.thread == c.Thread {
			return x.mode != uint32(cuda.CaptureModeRelaxed)
		}
		return mode == uint32(cuda.CaptureModeGlobal) && x.mode == uint32(cuda.CaptureModeGlobal)
	})
}

// guard is called before a potentially unsafe call; the function that it returns, after it.
func (s *session) guard(c *wire.Call) func() {
	if !s.capturing() || !s.prohibited(c) {
		return func() {}
	}
	s.setCaptureMode(uint32(cuda.CaptureModeGlobal))
	return func() { s.setCaptureMode(uint32(cuda.CaptureModeRelaxed)) }
}

// inCapture reports whether work put on the stream would be captured, or refused for a capture's
// sake.
func (s *session) inCapture(st *stream) bool {
	if !s.capturing() {
		return false
	}
	status, res := s.drv.StreamIsCapturing(st.handle)
	return res != cuda.Success || status != cuda.CaptureStatusNone
}

// ThreadCaptureMode follows the mode of a guest thread.
func (s *session) ThreadCaptureMode(c *wire.Call, a *wire.ThreadCaptureModeArgs) cuda.Result {
	if a.Mode > uint32(cuda.CaptureModeRelaxed) {
		return cuda.ErrorInvalidValue
	}
	if s.modes == nil {
		s.modes = map[uint32]uint32{}
	}
	if a.Mode == uint32(cuda.CaptureModeGlobal) {
		delete(s.modes, c.Thread)
	} else if len(s.modes) < maxObjects {
		s.modes[c.Thread] = a.Mode
	}
	return cuda.Success
}

// StreamBeginCapture begins a capture, into a graph of its own or into one that exists.
func (s *session) StreamBeginCapture(c *wire.Call, a *wire.StreamBeginCaptureArgs) cuda.Result {
	st, res := s.stream(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	if a.Mode > uint32(cuda.CaptureModeRelaxed) {
		return cuda.ErrorInvalidValue
	}
	s.captureGauge(s.everyStream())
	if _, res := s.stream(c, a.Stream); res != cuda.Success { // other contexts were current
		return res
	}
	if res := s.setCaptureMode(uint32(cuda.CaptureModeRelaxed)); res != cuda.Success {
		return res
	}
	begin := func() cuda.Result { return s.drv.StreamBeginCapture(st.handle, a.Mode) }
	if a.Graph != 0 {
		g, ok := s.graphs.get(a.Graph)
		if !ok {
			return cuda.ErrorInvalidValue
		}
		deps, res := s.dependencies(a.Deps, a.Edges)
		if res != cuda.Success {
			return res
		}
		begin = func() cuda.Result {
			return s.drv.StreamBeginCaptureToGraph(st.handle, g.handle, deps.nodes, deps.edges, a.Mode)
		}
	}
	s.watch.asking.Lock()
	defer s.watch.asking.Unlock()
	if res := begin(); res != cuda.Success {
		return s.note(res)
	}
	x := &streamCapture{stream: st, thread: c.Thread, mode: a.Mode, into: s.graphs.m[a.Graph]}
	s.needsOf(x).add(need{ctx: st.ctx})
	_, x.id, _, _, _, _ = s.drv.StreamGetCaptureInfo(st.handle)
	s.captures = append(s.captures, x)
	s.active.Store(int32(len(s.captures)))
	return cuda.Success
}

// captureOf finds the capture that began on a stream.
func (s *session) captureOf(st *stream) *streamCapture {
	for _, x := range s.captures {
		if x.stream == st {
			return x
		}
	}
	return nil
}

func (s *session) captureEnded(x *streamCapture) {
	s.captures = slices.DeleteFunc(s.captures, func(y *streamCapture) bool { return x == y })
	s.active.Store(int32(len(s.captures)))
}

// StreamEndCapture ends a capture and names its graph.
func (s *session) StreamEndCapture(c *wire.Call, a *wire.StreamEndCaptureArgs, r *wire.StreamEndCaptureReply) cuda.Result {
	st, res := s.stream(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	x := s.captureOf(st)
	// A capture that is not relaxed ends in the thread that began it; from another the call ends it
	// too, without a graph.
	wrong := x != nil && x.mode != uint32(cuda.CaptureModeRelaxed) && x.thread != c.Thread
	handle, res := s.drv.StreamEndCapture(st.handle)
	if x != nil && (res == cuda.Success || !s.inCapture(st)) {
		r.Ended = 1
		s.captureEnded(x)
	}
	if wrong {
		if res == cuda.Success && !handle.IsZero() {
			s.drv.GraphDestroy(handle)
		}
		res, handle = cuda.ErrorStreamCaptureWrongThread, bind.Graph{}
	}
	if res != cuda.Success || handle.IsZero() {
		s.dropAllocs(x)
		if r.Ended != 0 && x.seen != nil && x.into == nil {
			r.Graph = x.seen.id // gone
			s.forgetGraph(x.seen)
		}
		return s.note(res)
	}
	if a.Fresh == 0 && s.graphOf[handle] == nil {
		s.dropAllocs(x)
		s.drv.GraphDestroy(handle)
		return cuda.Success
	}
	g, res := s.adoptGraph(handle, a.Fresh, nil)
	if res != cuda.Success {
		s.dropAllocs(x)
		s.drv.GraphDestroy(handle)
		return res
	}
	if x != nil {
		g.allocs = append(g.allocs, x.allocs...)
		g.needs.add(x.needs...)
	}
	r.Graph = g.id
	return cuda.Success
}

// dropAllocs forgets memory of a capture whose graph is not to be.
func (s *session) dropAllocs(x *streamCapture) {
	if x == nil {
		return
	}
	for _, ptr := range x.allocs {
		s.space.DropGraph(ptr)
	}
	if x.into == nil && !x.graph.IsZero() {
		s.dropMemNodes(func(n *memNode) bool { return n.in == x.graph })
	}
}

// StreamCaptureInfo tells whether a stream captures, into which graph and behind which nodes.
func (s *session) StreamCaptureInfo(c *wire.Call, a *wire.StreamCaptureInfoArgs, r *wire.StreamCaptureInfoReply) cuda.Result {
	st, res := s.stream(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	status, id, handle, deps, edges, res := s.drv.StreamGetCaptureInfo(st.handle)
	if res != cuda.Success {
		return s.note(res)
	}
	r.Status = status
	if status != cuda.CaptureStatusActive {
		return cuda.Success
	}
	r.ID = id
	if a.Want&wire.CaptureWantGraph == 0 {
		return cuda.Success
	}
	g := s.graphOf[handle]
	if g == nil {
		if g, res = s.adoptGraph(handle, a.Fresh, nil); res != cuda.Success {
			return res
		}
	}
	r.Graph = g.id
	for _, x := range s.captures {
		if x.id == r.ID {
			x.seen = g
		}
	}
	l := nodeList{s: s, graph: g, names: a.Names}
	for i, n := range deps {
		var data bind.GraphEdgeData
		if i < len(edges) {
			data = edges[i]
		}
		l.add(n, bind.GraphNode{}, data)
	}
	r.Unnamed, r.Nodes = l.unnamed, l.list
	return l.res
}

// StreamUpdateCapture changes what a capturing stream's next node depends on.
func (s *session) StreamUpdateCapture(c *wire.Call, a *wire.StreamUpdateCaptureArgs) cuda.Result {
	st, res := s.stream(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	deps, res := s.dependencies(a.Deps, a.Edges)
	if res != cuda.Success {
		return res
	}
	for _, x := range s.captures {
		x.freed = nil // what was freed may come later now than what the stream does next
	}
	return s.note(s.drv.StreamUpdateCaptureDependencies(st.handle, deps.nodes, deps.edges, a.Flags))
}

// StreamCaptureCheck answers what the driver says to a synchronous copy on the stream: only a
// capture that the copy would become part of forbids it. Admit has asked.
func (s *session) StreamCaptureCheck(c *wire.Call, a *wire.StreamCaptureCheckArgs) cuda.Result {
	_, res := s.stream(c, a.Stream)
	return res
}

// CaptureUnsafe makes a potentially unsafe call for a guest thread that did one without asking us,
// in the mode that Admit has set.
func (s *session) CaptureUnsafe(c *wire.Call) cuda.Result {
	if !s.capturing() || !s.prohibited(c) {
		return cuda.Success
	}
	if res := s.use(c); res != cuda.Success {
		return res
	}
	m, res := s.drv.MemAlloc(1)
	if s.note(res) == cuda.Success {
		s.drv.MemFree(m.Address())
	}
	return res
}

// CaptureSettle answers when what came before it was given to the driver; the reply carries the
// error of that.
func (s *session) CaptureSettle(*wire.Call) cuda.Result { return cuda.Success }
