/*
 * Arrays and mipmapped arrays. The worker's driver makes them and judges what may be made; shapes
 * are remembered here, so that copies are checked at the call.
 *
 * Lock order: the array lock guards the lists of levels and planes; it is held while a part is
 * asked for, so that each has one handle.
 */
#include "memory/array.h"

#include <string.h>

#include "session/lock.h"

static struct cw_lock lock;

uint32_t cw_array_element(const struct CUDA_ARRAY3D_DESCRIPTOR_st *d)
{
	uint32_t f = d->Format;

	switch (f) {
	case 0x01:
	case 0x08: return d->NumChannels;
	case 0x02:
	case 0x09:
	case 0x10: return 2 * d->NumChannels;
	case 0x03:
	case 0x0a:
	case 0x20:
	case 0x50: return f == 0x50 ? 4 : 4 * d->NumChannels;
	}
	/* UNORM and SNORM of 1, 2 and 4 channels of 8, then 16 bits */
	if (f >= 0xc0 && f <= 0xcb) {
		uint32_t k = (f - 0xc0) % 6;

		return (1u << k % 3) * (k >= 3 ? 2 : 1);
	}
	return 0;
}

static int within(uint64_t at, uint64_t n, uint64_t limit) { return at <= limit && n <= limit - at; }

CUresult cw_array_holds(const struct cw_array *a, uint64_t x, uint64_t y, uint64_t z, uint64_t width, uint64_t height, uint64_t depth)
{
	const struct CUDA_ARRAY3D_DESCRIPTOR_st *d = &a->desc;
	uint64_t element = cw_array_element(d);

	if (element == 0) /* left to the driver */
		return CUDA_SUCCESS;
	/* neither x nor width need be whole elements */
	if (!within(x, width, d->Width * element) || !within(y, height, d->Height ? d->Height : 1) ||
	    !within(z, depth, d->Depth ? d->Depth : 1))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

static void shape(const struct CUDA_ARRAY3D_DESCRIPTOR_st *d, CUDA_ARRAY_DESCRIPTOR *out)
{
	*out = (struct CUDA_ARRAY_DESCRIPTOR_st){d->Width, d->Height, d->Format, d->NumChannels};
}

/* --- arrays ----------------------------------------------------------------------------------- */

/* Bytes that an array takes at most. */
static uint64_t most(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	uint64_t n = (uint64_t)d->NumChannels * 4, sizes[] = {d->Width, d->Height, d->Depth};
	for (int i = 0; i < 3; i++)
		if (sizes[i] > 0 && __builtin_mul_overflow(n, sizes[i], &n))
			return UINT64_MAX / 4;
	return n;
}

CUresult cwi_cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	struct cw_array *a;
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);

	if (res)
		return res;
	if (!out || !d)
		return CUDA_ERROR_INVALID_VALUE;
	a = (struct cw_array *)cw_handle_alloc();
	if (!a)
		return CUDA_ERROR_OUT_OF_MEMORY;
	a->o.ctx = c->o.id;
	a->desc = *d;
	cw_handle_publish(&a->o, CW_KIND_ARRAY);
	res = CW_WITH_ROOM(most(d), cwop_ArrayCreate(a->o.id, d->Width, d->Height, d->Depth, d->Format, d->NumChannels, d->Flags));
	if (res)
		cw_handle_free(CW_KIND_ARRAY, &a->o);
	else
		*out = (CUarray)a;
	return res;
}

CUresult cwi_cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *d)
{
	struct CUDA_ARRAY3D_DESCRIPTOR_st full = {0};
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);

	if (res)
		return res;
	if (!d)
		return CUDA_ERROR_INVALID_VALUE;
	full.Width = d->Width;
	full.Height = d->Height;
	full.Format = d->Format;
	full.NumChannels = d->NumChannels;
	return cwi_cuArray3DCreate_v2(out, &full);
}

/* With the lock held. */
static void end_parts(struct cw_array **list)
{
	while (*list) {
		struct cw_array *p = *list;

		*list = p->next;
		end_parts(&p->parts);
		cw_handle_free(CW_KIND_ARRAY, &p->o);
	}
}

