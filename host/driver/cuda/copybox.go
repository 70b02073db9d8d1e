package cuda

import (
	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/bind"
)

// box is one side of a 3D copy as a guest says it.
type box struct {
	kind, region uint32
	ptr          uint64 // address, offset in the region, or id of the array
	bind.Box
}

// boxes are the sides of a 3D copy and what it moves.
func boxes(a *wire.Memcpy3DArgs) (dst, src box, e bind.Extent) {
	dst = box{a.DstKind, a.DstRegion, a.Dst, bind.Box{X: a.DstX, Y: a.DstY, Z: a.DstZ, Pitch: a.DstPitch, Height: a.DstHeight}}
	src = box{a.SrcKind, a.SrcRegion, a.Src, bind.Box{X: a.SrcX, Y: a.SrcY, Z: a.SrcZ, Pitch: a.SrcPitch, Height: a.SrcHeight}}
	return dst, src, bind.Extent{Width: a.Width, Height: a.Height, Depth: a.Depth}
}

// Memcpy3D copies a box.
func (s *session) Memcpy3D(c *wire.Call, a *wire.Memcpy3DArgs) cuda.Result {
	st, res := s.submit(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	dst, src, e := boxes(a)
	if reg, ok := s.carried(dst, src); ok {
		return s.endBox(a, s.boxThroughCarrier(reg, dst, src, e, st))
	}
	to, res := s.operand(dst, e)
	if res != cuda.Success {
		return s.endBox(a, res)
	}
	from, res := s.operand(src, e)
	if res != cuda.Success {
		return s.endBox(a, res)
	}
	res = s.note(s.copyBox(to, from, e, st))
	if res != cuda.Success || a.Word == 0 || a.Word >= wire.WordCount {
		return s.endBox(a, res)
	}
	return s.completeBehind(st, a.Word, a.Value)
}

// endBox tells a thread that waits for a copy's word, if it does, that it has ended.
func (s *session) endBox(a *wire.Memcpy3DArgs, res cuda.Result) cuda.Result {
	switch {
	case res != cuda.Success:
		s.copyFailed(a.Word, a.Value)
	case a.Word != 0 && a.Word < wire.WordCount:
		s.host.CompleteWord(a.Word, a.Value)
	}
	return res
}

func (s *session) copyBox(dst, src bind.Operand, e bind.Extent, st *stream) cuda.Result {
	m, res := bind.Copy3D(dst, src, e)
	if res != cuda.Success {
		return res
	}
	return s.drv.Memcpy3DAsync(&m, st.handle)
}

// operand is a side of a copy of which all lies in memory that the guest may name.
func (s *session) operand(x box, e bind.Extent) (bind.Operand, cuda.Result) {
	switch x.kind {
	case wire.BoxArray:
		a, ok := s.arrays.get(uint32(x.ptr))
		if !ok || x.ptr>>32 != 0 {
			return bind.Operand{}, cuda.ErrorInvalidHandle
		}
		return bind.ArrayOperand(a.handle, x.Box), cuda.Success
	case wire.BoxAddress:
		return s.space.Operand(x.ptr, x.Box, e)
	}
	reg, ok := s.host.Region(x.region)
	switch {
	case !ok:
		return bind.Operand{}, cuda.ErrorInvalidValue
	case reg.Mem == nil:
		return bind.Operand{}, cuda.ErrorNotSupported
	}
	o, ok := bind.LeaseOperand(reg.Mem, x.ptr, x.Box, e)
	if !ok {
		return o, cuda.ErrorInvalidValue
	}
	return o, cuda.Success
}

// carried is the staging memory that cannot be mapped, of a copy between that and an array.
func (s *session) carried(dst, src box) (driver.Region, bool) {
	id := src.region
	switch {
	case src.kind == wire.BoxStaging && dst.kind == wire.BoxArray:
	case src.kind == wire.BoxArray && dst.kind == wire.BoxStaging:
		id = dst.region
	default:
		return driver.Region{}, false
	}
	reg, ok := s.host.Region(id)
	return reg, ok && reg.Mem == nil
}

// maxCarried bounds a box that goes through ordinary memory, in bytes. Guests send at most a chunk.
const maxCarried = 16 << 20

// boxThroughCarrier is copyThroughCarrier for boxes of arrays: the staging side is in ordinary memory meanwhile.
func (s *session) boxThroughCarrier(reg driver.Region, dst, src box, e bind.Extent, st *stream) cuda.Result {
	up := dst.kind == wire.BoxArray
	staging, array := dst, src
	if up {
		staging, array = src, dst
	}
	span, ok := staging.Reach(e, maxCarried)
	if !ok || staging.ptr > reg.Size || span > reg.Size-staging.ptr {
		return cuda.ErrorInvalidValue
	}
	other, res := s.operand(array, e)
	if res != cuda.Success {
		return res
	}
	mem := bind.NewBuffer(int(span))
	defer mem.Free()
	here := bind.HostOperand(mem.Host(), staging.Box)
	if up || span > e.Width*e.Height*e.Depth { // what lies between rows is not the copy's to change
		if _, err := reg.IO.ReadAt(mem.Bytes(), int64(staging.ptr)); err != nil {
			return cuda.ErrorInvalidValue
		}
	}
	if up {
		res = s.copyBox(other, here, e, st)
	} else {
		res = s.copyBox(here, other, e, st)
	}
	if res == cuda.Success {
		res = s.drv.StreamSynchronize(st.handle)
	}
	if s.note(res) != cuda.Success || up {
		return res
	}
	if _, err := reg.IO.WriteAt(mem.Bytes(), int64(staging.ptr)); err != nil {
		return cuda.ErrorInvalidValue
	}
	return cuda.Success
}
