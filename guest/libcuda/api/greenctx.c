/*
 * Green contexts: parts of a device. The driver partitions; CUdevResource passes through as the
 * driver's own bytes.
 */
#include "api/api.h"
#include "api/context.h"

#include <stdlib.h>
#include <string.h>

/* CUdevResource (cuda.h): a type, words of the driver's own, and the count of multiprocessors. */

enum { GROUPS_MAX = 1024 };

struct cw_green {
	struct cw_obj o;
	struct cw_device *device;
	struct cw_lock lock; /* guards ctx */
	struct cw_ctx *ctx;  /* made of it by cuCtxFromGreenCtx, or NULL */
	uint64_t uid;
};
CW_OBJ_FITS(struct cw_green);

static struct cw_green *get(CUgreenCtx g) { return (struct cw_green *)cw_handle_get(CW_KIND_GREENCTX, g); }

/* --- resources -------------------------------------------------------------------------------- */

static CUresult resource(uint32_t scope, uint32_t dev, uint32_t ctx, uint32_t green, CUdevResource *out, CUdevResourceType type)
{
	struct CUdevResource_st r;
	size_t len = 0;
	CUresult res;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	res = cwop_DevResourceGet(scope, dev, ctx, green, (uint32_t)type, &r, sizeof r, &len);
	if (!res && len != sizeof r)
		res = CUDA_ERROR_UNKNOWN;
	if (!res)
		*out = r;
	return res;
}

CUresult cwi_cuDeviceGetDevResource(CUdevice dev, CUdevResource *out, CUdevResourceType type)
{
	return cw_device_get(dev) ? resource(0, (uint32_t)dev, 0, 0, out, type) : cw_no_device();
}

CUresult cwi_cuCtxGetDevResource(CUcontext ctx, CUdevResource *out, CUdevResourceType type)
{
	struct cw_ctx *c;
	CUresult res = cw_ctx_resolve(ctx, &c);

	return res ? res : resource(1, 0, c->o.id, 0, out, type);
}

