/*
 * Managed memory: pages of the application that the worker maps at the same address and registers with its GPU, as pinned memory.
 * Both sides work on the same bytes at any time; nothing migrates, so the device reads and writes it over its link. A carrier that
 * cannot map guest memory has none (801).
 */
#include <string.h>

#include "memory/managed.h"

static _Atomic uint64_t in_use; /* bytes of all managed allocations */

/* Room is what the device has free, as where managed memory cannot be more than that: the host's memory is not to be filled by
 * a program that relies on the device's. */
static CUresult reserve(uint64_t size)
{
	uint64_t free_ = 0, total = 0, before = atomic_fetch_add(&in_use, size);
	CUresult res = cwop_MemGetInfo(&free_, &total);
	if (res == 0 && (before > free_ || size > free_ - before))
		res = CUDA_ERROR_OUT_OF_MEMORY;
	if (res != 0)
		atomic_fetch_sub(&in_use, size);
	return res;
}

static CUresult obtain(struct cw_range *r)
{
	if (r->size <= CW_SLAB_LARGEST) {
		CUresult res = cw_slab_alloc(r);
		if (res == 0)
			memset((void *)(uintptr_t)r->base, 0, r->size); /* a region is new, a part of one was used before */
		return res;
	}
	CUresult res = cw_region_add(CW_REGION_PINNED, r->size, 0, &r->region);
	if (res == 0) {
		r->base = (uintptr_t)r->region->va;
		r->dev = r->region->dev;
	}
	return res;
}

void cw_managed_release(const struct cw_range *r)
{
	if (r->slab) {
		cwop_CtxSynchronize(); /* as the real call: the device may be using the memory */
		cw_slab_free(r);
	} else {
		cw_region_drop(r->region);
	}
	cw_managed_free(r->managed);
	atomic_fetch_sub(&in_use, r->size);
}

CUresult cwi_cuMemAllocManaged(CUdeviceptr *ptr, size_t size, unsigned int flags)
{
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);
	if (res != 0)
		return res;
	if (!ptr || size == 0 || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
		return CUDA_ERROR_INVALID_VALUE;
	if (!cw_can_map()) {
		cw_log(CW_LOG_INFO, "cuMemAllocManaged: this carrier cannot share the program's memory with the GPU");
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	if (size > SIZE_MAX / 2)
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct cw_range r = {
		.size = size, .kind = CW_RANGE_MANAGED, .ctx = c->o.id, .device = c->device->ordinal, .flags = flags, .sync_memops = 1};
	res = reserve(size);
	if (res != 0)
		return res;
	r.managed = cw_managed_new(size);
	res = r.managed ? obtain(&r) : CUDA_ERROR_OUT_OF_MEMORY;
	if (res != 0) {
		cw_managed_free(r.managed);
		atomic_fetch_sub(&in_use, size);
		return res;
	}
	if (cw_range_add(&r) != 0) {
		cw_managed_release(&r);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*ptr = r.base;
	return CUDA_SUCCESS;
}
