package cuda

import (
	"encoding/binary"
	"math/bits"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// array is a CUarray: one of its own, a level of a mipmapped array, or a plane.
type array struct {
	handle uint64
	ctx    uint32
	owner  uint32 // id of the object that it is a part of, 0: its own
	size   uint64 // bytes booked for it
}

// mipmap is a CUmipmappedArray.
type mipmap struct {
	handle uint64
	ctx    uint32
	size   uint64
}

// Layouts of CUDA_ARRAY3D_DESCRIPTOR, CUDA_ARRAY_SPARSE_PROPERTIES and CUDA_ARRAY_MEMORY_REQUIREMENTS (cuda.h), and the flags of
// arrays whose memory the guest brings itself.
const (
	arrayDescSize     = 40
	sparseProps       = 48
	memoryNeeds       = 32
	arrayLayered      = 0x01
	arrayUnbacked     = 0x40 | 0x80 // sparse, deferred mapping
	arrayPageSize     = 64 << 10
	maxMipmapLevels   = 32
	maxArrayElements  = 1 << 40
	largestArrayPixel = 16
)

// arrayShape is what an array is made from.
type arrayShape struct {
	width, height, depth    uint64
	format, channels, flags uint32
}

func (d arrayShape) put(b []byte) {
	le := binary.LittleEndian
	le.PutUint64(b, d.width)
	le.PutUint64(b[8:], d.height)
	le.PutUint64(b[16:], d.depth)
	le.PutUint32(b[24:], d.format)
	le.PutUint32(b[28:], d.channels)
	le.PutUint32(b[32:], d.flags)
}

func shapeOf(b []byte) arrayShape {
	le := binary.LittleEndian
	return arrayShape{le.Uint64(b), le.Uint64(b[8:]), le.Uint64(b[16:]), le.Uint32(b[24:]), le.Uint32(b[28:]), le.Uint32(b[32:])}
}

// bytes is what an array is booked with: its elements, in the driver's allocation unit. Elements of formats made of planes and
// blocks are taken for at most 4 bytes. 0 if the shape cannot be an array, which the driver will say.
func (d arrayShape) bytes() uint64 {
	if d.flags&arrayUnbacked != 0 {
		return 0
	}
	pixel := uint64(4)
	switch d.format {
	case 0x01, 0x08:
		pixel = uint64(d.channels)
	case 0x02, 0x09, 0x10:
		pixel = 2 * uint64(d.channels)
	case 0x03, 0x0a, 0x20:
		pixel = 4 * uint64(d.channels)
	case 0xc5, 0xcb:
		pixel = 8
	}
	n := min(pixel, largestArrayPixel)
	for _, v := range []uint64{d.width, max(d.height, 1), max(d.depth, 1)} {
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
	if res := s.use(c); res != cuda.Success {
		return res
	}
	d := arrayShape{a.Width, a.Height, a.Depth, a.Format, a.Channels, a.Flags}
	size := d.bytes()
	if res := s.charge(size); res != cuda.Success {
		return res
	}
	b := newBuffer(arrayDescSize)
	defer b.free()
	d.put(b.bytes())
	if res := s.note(s.fn.cuArray3DCreate_v2.call(s.out.addr(), b.addr())); res != cuda.Success {
		s.refund(size)
		return res
	}
	x := array{handle: *s.out.u64(0), ctx: c.Ctx, size: size}
	if !s.arrays.put(a.Array, x) {
		s.fn.cuArrayDestroy.call(x.handle)
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
	res := s.note(s.fn.cuArrayDestroy.call(x.handle))
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
func (s *session) part(id uint32, x array) (arrayShape, cuda.Result) {
	b := newBuffer(arrayDescSize)
	defer b.free()
	if res := s.fn.cuArray3DGetDescriptor_v2.call(b.addr(), x.handle); res != cuda.Success {
		return arrayShape{}, res
	}
	if !s.arrays.put(id, x) {
		return arrayShape{}, cuda.ErrorInvalidHandle
	}
	return shapeOf(b.bytes()), cuda.Success
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
	if res := s.fn.cuArrayGetPlane.call(s.out.addr(), x.handle, uint64(a.Index)); res != cuda.Success {
		return res
	}
	d, res := s.part(a.Plane, array{handle: *s.out.u64(0), ctx: x.ctx, owner: a.Array})
	r.Width, r.Height, r.Depth, r.Format, r.Channels, r.Flags = d.width, d.height, d.depth, d.format, d.channels, d.flags
	return res
}

// MipmapCreate makes a mipmapped array.
func (s *session) MipmapCreate(c *wire.Call, a *wire.MipmapCreateArgs) cuda.Result {
	if res := s.use(c); res != cuda.Success {
		return res
	}
	d := arrayShape{a.Width, a.Height, a.Depth, a.Format, a.Channels, a.Flags}
	var size uint64
	level := d
	for i := uint32(0); i < min(max(a.Levels, 1), maxMipmapLevels); i++ {
		size += level.bytes()
		if level.width <= 1 && level.height <= 1 && (level.depth <= 1 || d.flags&arrayLayered != 0) {
			break
		}
		level.width, level.height = max(level.width/2, 1), level.height/2
		if d.height != 0 {
			level.height = max(level.height, 1)
		}
		if d.flags&arrayLayered == 0 && d.depth != 0 {
			level.depth = max(level.depth/2, 1)
		}
	}
	if res := s.charge(size); res != cuda.Success {
		return res
	}
	b := newBuffer(arrayDescSize)
	defer b.free()
	d.put(b.bytes())
	if res := s.note(s.fn.cuMipmappedArrayCreate.call(s.out.addr(), b.addr(), uint64(a.Levels))); res != cuda.Success {
		s.refund(size)
		return res
	}
	m := mipmap{handle: *s.out.u64(0), ctx: c.Ctx, size: size}
	if !s.mipmaps.put(a.Mipmap, m) {
		s.fn.cuMipmappedArrayDestroy.call(m.handle)
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
	res := s.note(s.fn.cuMipmappedArrayDestroy.call(m.handle))
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
	if res := s.fn.cuMipmappedArrayGetLevel.call(s.out.addr(), m.handle, uint64(a.Index)); res != cuda.Success {
		return res
	}
	d, res := s.part(a.Level, array{handle: *s.out.u64(0), ctx: m.ctx, owner: a.Mipmap})
	r.Width, r.Height, r.Depth, r.Format, r.Channels, r.Flags = d.width, d.height, d.depth, d.format, d.channels, d.flags
	return res
}

// arrayOrMipmap finds whichever of the two is named, and picks its entry point.
func (s *session) arrayOrMipmap(arrayID, mipmapID uint32, ofArray, ofMipmap entry) (uint64, entry, cuda.Result) {
	if x, ok := s.arrays.get(arrayID); ok {
		return x.handle, ofArray, s.useContext(x.ctx)
	}
	if m, ok := s.mipmaps.get(mipmapID); ok {
		return m.handle, ofMipmap, s.useContext(m.ctx)
	}
	return 0, 0, cuda.ErrorInvalidHandle
}

// ArrayGetSparseProperties describes the tiles of a sparse array.
func (s *session) ArrayGetSparseProperties(c *wire.Call, a *wire.ArrayGetSparsePropertiesArgs, r *wire.ArrayGetSparsePropertiesReply) cuda.Result {
	h, f, res := s.arrayOrMipmap(a.Array, a.Mipmap, s.fn.cuArrayGetSparseProperties, s.fn.cuMipmappedArrayGetSparseProperties)
	if res != cuda.Success {
		return res
	}
	b := newBuffer(sparseProps)
	defer b.free()
	if res = f.call(b.addr(), h); res == cuda.Success {
		r.Properties = append([]byte(nil), b.bytes()...)
	}
	return res
}

// ArrayGetMemoryRequirements says what memory an array without its own needs.
func (s *session) ArrayGetMemoryRequirements(c *wire.Call, a *wire.ArrayGetMemoryRequirementsArgs, r *wire.ArrayGetMemoryRequirementsReply) cuda.Result {
	h, f, res := s.arrayOrMipmap(a.Array, a.Mipmap, s.fn.cuArrayGetMemoryRequirements, s.fn.cuMipmappedArrayGetMemoryRequirements)
	if res != cuda.Success {
		return res
	}
	b := newBuffer(memoryNeeds)
	defer b.free()
	if res = f.call(b.addr(), h, uint64(a.Dev)); res == cuda.Success {
		r.Size, r.Alignment = *b.u64(0), *b.u64(1)
	}
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
	for _, list := range []*table[texture]{&s.textures, &s.surfaces} {
		for id, t := range list.m {
			if t.ctx == ctx {
				delete(list.m, id)
			}
		}
	}
	for _, list := range []*table[reference]{&s.texRefs, &s.surfRefs} {
		for id, t := range list.m {
			if t.ctx == ctx {
				delete(list.m, id)
			}
		}
	}
	for id, l := range s.links.m {
		if l.ctx == ctx {
			l.opt.free()
			delete(s.links.m, id)
		}
	}
}
