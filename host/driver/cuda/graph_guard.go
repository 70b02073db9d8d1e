package cuda

import (
	"sync/atomic"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

// Captures implements driver.Capturer.
func (s *session) Captures() *atomic.Int32 { return &s.active }

// Admit implements wire.Admitter. What becomes a node, the driver takes up by itself, or refuses.
func (s *session) Admit(c *wire.Call, a wire.Args, _ wire.Reply) (done bool, res cuda.Result) {
	if !s.capturing() {
		return false, cuda.Success
	}
	switch c.Op.Info().Capture {
	case wire.CaptureUnsafe:
		c.AtReturn(s.guard(c)) // the driver refuses
	case wire.CaptureRefused:
		res = s.refuse(c, a)
	case wire.CaptureWait:
		return s.admitWait(c, a)
	case wire.CaptureNode:
		if a, ok := a.(*wire.Memcpy3DArgs); ok && (a.SrcKind != wire.OperandAddress || a.DstKind != wire.OperandAddress || a.Word != 0) {
			res = s.refuse(c, a)
		}
	}
	return res != cuda.Success, res
}

// refuse has the driver refuse a copy through memory of the worker on a stream that captures: a
// replay would find something else there. Nobody may wait for the copy's end.
func (s *session) refuse(c *wire.Call, a wire.Args) cuda.Result {
	on, ok := a.(wire.Streamed)
	if !ok {
		return cuda.Success
	}
	st, res := s.stream(c, on.OnStream())
	if res == cuda.Success && s.inCapture(st) {
		res = s.note(s.drv.StreamSynchronize(st.handle))
	}
	if res == cuda.Success {
		return res
	}
	switch a := a.(type) {
	case *wire.MemcpyStagedArgs:
		s.copyFailed(a.Word, a.Value)
	case *wire.Memcpy3DArgs:
		s.copyFailed(a.Word, a.Value)
	}
	return res
}

// copyFailed stores the completion word of a copy that is not made.
func (s *session) copyFailed(word, value uint32) {
	if word != 0 && word < wire.WordCount {
		s.host.CompleteWord(word, value|wire.WordFailed)
	}
}

// admitWait has the driver refuse a wait that a capture forbids: its own call is made in the
// guest's capture mode.
func (s *session) admitWait(c *wire.Call, a wire.Args) (done bool, res cuda.Result) {
	switch a := a.(type) {
	case *wire.StreamSynchronizeArgs:
		st, res := s.stream(c, a.Stream)
		if res == cuda.Success && (s.prohibited(c) || s.inCapture(st)) {
			defer s.guard(c)()
			res = s.note(s.drv.StreamSynchronize(st.handle))
		}
		return res != cuda.Success, res
	case *wire.EventSynchronizeArgs:
		e, ok := s.events.get(a.Event)
		if !ok || !s.prohibited(c) {
			return false, cuda.Success
		}
		defer s.guard(c)()
		return true, s.note(s.drv.EventSynchronize(e.handle))
	case *wire.CtxSynchronizeArgs:
		if res := s.use(c); res != cuda.Success {
			return true, res
		}
		if !s.prohibited(c) { // a thread of its own asks, in relaxed mode
			return true, s.blockOn(c, s.drv.CtxSynchronize)
		}
		defer s.guard(c)()
		return true, s.note(s.drv.CtxSynchronize())
	}
	return false, cuda.Success
}

// claimCaptured moves an allocation to those of graphs if its stream captures: then the memory is
// the graph's.
func (s *session) claimCaptured(st *stream, ptr uint64) {
	if !s.inCapture(st) {
		return
	}
	m := s.allocs[ptr]
	s.space.AddGraph(m.at, m.size)
	if _, id, _, _, _, res := s.drv.StreamGetCaptureInfo(st.handle); res == cuda.Success {
		for _, x := range s.captures {
			if x.id == id {
				x.allocs = append(x.allocs, ptr)
			}
		}
	}
	s.pooling.graphs += m.size
	delete(s.allocs, ptr)
	s.pooling.live -= min(s.pooling.live, m.size)
}

// freeOfGraph frees memory of a graph, which comes again with its next launch.
func (s *session) freeOfGraph(ptr uint64, free func(bind.Address) cuda.Result) cuda.Result {
	m, ok := s.space.Graph(ptr)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	return s.note(free(m))
}
