/*
 * Texture references, the older form of textures: named in a module or made by cuTexRefCreate.
 * Every setting is the worker's driver's; only the handles of arrays are remembered here, since the
 * driver knows others.
 */
#include "api/texture.h"
#include "memory/array.h"

#include <string.h>

enum { TEXUNIT_DEFAULT = -1 }; /* CU_PARAM_TR_DEFAULT */

static struct cw_ref *get(CUtexref ref) { return (struct cw_ref *)cw_handle_get(CW_KIND_TEXREF, ref); }

static CUresult set(CUtexref ref, uint32_t what, uint64_t a, uint64_t b, const void *data, size_t size)
{
	struct cw_ref *r = get(ref);

	return r ? cwop_TexRefSet(r->o.id, what, 0, 0, a, b, 0, data, size, NULL) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult ask(CUtexref ref, uint32_t what, int index, uint64_t *a, uint64_t *b, float *border)
{
	struct cw_ref *r = get(ref);
	size_t len = 0;

	*a = *b = 0;
	return r ? cwop_TexRefGet(r->o.id, what, index, a, b, border, border ? 4 * sizeof *border : 0, &len) : CUDA_ERROR_INVALID_VALUE;
}

static uint32_t bits(float f)
{
	uint32_t v;

	memcpy(&v, &f, sizeof v);
	return v;
}

static float number(uint64_t bits)
{
	uint32_t v = (uint32_t)bits;
	float f;

	memcpy(&f, &v, sizeof f);
	return f;
}

/* --- references themselves -------------------------------------------------------------------- */

CUresult cwi_cuTexRefCreate(CUtexref *out)
{
	struct cw_ref *r;
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);

	if (res)
		return res;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	r = (struct cw_ref *)cw_handle_alloc();
	if (!r)
		return CUDA_ERROR_OUT_OF_MEMORY;
	r->o.ctx = c->o.id;
	cw_handle_publish(&r->o, CW_KIND_TEXREF);
	res = cwop_TexRefCreate(r->o.id);
	if (res)
		cw_handle_free(CW_KIND_TEXREF, &r->o);
	else
		*out = (CUtexref)r;
	return res;
}

CUresult cwi_cuModuleGetTexRef(CUtexref *out, CUmodule module, const char *name)
{
	struct cw_ref *r;
	CUresult res = cw_ref_lookup(CW_KIND_TEXREF, out ? &r : NULL, module, name, cwop_ModuleGetTexRef);

	if (!res)
		*out = (CUtexref)r;
	return res;
}

CUresult cwi_cuTexRefDestroy(CUtexref ref)
{
	struct cw_ref *r = get(ref);
	uint32_t id = r ? r->o.id : 0;

	if (!r || r->name || !cw_handle_free(CW_KIND_TEXREF, &r->o))
		return CUDA_ERROR_INVALID_VALUE;
	return cwop_TexRefDestroy(id);
}

/* Kernels have used the references of their module by themselves since CUDA 3.2: the arguments are
 * checked, and no more. */
