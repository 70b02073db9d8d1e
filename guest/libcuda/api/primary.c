/*
 * Primary contexts. A device's handle exists from its first mention (export table, retain) and
 * stays the same for the life of the process; whether the context is active follows the count of
 * retains, which is kept here. The worker sees the first retain and the last release.
 */
#include "api/api.h"
#include "api/context.h"

struct cw_ctx *cw_ctx_primary(struct cw_device *d)
{
	struct cw_ctx *c = atomic_load(&d->primary), *other = NULL;

	if (c)
		return c;
	c = (struct cw_ctx *)cw_handle_alloc();
	if (!c)
		return NULL;
	c->device = d;
	c->uid = cw_ctx_next_uid();
	c->version = 3020;
	c->is_primary = 1;
	c->o.ctx = c->o.id;
	atomic_store(&c->state, CW_CTX_GONE);
	cw_handle_publish(&c->o, CW_KIND_CTX);
	if (!atomic_compare_exchange_strong(&d->primary, &other, c)) {
		cw_handle_free(CW_KIND_CTX, &c->o);
		return other;
	}
	return c;
}

CUresult cwi_cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev)
{
	struct cw_device *d = cw_device_get(dev);
	CUresult res = CUDA_SUCCESS;
	struct cw_ctx *c;

	if (!ctx)
		return CUDA_ERROR_INVALID_VALUE;
	if (!d)
		return cw_no_device();
	cw_lock_acquire(&d->lock);
	c = cw_ctx_primary(d);
	if (!c) {
		res = CUDA_ERROR_OUT_OF_MEMORY;
	} else if (atomic_load(&d->retained) == 0) {
		uint32_t flags = 0;

		res = cwop_PrimaryCtxRetain(c->o.id, (uint32_t)d->ordinal, &flags);
		if (!res) {
			atomic_store(&c->flags, flags);
			d->primary_flags = flags;
			atomic_store(&c->state, CW_CTX_LIVE);
		}
	}
	if (!res) {
		atomic_fetch_add(&d->retained, 1);
		*ctx = (CUcontext)c;
	}
	cw_lock_release(&d->lock);
	return res;
}

/* What precedes the end of the active primary context, before the device is locked: destructors of
 * context-local storage are the application's code, and the context's work takes its time. */
static void ending(struct cw_ctx *c)
{
	cw_cls_clear(c);
	if (atomic_load(&c->state) == CW_CTX_LIVE)
		cw_ctx_finish(c);
}

/* Ends the active primary context. Called with the device locked and retained at 0. */
static void deactivate(struct cw_ctx *c)
{
	atomic_store(&c->state, CW_CTX_GONE);
	cw_ctx_objects_gone(c);
}

CUresult cwi_cuDevicePrimaryCtxRelease(CUdevice dev)
{
	struct cw_device *d = cw_device_get(dev);
	CUresult res = CUDA_SUCCESS;

	if (!d)
		return cw_no_device();
	if (atomic_load(&d->retained) == 1)
		ending(atomic_load(&d->primary));
	cw_lock_acquire(&d->lock);
	if (atomic_load(&d->retained) == 0) {
		res = CUDA_ERROR_INVALID_CONTEXT;
	} else if (atomic_fetch_sub(&d->retained, 1) == 1) {
		struct cw_ctx *c = atomic_load(&d->primary);

		res = cwop_PrimaryCtxRelease(c->o.id, (uint32_t)d->ordinal);
		deactivate(c);
	}
	cw_lock_release(&d->lock);
	return res;
}

CUresult cwi_cuDevicePrimaryCtxRelease_v2(CUdevice dev) { return cwi_cuDevicePrimaryCtxRelease(dev); }

CUresult cwi_cuDevicePrimaryCtxReset(CUdevice dev)
{
	struct cw_device *d = cw_device_get(dev);
	CUresult res = CUDA_SUCCESS;
	struct cw_ctx *c;

	if (!d)
		return cw_no_device();
	c = atomic_load(&d->primary);
	if (c && atomic_load(&d->retained))
		ending(c);
	cw_lock_acquire(&d->lock);
	if (atomic_exchange(&d->retained, 0)) {
		c = atomic_load(&d->primary);
		res = cwop_PrimaryCtxReset(c->o.id, (uint32_t)d->ordinal);
		deactivate(c);
	}
	cw_lock_release(&d->lock);
	return res;
}

CUresult cwi_cuDevicePrimaryCtxReset_v2(CUdevice dev) { return cwi_cuDevicePrimaryCtxReset(dev); }

CUresult cwi_cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
	struct cw_device *d = cw_device_get(dev);

	if (!d)
		return cw_no_device();
	if (!flags || !active)
		return CUDA_ERROR_INVALID_VALUE;
	cw_lock_acquire(&d->lock);
	*flags = d->primary_flags;
	*active = atomic_load(&d->retained) != 0;
	cw_lock_release(&d->lock);
	return CUDA_SUCCESS;
}

CUresult cwi_cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags)
{
	struct cw_device *d = cw_device_get(dev);
	struct cw_ctx *c;
	CUresult res;

	if (!d)
		return cw_no_device();
	if (!cw_ctx_flags_valid(flags))
		return CUDA_ERROR_INVALID_VALUE;
	cw_lock_acquire(&d->lock);
	c = cw_ctx_primary(d);
	res = c ? cwop_PrimaryCtxSetFlags(c->o.id, (uint32_t)d->ordinal, flags) : CUDA_ERROR_OUT_OF_MEMORY;
	if (!res) {
		d->primary_flags = flags;
		atomic_store(&c->flags, flags);
	}
	cw_lock_release(&d->lock);
	return res;
}

CUresult cwi_cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags) { return cwi_cuDevicePrimaryCtxSetFlags(dev, flags); }
