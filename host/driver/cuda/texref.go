package cuda

import (
	"causeway/cuda"
	"causeway/cuda/wire"
)

// reference is a texture or surface reference. Those of modules end with their module; the driver keeps them.
type reference struct {
	handle uint64
	ctx    uint32
	module uint32 // id, 0: made by TexRefCreate
}

// TexRefCreate makes a texture reference.
func (s *session) TexRefCreate(c *wire.Call, a *wire.TexRefCreateArgs) cuda.Result {
	if res := s.use(c); res != cuda.Success {
		return res
	}
	if res := s.fn.cuTexRefCreate.call(s.out.addr()); res != cuda.Success {
		return res
	}
	if !s.texRefs.put(a.Texref, reference{handle: *s.out.u64(0), ctx: c.Ctx}) {
		s.fn.cuTexRefDestroy.call(*s.out.u64(0))
		return cuda.ErrorInvalidHandle
	}
	return cuda.Success
}

// TexRefDestroy ends a reference that TexRefCreate made.
func (s *session) TexRefDestroy(c *wire.Call, a *wire.TexRefDestroyArgs) cuda.Result {
	t, ok := s.texRefs.get(a.Texref)
	if !ok || t.module != 0 {
		return cuda.ErrorInvalidValue
	}
	s.texRefs.remove(a.Texref)
	if res := s.useContext(t.ctx); res != cuda.Success {
		return res
	}
	return s.fn.cuTexRefDestroy.call(t.handle)
}

// ModuleGetTexRef finds a texture reference of a module.
func (s *session) ModuleGetTexRef(c *wire.Call, a *wire.ModuleGetTexRefArgs) cuda.Result {
	return s.moduleRef(c, &s.texRefs, a.Texref, a.Module, a.Name, s.fn.cuModuleGetTexRef)
}

// ModuleGetSurfRef finds a surface reference of a module.
func (s *session) ModuleGetSurfRef(c *wire.Call, a *wire.ModuleGetSurfRefArgs) cuda.Result {
	return s.moduleRef(c, &s.surfRefs, a.Surfref, a.Module, a.Name, s.fn.cuModuleGetSurfRef)
}

func (s *session) moduleRef(c *wire.Call, list *table[reference], id, mod uint32, name []byte, find entry) cuda.Result {
	m, ok := s.modules.get(mod)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	if res := s.use(c); res != cuda.Success {
		return res
	}
	n := cString(name)
	defer n.free()
	if res := find.call(s.out.addr(), m.handle, n.addr()); res != cuda.Success {
		return res
	}
	if !list.put(id, reference{*s.out.u64(0), c.Ctx, mod}) {
		return cuda.ErrorInvalidHandle
	}
	return cuda.Success
}

// ref finds a reference whose module is still loaded.
func (s *session) ref(list *table[reference], id uint32) (uint64, cuda.Result) {
	t, ok := list.get(id)
	if !ok {
		return 0, cuda.ErrorInvalidValue
	}
	if t.module != 0 {
		if _, ok := s.modules.get(t.module); !ok {
			list.remove(id)
			return 0, cuda.ErrorInvalidValue
		}
	}
	return t.handle, s.useContext(t.ctx)
}

// SurfRefSetArray binds a surface reference.
func (s *session) SurfRefSetArray(c *wire.Call, a *wire.SurfRefSetArrayArgs) cuda.Result {
	h, res := s.ref(&s.surfRefs, a.Surfref)
	if res != cuda.Success {
		return res
	}
	x, ok := s.arrays.get(a.Array)
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	return s.fn.cuSurfRefSetArray.call(h, x.handle, uint64(a.Flags))
}

