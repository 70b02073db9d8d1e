package soft

import (
	"math/bits"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// Kinds of a box copy's operand.
const (
	atAddress = 0
	atStaging = 1
)

// operand is one end of a box copy: where its first byte is, and how far rows and slices are apart.
type operand struct {
	mem        []byte        // the bytes from the box's first to its last; nil: through the carrier
	reg        driver.Region // with mem nil
	off        uint64        // of the first byte in reg
	row, slice uint64
	users      *region
}

// box is what a copy moves: bytes, rows and slices.
type box struct{ width, height, depth uint64 }

func (b box) empty() bool { return b.width == 0 || b.height == 0 || b.depth == 0 }

// Memcpy3D copies a box.
func (s *session) Memcpy3D(c *wire.Call, a *wire.Memcpy3DArgs) cuda.Result {
	st, res := s.stream(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	b := box{a.Width, a.Height, a.Depth}
	if a.Word >= wire.WordCount {
		return cuda.ErrorInvalidValue
	}
	var src, dst operand
	if !b.empty() {
		var ok1, ok2 bool
		src, ok1 = s.operand(b, a.SrcKind, a.SrcRegion, a.Src, a.SrcPitch, a.SrcHeight, [3]uint64{a.SrcX, a.SrcY, a.SrcZ})
		dst, ok2 = s.operand(b, a.DstKind, a.DstRegion, a.Dst, a.DstPitch, a.DstHeight, [3]uint64{a.DstX, a.DstY, a.DstZ})
		if !ok1 || !ok2 {
			return cuda.ErrorInvalidValue
		}
	}
	move := func() cuda.Result { return copyBox(dst, src, b) }
	size := b.width * b.height * b.depth // both operands hold it: no overflow
	s.transfer(st, size, completion{a.Word != 0, a.Word, a.Value}, []operand{src, dst}, move)
	return cuda.Success
}

// operand checks one end: an array, or memory: the box must lie within its pitch and height, and
// all of it in memory that may be touched.
func (s *session) operand(b box, kind, id uint32, base, pitch, height uint64, at [3]uint64) (operand, bool) {
	if kind == wire.OperandArray {
		return s.arrayOperand(b, base, at)
	}
	if pitch == 0 {
		if b.height > 1 || b.depth > 1 || at[1] > 0 || at[2] > 0 {
			return operand{}, false
		}
		pitch = at[0] + b.width
	}
	if height == 0 {
		if b.depth > 1 || at[2] > 0 {
			return operand{}, false
		}
		height = at[1] + b.height
	}
	var m checked
	if m.add(at[0], b.width) > pitch || m.add(at[1], b.height) > height && (b.depth > 1 || at[2] > 0) {
		return operand{}, false
	}
	slice := m.mul(pitch, height)
	first := m.add(m.add(m.mul(at[2], slice), m.mul(at[1], pitch)), at[0])
	last := m.add(m.add(m.mul(b.depth-1, slice), m.mul(b.height-1, pitch)), b.width)
	start := m.add(base, first)
	m.add(start, last)
	if m.overflow {
		return operand{}, false
	}
	v := operand{row: pitch, slice: slice}
	switch kind {
	case atAddress:
		mem, ok := s.space.bytes(start, last)
		v.mem = mem
		return v, ok
	case atStaging:
		reg, known, ok := s.staged(id, start, last)
		if !ok {
			return operand{}, false
		}
		v.users, v.reg, v.off = known, reg, start
		if reg.Mem != nil {
			v.mem = reg.Mem[start : start+last]
		}
		return v, true
	}
	return operand{}, false
}

// checked calculates sizes that come from outside.
type checked struct{ overflow bool }

func (c *checked) mul(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	c.overflow = c.overflow || hi != 0
	return lo
}

func (c *checked) add(a, b uint64) uint64 {
	sum, carry := bits.Add64(a, b, 0)
	c.overflow = c.overflow || carry != 0
	return sum
}

// copyBox copies row by row; whole slices or the whole box at once where both operands are dense.
func copyBox(dst, src operand, b box) cuda.Result {
	if b.empty() {
		return cuda.Success
	}
	if src.row == b.width && dst.row == b.width {
		b.width, b.height = b.width*b.height, 1
		if src.slice == b.width && dst.slice == b.width {
			b.width, b.depth = b.width*b.depth, 1
		}
	}
	var bounce []byte
	if src.mem == nil && dst.mem == nil {
		bounce = make([]byte, min(b.width, carrySize))
	}
	for z := range b.depth {
		for y := range b.height {
			from, to := z*src.slice+y*src.row, z*dst.slice+y*dst.row
			if res := copyRow(dst, src, to, from, b.width, bounce); res != cuda.Success {
				return res
			}
		}
	}
	return cuda.Success
}

func copyRow(dst, src operand, to, from, n uint64, bounce []byte) cuda.Result {
	switch {
	case src.mem != nil && dst.mem != nil:
		copy(dst.mem[to:to+n], src.mem[from:from+n])
		return cuda.Success
	case dst.mem != nil:
		return moveStaged(src.reg, src.off+from, dst.mem[to:to+n], true)
	case src.mem != nil:
		return moveStaged(dst.reg, dst.off+to, src.mem[from:from+n], false)
	}
	for n > 0 {
		part := bounce[:min(n, uint64(len(bounce)))]
		if res := carry(src.reg, src.off+from, part, true); res != cuda.Success {
			return res
		}
		if res := carry(dst.reg, dst.off+to, part, false); res != cuda.Success {
			return res
		}
		k := uint64(len(part))
		n, from, to = n-k, from+k, to+k
	}
	return cuda.Success
}
