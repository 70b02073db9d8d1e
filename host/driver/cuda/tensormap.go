package cuda

import (
	"causeway/cuda"
	"causeway/cuda/wire"
)

// CUtensorMap (CUDA Driver API, "Tensor Map Object Management"): 128 opaque bytes, aligned to 64; ranks 1 to 5.
const (
	tensorMapSize  = 128
	tensorMapAlign = 128
	tensorMapRank  = 5
)

// tensorScratch is C memory for one encoding: the map, then the arrays.
type tensorScratch struct {
	buffer
	base int // of the aligned map in buffer
}

func newTensorScratch() tensorScratch {
	b := newBuffer(tensorMapAlign + tensorMapSize + 256)
	pad := (tensorMapAlign - b.addr()%tensorMapAlign) % tensorMapAlign
	return tensorScratch{b, int(pad)}
}

func (t tensorScratch) at() uint64        { return t.addr() + uint64(t.base) }
func (t tensorScratch) tensorMap() []byte { return t.bytes()[t.base : t.base+tensorMapSize] }

// TensorMapEncode lets the driver encode a tensor map.
func (s *session) TensorMapEncode(c *wire.Call, a *wire.TensorMapEncodeArgs, r *wire.TensorMapEncodeReply) cuda.Result {
	rank := int(a.Rank)
	var box int
	lowest := 3
	switch a.Form {
	case wire.TensorMapTiled:
		box, lowest = 4*rank, 1
	case wire.TensorMapIm2col:
		box = 8 * (rank - 2)
	case wire.TensorMapIm2colWide:
		box = 8
	default:
		return cuda.ErrorInvalidValue
	}
	if rank < lowest || rank > tensorMapRank || len(a.Dims) != 8*rank || len(a.Strides) != 8*(rank-1) || len(a.Box) != box ||
		len(a.Elements) != 4*rank {
		return cuda.ErrorInvalidValue
	}
	if c.Ctx != 0 {
		if res := s.use(c); res != cuda.Success {
			return res
		}
	}
	t := newTensorScratch()
	defer t.free()
	next := t.base + tensorMapSize
	put := func(b []byte) uint64 {
		at := next
		copy(t.bytes()[at:], b)
		next += (len(b) + 7) &^ 7
		return t.addr() + uint64(at)
	}
	dims, strides, elements, shape := put(a.Dims), put(a.Strides), put(a.Elements), put(a.Box)
	args := []uint64{t.at(), uint64(a.Type), uint64(rank), a.Address, dims, strides}
	tail := []uint64{uint64(a.Swizzle), uint64(a.Promotion), uint64(a.Fill)}
	var f entry
	switch a.Form {
	case wire.TensorMapTiled:
		f = s.fn.cuTensorMapEncodeTiled
		args = append(args, shape, elements, uint64(a.Interleave))
	case wire.TensorMapIm2col:
		f = s.fn.cuTensorMapEncodeIm2col
		upper := shape + uint64(4*(rank-2))
		args = append(args, shape, upper, uint64(a.Channels), uint64(a.Pixels), elements, uint64(a.Interleave))
	case wire.TensorMapIm2colWide:
		f = s.fn.cuTensorMapEncodeIm2colWide
		corners := t.bytes()[shape-t.addr():]
		args = append(args, word32(corners), word32(corners[4:]), uint64(a.Channels), uint64(a.Pixels), elements,
			uint64(a.Interleave), uint64(a.Mode))
	}
	res := f.call16(append(args, tail...)...)
	if res == cuda.Success {
		r.Map = append([]byte(nil), t.tensorMap()...)
	}
	return res
}

// TensorMapReplaceAddress points an encoded map at other memory.
func (s *session) TensorMapReplaceAddress(c *wire.Call, a *wire.TensorMapReplaceAddressArgs, r *wire.TensorMapReplaceAddressReply) cuda.Result {
	if len(a.Map) != tensorMapSize {
		return cuda.ErrorInvalidValue
	}
	if c.Ctx != 0 {
		if res := s.use(c); res != cuda.Success {
			return res
		}
	}
	t := newTensorScratch()
	defer t.free()
	copy(t.tensorMap(), a.Map)
	res := s.fn.cuTensorMapReplaceAddress.call(t.at(), a.Address)
	if res == cuda.Success {
		r.Replaced = append([]byte(nil), t.tensorMap()...)
	}
	return res
}

func word32(b []byte) uint64 {
	return uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16 | uint64(b[3])<<24
}