CUresult cwi_cuArrayDestroy(CUarray array)
{
	struct cw_array *a = cw_array_get(array);
	uint32_t id;

	if (!a)
		return CUDA_ERROR_INVALID_HANDLE;
	/* Levels and planes end with what they are part of; the driver accepts this call, too. */
	if (a->owner)
		return CUDA_SUCCESS;
	id = a->o.id;
	cw_lock_acquire(&lock);
	end_parts(&a->parts);
	cw_lock_release(&lock);
	if (!cw_handle_free(CW_KIND_ARRAY, &a->o))
		return CUDA_ERROR_INVALID_HANDLE;
	return cwop_ArrayDestroy(id);
}

CUresult cwi_cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *d, CUarray array)
{
	struct cw_array *a = cw_array_get(array);

	if (!d)
		return CUDA_ERROR_INVALID_VALUE;
	if (!a)
		return CUDA_ERROR_INVALID_HANDLE;
	*d = a->desc;
	return CUDA_SUCCESS;
}

CUresult cwi_cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *d, CUarray array)
{
	struct cw_array *a = cw_array_get(array);

	if (!d)
		return CUDA_ERROR_INVALID_VALUE;
	if (!a)
		return CUDA_ERROR_INVALID_HANDLE;
	shape(&a->desc, d);
	return CUDA_SUCCESS;
}

/* --- parts of other objects ------------------------------------------------------------------- */

typedef CUresult fetch_part(uint32_t part, uint32_t owner, uint32_t index, uint64_t *width, uint64_t *height, uint64_t *depth,
			    uint32_t *format, uint32_t *channels, uint32_t *flags);

static CUresult part(CUarray *out, struct cw_obj *owner, struct cw_array **list, uint32_t index, fetch_part *fetch)
{
	CUresult res = CUDA_SUCCESS;
	struct cw_array *a;

	cw_lock_acquire(&lock);
	for (a = *list; a && a->index != index; a = a->next)
		;
	if (!a) {
		a = (struct cw_array *)cw_handle_alloc();
		if (!a) {
			cw_lock_release(&lock);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
		a->o.ctx = owner->ctx;
		a->owner = owner;
		a->index = index;
		cw_handle_publish(&a->o, CW_KIND_ARRAY);
		uint64_t w = 0, h = 0, d = 0;
		res = fetch(a->o.id, owner->id, index, &w, &h, &d, &a->desc.Format, &a->desc.NumChannels, &a->desc.Flags);
		a->desc.Width = w;
		a->desc.Height = h;
		a->desc.Depth = d;
		if (res) {
			cw_handle_free(CW_KIND_ARRAY, &a->o);
		} else {
			a->next = *list;
			*list = a;
		}
	}
	cw_lock_release(&lock);
	if (!res)
		*out = (CUarray)a;
	return res;
}

CUresult cwi_cuArrayGetPlane(CUarray *out, CUarray array, unsigned int index)
{
	struct cw_array *a = cw_array_get(array);

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	return a ? part(out, &a->o, &a->parts, index, cwop_ArrayGetPlane) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cwi_cuMipmappedArrayGetLevel(CUarray *out, CUmipmappedArray mipmap, unsigned int level)
{
	struct cw_mipmap *m = cw_mipmap_get(mipmap);

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	return m ? part(out, &m->o, &m->levels, level, cwop_MipmapGetLevel) : CUDA_ERROR_INVALID_HANDLE;
}

/* --- mipmapped arrays ------------------------------------------------------------------------- */

CUresult cwi_cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int levels)
{
	struct cw_mipmap *m;
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);

	if (res)
		return res;
	if (!out || !d)
		return CUDA_ERROR_INVALID_VALUE;
	m = (struct cw_mipmap *)cw_handle_alloc();
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	m->o.ctx = c->o.id;
	m->desc = *d;
	m->count = levels;
	cw_handle_publish(&m->o, CW_KIND_MIPMAP);
	res = CW_WITH_ROOM(2 * most(d),
			   cwop_MipmapCreate(m->o.id, d->Width, d->Height, d->Depth, d->Format, d->NumChannels, d->Flags, levels));
	if (res)
		cw_handle_free(CW_KIND_MIPMAP, &m->o);
	else
		*out = (CUmipmappedArray)m;
	return res;
}

