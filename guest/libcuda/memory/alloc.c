/* Device allocations: made by the worker, remembered here. */
#include <string.h>

#include "api/capture.h"
#include "memory/managedpool.h"
#include "memory/resident.h"

enum { DEVICE_KINDS = 1 << CW_RANGE_DEVICE };

/* Remembers an allocation of the current context. */
static CUresult remember(struct cw_ctx *c, int device, uint64_t ptr, uint64_t size, uint32_t pool)
{
	struct cw_range r = {
		.base = ptr, .size = size, .kind = CW_RANGE_DEVICE, .ctx = c->o.id, .device = device, .dev = ptr, .pool = pool};
	if (cw_range_add(&r) == 0)
		return CUDA_SUCCESS;
	/* Two ranges at one address, or no memory for the map: an allocation that nothing can name
	 * is given back. */
	cwop_MemFree(ptr);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cwi_cuMemAlloc_v2(CUdeviceptr *dptr, size_t size)
{
	struct cw_ctx *c;
	uint64_t ptr = 0;
	CUresult res = cw_ctx_current(&c);
	if (res != 0)
		return res;
	if (!dptr || size == 0)
		return CUDA_ERROR_INVALID_VALUE;
	res = CW_WITH_ROOM(size, cwop_MemAlloc(size, &ptr));
	if (res == 0)
		res = remember(c, c->device->ordinal, ptr, size, 0);
	if (res == 0)
		*dptr = ptr;
	return res;
}

CUresult cwi_cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height, unsigned int element)
{
	struct cw_ctx *c;
	uint64_t ptr = 0, step = 0;
	CUresult res = cw_ctx_current(&c);
	if (res != 0)
		return res;
	if (!dptr || !pitch || width == 0 || height == 0 || (element != 4 && element != 8 && element != 16))
		return CUDA_ERROR_INVALID_VALUE;
	res = CW_WITH_ROOM(width * height, cwop_MemAllocPitch(width, height, element, &ptr, &step));
	if (res == 0)
		res = remember(c, c->device->ordinal, ptr, step * height, 0);
	if (res == 0) {
		*dptr = ptr;
		*pitch = step;
	}
	return res;
}

CUresult cwi_cuMemFree_v2(CUdeviceptr dptr)
{
	struct cw_range r;
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);
	if (res != 0)
		return res;
	if (dptr == 0)
		return CUDA_SUCCESS;
	/* The free itself is not answered, and its range is forgotten: asked first whether a
	 * capture forbids it. */
	if (cw_unlikely(cw_capture_any()) && (res = cw_capture_unsafe()) != 0)
		return res;
	if (cw_range_find(dptr, &r) && r.kind == CW_RANGE_MANAGED && r.variable)
		return CUDA_ERROR_INVALID_VALUE; /* a variable of a module */
	/* Taken out first: once the worker has it, the address may be another thread's. */
	if (!cw_range_take(dptr, DEVICE_KINDS | 1u << CW_RANGE_MANAGED, &r))
		return cw_range_of_graph(dptr) ? cwop_MemFree(dptr) : CUDA_ERROR_INVALID_VALUE;
	if (r.kind == CW_RANGE_MANAGED) {
		cw_managed_release(&r);
		return CUDA_SUCCESS;
	}
	cw_room_freed();
	return cwop_MemFree(dptr);
}

CUresult cwi_cuMemGetInfo_v2(size_t *free_, size_t *total)
{
	struct cw_ctx *c;
	uint64_t f = 0, t = 0;
	CUresult res = cw_ctx_current(&c);
	if (res == 0 && (!free_ || !total))
		res = CUDA_ERROR_INVALID_VALUE;
	if (res == 0)
		res = cwop_MemGetInfo(&f, &t);
	if (res == 0) {
		*free_ = f;
		*total = t;
	}
	return res;
}