CUresult cwi_cuGreenCtxGetDevResource(CUgreenCtx green, CUdevResource *out, CUdevResourceType type)
{
	struct cw_green *g = get(green);

	return g ? resource(2, 0, 0, g->o.id, out, type) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cwi_cuDevSmResourceSplitByCount(CUdevResource *result, unsigned int *groups, const CUdevResource *input, CUdevResource *remaining,
					 unsigned int flags, unsigned int least)
{
	uint32_t room, got = 0, copied;
	struct CUdevResource_st *list;
	size_t len = 0;
	CUresult res;

	if (!groups || !input || (result && *groups == 0))
		return CUDA_ERROR_INVALID_VALUE;
	room = !result ? 0 : *groups < GROUPS_MAX ? *groups : GROUPS_MAX;
	list = calloc(room + 1, sizeof *list);
	if (!list)
		return CUDA_ERROR_OUT_OF_MEMORY;
	res = cwop_DevSmResourceSplit(room, remaining != NULL, flags, least, input, sizeof *input, &got, list, (room + 1) * sizeof *list,
				      &len);
	copied = got < room ? got : room;
	if (!res && len != (copied + (remaining != NULL)) * sizeof *list)
		res = CUDA_ERROR_UNKNOWN;
	if (!res) {
		if (result)
			memcpy(result, list, copied * sizeof *list);
		if (remaining)
			*remaining = list[copied];
		*groups = got;
	}
	free(list);
	return res;
}

CUresult cwi_cuDevResourceGenerateDesc(CUdevResourceDesc *out, CUdevResource *list, unsigned int count)
{
	struct cw_obj *o;
	CUresult res;

	if (!out || !list || count == 0 || count > GROUPS_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	o = cw_handle_new(CW_KIND_RESDESC);
	if (!o)
		return CUDA_ERROR_OUT_OF_MEMORY;
	res = cwop_DevResourceGenerateDesc(o->id, count, list, count * sizeof *list);
	if (res)
		cw_handle_free(CW_KIND_RESDESC, o);
	else
		*out = (CUdevResourceDesc)o;
	return res;
}

/* --- green contexts --------------------------------------------------------------------------- */

CUresult cwi_cuGreenCtxCreate(CUgreenCtx *out, CUdevResourceDesc desc, CUdevice dev, unsigned int flags)
{
	struct cw_obj *d = cw_handle_get(CW_KIND_RESDESC, desc);
	struct cw_green *g;
	CUresult res;

	if (!out || !d)
		return CUDA_ERROR_INVALID_VALUE;
	if (!cw_device_get(dev))
		return cw_no_device();
	g = (struct cw_green *)cw_handle_alloc();
	if (!g)
		return CUDA_ERROR_OUT_OF_MEMORY;
	g->device = cw_device_get(dev);
	cw_handle_publish(&g->o, CW_KIND_GREENCTX);
	res = cwop_GreenCtxCreate(g->o.id, d->id, (uint32_t)dev, flags, &g->uid);
	if (res)
		cw_handle_free(CW_KIND_GREENCTX, &g->o);
	else
		*out = (CUgreenCtx)g;
	return res;
}

CUresult cwi_cuGreenCtxDestroy(CUgreenCtx green)
{
	struct cw_green *g = get(green);
	struct cw_ctx *c;
	uint32_t id;

	if (!g)
		return green ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
	id = g->o.id;
	c = g->ctx;
	if (!cw_handle_free(CW_KIND_GREENCTX, &g->o))
		return CUDA_ERROR_INVALID_VALUE;
	if (c)
		cw_ctx_green_gone(c);
	return cwop_GreenCtxDestroy(id);
}

CUresult cwi_cuGreenCtxGetId(CUgreenCtx green, unsigned long long *id)
{
	struct cw_green *g = green ? get(green) : NULL;

	if (!id)
		return CUDA_ERROR_INVALID_VALUE;
	if (!g)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	*id = g->uid;
	return CUDA_SUCCESS;
}

CUresult cwi_cuCtxFromGreenCtx(CUcontext *out, CUgreenCtx green)
{
	struct cw_green *g = get(green);
	CUresult res = CUDA_SUCCESS;

	if (!out || !g)
		return CUDA_ERROR_INVALID_VALUE;
	cw_lock_acquire(&g->lock);
	if (!g->ctx)
		res = cw_ctx_of_green(g->device, g->o.id, g->uid, &g->ctx);
	if (!res)
		*out = (CUcontext)g->ctx;
	cw_lock_release(&g->lock);
	return res;
}

CUresult cwi_cuGreenCtxStreamCreate(CUstream *out, CUgreenCtx green, unsigned int flags, int priority)
{
	struct cw_green *g = get(green);
	CUcontext handle;
	struct cw_stream *s;
	CUresult res;

	if (!out || !g || !(flags & CU_STREAM_NON_BLOCKING)) /* the flag is demanded */
		return CUDA_ERROR_INVALID_VALUE;
	res = cwi_cuCtxFromGreenCtx(&handle, green);
	if (res)
		return res;
	s = (struct cw_stream *)cw_handle_alloc();
	if (!s)
		return CUDA_ERROR_OUT_OF_MEMORY;
	s->o.ctx = g->ctx->o.id;
	s->o.flags = flags;
	s->priority = priority;
	s->uid = cw_stream_next_uid();
	s->green = g->o.id;
	cw_handle_publish(&s->o, CW_KIND_STREAM);
	res = cwop_GreenCtxStreamCreate(s->o.id, g->o.id, flags, priority);
	if (res)
		cw_handle_free(CW_KIND_STREAM, &s->o);
	else
		*out = (CUstream)s;
	return res;
}

CUresult cwi_cuStreamGetGreenCtx(CUstream stream, CUgreenCtx *out)
{
	struct cw_stream *s = (struct cw_stream *)cw_handle_get(CW_KIND_STREAM, stream);
	uint32_t id;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	if (!s) {
		*out = NULL;
		return cw_stream_id(stream, 0, &id);
	}
	*out = s->green ? (CUgreenCtx)cw_handle_by_id(CW_KIND_GREENCTX, s->green) : NULL;
	return CUDA_SUCCESS;
}

static CUresult event_of(CUgreenCtx green, CUevent event, uint32_t wait)
{
	struct cw_green *g = get(green);
	struct cw_event *e = (struct cw_event *)cw_handle_get(CW_KIND_EVENT, event);
	CUresult res;

	if (!g)
		return CUDA_ERROR_INVALID_VALUE;
	if (!e)
		return CUDA_ERROR_INVALID_HANDLE;
	res = cwop_GreenCtxEvent(g->o.id, e->o.id, wait);
	if (!res && wait)
		cw_work_add();
	else if (!res)
		atomic_store(&e->recorded, 1);
	return res;
}

CUresult cwi_cuGreenCtxRecordEvent(CUgreenCtx green, CUevent event) { return event_of(green, event, 0); }

CUresult cwi_cuGreenCtxWaitEvent(CUgreenCtx green, CUevent event) { return event_of(green, event, 1); }
