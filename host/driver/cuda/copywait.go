package cuda

import (
	"causeway/cuda"
	"causeway/cuda/wire"
)

// atOnceMost is the largest copy that the worker waits for itself, with nothing before it: some microseconds, in which the
// driver's own wait saves the way through a stream memory operation and the watcher.
const atOnceMost = 64 << 10

// MemcpyWait copies between addresses that the GPU reaches and answers when the bytes are there.
func (s *session) MemcpyWait(c *wire.Call, a *wire.MemcpyWaitArgs) cuda.Result {
	atOnce := a.Size <= atOnceMost && s.quiet(c, a.Stream)
	st, res := s.submit(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	if res := s.reachable(a.Dst, a.Size); res != cuda.Success {
		return res
	}
	if res := s.reachable(a.Src, a.Size); res != cuda.Success {
		return res
	}
	if res := s.note(s.fn.cuMemcpyAsync.call(a.Dst, a.Src, a.Size, st.handle)); res != cuda.Success {
		return res
	}
	switch {
	case atOnce:
		return s.finishNow(st)
	case s.printing:
		return s.blockOn(c, s.fn.cuStreamSynchronize, st.handle)
	}
	return s.answerBehind(c, st)
}

// quiet reports whether nothing of a stream's context is under way as far as the worker knows, and nothing prints: a wait that the
// driver does itself is then short.
func (s *session) quiet(c *wire.Call, id uint32) bool {
	st, res := s.stream(c, id)
	if res != cuda.Success || s.printing {
		return false
	}
	if legacy := s.legacy[st.ctx]; legacy != nil && legacy.busy() {
		return false
	}
	return !s.anyBusy(st.ctx, func(*stream) bool { return true })
}

// finishNow has the driver wait for a stream of a context that was quiet.
func (s *session) finishNow(st *stream) cuda.Result {
	res := s.note(s.fn.cuStreamSynchronize.call(st.handle))
	if res == cuda.Success {
		st.done = st.submitted
	}
	return res
}