CUresult cwi_cuParamSetTexRef(CUfunction func, int unit, CUtexref ref)
{
	struct cw_func *f = (struct cw_func *)cw_handle_get(CW_KIND_FUNC, func);
	struct cw_ref *r = get(ref);

	if (!f || !r)
		return CUDA_ERROR_INVALID_HANDLE;
	return unit == TEXUNIT_DEFAULT && r->name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- what they are bound to ------------------------------------------------------------------- */

CUresult cwi_cuTexRefSetArray(CUtexref ref, CUarray array, unsigned int flags)
{
	struct cw_ref *r = get(ref);
	struct cw_array *a = cw_array_get(array);
	CUresult res;

	if (!r)
		return CUDA_ERROR_INVALID_VALUE;
	if (!a)
		return CUDA_ERROR_INVALID_HANDLE;
	res = cwop_TexRefSet(r->o.id, CW_TEX_REF_ARRAY, a->o.id, 0, flags, 0, 0, NULL, 0, NULL);
	if (!res) {
		r->array = array;
		r->mipmap = NULL;
	}
	return res;
}

CUresult cwi_cuTexRefSetMipmappedArray(CUtexref ref, CUmipmappedArray mipmap, unsigned int flags)
{
	struct cw_ref *r = get(ref);
	struct cw_mipmap *m = cw_mipmap_get(mipmap);
	CUresult res;

	if (!r)
		return CUDA_ERROR_INVALID_VALUE;
	if (!m)
		return CUDA_ERROR_INVALID_HANDLE;
	res = cwop_TexRefSet(r->o.id, CW_TEX_REF_MIPMAP, 0, m->o.id, flags, 0, 0, NULL, 0, NULL);
	if (!res) {
		r->mipmap = mipmap;
		r->array = NULL;
	}
	return res;
}

static CUresult bind_memory(CUtexref ref, uint32_t what, uint64_t ptr, uint64_t size, const void *data, size_t len, uint64_t *offset)
{
	struct cw_ref *r = get(ref);
	CUresult res;

	if (!r)
		return CUDA_ERROR_INVALID_VALUE;
	res = cwop_TexRefSet(r->o.id, what, 0, 0, ptr, size, 0, data, len, offset);
	if (!res) {
		r->array = NULL;
		r->mipmap = NULL;
	}
	return res;
}

CUresult cwi_cuTexRefSetAddress_v2(size_t *offset, CUtexref ref, CUdeviceptr ptr, size_t bytes)
{
	uint64_t at = 0;
	CUresult res = bind_memory(ref, CW_TEX_REF_ADDRESS, ptr, bytes, NULL, 0, &at);

	if (!res && offset)
		*offset = at;
	/* an address that is not aligned is only acceptable to who asks for the offset */
	return !res && !offset && at ? CUDA_ERROR_INVALID_VALUE : res;
}

CUresult cwi_cuTexRefSetAddress2D_v3(CUtexref ref, const CUDA_ARRAY_DESCRIPTOR *d, CUdeviceptr ptr, size_t pitch)
{
	return d ? bind_memory(ref, CW_TEX_REF_ADDRESS2D, ptr, pitch, d, sizeof *d, NULL) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cwi_cuTexRefSetAddress2D_v2(CUtexref ref, const CUDA_ARRAY_DESCRIPTOR *d, CUdeviceptr ptr, size_t pitch)
{
	return cwi_cuTexRefSetAddress2D_v3(ref, d, ptr, pitch);
}

CUresult cwi_cuTexRefGetArray(CUarray *out, CUtexref ref)
{
	struct cw_ref *r = get(ref);

	if (!out || !r || !r->array)
		return CUDA_ERROR_INVALID_VALUE;
	*out = r->array;
	return CUDA_SUCCESS;
}

CUresult cwi_cuTexRefGetMipmappedArray(CUmipmappedArray *out, CUtexref ref)
{
	struct cw_ref *r = get(ref);

	if (!out || !r || !r->mipmap)
		return CUDA_ERROR_INVALID_VALUE;
	*out = r->mipmap;
	return CUDA_SUCCESS;
}

CUresult cwi_cuTexRefGetAddress_v2(CUdeviceptr *out, CUtexref ref)
{
	uint64_t a, b;
	CUresult res = out ? ask(ref, CW_TEX_REF_ADDRESS, 0, &a, &b, NULL) : CUDA_ERROR_INVALID_VALUE;

	if (!res)
		*out = a;
	return res;
}

/* --- how they are read ------------------------------------------------------------------------ */

CUresult cwi_cuTexRefSetFormat(CUtexref ref, CUarray_format format, int channels)
{
	return set(ref, CW_TEX_REF_FORMAT, (uint32_t)format, (uint32_t)channels, NULL, 0);
}

CUresult cwi_cuTexRefGetFormat(CUarray_format *format, int *channels, CUtexref ref)
{
	uint64_t a, b;
	CUresult res = ask(ref, CW_TEX_REF_FORMAT, 0, &a, &b, NULL);

	if (!res && format)
		*format = (CUarray_format)a;
	if (!res && channels)
		*channels = (int)b;
	return res;
}

CUresult cwi_cuTexRefSetAddressMode(CUtexref ref, int dim, CUaddress_mode mode)
{
	return set(ref, CW_TEX_REF_ADDRESS_MODE, (uint32_t)dim, (uint32_t)mode, NULL, 0);
}

CUresult cwi_cuTexRefSetFilterMode(CUtexref ref, CUfilter_mode mode)
{
	return set(ref, CW_TEX_REF_FILTER_MODE, (uint32_t)mode, 0, NULL, 0);
}

CUresult cwi_cuTexRefSetMipmapFilterMode(CUtexref ref, CUfilter_mode mode)
{
	return set(ref, CW_TEX_REF_MIP_FILTER, (uint32_t)mode, 0, NULL, 0);
}

CUresult cwi_cuTexRefSetMaxAnisotropy(CUtexref ref, unsigned int n) { return set(ref, CW_TEX_REF_ANISOTROPY, n, 0, NULL, 0); }

CUresult cwi_cuTexRefSetFlags(CUtexref ref, unsigned int flags) { return set(ref, CW_TEX_REF_FLAGS, flags, 0, NULL, 0); }

CUresult cwi_cuTexRefSetMipmapLevelBias(CUtexref ref, float bias) { return set(ref, CW_TEX_REF_MIP_BIAS, bits(bias), 0, NULL, 0); }

CUresult cwi_cuTexRefSetMipmapLevelClamp(CUtexref ref, float low, float high)
{
	return set(ref, CW_TEX_REF_MIP_CLAMP, bits(low), bits(high), NULL, 0);
}

CUresult cwi_cuTexRefSetBorderColor(CUtexref ref, float *border)
{
	return border ? set(ref, CW_TEX_REF_BORDER, 0, 0, border, 4 * sizeof *border) : CUDA_ERROR_INVALID_VALUE;
}

/* The settings that are one int. */
static CUresult get_int(CUtexref ref, uint32_t what, int index, int *out)
{
	uint64_t a, b;
	CUresult res = out ? ask(ref, what, index, &a, &b, NULL) : CUDA_ERROR_INVALID_VALUE;

	if (!res)
		*out = (int)a;
	return res;
}

CUresult cwi_cuTexRefGetAddressMode(CUaddress_mode *out, CUtexref ref, int dim) { return get_int(ref, CW_TEX_REF_ADDRESS_MODE, dim, out); }

CUresult cwi_cuTexRefGetFilterMode(CUfilter_mode *out, CUtexref ref) { return get_int(ref, CW_TEX_REF_FILTER_MODE, 0, out); }

CUresult cwi_cuTexRefGetMipmapFilterMode(CUfilter_mode *out, CUtexref ref) { return get_int(ref, CW_TEX_REF_MIP_FILTER, 0, out); }

CUresult cwi_cuTexRefGetMaxAnisotropy(int *out, CUtexref ref) { return get_int(ref, CW_TEX_REF_ANISOTROPY, 0, out); }

CUresult cwi_cuTexRefGetFlags(unsigned int *out, CUtexref ref) { return get_int(ref, CW_TEX_REF_FLAGS, 0, (int *)out); }

CUresult cwi_cuTexRefGetMipmapLevelBias(float *out, CUtexref ref)
{
	uint64_t a, b;
	CUresult res = out ? ask(ref, CW_TEX_REF_MIP_BIAS, 0, &a, &b, NULL) : CUDA_ERROR_INVALID_VALUE;

	if (!res)
		*out = number(a);
	return res;
}

CUresult cwi_cuTexRefGetMipmapLevelClamp(float *low, float *high, CUtexref ref)
{
	uint64_t a, b;
	CUresult res = low && high ? ask(ref, CW_TEX_REF_MIP_CLAMP, 0, &a, &b, NULL) : CUDA_ERROR_INVALID_VALUE;

	if (!res) {
		*low = number(a);
		*high = number(b);
	}
	return res;
}

CUresult cwi_cuTexRefGetBorderColor(float *border, CUtexref ref)
{
	uint64_t a, b;

	return border ? ask(ref, CW_TEX_REF_BORDER, 0, &a, &b, border) : CUDA_ERROR_INVALID_VALUE;
}
