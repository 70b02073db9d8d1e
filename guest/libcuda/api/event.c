/* Events. */
#include "api/api.h"
#include "api/capture.h"
#include "memory/memory.h"

enum { FLAG_MASK = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS };

static struct cw_event *get(CUevent event) { return (struct cw_event *)cw_handle_get(CW_KIND_EVENT, event); }

CUresult cwi_cuEventCreate(CUevent *event, unsigned int flags)
{
	struct cw_event *e;
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);

	if (res)
		return res;
	if (!event || (flags & ~(unsigned)FLAG_MASK) || ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)))
		return CUDA_ERROR_INVALID_VALUE;
	e = (struct cw_event *)cw_handle_alloc();
	if (!e)
		return CUDA_ERROR_OUT_OF_MEMORY;
	e->o.ctx = c->o.id;
	e->o.flags = flags;
	e->shared = (flags & CU_EVENT_INTERPROCESS) != 0;
	if (e->shared) /* another process may record it */
		atomic_store_explicit(&e->recorded, 1, memory_order_relaxed);
	cw_handle_publish(&e->o, CW_KIND_EVENT);
	res = cwop_EventCreate(e->o.id, flags);
	if (res)
		cw_handle_free(CW_KIND_EVENT, &e->o);
	else
		*event = (CUevent)e;
	return res;
}

CUresult cwi_cuEventDestroy(CUevent event)
{
	struct cw_event *e = get(event);
	uint32_t id = e ? e->o.id : 0;

	if (!e || !cw_handle_free(CW_KIND_EVENT, &e->o))
		return CUDA_ERROR_INVALID_HANDLE;
	return cwop_EventDestroy(id);
}

CUresult cwi_cuEventDestroy_v2(CUevent event) { return cwi_cuEventDestroy(event); }

static CUresult record(int ptds, CUevent event, CUstream stream, unsigned flags)
{
	struct cw_event *e = get(event);
	uint32_t id;
	CUresult res;

	/* The one flag, external, makes a node of a captured graph; outside of a capture it is an
	 * error. */
	if (flags && !cw_capture_any())
		return CUDA_ERROR_INVALID_VALUE;
	if (!e)
		return CUDA_ERROR_INVALID_HANDLE;
	res = cw_stream_here(stream, ptds, e->o.ctx, &id);
	if (res)
		return res;
	atomic_store_explicit(&e->recorded, 1, memory_order_relaxed);
	res = cwop_EventRecord(e->o.id, id, flags);
	/* Who is told in another process that it was recorded waits for this record: another worker
	 * must find it. What is asked next is answered behind it. */
	if (cw_unlikely(e->shared) && !res && !cw_capture_any())
		(void)cwop_EventQuery(e->o.id);
	return cw_unlikely(cw_capture_any()) ? cw_capture_settle(res) : res;
}

CUresult cwi_cuEventRecord(int ptds, CUevent event, CUstream stream) { return record(ptds, event, stream, 0); }

CUresult cwi_cuEventRecordWithFlags(int ptds, CUevent event, CUstream stream, unsigned int flags)
{
	return record(ptds, event, stream, flags);
}

/* An event that was never recorded counts as complete. */
CUresult cwi_cuEventQuery(CUevent event)
{
	struct cw_event *e = get(event);

	if (!e)
		return CUDA_ERROR_INVALID_HANDLE;
	return atomic_load(&e->recorded) ? cw_heard(cwop_EventQuery(e->o.id)) : CUDA_SUCCESS;
}

CUresult cwi_cuEventSynchronize(CUevent event)
{
	struct cw_event *e = get(event);

	if (!e)
		return CUDA_ERROR_INVALID_HANDLE;
	return atomic_load(&e->recorded) ? cw_heard(cwop_EventSynchronize(e->o.id)) : CUDA_SUCCESS;
}

CUresult cwi_cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
	struct cw_event *s = get(start), *e = get(end);

	if (!ms)
		return CUDA_ERROR_INVALID_VALUE;
	if (!s || !e || ((s->o.flags | e->o.flags) & CU_EVENT_DISABLE_TIMING))
		return CUDA_ERROR_INVALID_HANDLE;
	if (!atomic_load(&s->recorded) || !atomic_load(&e->recorded))
		return CUDA_ERROR_INVALID_HANDLE;
	return cwop_EventElapsedTime(s->o.id, e->o.id, ms);
}

CUresult cwi_cuEventElapsedTime_v2(float *ms, CUevent start, CUevent end) { return cwi_cuEventElapsedTime(ms, start, end); }
