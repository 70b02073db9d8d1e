/* Memory for sparse and deferred arrays: pieces of cuMemCreate's memory put behind their tiles, in
 * stream order. */
#include <stdlib.h>
#include <string.h>

#include "memory/array.h"
#include "memory/vmm.h"
#include "session/lock.h"

/* CUarrayMapInfo (cuda.h). What lies between the resource and the operation is the driver's to
 * judge. */

enum { MAPS_MAX = 4096, ARRAY = 0, MIPMAP = 1, MAP = 1, UNMAP = 2 };

/* The worker's ids in place of the application's handles. Under the lock. */
static CUresult translate(struct CUarrayMapInfo_st *m)
{
	const void *handle = (const void *)(uintptr_t)m->resource;
	struct cw_obj *o = NULL;
	struct cw_memhandle *mem;

	if (m->type == ARRAY)
		o = cw_handle_get(CW_KIND_ARRAY, handle);
	else if (m->type == MIPMAP)
		o = cw_handle_get(CW_KIND_MIPMAP, handle);
	if (!o)
		return CUDA_ERROR_INVALID_VALUE;
	m->resource = o->id;
	if (m->operation == UNMAP)
		return m->handle ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	mem = m->operation == MAP ? cw_memhandle_get(m->handle) : NULL;
	if (!mem)
		return CUDA_ERROR_INVALID_VALUE;
	m->handle = mem->o.id;
	return CUDA_SUCCESS;
}

CUresult cwi_cuMemMapArrayAsync(int ptds, CUarrayMapInfo *list, unsigned int count, CUstream stream)
{
	struct CUarrayMapInfo_st *wire;
	struct cw_ctx *c;
	uint32_t id;
	CUresult res = cw_ctx_current(&c);

	if (!res)
		res = cw_stream_id(stream, ptds, &id);
	if (res)
		return res;
	if (!list || count == 0 || count > MAPS_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	wire = malloc(count * sizeof *wire);
	if (!wire)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(wire, list, count * sizeof *wire);
	cw_lock_acquire(&cw_vmm_lock);
	for (unsigned i = 0; i < count && !res; i++)
		res = translate(&wire[i]);
	cw_lock_release(&cw_vmm_lock);
	if (!res)
		res = cwop_MemMapArray(id, count, wire, count * sizeof *wire);
	free(wire);
	return res ? res : cw_settle(res, id);
}
