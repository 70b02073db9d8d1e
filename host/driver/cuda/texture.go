package cuda

import (
	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

// texture and surface are objects of those kinds.
type texture struct {
	handle bind.TexObject
	ctx    uint32
}

type surface struct {
	handle bind.SurfObject
	ctx    uint32
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
	return keep(&s.textures, a.Tex, texture{h, c.Ctx}, h, s.drv.TexObjectDestroy)
}

// TexObjectDestroy ends a texture object.
func (s *session) TexObjectDestroy(c *wire.Call, a *wire.TexObjectDestroyArgs) cuda.Result {
	t, ok := s.textures.remove(a.Tex)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	if res := s.useContext(t.ctx); res != cuda.Success {
		return res
	}
	return s.drv.TexObjectDestroy(t.handle)
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
	return keep(&s.surfaces, a.Surf, surface{h, c.Ctx}, h, s.drv.SurfObjectDestroy)
}

// SurfObjectDestroy ends a surface object.
func (s *session) SurfObjectDestroy(c *wire.Call, a *wire.SurfObjectDestroyArgs) cuda.Result {
	t, ok := s.surfaces.remove(a.Surf)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	if res := s.useContext(t.ctx); res != cuda.Success {
		return res
	}
	return s.drv.SurfObjectDestroy(t.handle)
}
