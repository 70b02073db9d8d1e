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

// createObject makes one. Its value is the driver's: kernels take it as an argument.
func createObject[H interface{ Value() uint64 }](s *session, c *wire.Call, list *owned[object[H]], id uint32, kind string, value *uint64, create func() (H, cuda.Result), destroy func(H) cuda.Result) cuda.Result {
	h, res := create()
	if s.note(res) != cuda.Success {
		return res
	}
	*value = h.Value()
	if res := s.asPlaced(c, kind+" object", *value); res != cuda.Success {
		destroy(h)
		return res
	}
	return keep(&list.table, id, object[H]{h, c.Ctx}, h, destroy)
}

// destroyObject ends one.
func destroyObject[H any](s *session, list *owned[object[H]], id uint32, destroy func(H) cuda.Result) cuda.Result {
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

// TexObjectCreate makes a texture object.
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
	return createObject(s, c, &s.textures, a.Tex, "texture", &r.Object, func() (bind.TexObject, cuda.Result) { return s.drv.TexObjectCreate(&d, &t, v) }, s.drv.TexObjectDestroy)
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
	return createObject(s, c, &s.surfaces, a.Surf, "surface", &r.Object, func() (bind.SurfObject, cuda.Result) { return s.drv.SurfObjectCreate(&d) }, s.drv.SurfObjectDestroy)
}

// SurfObjectDestroy ends a surface object.
func (s *session) SurfObjectDestroy(c *wire.Call, a *wire.SurfObjectDestroyArgs) cuda.Result {
	return destroyObject(s, &s.surfaces, a.Surf, s.drv.SurfObjectDestroy)
}
