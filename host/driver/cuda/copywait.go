package cuda

import (
	"causeway/cuda"
	"causeway/cuda/wire"
)

// MemcpyWait copies between addresses that the GPU reaches and answers when the bytes are there.
func (s *session) MemcpyWait(c *wire.Call, a *wire.MemcpyWaitArgs) cuda.Result {
	st, res := s.copyStream(c, a.Stream, a.Dst, a.Src, a.Size)
	if res != cuda.Success {
		return res
	}
	if res := s.note(s.fn.cuMemcpyAsync.call(a.Dst, a.Src, a.Size, st.handle)); res != cuda.Success {
		return res
	}
	if s.printing {
		return s.blockOn(c, s.fn.cuStreamSynchronize, st.handle)
	}
	return s.answerBehind(c, st)
}
