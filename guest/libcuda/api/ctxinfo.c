/* What is asked about contexts, and their settings. */
#include "api/api.h"
#include "memory/memory.h"

CUresult cwi_cuCtxGetDevice(CUdevice *dev) { return cwi_cuCtxGetDevice_v2(dev, NULL); }

CUresult cwi_cuCtxGetDevice_v2(CUdevice *dev, CUcontext ctx)
{
	CUcontext handle = ctx;
	struct cw_ctx *c;

	if (!dev)
		return CUDA_ERROR_INVALID_VALUE;
	if (!handle)
		cwi_cuCtxGetCurrent(&handle);
	/* a destroyed context still knows its device */
	c = (struct cw_ctx *)cw_handle_get(CW_KIND_CTX, handle);
	if (!c)
		return CUDA_ERROR_INVALID_CONTEXT;
	*dev = c->device->ordinal;
	return CUDA_SUCCESS;
}

CUresult cwi_cuCtxGetFlags(unsigned int *flags)
{
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);

	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (!res)
		/* As driver 580 says. */
		*flags = atomic_load(&c->flags) | (c->is_primary ? CU_CTX_MAP_HOST : 0);
	return res;
}

/* The scheduling flags of a context can change while it lives; only a primary context's can be
 * forwarded. */
CUresult cwi_cuCtxSetFlags(unsigned int flags)
{
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);

	if (res)
		return res;
	return c->is_primary ? cwi_cuDevicePrimaryCtxSetFlags(c->device->ordinal, flags) : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cwi_cuCtxGetId(CUcontext ctx, unsigned long long *id)
{
	struct cw_ctx *c;
	CUresult res = cw_ctx_resolve(ctx, &c);

	if (!id)
		return CUDA_ERROR_INVALID_VALUE;
	if (!res)
		*id = c->uid;
	return res;
}

CUresult cwi_cuCtxGetApiVersion(CUcontext ctx, unsigned int *version)
{
	struct cw_ctx *c;
	CUresult res = cw_ctx_resolve(ctx, &c);

	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	if (!res)
		*version = c->version;
	return res;
}

/* The host is asked once for each device: the driver tells the range only of a context. */
CUresult cw_ctx_priorities(struct cw_ctx *c, int *least, int *greatest)
{
	struct cw_device *d = c->device;

	if (!atomic_load_explicit(&d->prio_known, memory_order_acquire)) {
		int32_t l, g;
		CUresult res = cwop_CtxGetStreamPriorityRange(&l, &g);

		if (res)
			return res;
		cw_lock_acquire(&d->lock);
		d->prio_least = l;
		d->prio_greatest = g;
		atomic_store_explicit(&d->prio_known, 1, memory_order_release);
		cw_lock_release(&d->lock);
	}
	*least = d->prio_least;
	*greatest = d->prio_greatest;
	return CUDA_SUCCESS;
}

CUresult cwi_cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	int l, g;
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);

	if (res || (res = cw_ctx_priorities(c, &l, &g)))
		return res;
	if (least)
		*least = l;
	if (greatest)
		*greatest = g;
	return CUDA_SUCCESS;
}

/* --- waiting and settings --------------------------------------------------------------------- */

CUresult cw_ctx_finish(struct cw_ctx *c)
{
	uint32_t current = cw_current_ctx_id();
	uint64_t mark = cw_managed_pools_mark();
	CUresult res;

	cw_set_current_ctx_id(c->o.id);
	res = cw_managed_pools_waited(cw_ctx_wait(), 0, mark);
	cw_set_current_ctx_id(current);
	return res;
}

CUresult cwi_cuCtxSynchronize(void)
{
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);

	return res ? res : cw_ctx_finish(c);
}

CUresult cwi_cuCtxSynchronize_v2(CUcontext ctx)
{
	struct cw_ctx *c;
	CUresult res = cw_ctx_resolve(ctx, &c);

	return res ? res : cw_ctx_finish(c);
}

CUresult cwi_cuCtxGetCacheConfig(CUfunc_cache *config)
{
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);

	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	if (!res)
		*config = (CUfunc_cache)atomic_load(&c->cache_config);
	return res;
}

CUresult cwi_cuCtxSetCacheConfig(CUfunc_cache config)
{
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);

	if ((unsigned)config > 3)
		return CUDA_ERROR_INVALID_VALUE;
	if (!res && !(res = cwop_CtxSetCacheConfig((uint32_t)config)))
		atomic_store(&c->cache_config, (uint32_t)config);
	return res;
}

/* Bank width has been fixed since Maxwell: a real driver accepts the request and goes on to report
 * four bytes. */
CUresult cwi_cuCtxGetSharedMemConfig(CUsharedconfig *config)
{
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);

	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	if (!res)
		*config = (CUsharedconfig)1; /* four-byte banks */
	return res;
}

CUresult cwi_cuCtxSetSharedMemConfig(CUsharedconfig config)
{
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);

	return res ? res : (unsigned)config > 2 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cwi_cuCtxResetPersistingL2Cache(void)
{
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);

	return res ? res : cwop_CtxResetPersistingL2Cache();
}

CUresult cwi_cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
	struct cw_ctx *c, *p;
	CUresult res = cw_ctx_current(&c);

	if (res)
		return res;
	if (flags || !peer)
		return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
	res = cw_ctx_resolve(peer, &p);
	return res ? res : p == c ? CUDA_ERROR_INVALID_CONTEXT : cwop_CtxEnablePeerAccess(p->o.id, flags);
}

CUresult cwi_cuCtxDisablePeerAccess(CUcontext peer)
{
	struct cw_ctx *c, *p;
	CUresult res = cw_ctx_current(&c);

	if (res)
		return res;
	if (!peer)
		return CUDA_ERROR_INVALID_CONTEXT;
	res = cw_ctx_resolve(peer, &p);
	return res ? res : cwop_CtxDisablePeerAccess(p->o.id);
}
