package cuda

import (
	"maps"
	"math/bits"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

// array is a CUarray: one of its own, a level of a mipmapped array, or a plane.
type array struct {
	handle bind.Array
	ctx    uint32
	owner  uint32 // id of the object that it is a part of, 0: its own
	size   uint64 // bytes booked for it
}

// mipmap is a CUmipmappedArray.
type mipmap struct {
	handle bind.MipmappedArray
	ctx    uint32
	size   uint64
}

// Flags of arrays, those whose memory the guest brings itself among them, and bounds.
const (
	arrayLayered      = 0x01
	arrayUnbacked     = 0x40 | 0x80 // sparse, deferred mapping
	arrayPageSize     = 64 << 10
	maxMipmapLevels   = 32
	maxArrayElements  = 1 << 40
	largestArrayPixel = 16
)

// arrayBytes is what an array is booked with: its elements, in the driver's allocation unit. Elements of formats made of planes and
// blocks are taken for at most 4 bytes. 0 if the shape cannot be an array, which the driver will say.
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
	size := arrayBytes(d)
	if res := s.charge(size); res != cuda.Success {
		return res
	}
	h, res := s.drv.Array3DCreate(&d)
	if s.note(res) != cuda.Success {
		s.refund(size)
		return res
	}
	x := array{handle: h, ctx: c.Ctx, size: size}
	if !s.arrays.put(a.Array, x) {
		s.drv.ArrayDestroy(x.handle)
		s.refund(size)
		return cuda.ErrorInvalidHandle
	}
	return cuda.Success
}

// ArrayDestroy ends an array.
func (s *session) ArrayDestroy(c *wire.Call, a *wire.ArrayDestroyArgs) cuda.Result {
	x, ok := s.arrays.get(a.Array)
	if !ok || x.owner != 0 {
		return cuda.ErrorInvalidHandle
	}
	if res := s.useContext(x.ctx); res != cuda.Success {
		return res
	}
	res := s.note(s.drv.ArrayDestroy(x.handle))
	if res == cuda.Success {
		s.arrays.remove(a.Array)
		s.dropParts(a.Array)
		s.refund(x.size)
	}
	return res
}

// dropParts forgets the levels and planes of an object that is gone.
func (s *session) dropParts(owner uint32) {
	for id, x := range s.arrays.m {
		if x.owner == owner {
			delete(s.arrays.m, id)
			s.dropParts(id)
		}
	}
}

// part stores a level or plane and reads its shape.
func (s *session) part(id uint32, x array) (d bind.Array3DDescriptor, res cuda.Result) {
	if res = s.drv.Array3DGetDescriptor(&d, x.handle); res == cuda.Success && !s.arrays.put(id, x) {
		res = cuda.ErrorInvalidHandle
	}
	return d, res
}

// ArrayGetPlane finds a plane of an array of several.
func (s *session) ArrayGetPlane(c *wire.Call, a *wire.ArrayGetPlaneArgs, r *wire.ArrayGetPlaneReply) cuda.Result {
	x, ok := s.arrays.get(a.Array)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	if res := s.useContext(x.ctx); res != cuda.Success {
		return res
	}
	h, res := s.drv.ArrayGetPlane(x.handle, a.Index)
	if res != cuda.Success {
		return res
	}
	d, res := s.part(a.Plane, array{handle: h, ctx: x.ctx, owner: a.Array})
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
	if res := s.charge(size); res != cuda.Success {
		return res
	}
	h, res := s.drv.MipmappedArrayCreate(&d, a.Levels)
	if s.note(res) != cuda.Success {
		s.refund(size)
		return res
	}
	m := mipmap{handle: h, ctx: c.Ctx, size: size}
	if !s.mipmaps.put(a.Mipmap, m) {
		s.drv.MipmappedArrayDestroy(m.handle)
		s.refund(size)
		return cuda.ErrorInvalidHandle
	}
	return cuda.Success
}

// MipmapDestroy ends a mipmapped array and its levels.
func (s *session) MipmapDestroy(c *wire.Call, a *wire.MipmapDestroyArgs) cuda.Result {
	m, ok := s.mipmaps.get(a.Mipmap)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	if res := s.useContext(m.ctx); res != cuda.Success {
		return res
	}
	res := s.note(s.drv.MipmappedArrayDestroy(m.handle))
	if res == cuda.Success {
		s.mipmaps.remove(a.Mipmap)
		s.dropParts(a.Mipmap)
		s.refund(m.size)
	}
	return res
}

// MipmapGetLevel finds a level.
func (s *session) MipmapGetLevel(c *wire.Call, a *wire.MipmapGetLevelArgs, r *wire.MipmapGetLevelReply) cuda.Result {
	m, ok := s.mipmaps.get(a.Mipmap)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	if res := s.useContext(m.ctx); res != cuda.Success {
		return res
	}
	h, res := s.drv.MipmappedArrayGetLevel(m.handle, a.Index)
	if res != cuda.Success {
		return res
	}
	d, res := s.part(a.Level, array{handle: h, ctx: m.ctx, owner: a.Mipmap})
	r.Width, r.Height, r.Depth, r.Format, r.Channels, r.Flags = d.Width, d.Height, d.Depth, d.Format, d.NumChannels, d.Flags
	return res
}

// eitherArray calls what belongs to an array, or to a mipmapped array, whichever is named, in its context.
func (s *session) eitherArray(arrayID, mipmapID uint32, ofArray func(bind.Array) cuda.Result, ofMipmap func(bind.MipmappedArray) cuda.Result) cuda.Result {
	if x, ok := s.arrays.get(arrayID); ok {
		if res := s.useContext(x.ctx); res != cuda.Success {
			return res
		}
		return ofArray(x.handle)
	}
	m, ok := s.mipmaps.get(mipmapID)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	if res := s.useContext(m.ctx); res != cuda.Success {
		return res
	}
	return ofMipmap(m.handle)
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

// forgetArrays drops what hung on a context that is gone, and what was booked for it.
func (s *session) forgetArrays(ctx uint32) {
	for id, x := range s.arrays.m {
		if x.ctx == ctx {
			s.refund(x.size)
			delete(s.arrays.m, id)
		}
	}
	for id, m := range s.mipmaps.m {
		if m.ctx == ctx {
			s.refund(m.size)
			delete(s.mipmaps.m, id)
		}
	}
	forget(&s.textures, func(t object[bind.TexObject]) bool { return t.ctx == ctx })
	forget(&s.surfaces, func(t object[bind.SurfObject]) bool { return t.ctx == ctx })
	forget(&s.texRefs, func(t reference[bind.Texref]) bool { return t.ctx == ctx })
	forget(&s.surfRefs, func(t reference[bind.Surfref]) bool { return t.ctx == ctx })
	for id, l := range s.links.m {
		if l.ctx == ctx {
			l.opt.Free()
			delete(s.links.m, id)
		}
	}
}

func forget[T any](list *table[T], gone func(T) bool) {
	maps.DeleteFunc(list.m, func(_ uint32, v T) bool { return gone(v) })
}
