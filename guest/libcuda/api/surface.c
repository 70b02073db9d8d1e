/* Surface objects, and surface references of modules. */
#include "api/texture.h"
#include "memory/array.h"

#include <stdlib.h>
#include <string.h>

CUresult cwi_cuSurfObjectCreate(CUsurfObject *out, const CUDA_RESOURCE_DESC *resource)
{
	struct CUDA_RESOURCE_DESC_st plain;
	uint32_t array, mipmap;
	uint64_t value = 0;
	struct cw_texture *t;
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);

	if (res)
		return res;
	if (!out || !resource || resource->type != CW_RESOURCE_ARRAY)
		return CUDA_ERROR_INVALID_VALUE;
	res = cw_texture_resource(resource, &plain, &array, &mipmap);
	if (res)
		return res;
	t = cw_texture_new(CW_KIND_SURF, c, resource);
	if (!t)
		return CUDA_ERROR_OUT_OF_MEMORY;
	res = cwop_SurfObjectCreate(t->o.id, array, &plain, sizeof plain, &value);
	if (res) {
		cw_texture_free(CW_KIND_SURF, t);
		return res;
	}
	*out = value;
	return cw_texture_add(CW_KIND_SURF, value, t);
}

CUresult cwi_cuSurfObjectDestroy(CUsurfObject object)
{
	uint32_t id;
	CUresult res = cw_texture_drop(CW_KIND_SURF, object, &id);

	/* an object that is not there: success, as the real driver answers */
	return res || !id ? res : cwop_SurfObjectDestroy(id);
}

CUresult cwi_cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC *out, CUsurfObject object)
{
	struct cw_texture_descs d;

	if (!out || !cw_texture_read(CW_KIND_SURF, object, &d))
		return CUDA_ERROR_INVALID_VALUE;
	*out = d.resource;
	return CUDA_SUCCESS;
}

/* --- references ------------------------------------------------------------------------------- */

CUresult cwi_cuModuleGetSurfRef(CUsurfref *out, CUmodule module, const char *name)
{
	struct cw_ref *r;
	CUresult res = cw_ref_lookup(CW_KIND_SURFREF, out ? &r : NULL, module, name, cwop_ModuleGetSurfRef);

	if (!res)
		*out = (CUsurfref)r;
	return res;
}

CUresult cwi_cuSurfRefSetArray(CUsurfref ref, CUarray array, unsigned int flags)
{
	struct cw_ref *r = (struct cw_ref *)cw_handle_get(CW_KIND_SURFREF, ref);
	struct cw_array *a = cw_array_get(array);
	CUresult res;

	if (!r || !a)
		return CUDA_ERROR_INVALID_HANDLE;
	res = cwop_SurfRefSetArray(r->o.id, a->o.id, flags);
	if (!res)
		r->array = array;
	return res;
}

CUresult cwi_cuSurfRefGetArray(CUarray *out, CUsurfref ref)
{
	struct cw_ref *r = (struct cw_ref *)cw_handle_get(CW_KIND_SURFREF, ref);

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	if (!r || !r->array)
		return CUDA_ERROR_INVALID_HANDLE;
	*out = r->array;
	return CUDA_SUCCESS;
}
