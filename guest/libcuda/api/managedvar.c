/*
 * Managed variables (__managed__). The worker's driver would put them where the program cannot reach them, so they move before the
 * first is asked for: into a pinned region, which program and kernels reach at one address (LibraryManage). The runtime asks when
 * a program starts, before it has a context and before it looks up any kernel.
 */
#include "api/api.h"
#include "memory/managed.h"

#include <string.h>

static struct cw_lock lock;

/* A region of this size, known as managed memory. A context is needed to make one: without, device 0's primary context, which
 * stays retained, as the region stays. */
static CUresult region_for(uint64_t size, struct cw_region **out)
{
	struct cw_ctx *c;
	CUcontext primary;
	CUresult res;
	int pushed = 0;

	if (!cw_can_map())
		return CUDA_ERROR_NOT_SUPPORTED;
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
	if (!res) {
		struct cw_range r = {.base = (uintptr_t)(*out)->va, .size = size, .kind = CW_RANGE_MANAGED, .ctx = c->o.id,
				     .device = c->device->ordinal, .flags = CU_MEM_ATTACH_GLOBAL, .sync_memops = 1,
				     .dev = (*out)->dev, .region = *out, .managed = cw_managed_new(size)};

		/* known to nobody: hints about it are refused, kernels and copies find it all the same */
		if (!r.managed || cw_range_add(&r) != 0)
			cw_managed_free(r.managed);
	}
	if (pushed)
		cwi_cuCtxPopCurrent(&primary);
	return res;
}

static int has_functions(const struct cw_library *l)
{
	int some = 0;

	cw_lock_acquire(&cw_module_lock);
	some = l->kernels != NULL;
	for (const struct cw_module *m = l->modules; m; m = m->next)
		some |= m->funcs != NULL;
	cw_lock_release(&cw_module_lock);
	return some;
}

static CUresult move(struct cw_library *l)
{
	struct cw_region *r;
	uint64_t size = 0;
	CUresult res = cwop_LibraryManage(l->o.id, 0, &size);

	if (res || size == 0)
		return res;
	if (has_functions(l)) /* they know the variables where they were */
		return CUDA_ERROR_NOT_SUPPORTED;
	res = region_for(size, &r);
	if (res)
		return res;
	res = cwop_LibraryManage(l->o.id, r->id, &size);
	if (res) {
		struct cw_range gone;

		if (cw_range_take((uintptr_t)r->va, 1u << CW_RANGE_MANAGED, &gone))
			cw_managed_free(gone.managed);
		cw_region_drop(r);
	}
	return res;
}

/*
 * To move is to load anew: what was looked up before lies elsewhere afterwards. Runtimes ask for other variables before the managed
 * ones, and for every kernel if they were told to load all at once; so variables move before the first of those questions.
 */
void cw_managed_early(struct cw_library *l)
{
	uint64_t size = 0;

	if (l->managed_asked)
		return;
	cw_lock_acquire(&lock);
	if (!l->managed_asked && l->managed == CW_MANAGED_HOME && !cwop_LibraryManage(l->o.id, 0, &size) && size && !move(l))
		l->managed = CW_MANAGED_MOVED;
	l->managed_asked = 1;
	cw_lock_release(&lock);
}

CUresult cw_managed_variable(struct cw_library *l, const char *name, uint64_t *ptr, uint64_t *size)
{
	CUresult res = CUDA_SUCCESS;

	cw_lock_acquire(&lock);
	if (l->managed == CW_MANAGED_HOME) {
		res = move(l);
		l->managed = res ? CW_MANAGED_REFUSED : CW_MANAGED_MOVED;
	} else if (l->managed == CW_MANAGED_REFUSED) {
		res = CUDA_ERROR_NOT_SUPPORTED;
	}
	cw_lock_release(&lock);
	if (!res)
		return cwop_LibraryGetGlobal(l->o.id, 1, name, strlen(name), ptr, size);
	cw_log(CW_LOG_ERROR, "__managed__ variable %s cannot be shared with the GPU here (it needs mapped memory, and PTX in the program)",
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
	res = cw_managed_variable(l, name, &p, &size);
	if (!res && ptr)
		*ptr = p;
	if (!res && bytes)
		*bytes = size;
	return res;
}
