package cuda

import (
	"encoding/binary"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

const sourceInCall = 2 // CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL

// MemcpyBatch makes copies that are unordered among each other, in one call where the driver has it
// (12.8).
func (s *session) MemcpyBatch(c *wire.Call, a *wire.MemcpyBatchArgs) cuda.Result {
	st, res := s.submit(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	n := len(a.Pieces) / wire.MemcpyBatchPiece
	if n == 0 || n*wire.MemcpyBatchPiece != len(a.Pieces) {
		return cuda.ErrorInvalidValue
	}
	if res := s.putPieces(a.Pieces); res != cuda.Success {
		return res
	}
	if s.capturing() { // a capture takes copies, no batches
		return s.note(s.drv.MemcpyEach(&s.batch, st.handle))
	}
	res = s.drv.MemcpyBatch(&s.batch, bind.MemcpyAttributes{Order: int32(a.Order), Flags: a.Flags}, st.handle)
	if res == cuda.ErrorNotSupported && a.Order != sourceInCall {
		// Single copies read their sources later.
		res = s.drv.MemcpyEach(&s.batch, st.handle)
	}
	return s.note(res)
}

// putPieces checks pieces and lists them for the driver. Memory that was seen to be device memory,
// or pinned, is known for the other pieces: nothing is freed while the batch is looked at.
func (s *session) putPieces(pieces []byte) cuda.Result {
	var dst, src bind.Mem
	s.batch.Reset()
	for p := pieces; len(p) > 0; p = p[wire.MemcpyBatchPiece:] {
		to, from, size := binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:]), binary.LittleEndian.Uint64(p[16:])
		x, res := s.space.Near(&dst, to, size)
		if res != cuda.Success {
			return res
		}
		y, res := s.space.Near(&src, from, size)
		if res != cuda.Success {
			return res
		}
		if !s.batch.Add(x, y) {
			return cuda.ErrorInvalidValue
		}
	}
	return cuda.Success
}
