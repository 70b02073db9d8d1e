package cuda

import (
	"encoding/binary"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

const tensorMapRank = 5 // the highest (CUDA Driver API, "Tensor Map Object Management")

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
	mem, res := s.tensor(a.Address)
	if res != cuda.Success {
		return res
	}
	m := bind.TensorMap{
		Type: a.Type, Rank: a.Rank, Address: mem, Dims: a.Dims, Strides: a.Strides, Elements: a.Elements, Shape: a.Box,
		Interleave: a.Interleave, Swizzle: a.Swizzle, Promotion: a.Promotion, Fill: a.Fill, Channels: a.Channels, Pixels: a.Pixels, Mode: a.Mode,
	}
	switch a.Form {
	case wire.TensorMapTiled:
		r.Map, res = s.drv.EncodeTiled(&m)
	case wire.TensorMapIm2col:
		r.Map, res = s.drv.EncodeIm2col(&m)
	case wire.TensorMapIm2colWide:
		m.Lower, m.Upper = int32(binary.LittleEndian.Uint32(a.Box)), int32(binary.LittleEndian.Uint32(a.Box[4:]))
		r.Map, res = s.drv.EncodeIm2colWide(&m)
	}
	return res
}

// tensor is memory that a tensor map points at. The driver does not look at it, and kernels that do
// get as far as the GPU lets them.
func (s *session) tensor(addr uint64) (bind.Mem, cuda.Result) {
	return s.space.Mem(addr, 1)
}

// TensorMapReplaceAddress points an encoded map at other memory.
func (s *session) TensorMapReplaceAddress(c *wire.Call, a *wire.TensorMapReplaceAddressArgs, r *wire.TensorMapReplaceAddressReply) cuda.Result {
	if len(a.Map) != bind.TensorMapSize {
		return cuda.ErrorInvalidValue
	}
	if c.Ctx != 0 {
		if res := s.use(c); res != cuda.Success {
			return res
		}
	}
	mem, res := s.tensor(a.Address)
	if res != cuda.Success {
		return res
	}
	r.Replaced, res = s.drv.ReplaceAddress(a.Map, mem)
	return res
}
