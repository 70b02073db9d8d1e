/*
 * Managed memory, of one of two kinds. Usually it lies in the GPU's memory while the GPU works, and
 * comes here when the CPU touches it (resident.h). Where that cannot be had, or the device promises
 * that both may use it at once, it is pages of the application that the worker maps at the same
 * address and registers with its GPU, as pinned memory: both sides work on the same bytes at any
 * time, and the device reads and writes them over its link. A carrier that cannot map guest memory
 * has none of that kind (801).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "memory/managed.h"
#include "memory/managedpool.h"
#include "memory/pieces.h"
#include "memory/resident.h"
#include "memory/uffd.h"

static _Atomic uint64_t in_use; /* bytes of all managed allocations */

/* Room is what the device has free: this machine's memory is not to be filled by a program that
 * relies on the device's. Who would have it at the GPU, where it finds no room, has that of this
 * machine. */
static CUresult reserve(uint64_t size, int beyond)
{
	uint64_t free_ = 0, total = 0, before = atomic_fetch_add(&in_use, size);
	CUresult res = cwop_MemGetInfo(&free_, &total);
	if (res == 0 && (before > free_ || size > free_ - before) && !(beyond && cw_pieces_fit_here(size)))
		res = CUDA_ERROR_OUT_OF_MEMORY;
	if (res != 0)
		atomic_fetch_sub(&in_use, size);
	return res;
}

/* CAUSEWAY_MANAGED: "gpu" and "link" ask for one of the kinds. */
static int setting(const char *value)
{
	const char *e = getenv("CAUSEWAY_MANAGED");
	return e && !strcmp(e, value);
}

int cw_managed_moves(int concurrent)
{
	static _Atomic int said;
	if (setting("link") || (concurrent && !setting("gpu")))
		return 0;
	int err = cw_uffd_open();
	if (err != 0 && atomic_exchange(&said, 1) == 0)
		cw_log(CW_LOG_INFO,
		       "managed memory stays in this process, and kernels reach it over the link to the GPU: userfaultfd is not to be had "
		       "(%s). It is "
		       "with the sysctl vm.unprivileged_userfaultfd=1, or access to /dev/userfaultfd",
		       strerror(-err));
	return err == 0;
}

static CUresult at_gpu(struct cw_range *r)
{
	static _Atomic int said;
	struct cw_device *d = cw_device_get(r->device);
	if (!d || !cw_managed_moves(cw_device_attr(d, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)))
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult res = cw_resident_alloc(r);
	if (res == 0)
		res = cw_resident_attach(r->base, r->flags, NULL);
	else if (atomic_exchange(&said, 1) == 0)
		cw_log(CW_LOG_INFO, "managed memory of %llu bytes finds no room at the GPU (%d)%s", (unsigned long long)r->size, (int)res,
		       cw_beyond_far() ? ", nor on the GPU's machine (--host-memory)" : ": kernels reach it over the link");
	return res;
}

/* Memory of this process. at_gpu: why it is not to be had there. */
static CUresult obtain_here(struct cw_range *r, CUresult at_gpu)
{
	if (at_gpu == CUDA_ERROR_OUT_OF_MEMORY && cw_beyond_far())
		return at_gpu; /* it would have been there */
	if (!cw_can_map()) {
		cw_log(CW_LOG_INFO, "cuMemAllocManaged: this carrier cannot share the program's memory with the GPU");
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	CUresult room = reserve(r->size, at_gpu != CUDA_ERROR_NOT_SUPPORTED);
	if (room != 0)
		return room;
	if (r->size <= CW_SLAB_LARGEST) {
		CUresult res = cw_slab_alloc(r);
		if (res == 0)
			/* A region is new, a part of one was used before. */
			memset((void *)(uintptr_t)r->base, 0, r->size);
		else
			atomic_fetch_sub(&in_use, r->size);
		return res;
	}
	CUresult res = cw_region_add(CW_REGION_PINNED, r->size, 0, &r->region);
	if (res == 0) {
		r->base = (uintptr_t)r->region->va;
		r->dev = r->region->dev;
	} else {
		atomic_fetch_sub(&in_use, r->size);
	}
	return res;
}

CUresult cw_managed_obtain(struct cw_range *r)
{
	CUresult res = at_gpu(r);
	return res != 0 && cw_check_alive() == 0 ? obtain_here(r, res) : res;
}

void cw_managed_end(const struct cw_range *r)
{
	if (r->area)
		cw_resident_end(r);
	else if (r->slab)
		cw_slab_free(r);
	else
		cw_region_drop(r->region);
	cw_managed_free(r->managed);
	if (!r->area)
		atomic_fetch_sub(&in_use, r->size);
}

void cw_managed_release(const struct cw_range *r)
{
	if (r->area || r->slice)
		cw_gpu_wait(0); /* as the real call: the device may be using the memory */
	else if (r->slab)
		cwop_CtxSynchronize();
	if (r->slice)
		cw_managed_pool_free(r, 0);
	else
		cw_managed_end(r);
}

CUresult cwi_cuMemAllocManaged(CUdeviceptr *ptr, size_t size, unsigned int flags)
{
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);
	if (res != 0)
		return res;
	if (!ptr || size == 0 || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
		return CUDA_ERROR_INVALID_VALUE;
	if (size > SIZE_MAX / 2)
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct cw_range r = {
		.size = size, .kind = CW_RANGE_MANAGED, .ctx = c->o.id, .device = c->device->ordinal, .flags = flags, .sync_memops = 1};
	r.managed = cw_managed_new(size);
	res = r.managed ? cw_managed_obtain(&r) : CUDA_ERROR_OUT_OF_MEMORY;
	if (res != 0) {
		cw_managed_free(r.managed);
		return res;
	}
	if (cw_range_add(&r) != 0) {
		cw_managed_release(&r);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*ptr = r.base;
	return CUDA_SUCCESS;
}