// TexRefSet changes one setting of a reference.
func (s *session) TexRefSet(c *wire.Call, a *wire.TexRefSetArgs, r *wire.TexRefSetReply) cuda.Result {
	h, res := s.ref(&s.texRefs, a.Texref)
	if res != cuda.Success {
		return res
	}
	data := bufferOf(a.Data)
	defer data.free()
	switch a.What {
	case wire.TexRefArray:
		x, ok := s.arrays.get(a.Array)
		if !ok {
			return cuda.ErrorInvalidHandle
		}
		return s.fn.cuTexRefSetArray.call(h, x.handle, a.A)
	case wire.TexRefMipmap:
		x, ok := s.mipmaps.get(a.Mipmap)
		if !ok {
			return cuda.ErrorInvalidHandle
		}
		return s.fn.cuTexRefSetMipmappedArray.call(h, x.handle, a.A)
	case wire.TexRefAddress:
		if res := s.reachable(a.A, a.B); res != cuda.Success {
			return res
		}
		*s.out.u64(0) = 0
		res := s.fn.cuTexRefSetAddress_v2.call(s.out.addr(), h, a.A, a.B)
		r.Offset = *s.out.u64(0)
		return res
	case wire.TexRefAddress2D:
		if len(a.Data) != 24 { // CUDA_ARRAY_DESCRIPTOR
			return cuda.ErrorInvalidValue
		}
		if res := s.reachable(a.A, 1); res != cuda.Success {
			return res
		}
		return s.fn.cuTexRefSetAddress2D_v3.call(h, data.addr(), a.A, a.B)
	case wire.TexRefFormat:
		return s.fn.cuTexRefSetFormat.call(h, a.A, a.B)
	case wire.TexRefAddressMode:
		return s.fn.cuTexRefSetAddressMode.call(h, a.A, a.B)
	case wire.TexRefFilterMode:
		return s.fn.cuTexRefSetFilterMode.call(h, a.A)
	case wire.TexRefMipFilter:
		return s.fn.cuTexRefSetMipmapFilterMode.call(h, a.A)
	case wire.TexRefAnisotropy:
		return s.fn.cuTexRefSetMaxAnisotropy.call(h, a.A)
	case wire.TexRefFlags:
		return s.fn.cuTexRefSetFlags.call(h, a.A)
	case wire.TexRefMipBias:
		return s.fn.cuTexRefSetMipmapLevelBias.callFloats(h, uint32(a.A), 0)
	case wire.TexRefMipClamp:
		return s.fn.cuTexRefSetMipmapLevelClamp.callFloats(h, uint32(a.A), uint32(a.B))
	case wire.TexRefBorder:
		if len(a.Data) != 16 {
			return cuda.ErrorInvalidValue
		}
		return s.fn.cuTexRefSetBorderColor.call(h, data.addr())
	}
	return cuda.ErrorInvalidValue
}

// TexRefGet reads one setting of a reference.
func (s *session) TexRefGet(c *wire.Call, a *wire.TexRefGetArgs, r *wire.TexRefGetReply) cuda.Result {
	h, res := s.ref(&s.texRefs, a.Texref)
	if res != cuda.Success {
		return res
	}
	*s.out.u64(0), *s.out.u64(1) = 0, 0
	x, y := s.out.addr(), s.out.addr()+8
	switch a.What {
	case wire.TexRefAddress:
		res = s.fn.cuTexRefGetAddress_v2.call(x, h)
	case wire.TexRefFormat:
		res = s.fn.cuTexRefGetFormat.call(x, y, h)
	case wire.TexRefAddressMode:
		res = s.fn.cuTexRefGetAddressMode.call(x, h, uint64(uint32(a.Index)))
	case wire.TexRefFilterMode:
		res = s.fn.cuTexRefGetFilterMode.call(x, h)
	case wire.TexRefMipFilter:
		res = s.fn.cuTexRefGetMipmapFilterMode.call(x, h)
	case wire.TexRefAnisotropy:
		res = s.fn.cuTexRefGetMaxAnisotropy.call(x, h)
	case wire.TexRefFlags:
		res = s.fn.cuTexRefGetFlags.call(x, h)
	case wire.TexRefMipBias:
		res = s.fn.cuTexRefGetMipmapLevelBias.call(x, h)
	case wire.TexRefMipClamp:
		res = s.fn.cuTexRefGetMipmapLevelClamp.call(x, y, h)
	case wire.TexRefBorder:
		res = s.fn.cuTexRefGetBorderColor.call(x, h)
		r.Border = append([]byte(nil), s.out.bytes()[:16]...)
		return res
	default:
		return cuda.ErrorInvalidValue
	}
	r.A, r.B = *s.out.u64(0), *s.out.u64(1)
	return res
}
