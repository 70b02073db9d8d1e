package cuda

import (
	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/bind"
)

// operand is one side of a 3D copy as a guest says it.
type operand struct {
	kind, region uint32
	ptr          uint64 // address, offset in the region, or id of the array
	bind.Placement
}

// operands are the sides of a 3D copy and what it moves.
func operands(a *wire.Memcpy3DArgs) (dst, src operand, b bind.Box) {
	dst = operand{a.DstKind, a.DstRegion, a.Dst, bind.Placement{X: a.DstX, Y: a.DstY, Z: a.DstZ, Pitch: a.DstPitch, Height: a.DstHeight}}
	src = operand{a.SrcKind, a.SrcRegion, a.Src, bind.Placement{X: a.SrcX, Y: a.SrcY, Z: a.SrcZ, Pitch: a.SrcPitch, Height: a.SrcHeight}}
	return dst, src, bind.Box{Width: a.Width, Height: a.Height, Depth: a.Depth}
}

// Memcpy3D copies a box.
func (s *session) Memcpy3D(c *wire.Call, a *wire.Memcpy3DArgs) cuda.Result {
	st, res := s.submit(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	dst, src, b := operands(a)
	if reg, ok := s.carried(dst, src); ok {
		return s.endBox(a, s.boxThroughCarrier(reg, dst, src, b, st))
	}
	for _, x := range []operand{dst, src} {
		if x.kind == wire.OperandArray && s.capturing() {
			s.captured(st, s.ofArray(uint32(x.ptr))...)
		}
	}
	to, res := s.operand(dst, b)
	if res != cuda.Success {
		return s.endBox(a, res)
	}
	from, res := s.operand(src, b)
	if res != cuda.Success {
		return s.endBox(a, res)
	}
	res = s.note(s.copyBox(to, from, b, st))
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

func (s *session) copyBox(dst, src bind.Operand, b bind.Box, st *stream) cuda.Result {
	m, res := bind.Copy3D(dst, src, b)
	if res != cuda.Success {
		return res
	}
	return s.drv.Memcpy3DAsync(&m, st.handle)
}

// operand is a side of a copy of which all lies in memory that the guest may name.
func (s *session) operand(x operand, b bind.Box) (bind.Operand, cuda.Result) {
	switch x.kind {
	case wire.OperandArray:
		a, ok := s.arrays.get(uint32(x.ptr))
		if !ok || x.ptr>>32 != 0 {
			return bind.Operand{}, cuda.ErrorInvalidHandle
		}
		return bind.ArrayOperand(a.handle, x.Placement), cuda.Success
	case wire.OperandAddress:
		return s.space.Operand(x.ptr, x.Placement, b)
	}
	reg, ok := s.host.Region(x.region)
	switch {
	case !ok:
		return bind.Operand{}, cuda.ErrorInvalidValue
	case reg.Mem == nil:
		return bind.Operand{}, cuda.ErrorNotSupported
	}
	o, ok := bind.MappedOperand(reg.Mem, x.ptr, x.Placement, b)
	if !ok {
		return o, cuda.ErrorInvalidValue
	}
	return o, cuda.Success
}

// carried is the staging memory that cannot be mapped, of a copy between that and an array.
func (s *session) carried(dst, src operand) (driver.Region, bool) {
	id := src.region
	switch {
	case src.kind == wire.OperandStaging && dst.kind == wire.OperandArray:
	case src.kind == wire.OperandArray && dst.kind == wire.OperandStaging:
		id = dst.region
	default:
		return driver.Region{}, false
	}
	reg, ok := s.host.Region(id)
	return reg, ok && reg.Mem == nil
}

// maxCarried bounds a box that goes through ordinary memory, in bytes. Guests send at most a chunk.
const maxCarried = 16 << 20

// boxThroughCarrier is copyThroughCarrier for boxes of arrays: the staging side is in ordinary
// memory meanwhile.
func (s *session) boxThroughCarrier(reg driver.Region, dst, src operand, b bind.Box, st *stream) cuda.Result {
	up := dst.kind == wire.OperandArray
	staging, array := dst, src
	if up {
		staging, array = src, dst
	}
	span, ok := staging.Reach(b, maxCarried)
	if !ok || staging.ptr > reg.Size || span > reg.Size-staging.ptr {
		return cuda.ErrorInvalidValue
	}
	other, res := s.operand(array, b)
	if res != cuda.Success {
		return res
	}
	mem := bind.NewBuffer(int(span))
	defer mem.Free()
	here := bind.HostOperand(mem.Host(), staging.Placement)
	if up || span > b.Width*b.Height*b.Depth { // what lies between rows is not the copy's to change
		if _, err := reg.IO.ReadAt(mem.Bytes(), int64(staging.ptr)); err != nil {
			return cuda.ErrorInvalidValue
		}
	}
	if up {
		res = s.copyBox(other, here, b, st)
	} else {
		res = s.copyBox(here, other, b, st)
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