CUresult cwi_cuMipmappedArrayDestroy(CUmipmappedArray mipmap)
{
	struct cw_mipmap *m = cw_mipmap_get(mipmap);
	uint32_t id;

	if (!m)
		return CUDA_ERROR_INVALID_HANDLE;
	id = m->o.id;
	cw_lock_acquire(&lock);
	end_parts(&m->levels);
	cw_lock_release(&lock);
	if (!cw_handle_free(CW_KIND_MIPMAP, &m->o))
		return CUDA_ERROR_INVALID_HANDLE;
	return cwop_MipmapDestroy(id);
}

/* --- properties ------------------------------------------------------------------------------- */

/* CUDA_ARRAY_SPARSE_PROPERTIES and CUDA_ARRAY_MEMORY_REQUIREMENTS (cuda.h). */

static CUresult sparse(CUDA_ARRAY_SPARSE_PROPERTIES *out, uint32_t array, uint32_t mipmap)
{
	struct CUDA_ARRAY_SPARSE_PROPERTIES_st p;
	size_t len = 0;
	CUresult res;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	if (!array && !mipmap)
		return CUDA_ERROR_INVALID_HANDLE;
	res = cwop_ArrayGetSparseProperties(array, mipmap, &p, sizeof p, &len);
	if (!res && len != sizeof p)
		res = CUDA_ERROR_UNKNOWN;
	if (!res)
		*out = p;
	return res;
}

/* Wire ids, 0 for no such object. */
static uint32_t array_id(CUarray handle)
{
	struct cw_array *a = cw_array_get(handle);

	return a ? a->o.id : 0;
}

static uint32_t mipmap_id(CUmipmappedArray handle)
{
	struct cw_mipmap *m = cw_mipmap_get(handle);

	return m ? m->o.id : 0;
}

CUresult cwi_cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *out, CUarray array) { return sparse(out, array_id(array), 0); }

CUresult cwi_cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *out, CUmipmappedArray mipmap)
{
	return sparse(out, 0, mipmap_id(mipmap));
}

static CUresult requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, uint32_t array, uint32_t mipmap, CUdevice dev)
{
	uint64_t size = 0, alignment = 0;
	CUresult res;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	if (!array && !mipmap)
		return CUDA_ERROR_INVALID_HANDLE;
	res = cwop_ArrayGetMemoryRequirements(array, mipmap, (uint32_t)dev, &size, &alignment);
	if (!res) {
		memset(out, 0, sizeof *out);
		out->size = size;
		out->alignment = alignment;
	}
	return res;
}

CUresult cwi_cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUarray array, CUdevice dev)
{
	return requirements(out, array_id(array), 0, dev);
}

CUresult cwi_cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUmipmappedArray mipmap, CUdevice dev)
{
	return requirements(out, 0, mipmap_id(mipmap), dev);
}

/* --- the end of a context --------------------------------------------------------------------- */

static int end_array(struct cw_obj *o, void *arg)
{
	struct cw_array *a = (struct cw_array *)o;

	if (o->ctx == *(uint32_t *)arg && !a->owner) {
		end_parts(&a->parts);
		cw_handle_free(CW_KIND_ARRAY, o);
	}
	return 0;
}

static int end_mipmap(struct cw_obj *o, void *arg)
{
	if (o->ctx == *(uint32_t *)arg) {
		end_parts(&((struct cw_mipmap *)o)->levels);
		cw_handle_free(CW_KIND_MIPMAP, o);
	}
	return 0;
}

void cw_arrays_context_gone(uint32_t ctx)
{
	cw_lock_acquire(&lock);
	cw_handle_each(CW_KIND_ARRAY, end_array, &ctx);
	cw_handle_each(CW_KIND_MIPMAP, end_mipmap, &ctx);
	cw_lock_release(&lock);
}
