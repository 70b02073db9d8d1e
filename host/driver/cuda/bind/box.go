package bind

import (
	"math/bits"

	"causeway/cuda"
)

// Rect is rows of memory that the GPU reaches, at a distance of pitch bytes.
type Rect struct {
	mem                  Mem
	pitch, width, height uint64 // width in bytes
}

// Rect is rows that a guest names: width elements of so many bytes in each.
func (s *Space) Rect(addr, pitch, width, element, height uint64) (Rect, cuda.Result) {
	row, span, ok := rows(pitch, width, element, height)
	if !ok {
		return Rect{}, cuda.ErrorInvalidValue
	}
	m, res := s.Mem(addr, span)
	if res == cuda.Success && height > 1 {
		res = s.ends(addr, 0, span)
	}
	if res != cuda.Success {
		return Rect{}, res
	}
	return Rect{m, pitch, row, height}, res
}

// rows is how many bytes a row has, and how far rows reach from the first one's first byte.
func rows(pitch, width, element, height uint64) (row, span uint64, ok bool) {
	row, ok = Bytes(width, element)
	if height == 1 || !ok {
		return row, row, ok
	}
	span, ok = Placement{Pitch: pitch}.span(Box{row, height, 1})
	return row, span, ok && (height == 0 || pitch >= row)
}

// Bytes is width elements of so many bytes each, false if that does not fit.
func Bytes(width, element uint64) (uint64, bool) {
	hi, n := bits.Mul64(width, element)
	return n, hi == 0
}

// Box is what a copy moves: so many bytes of so many rows of so many slices.
type Box struct{ Width, Height, Depth uint64 }

// Placement is where one side of a copy begins, and how far apart its rows and slices are: bytes,
// and rows.
type Placement struct{ X, Y, Z, Pitch, Height uint64 }

// span is how many bytes from the start of memory a box may reach, false if that does not fit. A
// pitch or height of less than there is of bytes in a row or of rows in a slice counts as that: the
// driver refuses it or, where it is 0, takes rows and slices as packed.
func (p Placement) span(b Box) (uint64, bool) {
	if b.Width == 0 || b.Height == 0 || b.Depth == 0 {
		return 0, true
	}
	var s sum
	row, rows, slices := s.add(p.X, b.Width), s.add(p.Y, b.Height), s.add(p.Z, b.Depth)
	last := s.add(s.mul(slices-1, max(p.Height, rows)), rows) - 1 // row, counted from the first
	span := s.add(s.mul(last, max(p.Pitch, row)), row)
	return span, !s.wrapped
}

// sum computes, and remembers whether anything did not fit.
type sum struct{ wrapped bool }

func (s *sum) add(a, b uint64) uint64 {
	n, carry := bits.Add64(a, b, 0)
	s.wrapped = s.wrapped || carry != 0
	return n
}

func (s *sum) mul(a, b uint64) uint64 {
	hi, n := bits.Mul64(a, b)
	s.wrapped = s.wrapped || hi != 0
	return n
}

// Operand is one side of a copy.
type Operand struct {
	kind  uint32 // CUmemorytype
	mem   Mem
	host  Host
	array Array
	at    Placement
}

// Operand is a side of a copy that lies at an address that a guest names.
func (s *Space) Operand(addr uint64, p Placement, b Box) (Operand, cuda.Result) {
	span, ok := p.span(b)
	if !ok {
		return Operand{}, cuda.ErrorInvalidValue
	}
	m, res := s.Mem(addr, span)
	if res == cuda.Success {
		res = s.ends(addr, p.first(b), span)
	}
	return Operand{kind: cuda.MemoryTypeUnified, mem: m, at: p}, res
}

// first is how far from the start of memory a box begins. Its span fits.
func (p Placement) first(b Box) uint64 {
	return (p.Z*max(p.Height, p.Y+b.Height)+p.Y)*max(p.Pitch, p.X+b.Width) + p.X
}

// ends reports whether the first and the last byte of rows lie in memory that the guest may name,
// as their base does: of device memory only that is known of Mem, and the driver may look up an
// address further on.
func (s *Space) ends(base, first, span uint64) (res cuda.Result) {
	if first > 0 && first < span {
		_, res = s.Mem(base+first, 1)
	}
	if res == cuda.Success && span > 1 {
		_, res = s.Mem(base+span-1, 1)
	}
	return res
}

// HostOperand is a side of a copy that lies in memory of this process.
func HostOperand(h Host, p Placement) Operand {
	return Operand{kind: cuda.MemoryTypeHost, host: h, at: p}
}

