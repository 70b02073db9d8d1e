package cuda

import (
	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

// object is a texture or surface object, of the context that it was made in.
type object[H any] struct {
	handle H
	ctx    uint32
}

// destroyObject ends one.
func destroyObject[H any](s *session, list *table[object[H]], id uint32, destroy func(H) cuda.Result) cuda.Result {
	t, ok := list.remove(id)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	if res := s.useContext(t.ctx); res != cuda.Success {
		return res
	}
	return destroy(t.handle)
}

// resource checks a descriptor of the guest's and puts the driver's handle into it.
func (s *session) resource(b []byte, arrayID, mipmapID uint32) (bind.ResourceDesc, cuda.Result) {
	x, _ := s.arrays.get(arrayID)
	m, _ := s.mipmaps.get(mipmapID)
	return s.space.Resource(b, x.handle, m.handle)
}

// TexObjectCreate makes a texture object. Its value is the driver's: kernels take it as an argument.
func (s *session) TexObjectCreate(c *wire.Call, a *wire.TexObjectCreateArgs, r *wire.TexObjectCreateReply) cuda.Result {
	t, ok1 := bind.TextureDescOf(a.Texture)
	v, ok2 := bind.ViewDescOf(a.View)
	if !ok1 || !ok2 {
		return cuda.ErrorInvalidValue
	}
	d, res := s.resource(a.Resource, a.Array, a.Mipmap)
	if res != cuda.Success {
		return res
	}
	h, res := s.drv.TexObjectCreate(&d, &t, v)
	if s.note(res) != cuda.Success {
		return res
	}
	r.Object = h.Value()
	if res := s.asPlaced(c, "texture object", r.Object); res != cuda.Success {
		s.drv.TexObjectDestroy(h)
		return res
	}
	return keep(&s.textures, a.Tex, object[bind.TexObject]{h, c.Ctx}, h, s.drv.TexObjectDestroy)
}

// TexObjectDestroy ends a texture object.
func (s *session) TexObjectDestroy(c *wire.Call, a *wire.TexObjectDestroyArgs) cuda.Result {
	return destroyObject(s, &s.textures, a.Tex, s.drv.TexObjectDestroy)
}

// SurfObjectCreate makes a surface object.
func (s *session) SurfObjectCreate(c *wire.Call, a *wire.SurfObjectCreateArgs, r *wire.SurfObjectCreateReply) cuda.Result {
	d, res := s.resource(a.Resource, a.Array, 0)
	if res != cuda.Success {
		return res
	}
	h, res := s.drv.SurfObjectCreate(&d)
	if s.note(res) != cuda.Success {
		return res
	}
	r.Object = h.Value()
	if res := s.asPlaced(c, "surface object", r.Object); res != cuda.Success {
		s.drv.SurfObjectDestroy(h)
		return res
	}
	return keep(&s.surfaces, a.Surf, object[bind.SurfObject]{h, c.Ctx}, h, s.drv.SurfObjectDestroy)
}

// SurfObjectDestroy ends a surface object.
func (s *session) SurfObjectDestroy(c *wire.Call, a *wire.SurfObjectDestroyArgs) cuda.Result {
	return destroyObject(s, &s.surfaces, a.Surf, s.drv.SurfObjectDestroy)
}
