package cuda

import (
	"slices"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// capturing reports whether any stream of the session captures: waits and helpers must then keep off the streams that do,
// and everything must be issued by the worker's own thread, on which captures begin and end. Any goroutine.
func (s *session) capturing() bool { return s.active.Load() != 0 }

// The worker issues the calls of all guest threads from one thread. While it captures, that thread is in relaxed mode, so
// that helper calls of ours disturb nothing; calls of guest threads that CUDA prohibits (CUDA Driver API,
// cuThreadExchangeStreamCaptureMode) are made in global mode, where the driver refuses them and invalidates the capture.

// setCaptureMode changes the mode of the worker's thread.
func (s *session) setCaptureMode(mode uint32) cuda.Result {
	if s.modeWord.p == nil {
		s.modeWord = newBuffer(8)
	}
	*s.modeWord.i32(0) = int32(mode)
	return s.fn.cuThreadExchangeStreamCaptureMode.call(s.modeWord.addr())
}

// relaxThread makes the calling thread's own driver calls harmless to captures. Any goroutine that is locked to its thread.
func (s *session) relaxThread() {
	b := newBuffer(8)
	defer b.free()
	*b.i32(0) = int32(cuda.CaptureModeRelaxed)
	s.fn.cuThreadExchangeStreamCaptureMode.call(b.addr())
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

// inCapture reports whether work put on the stream would be captured, or refused for a capture's sake.
func (s *session) inCapture(st *stream) bool {
	if !s.capturing() {
		return false
	}
	res := s.fn.cuStreamIsCapturing.call(st.handle, s.out.addr())
	return res != cuda.Success || *s.out.i32(0) != int32(cuda.CaptureStatusNone)
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
	if res := s.setCaptureMode(uint32(cuda.CaptureModeRelaxed)); res != cuda.Success {
		return res
	}
	if a.Graph == 0 {
		res = s.fn.cuStreamBeginCapture_v2.call(st.handle, uint64(a.Mode))
	} else {
		g, ok := s.graphs.get(a.Graph)
		if !ok {
			return cuda.ErrorInvalidValue
		}
		deps, res2 := s.dependencies(a.Deps, a.Edges)
		if res2 != cuda.Success {
			return res2
		}
		defer deps.free()
		res = s.fn.cuStreamBeginCaptureToGraph.call(st.handle, g.handle, deps.nodesAddr(), deps.edgesAddr(), deps.count(), uint64(a.Mode))
	}
	if res != cuda.Success {
		return s.note(res)
	}
	x := &streamCapture{stream: st, thread: c.Thread, mode: a.Mode, into: a.Graph != 0}
	if s.fn.cuStreamGetCaptureInfo_v3.call(st.handle, s.out.addr(), s.out.addr()+8, 0, 0, 0, 0) == cuda.Success {
		x.id = *s.out.u64(1)
	}
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
	// A capture that is not relaxed ends in the thread that began it; from another the call ends it too, without a graph.
	wrong := x != nil && x.mode != uint32(cuda.CaptureModeRelaxed) && x.thread != c.Thread
	*s.out.u64(0) = 0
	res = s.fn.cuStreamEndCapture.call(st.handle, s.out.addr())
	handle := *s.out.u64(0)
	if x != nil && (res == cuda.Success || !s.inCapture(st)) {
		r.Ended = 1
		s.captureEnded(x)
	}
	if wrong {
		if res == cuda.Success && handle != 0 {
			s.fn.cuGraphDestroy.call(handle)
		}
		res, handle = cuda.ErrorStreamCaptureWrongThread, 0
	}
	if res != cuda.Success || handle == 0 {
		if r.Ended != 0 && x.seen != nil && !x.into {
			r.Graph = x.seen.id // gone
			s.forgetGraph(x.seen)
		}
		return s.note(res)
	}
	if a.Fresh == 0 && s.graphOf[handle] == nil {
		s.fn.cuGraphDestroy.call(handle)
		return cuda.Success
	}
	g, res := s.adoptGraph(handle, a.Fresh, false)
	if res != cuda.Success {
		s.fn.cuGraphDestroy.call(handle)
		return res
	}
	r.Graph = g.id
	return cuda.Success
}

// StreamCaptureInfo tells whether a stream captures, into which graph and behind which nodes.
func (s *session) StreamCaptureInfo(c *wire.Call, a *wire.StreamCaptureInfoArgs, r *wire.StreamCaptureInfoReply) cuda.Result {
	st, res := s.stream(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	o := s.out
	for i := range 6 {
		*o.u64(i) = 0
	}
	at := func(i uint64) uint64 { return o.addr() + 8*i }
	// status, id, graph, dependencies, edges, count
	if res := s.fn.cuStreamGetCaptureInfo_v3.call(st.handle, at(0), at(1), at(2), at(3), at(4), at(5)); res != cuda.Success {
		return s.note(res)
	}
	r.Status = uint32(*o.i32(0))
	if r.Status != uint32(cuda.CaptureStatusActive) {
		return cuda.Success
	}
	r.ID = *o.u64(1)
	if a.Want&wire.CaptureWantGraph == 0 {
		return cuda.Success
	}
	handle, deps, edges, n := *o.u64(2), *o.u64(3), *o.u64(4), *o.u64(5)
	g := s.graphOf[handle]
	if g == nil {
		if g, res = s.adoptGraph(handle, a.Fresh, false); res != cuda.Success {
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
	for i := range n {
		var data []byte
		if edges != 0 {
			data = hostBytes(edges+8*i, 8)
		}
		l.add(readWord(deps+8*i), 0, data)
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
	defer deps.free()
	return s.note(s.fn.cuStreamUpdateCaptureDependencies_v2.call(st.handle, deps.nodesAddr(), deps.edgesAddr(), deps.count(), uint64(a.Flags)))
}

// StreamCaptureCheck answers what the driver says to a synchronous copy on the stream: only a capture that the copy would become
// part of forbids it. Admit has asked.
func (s *session) StreamCaptureCheck(c *wire.Call, a *wire.StreamCaptureCheckArgs) cuda.Result {
	_, res := s.stream(c, a.Stream)
	return res
}

// CaptureUnsafe makes a potentially unsafe call for a guest thread that did one without asking us, in the mode that Admit has set.
func (s *session) CaptureUnsafe(c *wire.Call) cuda.Result {
	if !s.capturing() || !s.prohibited(c) {
		return cuda.Success
	}
	if res := s.use(c); res != cuda.Success {
		return res
	}
	res := s.note(s.fn.cuMemAlloc_v2.call(s.out.addr(), 1))
	if res == cuda.Success {
		s.fn.cuMemFree_v2.call(*s.out.u64(0))
	}
	return res
}

// CaptureSettle answers when what came before it was given to the driver; the reply carries the error of that.
func (s *session) CaptureSettle(*wire.Call) cuda.Result { return cuda.Success }
