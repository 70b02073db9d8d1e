/* Streams: creation, waiting, and what is asked about them. */
#include "api/api.h"
#include "api/capture.h"
#include "api/context.h"
#include "api/newstream.h"
#include "memory/resident.h"
#include "session/ahead.h"

enum { LEGACY = 1, PER_THREAD = 2 }; /* wire ids of the default streams */

static _Atomic uint64_t next_uid = 1;

uint64_t cw_stream_next_uid(void) { return atomic_fetch_add(&next_uid, 1); }

/* A stream argument: the wire id, and the object unless it is a default stream. Default streams
 * need a current context. */
static CUresult resolve(CUstream stream, int ptds, uint32_t *id, struct cw_stream **s, struct cw_ctx **c)
{
	CUresult res = cw_stream_id(stream, ptds, id);

	*s = NULL;
	if (res)
		return res;
	if (*id <= PER_THREAD)
		return cw_ctx_current(c);
	*s = (struct cw_stream *)stream;
	*c = (struct cw_ctx *)cw_handle_by_id(CW_KIND_CTX, (*s)->o.ctx);
	return *c ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult cw_stream_here(CUstream stream, int ptds, uint32_t ctx, uint32_t *id)
{
	CUresult res = cw_stream_id(stream, ptds, id);
	struct cw_ctx *c;

	if (res)
		return res;
	if (*id > PER_THREAD)
		return ((struct cw_stream *)stream)->o.ctx == ctx || ((struct cw_stream *)stream)->green ? CUDA_SUCCESS
													 : CUDA_ERROR_INVALID_HANDLE;
	res = cw_ctx_current(&c);
	if (!res && c->o.id != ctx)
		res = CUDA_ERROR_INVALID_HANDLE;
	return res;
}

CUresult cw_settle(CUresult res, uint32_t stream)
{
	if (cw_unlikely(cw_capture_any()))
		return cw_capture_settle(res);
	if (cw_unlikely(cw_host_is_ahead()))
		cw_host_behind(stream);
	return res || cw_likely(!cw_settings.blocking) ? res : cwop_StreamSynchronize(stream);
}

CUresult cwi_cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
	struct cw_stream *s;
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);

	if (res)
		return res;
	if (!stream || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING))
		return CUDA_ERROR_INVALID_VALUE;
	/* a priority outside of the device's range is clamped; smaller numbers are more urgent */
	if (priority != 0) {
		int least, greatest;

		res = cw_ctx_priorities(c, &least, &greatest);
		if (res)
			return res;
		priority = priority > least ? least : priority < greatest ? greatest : priority;
	}
	res = cw_stream_make(c->o.id, flags, priority, &s);
	if (!res)
		*stream = (CUstream)s;
	return res;
}

CUresult cwi_cuStreamCreate(CUstream *stream, unsigned int flags) { return cwi_cuStreamCreateWithPriority(stream, flags, 0); }

CUresult cwi_cuStreamDestroy(CUstream stream)
{
	struct cw_obj *o = cw_handle_get(CW_KIND_STREAM, stream);
	uint32_t id = o ? o->id : 0;

	if (o) {
		cw_managed_pools_left(id);
		cw_resident_left((struct cw_stream *)o);
	}
	if (!o || !cw_handle_free(CW_KIND_STREAM, o))
		return CUDA_ERROR_INVALID_HANDLE;
	return cwop_StreamDestroy(id);
}

CUresult cwi_cuStreamDestroy_v2(CUstream stream) { return cwi_cuStreamDestroy(stream); }

CUresult cwi_cuStreamSynchronize(int ptds, CUstream stream)
{
	struct cw_stream *s;
	struct cw_ctx *c;
	uint32_t id;
	CUresult res = resolve(stream, ptds, &id, &s, &c);

	if (res || (cw_has_come(id) && cw_likely(atomic_load_explicit(&cw_managed_pools, memory_order_relaxed) == 0)))
		return res;
	uint64_t mark = cw_managed_pools_mark();
	return cw_managed_pools_waited(cw_stream_wait(id), id, mark);
}

CUresult cwi_cuStreamQuery(int ptds, CUstream stream)
{
	struct cw_stream *s;
	struct cw_ctx *c;
	uint32_t id;
	CUresult res = resolve(stream, ptds, &id, &s, &c);

	return res ? res : cw_heard(cwop_StreamQuery(id));
}