// ArrayOperand is a side of a copy that lies in an array. The driver knows its shape and checks the
// box.
func ArrayOperand(a Array, p Placement) Operand {
	return Operand{kind: cuda.MemoryTypeArray, array: a, at: Placement{X: p.X, Y: p.Y, Z: p.Z}}
}

// MappedOperand is a side of a copy that lies in a mapping that the guest shares, from an offset
// on.
func MappedOperand(mapping []byte, offset uint64, p Placement, b Box) (Operand, bool) {
	span, ok := p.span(b)
	if !ok {
		return Operand{}, false
	}
	h, ok := Mapped(mapping, offset, span)
	return HostOperand(h, p), ok
}

// Reach is how many bytes from the start of memory a box reaches, false if more than most.
func (p Placement) Reach(b Box, most uint64) (uint64, bool) {
	span, ok := p.span(b)
	return span, ok && span <= most
}

// Copy3D is a copy between two operands, each of which holds all of its side.
func Copy3D(dst, src Operand, b Box) (Memcpy3D, cuda.Result) {
	if !dst.holds(b) || !src.holds(b) {
		return Memcpy3D{}, cuda.ErrorInvalidValue
	}
	return Memcpy3D{
		srcXInBytes: src.at.X, srcY: src.at.Y, srcZ: src.at.Z, srcPitch: src.at.Pitch, srcHeight: src.at.Height,
		srcMemoryType: src.kind, srcHost: src.host.Address(), srcDevice: src.mem.Address(), srcArray: src.array,
		dstXInBytes: dst.at.X, dstY: dst.at.Y, dstZ: dst.at.Z, dstPitch: dst.at.Pitch, dstHeight: dst.at.Height,
		dstMemoryType: dst.kind, dstHost: dst.host.Address(), dstDevice: dst.mem.Address(), dstArray: dst.array,
		widthInBytes: b.Width, height: b.Height, depth: b.Depth,
	}, cuda.Success
}

func (o *Operand) holds(b Box) bool {
	if o.kind == cuda.MemoryTypeArray {
		return true
	}
	span, ok := o.at.span(b)
	return ok && span <= max(o.mem.size, o.host.size)
}

// Batch is copies that are unordered among each other. Its lists stay for the next one.
type Batch struct {
	dsts, srcs []Address
	sizes      []uint64
}

// Reset forgets the copies.
func (b *Batch) Reset() { b.dsts, b.srcs, b.sizes = b.dsts[:0], b.srcs[:0], b.sizes[:0] }

// Add adds a copy between memory of one size, false if it is not.
func (b *Batch) Add(dst, src Mem) bool {
	if dst.size != src.size {
		return false
	}
	b.dsts, b.srcs, b.sizes = append(b.dsts, dst.Address()), append(b.srcs, src.Address()), append(b.sizes, src.size)
	return true
}

// MemcpyBatch makes the copies at once where the driver can (12.8), all with the same attributes;
// else ErrorNotSupported.
func (d *Driver) MemcpyBatch(b *Batch, attrs MemcpyAttributes, st Stream) cuda.Result {
	list, first := [1]MemcpyAttributes{attrs}, [1]uint64{}
	if d.HasMemcpyBatchAsync() {
		return d.memcpyBatchAsync(b.dsts, b.srcs, b.sizes, list[:], first[:], st)
	}
	_, res := d.memcpyBatchAsyncFirst(b.dsts, b.srcs, b.sizes, list[:], first[:], st)
	return res
}

// MemcpyEach makes the copies one by one.
func (d *Driver) MemcpyEach(b *Batch, st Stream) (res cuda.Result) {
	for i := 0; i < len(b.dsts) && res == cuda.Success; i++ {
		c := d.MemcpyAsync(Mem{at: b.dsts[i].v, size: b.sizes[i]}, Mem{at: b.srcs[i].v, size: b.sizes[i]}, st)
		res = c.Do()
	}
	return res
}

// Memset makes c a call that fills rows with elements of 1, 2 or 4 bytes, false if an element has
// another size.
func (d *Driver) Memset(c *Call, r Rect, element, value uint32, st Stream) bool {
	one := Mem{at: r.mem.at, size: r.width}
	switch {
	case element == 4 && r.height == 1:
		*c = d.MemsetD32Async(one, value, st)
	case element == 1 && r.height == 1:
		*c = d.MemsetD8Async(one, uint8(value), st)
	case element == 2 && r.height == 1:
		*c = d.MemsetD16Async(one, uint16(value), st)
	case element == 4:
		*c = d.MemsetD2D32Async(r, value, st)
	case element == 1:
		*c = d.MemsetD2D8Async(r, uint8(value), st)
	case element == 2:
		*c = d.MemsetD2D16Async(r, uint16(value), st)
	default:
		return false
	}
	return true
}
