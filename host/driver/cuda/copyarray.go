package cuda

import (
	"encoding/binary"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// putArray writes one half of CUDA_MEMCPY3D that lies in an array. The driver knows the array's extent and checks the box.
func (s *session) putArray(b []byte, x box) cuda.Result {
	a, ok := s.arrays.get(uint32(x.ptr))
	if !ok || x.ptr>>32 != 0 {
		return cuda.ErrorInvalidHandle
	}
	le := binary.LittleEndian
	le.PutUint64(b[0:], x.x)
	le.PutUint64(b[8:], x.y)
	le.PutUint64(b[16:], x.z)
	le.PutUint32(b[half3DType:], memoryTypeArray)
	le.PutUint64(b[half3DArray:], a.handle)
	return cuda.Success
}

// boxNeedsCarrier reports whether a copy between an array and staging memory that cannot be mapped is asked for.
func (s *session) boxNeedsCarrier(a *wire.Memcpy3DArgs) bool {
	id := a.SrcRegion
	switch {
	case a.SrcKind == wire.BoxStaging && a.DstKind == wire.BoxArray:
	case a.SrcKind == wire.BoxArray && a.DstKind == wire.BoxStaging:
		id = a.DstRegion
	default:
		return false
	}
	reg, ok := s.host.Region(id)
	return ok && reg.Mem == nil
}

// maxCarried bounds a box that goes through ordinary memory, in bytes. Guests send at most a chunk.
const maxCarried = 16 << 20

// boxThroughCarrier is copyThroughCarrier for boxes of arrays.
func (s *session) boxThroughCarrier(a *wire.Memcpy3DArgs, st *stream) cuda.Result {
	if a.Word != 0 && a.Word < wire.WordCount {
		defer s.host.CompleteWord(a.Word, a.Value)
	}
	to := a.DstKind == wire.BoxArray
	src := box{a.SrcKind, a.SrcRegion, a.Src, a.SrcPitch, a.SrcHeight, a.SrcX, a.SrcY, a.SrcZ}
	dst := box{a.DstKind, a.DstRegion, a.Dst, a.DstPitch, a.DstHeight, a.DstX, a.DstY, a.DstZ}
	staging := &src
	if !to {
		staging = &dst
	}
	span, ok := staging.span(a.Width, a.Height, a.Depth)
	reg, known := s.host.Region(staging.region)
	if !ok || !known || span > maxCarried || staging.ptr > reg.Size || span > reg.Size-staging.ptr {
		return cuda.ErrorInvalidValue
	}
	mem := newBuffer(int(span))
	defer mem.free()
	if to {
		if _, err := reg.IO.ReadAt(mem.bytes(), int64(staging.ptr)); err != nil {
			return cuda.ErrorInvalidValue
		}
	}
	res := s.copyBoxWith(a, st, mem)
	if res == cuda.Success {
		res = s.fn.cuStreamSynchronize.call(st.handle)
	}
	if s.note(res) != cuda.Success || to {
		return res
	}
	if _, err := reg.IO.WriteAt(mem.bytes(), int64(staging.ptr)); err != nil {
		return cuda.ErrorInvalidValue
	}
	return cuda.Success
}

// copyBoxWith copies between an array and mem, which stands for the staging side.
func (s *session) copyBoxWith(a *wire.Memcpy3DArgs, st *stream, mem buffer) cuda.Result {
	d := newBuffer(memcpy3DSize)
	defer d.free()
	le := binary.LittleEndian
	put := func(b []byte, x box) cuda.Result {
		if x.kind == wire.BoxArray {
			return s.putArray(b, x)
		}
		le.PutUint64(b[0:], x.x)
		le.PutUint64(b[8:], x.y)
		le.PutUint64(b[16:], x.z)
		le.PutUint32(b[half3DType:], memoryTypeHost)
		le.PutUint64(b[half3DHost:], mem.addr())
		le.PutUint64(b[half3DPitch:], x.pitch)
		le.PutUint64(b[half3DHeight:], x.height)
		return cuda.Success
	}
	b := d.bytes()
	res := put(b, box{a.SrcKind, a.SrcRegion, a.Src, a.SrcPitch, a.SrcHeight, a.SrcX, a.SrcY, a.SrcZ})
	if res == cuda.Success {
		res = put(b[memcpy3DHalf:], box{a.DstKind, a.DstRegion, a.Dst, a.DstPitch, a.DstHeight, a.DstX, a.DstY, a.DstZ})
	}
	if res != cuda.Success {
		return res
	}
	le.PutUint64(b[memcpy3DExtents:], a.Width)
	le.PutUint64(b[memcpy3DExtents+8:], a.Height)
	le.PutUint64(b[memcpy3DExtents+16:], a.Depth)
	return s.fn.cuMemcpy3DAsync_v2.call(d.addr(), st.handle)
}
