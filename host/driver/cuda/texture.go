package cuda

import (
	"encoding/binary"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// Sizes of CUDA_RESOURCE_DESC, CUDA_TEXTURE_DESC and CUDA_RESOURCE_VIEW_DESC (cuda.h), and the fields of the first.
const (
	resourceDescSize = 144
	textureDescSize  = 104
	viewDescSize     = 112
	resourceUnion    = 8 // the handle or address
	resourceLinear   = 2 // CU_RESOURCE_TYPE_LINEAR
	resourcePitch2D  = 3
	linearSize       = 24 // of sizeInBytes
	pitchHeight      = 32
	pitchBytes       = 40
)

// texture is a texture or surface object.
type texture struct {
	value uint64
	ctx   uint32
}

// resource checks a descriptor of the guest's and puts the driver's handle into it.
func (s *session) resource(b []byte, arrayID, mipmapID uint32) (buffer, cuda.Result) {
	if len(b) != resourceDescSize {
		return buffer{}, cuda.ErrorInvalidValue
	}
	le := binary.LittleEndian
	d := bufferOf(b)
	m := d.bytes()
	kind, res := le.Uint32(m), cuda.Success
	switch kind {
	case 0:
		x, ok := s.arrays.get(arrayID)
		if !ok {
			res = cuda.ErrorInvalidValue
		}
		le.PutUint64(m[resourceUnion:], x.handle)
	case 1:
		x, ok := s.mipmaps.get(mipmapID)
		if !ok {
			res = cuda.ErrorInvalidValue
		}
		le.PutUint64(m[resourceUnion:], x.handle)
	case resourceLinear:
		res = s.reachable(le.Uint64(m[resourceUnion:]), le.Uint64(m[linearSize:]))
	case resourcePitch2D:
		height, pitch := le.Uint64(m[pitchHeight:]), le.Uint64(m[pitchBytes:])
		if height > 1<<32 || pitch > 1<<31 {
			res = cuda.ErrorInvalidValue
		} else {
			res = s.reachable(le.Uint64(m[resourceUnion:]), height*pitch)
		}
	default:
		res = cuda.ErrorInvalidValue
	}
	if res != cuda.Success {
		d.free()
		return buffer{}, res
	}
	return d, cuda.Success
}

// TexObjectCreate makes a texture object. Its value is the driver's: kernels take it as an argument.
func (s *session) TexObjectCreate(c *wire.Call, a *wire.TexObjectCreateArgs, r *wire.TexObjectCreateReply) cuda.Result {
	if res := s.use(c); res != cuda.Success {
		return res
	}
	if len(a.Texture) != textureDescSize || len(a.View) != 0 && len(a.View) != viewDescSize {
		return cuda.ErrorInvalidValue
	}
	d, res := s.resource(a.Resource, a.Array, a.Mipmap)
	if res != cuda.Success {
		return res
	}
	defer d.free()
	t, v := bufferOf(a.Texture), bufferOf(a.View)
	defer t.free()
	defer v.free()
	view := v.addr()
	if len(a.View) == 0 {
		view = 0
	}
	if res := s.note(s.fn.cuTexObjectCreate.call(s.out.addr(), d.addr(), t.addr(), view)); res != cuda.Success {
		return res
	}
	r.Object = *s.out.u64(0)
	if !s.textures.put(a.Tex, texture{r.Object, c.Ctx}) {
		s.fn.cuTexObjectDestroy.call(r.Object)
		return cuda.ErrorInvalidHandle
	}
	return cuda.Success
}

// TexObjectDestroy ends a texture object.
func (s *session) TexObjectDestroy(c *wire.Call, a *wire.TexObjectDestroyArgs) cuda.Result {
	return s.endTexture(&s.textures, a.Tex, s.fn.cuTexObjectDestroy)
}

func (s *session) endTexture(list *table[texture], id uint32, destroy entry) cuda.Result {
	t, ok := list.remove(id)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	if res := s.useContext(t.ctx); res != cuda.Success {
		return res
	}
	return destroy.call(t.value)
}

// SurfObjectCreate makes a surface object.
func (s *session) SurfObjectCreate(c *wire.Call, a *wire.SurfObjectCreateArgs, r *wire.SurfObjectCreateReply) cuda.Result {
	if res := s.use(c); res != cuda.Success {
		return res
	}
	d, res := s.resource(a.Resource, a.Array, 0)
	if res != cuda.Success {
		return res
	}
	defer d.free()
	if res := s.note(s.fn.cuSurfObjectCreate.call(s.out.addr(), d.addr())); res != cuda.Success {
		return res
	}
	r.Object = *s.out.u64(0)
	if !s.surfaces.put(a.Surf, texture{r.Object, c.Ctx}) {
		s.fn.cuSurfObjectDestroy.call(r.Object)
		return cuda.ErrorInvalidHandle
	}
	return cuda.Success
}

// SurfObjectDestroy ends a surface object.
func (s *session) SurfObjectDestroy(c *wire.Call, a *wire.SurfObjectDestroyArgs) cuda.Result {
	return s.endTexture(&s.surfaces, a.Surf, s.fn.cuSurfObjectDestroy)
}