CUresult cwi_cuStreamWaitEvent(int ptds, CUstream stream, CUevent event, unsigned int flags)
{
	struct cw_event *e = (struct cw_event *)cw_handle_get(CW_KIND_EVENT, event);
	struct cw_stream *s;
	struct cw_ctx *c;
	uint32_t id;
	CUresult res = resolve(stream, ptds, &id, &s, &c);

	if (res)
		return res;
	if (!e)
		return CUDA_ERROR_INVALID_HANDLE;
	/* the one flag, external, belongs to stream capture */
	if (flags && !cw_capture_any())
		return CUDA_ERROR_INVALID_VALUE;
	/* never recorded: nothing to wait for */
	if (!atomic_load(&e->recorded) && !flags)
		return CUDA_SUCCESS;
	res = cwop_StreamWaitEvent(id, e->o.id, flags);
	return cw_unlikely(cw_capture_any()) ? cw_capture_settle(res) : res;
}

/* --- questions -------------------------------------------------------------------------------- */

CUresult cwi_cuStreamGetPriority(int ptds, CUstream stream, int *priority)
{
	struct cw_stream *s;
	struct cw_ctx *c;
	uint32_t id;
	CUresult res = resolve(stream, ptds, &id, &s, &c);

	if (!priority)
		return CUDA_ERROR_INVALID_VALUE;
	if (!res)
		*priority = s ? s->priority : 0;
	return res;
}

CUresult cwi_cuStreamGetFlags(int ptds, CUstream stream, unsigned int *flags)
{
	struct cw_stream *s;
	struct cw_ctx *c;
	uint32_t id;
	CUresult res = resolve(stream, ptds, &id, &s, &c);

	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (!res)
		*flags = s ? s->o.flags : 0;
	return res;
}

/* Unique in the process: a created stream's own number, or a default stream's context (and
 * thread). */
CUresult cwi_cuStreamGetId(int ptds, CUstream stream, unsigned long long *id)
{
	struct cw_stream *s;
	struct cw_ctx *c;
	uint32_t wire;
	CUresult res = resolve(stream, ptds, &wire, &s, &c);

	if (!id)
		return CUDA_ERROR_INVALID_VALUE;
	if (res)
		return res;
	if (s)
		*id = s->uid;
	else
		*id = c->uid << 32 | (wire == LEGACY ? 0 : 0x80000000u | cw_thread_ordinal());
	return CUDA_SUCCESS;
}

CUresult cwi_cuStreamGetCtx(int ptds, CUstream stream, CUcontext *ctx)
{
	struct cw_stream *s;
	struct cw_ctx *c;
	uint32_t id;
	CUresult res = resolve(stream, ptds, &id, &s, &c);

	if (!ctx)
		return CUDA_ERROR_INVALID_VALUE;
	if (!res)
		*ctx = (CUcontext)c;
	return res;
}

/* As v1, and the green context that the stream belongs to. */
CUresult cwi_cuStreamGetCtx_v2(int ptds, CUstream stream, CUcontext *ctx, CUgreenCtx *green)
{
	struct cw_stream *s;
	struct cw_ctx *c;
	uint32_t id;
	CUresult res = resolve(stream, ptds, &id, &s, &c);

	if (!ctx)
		return CUDA_ERROR_INVALID_VALUE;
	if (res)
		return res;
	/* of a stream of a green context: the primary context, beside the green one */
	*ctx = (CUcontext)(s && s->green ? cw_ctx_primary(c->device) : c);
	if (green)
		*green = s && s->green ? (CUgreenCtx)cw_handle_by_id(CW_KIND_GREENCTX, s->green) : NULL;
	return CUDA_SUCCESS;
}

CUresult cwi_cuStreamGetDevice(int ptds, CUstream stream, CUdevice *dev)
{
	struct cw_stream *s;
	struct cw_ctx *c;
	uint32_t id;
	CUresult res = resolve(stream, ptds, &id, &s, &c);

	if (!dev)
		return CUDA_ERROR_INVALID_VALUE;
	if (!res)
		*dev = c->device->ordinal;
	return res;
}
