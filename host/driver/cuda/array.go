package cuda

import (
	"math/bits"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

// shaped is memory of a shape: a CUarray, of its own or a level of a mipmapped one or a plane, or a
// CUmipmappedArray.
type shaped[H any] struct {
	handle H
	ctx    uint32
	owner  uint32 // id of the object that it is a part of, 0: its own
	size   uint64 // bytes booked for it
	flags  uint32 // with which it was made
}

type (
	array  = shaped[bind.Array]
	mipmap = shaped[bind.MipmappedArray]
)

// makeShaped makes one, if the budget has room for its bytes.
func makeShaped[H any](s *session, c *wire.Call, list *owned[shaped[H]], id, flags uint32, size uint64, create func() (H, cuda.Result), drop func(H) cuda.Result) cuda.Result {
	if res := s.charge(size); res != cuda.Success {
		return res
	}
	h, res := create()
	if s.note(res) == cuda.Success {
		res = keep(&list.table, id, shaped[H]{handle: h, ctx: c.Ctx, size: size, flags: flags}, h, drop)
	}
	if res != cuda.Success {
		s.refund(size)
	}
	return res
}

// findShaped finds one, and makes its context current.
func findShaped[H any](s *session, list *owned[shaped[H]], id uint32) (shaped[H], cuda.Result) {
	x, ok := list.get(id)
	if !ok {
		return x, cuda.ErrorInvalidHandle
	}
	return x, s.useContext(x.ctx)
}

// endShaped ends one that is no part of another, and its own parts with it.
func endShaped[H any](s *session, list *owned[shaped[H]], id uint32, destroy func(H) cuda.Result) cuda.Result {
	x, res := findShaped(s, list, id)
	switch {
	case res != cuda.Success:
		return res
	case x.owner != 0:
		return cuda.ErrorInvalidHandle
	}
	s.endGraphsWith(need{array: id})
	if res = s.note(destroy(x.handle)); res == cuda.Success {
		list.remove(id)
		s.dropParts(id)
		s.shapedGone(x, id)
	}
	return res
}

// shapedGone takes what an array has off the books.
func (s *session) shapedGone(x any, id uint32) {
	switch x := x.(type) {
	case array:
		s.refund(x.size)
		s.forgetTiles(shapedKey{id: id})
	case mipmap:
		s.refund(x.size)
		s.forgetTiles(shapedKey{mipmap: true, id: id})
	}
}

// partOf gives a level or plane its id, and reads its shape.
func partOf[H any](s *session, list *owned[shaped[H]], owner, index, id uint32, find func(H, uint32) (bind.Array, cuda.Result)) (d bind.Array3DDescriptor, _ cuda.Result) {
	x, res := findShaped(s, list, owner)
	if res != cuda.Success {
		return d, res
	}
	h, res := find(x.handle, index)
	if res == cuda.Success {
		res = s.drv.Array3DGetDescriptor(&d, h)
	}
	if res == cuda.Success {
		res = s.arrays.add(id, array{handle: h, ctx: x.ctx, owner: owner})
	}
	return d, res
}

// Flags of arrays, those whose memory the guest brings itself among them, and bounds.
const (
	arrayLayered      = 0x01
	arraySparse       = 0x40
	arrayUnbacked     = arraySparse | 0x80 // deferred mapping
	arrayPageSize     = 64 << 10
	maxMipmapLevels   = 32
	maxArrayElements  = 1 << 40
	largestArrayPixel = 16
)

// arrayBytes is what an array is booked with: its elements, in the driver's allocation unit.
// Elements of formats made of planes and blocks are taken for at most 4 bytes. 0 if the shape
// cannot be an array, which the driver will say.
func arrayBytes(d bind.Array3DDescriptor) uint64 {
	if d.Flags&arrayUnbacked != 0 {
		return 0
	}
	pixel := uint64(4)
	switch d.Format {
	case 0x01, 0x08:
		pixel = uint64(d.NumChannels)
	case 0x02, 0x09, 0x10:
		pixel = 2 * uint64(d.NumChannels)
	case 0x03, 0x0a, 0x20:
		pixel = 4 * uint64(d.NumChannels)
	case 0xc5, 0xcb:
		pixel = 8
	}
	n := min(pixel, largestArrayPixel)
	for _, v := range []uint64{d.Width, max(d.Height, 1), max(d.Depth, 1)} {
		hi, lo := bits.Mul64(n, v)
		if hi != 0 || lo > maxArrayElements*largestArrayPixel {
			return 0
		}
		n = lo
	}
	return (n + arrayPageSize - 1) &^ (arrayPageSize - 1)
}

// ArrayCreate makes an array.
func (s *session) ArrayCreate(c *wire.Call, a *wire.ArrayCreateArgs) cuda.Result {
	d := bind.Array3DDescriptor{Width: a.Width, Height: a.Height, Depth: a.Depth, Format: a.Format, NumChannels: a.Channels, Flags: a.Flags}
	return makeShaped(s, c, &s.arrays, a.Array, a.Flags, arrayBytes(d), func() (bind.Array, cuda.Result) { return s.drv.Array3DCreate(&d) }, s.drv.ArrayDestroy)
}

// ArrayDestroy ends an array.
func (s *session) ArrayDestroy(c *wire.Call, a *wire.ArrayDestroyArgs) cuda.Result {
	return endShaped(s, &s.arrays, a.Array, s.drv.ArrayDestroy)
}

// dropParts forgets the levels and planes of an object that is gone.
func (s *session) dropParts(owner uint32) {
	for id, x := range s.arrays.m {
		if x.owner == owner {
			s.arrays.drop(id)
			s.forgetTiles(shapedKey{id: id})
			s.dropParts(id)
		}
	}
}

// ArrayGetPlane finds a plane of an array of several.
func (s *session) ArrayGetPlane(c *wire.Call, a *wire.ArrayGetPlaneArgs, r *wire.ArrayGetPlaneReply) cuda.Result {
	d, res := partOf(s, &s.arrays, a.Array, a.Index, a.Plane, s.drv.ArrayGetPlane)
	r.Width, r.Height, r.Depth, r.Format, r.Channels, r.Flags = d.Width, d.Height, d.Depth, d.Format, d.NumChannels, d.Flags
	return res
}

// MipmapCreate makes a mipmapped array.
func (s *session) MipmapCreate(c *wire.Call, a *wire.MipmapCreateArgs) cuda.Result {
	d := bind.Array3DDescriptor{Width: a.Width, Height: a.Height, Depth: a.Depth, Format: a.Format, NumChannels: a.Channels, Flags: a.Flags}
	var size uint64
	level := d
	for i := uint32(0); i < min(max(a.Levels, 1), maxMipmapLevels); i++ {
		size += arrayBytes(level)
		if level.Width <= 1 && level.Height <= 1 && (level.Depth <= 1 || d.Flags&arrayLayered != 0) {
			break
		}
		level.Width, level.Height = max(level.Width/2, 1), level.Height/2
		if d.Height != 0 {
			level.Height = max(level.Height, 1)
		}
		if d.Flags&arrayLayered == 0 && d.Depth != 0 {
			level.Depth = max(level.Depth/2, 1)
		}
	}
	return makeShaped(s, c, &s.mipmaps, a.Mipmap, a.Flags, size,
		func() (bind.MipmappedArray, cuda.Result) { return s.drv.MipmappedArrayCreate(&d, a.Levels) }, s.drv.MipmappedArrayDestroy)
}

// MipmapDestroy ends a mipmapped array and its levels.
func (s *session) MipmapDestroy(c *wire.Call, a *wire.MipmapDestroyArgs) cuda.Result {
	return endShaped(s, &s.mipmaps, a.Mipmap, s.drv.MipmappedArrayDestroy)
}

// MipmapGetLevel finds a level.
func (s *session) MipmapGetLevel(c *wire.Call, a *wire.MipmapGetLevelArgs, r *wire.MipmapGetLevelReply) cuda.Result {
	d, res := partOf(s, &s.mipmaps, a.Mipmap, a.Index, a.Level, s.drv.MipmappedArrayGetLevel)
	r.Width, r.Height, r.Depth, r.Format, r.Channels, r.Flags = d.Width, d.Height, d.Depth, d.Format, d.NumChannels, d.Flags
	return res
}

// eitherArray calls what belongs to an array, or to a mipmapped array, whichever is named, in its
// context.
func (s *session) eitherArray(arrayID, mipmapID uint32, ofArray func(bind.Array) cuda.Result, ofMipmap func(bind.MipmappedArray) cuda.Result) cuda.Result {
	if mipmapID == 0 {
		x, res := findShaped(s, &s.arrays, arrayID)
		if res == cuda.Success {
			res = ofArray(x.handle)
		}
		return res
	}
	m, res := findShaped(s, &s.mipmaps, mipmapID)
	if res == cuda.Success {
		res = ofMipmap(m.handle)
	}
	return res
}

// ArrayGetSparseProperties describes the tiles of a sparse array.
func (s *session) ArrayGetSparseProperties(c *wire.Call, a *wire.ArrayGetSparsePropertiesArgs, r *wire.ArrayGetSparsePropertiesReply) cuda.Result {
	var p bind.ArraySparseProperties
	res := s.eitherArray(a.Array, a.Mipmap,
		func(h bind.Array) cuda.Result { return s.drv.ArrayGetSparseProperties(&p, h) },
		func(h bind.MipmappedArray) cuda.Result { return s.drv.MipmappedArrayGetSparseProperties(&p, h) })
	if res == cuda.Success {
		r.Properties = bind.Encode(&p)
	}
	return res
}

// ArrayGetMemoryRequirements says what memory an array without its own needs.
func (s *session) ArrayGetMemoryRequirements(c *wire.Call, a *wire.ArrayGetMemoryRequirementsArgs, r *wire.ArrayGetMemoryRequirementsReply) cuda.Result {
	var m bind.ArrayMemoryRequirements
	res := s.eitherArray(a.Array, a.Mipmap,
		func(h bind.Array) cuda.Result { return s.drv.ArrayGetMemoryRequirements(&m, h, a.Dev) },
		func(h bind.MipmappedArray) cuda.Result {
			return s.drv.MipmappedArrayGetMemoryRequirements(&m, h, a.Dev)
		})
	r.Size, r.Alignment = m.Size, m.Alignment
	return res
}
