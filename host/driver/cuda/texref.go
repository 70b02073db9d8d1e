package cuda

import (
	"encoding/binary"
	"math"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

// reference is a texture or surface reference. Those of modules end with their module; the driver
// keeps them.
type reference[H any] struct {
	handle H
	ctx    uint32
	code   // none: made by TexRefCreate
}

// TexRefCreate makes a texture reference.
func (s *session) TexRefCreate(c *wire.Call, a *wire.TexRefCreateArgs) cuda.Result {
	h, res := s.drv.TexRefCreate()
	if res != cuda.Success {
		return res
	}
	return keep(&s.texRefs.table, a.Texref, reference[bind.Texref]{handle: h, ctx: c.Ctx}, h, s.drv.TexRefDestroy)
}

// TexRefDestroy ends a reference that TexRefCreate made.
func (s *session) TexRefDestroy(c *wire.Call, a *wire.TexRefDestroyArgs) cuda.Result {
	t, ok := s.texRefs.get(a.Texref)
	if !ok || !t.isNone() {
		return cuda.ErrorInvalidValue
	}
	s.texRefs.remove(a.Texref)
	if res := s.useContext(t.ctx); res != cuda.Success {
		return res
	}
	return s.drv.TexRefDestroy(t.handle)
}

// ModuleGetTexRef finds a texture reference of a module.
func (s *session) ModuleGetTexRef(c *wire.Call, a *wire.ModuleGetTexRefArgs) cuda.Result {
	return moduleRef(s, c, &s.texRefs, a.Texref, a.Module, a.Name, s.drv.ModuleGetTexRef)
}

// ModuleGetSurfRef finds a surface reference of a module.
func (s *session) ModuleGetSurfRef(c *wire.Call, a *wire.ModuleGetSurfRefArgs) cuda.Result {
	return moduleRef(s, c, &s.surfRefs, a.Surfref, a.Module, a.Name, s.drv.ModuleGetSurfRef)
}

func moduleRef[H any](s *session, c *wire.Call, list *owned[reference[H]], id, mod uint32, name []byte,
	find func(bind.Module, []byte) (H, cuda.Result)) cuda.Result {
	m, ok := s.modules.get(mod)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	h, res := find(m.handle, name)
	if res != cuda.Success {
		return res
	}
	return list.add(id, reference[H]{h, m.ctx, m.code})
}

// ref finds a reference, and makes its context current.
func ref[H any](s *session, list *owned[reference[H]], id uint32) (h H, _ cuda.Result) {
	t, ok := list.get(id)
	if !ok {
		return h, cuda.ErrorInvalidValue
	}
	return t.handle, s.useContext(t.ctx)
}

// SurfRefSetArray binds a surface reference.
func (s *session) SurfRefSetArray(c *wire.Call, a *wire.SurfRefSetArrayArgs) cuda.Result {
	h, res := ref(s, &s.surfRefs, a.Surfref)
	if res != cuda.Success {
		return res
	}
	x, ok := s.arrays.get(a.Array)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	return s.drv.SurfRefSetArray(h, x.handle, a.Flags)
}

// TexRefSet changes one setting of a reference.
func (s *session) TexRefSet(c *wire.Call, a *wire.TexRefSetArgs, r *wire.TexRefSetReply) cuda.Result {
	h, res := ref(s, &s.texRefs, a.Texref)
	if res != cuda.Success {
		return res
	}
	switch a.What {
	case wire.TexRefArray:
		x, ok := s.arrays.get(a.Array)
		if !ok {
			return cuda.ErrorInvalidHandle
		}
		return s.drv.TexRefSetArray(h, x.handle, uint32(a.A))
	case wire.TexRefMipmap:
		x, ok := s.mipmaps.get(a.Mipmap)
		if !ok {
			return cuda.ErrorInvalidHandle
		}
		return s.drv.TexRefSetMipmappedArray(h, x.handle, uint32(a.A))
	case wire.TexRefAddress:
		m, res := s.space.Mem(a.A, a.B)
		if res != cuda.Success {
			return res
		}
		r.Offset, res = s.drv.TexRefSetAddress(h, m)
		return res
	case wire.TexRefAddress2D:
		return s.space.SetTexRefRows(h, a.Data, a.A, a.B)
	case wire.TexRefFormat:
		return s.drv.TexRefSetFormat(h, uint32(a.A), int32(a.B))
	case wire.TexRefAddressMode:
		return s.drv.TexRefSetAddressMode(h, int32(a.A), uint32(a.B))
	case wire.TexRefFilterMode:
		return s.drv.TexRefSetFilterMode(h, uint32(a.A))
	case wire.TexRefMipFilter:
		return s.drv.TexRefSetMipmapFilterMode(h, uint32(a.A))
	case wire.TexRefAnisotropy:
		return s.drv.TexRefSetMaxAnisotropy(h, uint32(a.A))
	case wire.TexRefFlags:
		return s.drv.TexRefSetFlags(h, uint32(a.A))
	case wire.TexRefMipBias:
		return s.drv.TexRefSetMipmapLevelBias(h, float(a.A))
	case wire.TexRefMipClamp:
		return s.drv.TexRefSetMipmapLevelClamp(h, float(a.A), float(a.B))
	case wire.TexRefBorder:
		if len(a.Data) != 16 {
			return cuda.ErrorInvalidValue
		}
		border := make([]float32, 4)
		for i := range border {
			border[i] = float(uint64(binary.LittleEndian.Uint32(a.Data[4*i:])))
		}
		return s.drv.TexRefSetBorderColor(h, border)
	}
	return cuda.ErrorInvalidValue
}

// TexRefGet reads one setting of a reference.
func (s *session) TexRefGet(c *wire.Call, a *wire.TexRefGetArgs, r *wire.TexRefGetReply) cuda.Result {
	h, res := ref(s, &s.texRefs, a.Texref)
	if res != cuda.Success {
		return res
	}
	var n uint32
	var m int32
	var x, y float32
	switch a.What {
	case wire.TexRefAddress:
		var at bind.Address
		at, res = s.drv.TexRefGetAddress(h)
		r.A = at.Value()
		return res
	case wire.TexRefFormat:
		n, m, res = s.drv.TexRefGetFormat(h)
	case wire.TexRefAddressMode:
		n, res = s.drv.TexRefGetAddressMode(h, int32(a.Index))
	case wire.TexRefFilterMode:
		n, res = s.drv.TexRefGetFilterMode(h)
	case wire.TexRefMipFilter:
		n, res = s.drv.TexRefGetMipmapFilterMode(h)
	case wire.TexRefAnisotropy:
		m, res = s.drv.TexRefGetMaxAnisotropy(h)
		n, m = uint32(m), 0
	case wire.TexRefFlags:
		n, res = s.drv.TexRefGetFlags(h)
	case wire.TexRefMipBias:
		x, res = s.drv.TexRefGetMipmapLevelBias(h)
	case wire.TexRefMipClamp:
		x, y, res = s.drv.TexRefGetMipmapLevelClamp(h)
	case wire.TexRefBorder:
		border := make([]float32, 4)
		res = s.drv.TexRefGetBorderColor(border, h)
		r.Border, _ = binary.Append(nil, binary.LittleEndian, border)
		return res
	default:
		return cuda.ErrorInvalidValue
	}
	r.A, r.B = uint64(n|math.Float32bits(x)), uint64(uint32(m)|math.Float32bits(y)) // one kind is 0
	return res
}

// float is one that travels as its bits.
func float(bits uint64) float32 { return math.Float32frombits(uint32(bits)) }