CUresult cwi_cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr dptr)
{
	struct cw_range r;
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);
	if (res != 0)
		return res;
	if (!cw_range_find(dptr, &r)) {
		/* perhaps a module's global: asking makes it known */
		struct cw_operand s;
		if (cw_operand_device(dptr, 1, &s) != 0 || !cw_range_find(dptr, &r))
			return CUDA_ERROR_NOT_FOUND;
	}
	if (r.dev == 0 || (r.kind == CW_RANGE_MAPPED && r.access == 0))
		return CUDA_ERROR_NOT_FOUND;
	if (base)
		*base = r.dev;
	if (size)
		*size = r.size;
	return CUDA_SUCCESS;
}

/* --- stream-ordered allocation ---------------------------------------------------------------- */

static CUresult alloc_async(CUdeviceptr *dptr, size_t size, CUmemoryPool handle, CUstream stream, int ptds)
{
	struct cw_pool *p;
	struct cw_ctx *c;
	uint32_t id;
	uint64_t ptr = 0;
	CUresult res = cw_ctx_current(&c);
	if (res == 0)
		res = cw_stream_id(stream, ptds, &id);
	if (res == 0 && (!dptr || size == 0))
		res = CUDA_ERROR_INVALID_VALUE;
	if (res == 0 && !handle)
		res = cw_pool_current(c->device->ordinal, &handle);
	if (res != 0)
		return res;
	p = (struct cw_pool *)cw_handle_get(CW_KIND_POOL, handle);
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	int captured = 0;
	if (cw_unlikely(cw_capture_any()) && (res = cw_capture_status(id, &captured)) != 0)
		return res;
	if (p->managed)
		return captured ? CUDA_ERROR_NOT_SUPPORTED : cw_managed_pool_alloc(p, size, id, dptr);
	if (p->is_default && p->device == c->device->ordinal)
		res = CW_WITH_ROOM(size, cwop_MemAllocAsync(size, id, &ptr));
	else
		res = CW_WITH_ROOM(size, cwop_MemAllocFromPool(size, p->o.id, id, &ptr));
	if (res == 0 && captured)
		cw_memory_note_graph(ptr, size);
	else if (res == 0)
		res = remember(c, p->device, ptr, size, p->o.id);
	if (res == 0)
		*dptr = ptr;
	return res;
}

CUresult cwi_cuMemAllocAsync(int ptds, CUdeviceptr *dptr, size_t size, CUstream stream)
{
	return alloc_async(dptr, size, NULL, stream, ptds);
}

CUresult cwi_cuMemAllocFromPoolAsync(int ptds, CUdeviceptr *dptr, size_t size, CUmemoryPool pool, CUstream stream)
{
	return pool ? alloc_async(dptr, size, pool, stream, ptds) : CUDA_ERROR_INVALID_VALUE;
}

/* Memory of a pool of managed memory. A graph's stream has none of it. */
static CUresult free_managed(CUdeviceptr dptr, uint32_t stream)
{
	struct cw_range r;
	int captured = 0;
	CUresult res = cw_unlikely(cw_capture_any()) ? cw_capture_status(stream, &captured) : CUDA_SUCCESS;
	if (res != 0)
		return res;
	if (captured || !cw_range_take(dptr, 1u << CW_RANGE_MANAGED, &r))
		return CUDA_ERROR_INVALID_VALUE;
	cw_managed_pool_free(&r, stream);
	return CUDA_SUCCESS;
}

CUresult cwi_cuMemFreeAsync(int ptds, CUdeviceptr dptr, CUstream stream)
{
	struct cw_range r;
	struct cw_ctx *c;
	uint32_t id;
	CUresult res = cw_ctx_current(&c);
	if (res == 0)
		res = cw_stream_id(stream, ptds, &id);
	if (res != 0)
		return res;
	if (dptr == 0)
		return CUDA_SUCCESS;
	if (cw_range_of_graph(dptr))
		return cw_settle(cwop_MemFreeAsync(dptr, id), id);
	if (cw_range_find(dptr, &r) && r.slice && r.base == dptr)
		return free_managed(dptr, id);
	if (!cw_range_take(dptr, DEVICE_KINDS, &r))
		return CUDA_ERROR_INVALID_VALUE;
	return cwop_MemFreeAsync(dptr, id);
}
