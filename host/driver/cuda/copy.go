package cuda

import (
	"encoding/binary"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/remote"
)

// Memcpy copies between addresses that the GPU reaches.
func (s *session) Memcpy(c *wire.Call, a *wire.MemcpyArgs) cuda.Result {
	st, res := s.copyStream(c, a.Stream, a.Dst, a.Src, a.Size)
	if res != cuda.Success {
		return res
	}
	return s.issue(c, st, s.fn.cuMemcpyAsync, a.Dst, a.Src, a.Size, st.handle)
}

// copyStream gives the stream of a copy whose two ends the GPU reaches.
func (s *session) copyStream(c *wire.Call, id wire.Stream, dst, src, size uint64) (*stream, cuda.Result) {
	st, res := s.submit(c, id)
	if res == cuda.Success {
		res = s.reachable(dst, size)
	}
	if res == cuda.Success {
		res = s.reachable(src, size)
	}
	return st, res
}

// MemcpyHtoD copies bytes that came inside the record. The ring is memory that the driver knows as pinned and would read
// later; from a copy in ordinary memory it takes the bytes before it returns.
func (s *session) MemcpyHtoD(c *wire.Call, a *wire.MemcpyHtoDArgs) cuda.Result {
	st, res := s.submit(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	if res := s.reachable(a.Dst, uint64(len(a.Src))); res != cuda.Success {
		return res
	}
	b := s.ordinary()
	n := copy(b.bytes(), a.Src)
	return s.note(s.fn.cuMemcpyHtoDAsync_v2.call(a.Dst, b.addr(), uint64(n), st.handle))
}

// MemcpyDtoH copies a few bytes into the reply: the GPU itself writes them to the start of the slot's payload, and then its answer,
// where it reaches the slot. Else they come by pinned memory of ours and the watcher.
func (s *session) MemcpyDtoH(c *wire.Call, a *wire.MemcpyDtoHArgs, r *wire.MemcpyDtoHReply) cuda.Result {
	st, res := s.submit(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	if a.Size > bounceSize {
		return cuda.ErrorInvalidValue
	}
	if res := s.reachable(a.Src, uint64(a.Size)); res != cuda.Success {
		return res
	}
	p := c.Later()
	if addr, _, ok := p.GPUDone(); ok && s.regions[0].addr != 0 && a.Size <= wire.SlotPayload && !s.printing {
		payload := uint64(addr) - remote.SlotGpuDoneOffset + wire.SlotSize - wire.SlotPayload
		if res := s.note(s.fn.cuMemcpyDtoHAsync_v2.call(payload, a.Src, uint64(a.Size), st.handle)); res != cuda.Success {
			p.Done(res, nil)
			return cuda.Success
		}
		return s.answerBehindCopy(c, st)
	}
	f, ok := s.fences.take()
	if !ok {
		p.Done(cuda.ErrorOutOfMemory, nil)
		return cuda.Success
	}
	if res := s.note(s.fn.cuMemcpyDtoHAsync_v2.call(f.bounce, a.Src, uint64(a.Size), st.handle)); res != cuda.Success {
		s.fences.put(f)
		p.Done(res, nil)
		return cuda.Success
	}
	if res := s.note(s.fn.cuStreamWriteValue32_v2.call(st.handle, f.dev, uint64(f.value), 0)); res != cuda.Success {
		s.fences.put(f)
		p.Done(res, nil)
		return cuda.Success
	}
	n := int(a.Size)
	reply := func() wire.Reply { return &wire.MemcpyDtoHReply{Dst: hostBytes(f.bounce, n)} }
	s.watch.add(&wait{pending: p, word: f.word, seq: f.value, ctx: s.handleOf(st.ctx), stream: st.handle, finish: reply, fence: f})
	return cuda.Success
}

// MemcpyStaged copies between device memory and a staging region; behind it the GPU writes the completion word.
func (s *session) MemcpyStaged(c *wire.Call, a *wire.MemcpyStagedArgs) cuda.Result {
	st, res := s.submit(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	reg, ok := s.host.Region(a.Region)
	if !ok || a.Offset > reg.Size || a.Size > reg.Size-a.Offset || a.Word >= wire.WordCount {
		return cuda.ErrorInvalidValue
	}
	if res := s.reachable(a.Device, a.Size); res != cuda.Success {
		return res
	}
	if reg.Mem == nil {
		return s.copyThroughCarrier(a, reg.IO, st)
	}
	host := memAddr(reg.Mem) + a.Offset
	if a.Direction == 0 {
		res = s.fn.cuMemcpyHtoDAsync_v2.call(a.Device, host, a.Size, st.handle)
	} else {
		res = s.fn.cuMemcpyDtoHAsync_v2.call(host, a.Device, a.Size, st.handle)
	}
	if s.note(res) != cuda.Success {
		s.host.CompleteWord(a.Word, a.Value|wire.WordFailed)
		return res
	}
	return s.completeBehind(st, a.Word, a.Value)
}

// completeBehind has the GPU store a completion word behind a stream's work.
func (s *session) completeBehind(st *stream, w, value uint32) cuda.Result {
	base := s.regions[0].addr
	if base == 0 {
		s.host.CompleteWord(w, value|wire.WordFailed)
		return cuda.ErrorNotSupported
	}
	res := s.note(s.fn.cuStreamWriteValue32_v2.call(st.handle, base+wire.WordsOffset+4*uint64(w), uint64(value), 0))
	if res != cuda.Success {
		s.host.CompleteWord(w, value|wire.WordFailed) // nobody may wait for ever; the error follows
	}
	return res
}

// copyThroughCarrier serves carriers whose memory cannot be mapped (TCP): through ordinary memory, in order, at once.
func (s *session) copyThroughCarrier(a *wire.MemcpyStagedArgs, io interface {
	ReadAt([]byte, int64) (int, error)
	WriteAt([]byte, int64) (int, error)
}, st *stream) cuda.Result {
	const piece = 1 << 20
	if s.carry.p == nil {
		s.carry = newBuffer(piece)
	}
	value := a.Value | wire.WordFailed
	defer func() { s.host.CompleteWord(a.Word, value) }()
	for done := uint64(0); done < a.Size; {
		n := min(a.Size-done, piece)
		b := s.carry.bytes()[:n]
		if a.Direction == 0 {
			if _, err := io.ReadAt(b, int64(a.Offset+done)); err != nil {
				return cuda.ErrorInvalidValue
			}
		}
		var res cuda.Result
		if a.Direction == 0 {
			res = s.fn.cuMemcpyHtoDAsync_v2.call(a.Device+done, s.carry.addr(), n, st.handle)
		} else {
			res = s.fn.cuMemcpyDtoHAsync_v2.call(s.carry.addr(), a.Device+done, n, st.handle)
		}
		if res == cuda.Success {
			res = s.fn.cuStreamSynchronize.call(st.handle)
		}
		if s.note(res) != cuda.Success {
			return res
		}
		if a.Direction != 0 {
			if _, err := io.WriteAt(b, int64(a.Offset+done)); err != nil {
				return cuda.ErrorInvalidValue
			}
		}
		done += n
	}
	value = a.Value
	return cuda.Success
}

// CUDA_MEMCPY3D (CUDA Driver API): 200 bytes, source and destination halves of 88 bytes, then the extent.
const (
	memcpy3DSize    = 200
	memcpy3DHalf    = 88
	memoryTypeHost  = 1
	memoryTypeArray = 3
	memoryTypeUVA   = 4
	half3DType      = 32
	half3DHost      = 40
	half3DDevice    = 48
	half3DArray     = 56
	half3DPitch     = 72
	half3DHeight    = 80
	memcpy3DExtents = 176
)

// Memcpy3D copies a box.
func (s *session) Memcpy3D(c *wire.Call, a *wire.Memcpy3DArgs) cuda.Result {
	st, res := s.submit(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	if s.boxNeedsCarrier(a) {
		return s.boxThroughCarrier(a, st)
	}
	d := newBuffer(memcpy3DSize)
	defer d.free()
	src := box{a.SrcKind, a.SrcRegion, a.Src, a.SrcPitch, a.SrcHeight, a.SrcX, a.SrcY, a.SrcZ}
	dst := box{a.DstKind, a.DstRegion, a.Dst, a.DstPitch, a.DstHeight, a.DstX, a.DstY, a.DstZ}
	b := d.bytes()
	res = s.put3D(b[:memcpy3DHalf], src, a)
	if res == cuda.Success {
		res = s.put3D(b[memcpy3DHalf:], dst, a)
	}
	if res == cuda.Success {
		binary.LittleEndian.PutUint64(b[memcpy3DExtents:], a.Width)
		binary.LittleEndian.PutUint64(b[memcpy3DExtents+8:], a.Height)
		binary.LittleEndian.PutUint64(b[memcpy3DExtents+16:], a.Depth)
		res = s.note(s.fn.cuMemcpy3DAsync_v2.call(d.addr(), st.handle))
	}
	if a.Word == 0 || a.Word >= wire.WordCount {
		return res
	}
	if res != cuda.Success {
		s.host.CompleteWord(a.Word, a.Value|wire.WordFailed)
		return res
	}
	return s.completeBehind(st, a.Word, a.Value)
}

// box is one side of a 3D copy.
type box struct {
	kind, region                uint32
	ptr, pitch, height, x, y, z uint64
}

// put3D writes one half of CUDA_MEMCPY3D after checking that the box lies in memory of the guest.
func (s *session) put3D(b []byte, x box, a *wire.Memcpy3DArgs) cuda.Result {
	if x.kind == wire.BoxArray {
		return s.putArray(b, x)
	}
	span, ok := x.span(a.Width, a.Height, a.Depth)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	le := binary.LittleEndian
	le.PutUint64(b[0:], x.x)
	le.PutUint64(b[8:], x.y)
	le.PutUint64(b[16:], x.z)
	le.PutUint64(b[half3DPitch:], x.pitch)
	le.PutUint64(b[half3DHeight:], x.height)
	if x.kind == 0 {
		le.PutUint32(b[half3DType:], memoryTypeUVA)
		le.PutUint64(b[half3DDevice:], x.ptr)
		return s.reachable(x.ptr, span)
	}
	reg, ok := s.host.Region(x.region)
	if !ok || x.ptr > reg.Size || span > reg.Size-x.ptr {
		return cuda.ErrorInvalidValue
	}
	if reg.Mem == nil {
		return cuda.ErrorNotSupported
	}
	le.PutUint32(b[half3DType:], memoryTypeHost)
	le.PutUint64(b[half3DHost:], memAddr(reg.Mem)+x.ptr)
	return cuda.Success
}

// span is how many bytes from ptr on the box reaches, false if that does not fit 63 bits.
func (x box) span(width, height, depth uint64) (uint64, bool) {
	if width == 0 || height == 0 || depth == 0 {
		return 0, true
	}
	const bound = 1 << 40
	for _, v := range []uint64{x.pitch, x.height, x.x, x.y, x.z, width, height, depth} {
		if v > bound {
			return 0, false
		}
	}
	rows := (x.z+depth-1)*max(x.height, 1) + x.y + height
	if x.height == 0 && depth > 1 {
		rows = (x.z+depth-1)*height + x.y + height
	}
	if rows > bound || (x.pitch > 0 && rows > (1<<62)/x.pitch) {
		return 0, false
	}
	return (rows-1)*x.pitch + x.x + width, true
}

// Memset fills memory. What a capture takes up may name any address: a launch of its graph finds out, as a kernel would (cuDNN captures
// what it never launches).
func (s *session) Memset(c *wire.Call, a *wire.MemsetArgs) cuda.Result {
	st, res := s.submit(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	linear, pitched := s.fill(a.Element)
	if linear == 0 {
		return cuda.ErrorInvalidValue
	}
	const bound = 1 << 48
	if a.Width > bound || a.Height > bound || a.Pitch > bound || a.Height > 1 && a.Pitch > 0 && a.Height > (1<<62)/a.Pitch {
		return cuda.ErrorInvalidValue
	}
	rows := a.Pitch != 0 && a.Height > 1
	span := a.Width * uint64(a.Element)
	if rows {
		span += (a.Height - 1) * a.Pitch
	}
	if res := s.reachable(a.Dst, span); res != cuda.Success && !s.inCapture(st) {
		return res
	}
	if !rows {
		return s.issue(c, st, linear, a.Dst, uint64(a.Value), a.Width, st.handle)
	}
	return s.issue(c, st, pitched, a.Dst, a.Pitch, uint64(a.Value), a.Width, a.Height, st.handle)
}

// fill picks the entry points that fill elements of a size, 0 if there are none.
func (s *session) fill(element uint32) (linear, pitched entry) {
	switch element {
	case 1:
		return s.fn.cuMemsetD8Async, s.fn.cuMemsetD2D8Async
	case 2:
		return s.fn.cuMemsetD16Async, s.fn.cuMemsetD2D16Async
	case 4:
		return s.fn.cuMemsetD32Async, s.fn.cuMemsetD2D32Async
	}
	return 0, 0
}
