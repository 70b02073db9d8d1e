/*
 * Managed variables (__managed__). The worker's driver would put them where the program cannot
 * reach them, so they move when their code is loaded, before anything is looked up in it, to where
 * program and kernels reach them at one address (LibraryManage, ModuleManage): to the GPU's memory,
 * from where they come as other managed memory does, else into a pinned region. Where neither is
 * possible they stay, kernels use them, and their addresses are refused.
 */
#include "api/api.h"
#include "memory/managed.h"
#include "memory/resident.h"

#include <stdlib.h>
#include <string.h>

enum { LEGACY = 1 /* CU_STREAM_LEGACY */ };

/* What the variables of a library or module lie in: memory at the GPU, or a region. */
struct cw_home {
	struct cw_range at_gpu; /* with area: it is that */
	struct cw_region *region;
	uint64_t base, size, dev;
};

static CUresult manage(uint16_t op, uint32_t id, uint32_t region, uint64_t at, uint64_t size)
{
	return op == CW_OP_LIBRARY_MANAGE ? cwop_LibraryManage(id, region, at, &size) : cwop_ModuleManage(id, region, at, &size);
}

/* Its own area, not a block beside the program's, so that nothing else is where its code says. */
static CUresult to_gpu(struct cw_home *h, uint16_t op, uint32_t id, uint64_t size)
{
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);

	if (res)
		return res;
	h->at_gpu = (struct cw_range){
		.size = size > CW_SHARED_LARGEST ? size : CW_SHARED_LARGEST + 1, .ctx = c->o.id, .device = c->device->ordinal};
	if (!cw_managed_moves(cw_device_attr(c->device, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)))
		return CUDA_ERROR_NOT_SUPPORTED;
	res = cw_resident_alloc(&h->at_gpu);
	if (res)
		return res;
	res = cw_resident_settle(h->at_gpu.area);
	if (!res)
		res = manage(op, id, 0, h->at_gpu.base, size);
	if (!res)
		res = cw_own_wait(LEGACY); /* the first values are there */
	h->base = h->dev = h->at_gpu.base;
	if (res) {
		cw_resident_free(&h->at_gpu);
		h->at_gpu.area = NULL;
	}
	return res;
}

static CUresult to_region(struct cw_home *h, uint16_t op, uint32_t id, uint64_t size)
{
	CUresult res = cw_can_map() ? cw_region_add(CW_REGION_PINNED, size, 0, &h->region) : CUDA_ERROR_NOT_SUPPORTED;

	if (res)
		return res;
	h->base = (uintptr_t)h->region->va;
	h->dev = h->region->dev;
	res = manage(op, id, h->region->id, 0, size);
	if (res) {
		cw_region_drop(h->region);
		h->region = NULL;
	}
	return res;
}

/* A context is needed: without, device 0's primary context, which stays retained, as the memory
 * stays. */
static CUresult find_home(struct cw_home *h, uint16_t op, uint32_t id, uint64_t size)
{
	struct cw_ctx *c;
	CUcontext primary;
	CUresult res;
	int pushed = 0;

	if (cw_ctx_current(&c) != CUDA_SUCCESS) {
		res = cwi_cuDevicePrimaryCtxRetain(&primary, 0);
		if (!res)
			res = cwi_cuCtxPushCurrent(primary);
		if (res)
			return res;
		pushed = 1;
	}
	res = to_gpu(h, op, id, size);
	if (res)
		res = to_region(h, op, id, size);
	if (pushed)
		cwi_cuCtxPopCurrent(&primary);
	return res;
}

struct cw_home *cw_managed_move(uint16_t op, uint32_t id, uint64_t size)
{
	struct cw_home *h;
	CUresult res;

	if (size == 0)
		return NULL;
	h = calloc(1, sizeof *h);
	res = h ? find_home(h, op, id, size) : CUDA_ERROR_OUT_OF_MEMORY;
	if (!res) {
		h->size = size;
		return h;
	}
	free(h);
	cw_log(CW_LOG_INFO, "__managed__ variables of loaded code stay out of the program's reach: %d", (int)res);
	return NULL;
}

static int inside(const struct cw_range *r, void *home)
{
	const struct cw_home *h = home;

	if (r->kind != CW_RANGE_MANAGED || !r->variable || r->base - h->base >= h->size)
		return 0;
	cw_managed_free(r->managed);
	return 1;
}

void cw_managed_drop(struct cw_home *h)
{
	if (!h)
		return;
	cw_range_sweep(inside, h);
	if (h->at_gpu.area)
		cw_resident_free(&h->at_gpu);
	else
		cw_region_drop(h->region);
	free(h);
}

/* A variable is an allocation of its own to who asks about its address; one that nobody looked up
 * is not known. */
void cw_managed_note(const struct cw_home *h, uint64_t ptr, uint64_t size)
{
	struct cw_range r = {.base = ptr,
			     .size = size,
			     .kind = CW_RANGE_MANAGED,
			     .ctx = cw_current_ctx_id(),
			     .flags = CU_MEM_ATTACH_GLOBAL,
			     .variable = 1,
			     .sync_memops = 1};
	struct cw_ctx *c;

	if (!h || ptr - h->base >= h->size) {
		cw_memory_note_global(ptr, size);
		return;
	}
	if (cw_range_find(ptr, &r))
		return;
	if (cw_ctx_current(&c) == CUDA_SUCCESS)
		r.device = c->device->ordinal;
	r.dev = h->dev + (ptr - h->base);
	r.area = h->at_gpu.area;
	r.managed = cw_managed_new(size);
	/* known to nobody: hints about it are refused, kernels and copies find it all the same */
	if (!r.managed || cw_range_add(&r) != 0)
		cw_managed_free(r.managed);
}

CUresult cw_managed_refused(const char *name, CUresult res)
{
	if (res == CUDA_ERROR_NOT_SUPPORTED)
		cw_log(CW_LOG_ERROR,
		       "__managed__ variable %s cannot be shared with the GPU here (it needs mapped memory, and code "
		       "whose addresses can be moved)",
		       name);
	return res;
}

CUresult cwi_cuLibraryGetManaged(CUdeviceptr *ptr, size_t *bytes, CUlibrary library, const char *name)
{
	struct cw_library *l = (struct cw_library *)cw_handle_get(CW_KIND_LIBRARY, library);
	uint64_t p = 0, size = 0;
	CUresult res;

	if (!name || (!ptr && !bytes))
		return CUDA_ERROR_INVALID_VALUE;
	if (!l)
		return CUDA_ERROR_INVALID_HANDLE;
	res = cwop_LibraryGetGlobal(l->o.id, 1, name, strlen(name), &p, &size);
	/* Runtimes ask before there is a context, which a variable that moved does not need. */
	if (res == CUDA_ERROR_INVALID_CONTEXT && l->unmoved)
		res = CUDA_ERROR_NOT_SUPPORTED;
	res = cw_managed_refused(name, res);
	if (!res)
		cw_managed_note(l->managed, p, size);
	if (!res && ptr)
		*ptr = p;
	if (!res && bytes)
		*bytes = size;
	return res;
}
