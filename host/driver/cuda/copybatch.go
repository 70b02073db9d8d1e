package cuda

import (
	"encoding/binary"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// CUmemcpyAttributes (CUDA Driver API): the order of access to the source, two locations that only hint, flags.
const (
	memcpyAttributesSize  = 24
	memcpyAttributesFlags = 20

	sourceInCall = 2 // CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL
)

// MemcpyBatch makes copies that are unordered among each other, in one call where the driver has it (12.8).
func (s *session) MemcpyBatch(c *wire.Call, a *wire.MemcpyBatchArgs) cuda.Result {
	st, res := s.submit(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	n := len(a.Pieces) / wire.MemcpyBatchPiece
	if n == 0 || n*wire.MemcpyBatchPiece != len(a.Pieces) {
		return cuda.ErrorInvalidValue
	}
	if s.batch.p == nil {
		s.batch = newBuffer(3*8*(wire.MaxRecord/wire.MemcpyBatchPiece) + memcpyAttributesSize + 16)
	}
	if res := s.putPieces(a.Pieces, n); res != cuda.Success {
		return res
	}
	dsts := s.batch.addr()
	srcs, sizes, attrs := dsts+8*uint64(n), dsts+16*uint64(n), dsts+24*uint64(n)
	b := s.batch.bytes()[24*n:]
	clear(b[:memcpyAttributesSize+16])
	binary.LittleEndian.PutUint32(b, a.Order)
	binary.LittleEndian.PutUint32(b[memcpyAttributesFlags:], a.Flags)
	first := attrs + memcpyAttributesSize // the index that the attributes hold from, then where an older form says what failed
	switch {
	case s.capturing(): // a capture takes copies, no batches
		res = s.eachPiece(n, st)
	case s.fn.cuMemcpyBatchAsync_v2 != 0:
		res = s.fn.cuMemcpyBatchAsync_v2.call(dsts, srcs, sizes, uint64(n), attrs, first, 1, st.handle)
	case s.fn.cuMemcpyBatchAsync != 0:
		res = s.fn.cuMemcpyBatchAsync.call(dsts, srcs, sizes, uint64(n), attrs, first, 1, first+8, st.handle)
	case a.Order == sourceInCall: // single copies read their sources later
		res = cuda.ErrorNotSupported
	default:
		res = s.eachPiece(n, st)
	}
	return s.note(res)
}

// eachPiece makes the copies of putPieces one by one.
func (s *session) eachPiece(n int, st *stream) (res cuda.Result) {
	for i := 0; i < n && res == cuda.Success; i++ {
		res = s.fn.cuMemcpyAsync.call(*s.batch.u64(i), *s.batch.u64(n + i), *s.batch.u64(2*n + i), st.handle)
	}
	return res
}

// putPieces checks pieces and turns them into the three arrays that the driver takes. Memory that was seen to be device memory, or
// pinned, is known for the other pieces: nothing is freed while the batch is looked at.
func (s *session) putPieces(pieces []byte, n int) cuda.Result {
	var dst, src extent
	for i := range n {
		p := pieces[i*wire.MemcpyBatchPiece:]
		to, from, size := binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:]), binary.LittleEndian.Uint64(p[16:])
		res := s.within(&dst, to, size)
		if res == cuda.Success {
			res = s.within(&src, from, size)
		}
		if res != cuda.Success {
			return res
		}
		*s.batch.u64(i), *s.batch.u64(n + i), *s.batch.u64(2*n + i) = to, from, size
	}
	return cuda.Success
}

// extent is memory that a guest may name, from lo up to hi.
type extent struct{ lo, hi uint64 }

func (e *extent) holds(addr, size uint64) bool {
	return addr >= e.lo && addr < e.hi && size <= e.hi-addr
}

// within is reachable with a memory of where the last address lay.
func (s *session) within(last *extent, addr, size uint64) cuda.Result {
	if last.holds(addr, size) {
		return cuda.Success
	}
	if res := s.reachable(addr, size); res != cuda.Success {
		return res
	}
	if p := s.pinnedAt(addr); p != nil {
		*last = p.extent
		return cuda.Success
	}
	const rangeStart, rangeSize = 11, 12
	out := s.out.addr()
	if s.fn.cuPointerGetAttribute.call(out+8, rangeStart, addr) == cuda.Success &&
		s.fn.cuPointerGetAttribute.call(out+16, rangeSize, addr) == cuda.Success {
		*last = extent{*s.out.u64(1), *s.out.u64(1) + *s.out.u64(2)}
	}
	return cuda.Success
}

// pinnedRegion is memory of the guest that it pinned and that is registered with the driver.
type pinnedRegion struct {
	extent
	id uint32
}

// pinnedAt is the pinned region that an address lies in, nil if none.
func (s *session) pinnedAt(addr uint64) *pinnedRegion {
	for i := range s.pinned {
		if p := &s.pinned[i]; addr >= p.lo && addr < p.hi {
			return p
		}
	}
	return nil
}
