/*
 * Managed variables (__managed__). The worker's driver would put them where the program cannot reach them, so they move when their
 * code is loaded, before anything is looked up in it: into a pinned region, which program and kernels reach at one address
 * (LibraryManage, ModuleManage). Where that is not possible they stay, kernels use them, and their addresses are refused.
 */
#include "api/api.h"
#include "memory/managed.h"

#include <string.h>

/* A region of this size. A context is needed to make one: without, device 0's primary context, which
 * stays retained, as the region stays. */
static CUresult region_for(uint64_t size, struct cw_region **out)
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
		cw_ctx_current(&c);
	}
	res = cw_region_add(CW_REGION_PINNED, size, 0, out);
	if (pushed)
		cwi_cuCtxPopCurrent(&primary);
	return res;
}

static int inside(const struct cw_range *r, void *region)
{
	const struct cw_region *of = region;

	if (r->kind != CW_RANGE_MANAGED || r->base - (uintptr_t)of->va >= of->size)
		return 0;
	cw_managed_free(r->managed);
	return 1;
}

void cw_managed_drop(struct cw_region *r)
{
	if (!r)
		return;
	cw_range_sweep(inside, r);
	cw_region_drop(r);
}

/* A variable is an allocation of its own to who asks about its address; one that nobody looked up is not known. */
void cw_managed_note(const struct cw_region *region, uint64_t ptr, uint64_t size)
{
	struct cw_range r = {.base = ptr,
			     .size = size,
			     .kind = CW_RANGE_MANAGED,
			     .ctx = cw_current_ctx_id(),
			     .flags = CU_MEM_ATTACH_GLOBAL,
			     .sync_memops = 1};
	struct cw_ctx *c;

	if (!region || ptr - (uintptr_t)region->va >= region->size) {
		cw_memory_note_global(ptr, size);
		return;
	}
	if (cw_range_find(ptr, &r))
		return;
	if (cw_ctx_current(&c) == CUDA_SUCCESS)
		r.device = c->device->ordinal;
	r.dev = region->dev + (ptr - (uintptr_t)region->va);
	r.managed = cw_managed_new(size);
	/* known to nobody: hints about it are refused, kernels and copies find it all the same */
	if (!r.managed || cw_range_add(&r) != 0)
		cw_managed_free(r.managed);
}

struct cw_region *cw_managed_move(uint16_t op, uint32_t id, uint64_t size)
{
	struct cw_region *r = NULL;
	CUresult res = CUDA_ERROR_NOT_SUPPORTED;

	if (size == 0)
		return NULL;
	if (cw_can_map())
		res = region_for(size, &r);
	if (!res)
		res = op == CW_OP_LIBRARY_MANAGE ? cwop_LibraryManage(id, r->id, &size) : cwop_ModuleManage(id, r->id, &size);
	if (!res)
		return r;
	cw_managed_drop(r);
	cw_log(CW_LOG_INFO, "__managed__ variables of loaded code stay out of the program's reach: %d", (int)res);
	return NULL;
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
