/* The streams that bytes of managed memory travel on, and what is known of the GPU's being idle.
 * See resident.h. */
#include "api/capture.h"
#include "api/context.h"
#include "api/newstream.h"
#include "memory/resident.h"
#include "session/ahead.h"

enum { NON_BLOCKING = 1 /* CU_STREAM_NON_BLOCKING: it waits for no other stream, and none for it */, STREAMS = 64 };

/* One for each context; under the resident lock. A context's end ends its stream's object. */
static struct {
	uint32_t ctx, stream;
} own[STREAMS];

static int live(uint32_t ctx)
{
	struct cw_ctx *c = (struct cw_ctx *)cw_handle_by_id(CW_KIND_CTX, ctx);
	return c && atomic_load(&c->state) == CW_CTX_LIVE;
}

static CUresult stream_of(uint32_t ctx, uint32_t *out)
{
	int place = -1;
	for (int i = 0; i < STREAMS; i++) {
		struct cw_obj *o = own[i].stream ? cw_handle_by_id(CW_KIND_STREAM, own[i].stream) : NULL;
		if (o && own[i].ctx == ctx && o->ctx == ctx) {
			*out = own[i].stream;
			return CUDA_SUCCESS;
		}
		if (place < 0 && (!o || !live(own[i].ctx)))
			place = i;
	}
	struct cw_stream *s;
	CUresult res = place < 0 ? CUDA_ERROR_OUT_OF_MEMORY : cw_stream_make(ctx, NON_BLOCKING, 0, &s);
	if (res != 0)
		return res;
	own[place].ctx = ctx;
	own[place].stream = *out = s->o.id;
	return CUDA_SUCCESS;
}

struct search {
	int device;
	uint32_t ctx;
};

static int on_device(struct cw_obj *o, void *arg)
{
	struct search *s = arg;
	struct cw_ctx *c = (struct cw_ctx *)o;
	if (atomic_load(&c->state) != CW_CTX_LIVE || c->device->ordinal != s->device)
		return 0;
	s->ctx = o->id;
	return 1;
}

uint32_t cw_ctx_on(int device)
{
	struct search s = {device, 0};
	return cw_handle_each(CW_KIND_CTX, on_device, &s) ? s.ctx : 0;
}

CUresult cw_voice_begin(struct cw_area *a, struct cw_voice *v)
{
	v->before = cw_current_ctx_id();
	cw_own_work++;
	if (!live(a->ctx)) { /* the memory outlives the context that it was made in */
		uint32_t ctx = cw_ctx_on(a->device);
		if (!ctx) {
			cw_own_work--;
			return CUDA_ERROR_INVALID_CONTEXT;
		}
		a->ctx = ctx;
	}
	cw_set_current_ctx_id(a->ctx);
	CUresult res = stream_of(a->ctx, &v->stream);
	if (res != 0)
		cw_voice_end(v);
	return res;
}

void cw_voice_end(const struct cw_voice *v)
{
	cw_set_current_ctx_id(v->before);
	cw_own_work--;
}

/* --- idle ------------------------------------------------------------------------------------- */

static _Atomic uint64_t idle_at = UINT64_MAX; /* all work up to this number has ended */

_Atomic uint32_t cw_owed;

int cw_gpu_idle(void)
{
	atomic_thread_fence(memory_order_seq_cst);
	return atomic_load(&cw_resident_users) == 0 && atomic_load(&idle_at) == cw_work();
}

static int lives(struct cw_obj *o, void *count)
{
	*(int *)count += atomic_load(&((struct cw_ctx *)o)->state) == CW_CTX_LIVE;
	return 0;
}

int cw_gpu_was_idle(uint64_t work)
{
	int count = 0;
	cw_handle_each(CW_KIND_CTX, lives, &count);
	if (count == 1)
		atomic_store(&idle_at, work);
	return count == 1;
}

static _Atomic int graph_ahead; /* since the GPU was last seen idle */

void cw_host_in_graph(void) { atomic_store(&graph_ahead, 1); }

void cw_before_drain(void)
{
	if (!cw_own_work && atomic_exchange(&graph_ahead, 0))
		cw_gpu_wait(0);
}

CUresult cw_own_said(CUresult res)
{
	if (res == 0 || res == CUDA_ERROR_INVALID_CONTEXT || res == CUDA_ERROR_CONTEXT_IS_DESTROYED || res == CUDA_ERROR_INVALID_HANDLE)
		return CUDA_SUCCESS;
	if (atomic_load(&cw_g.state) == CW_OPEN && __atomic_load_n(&cw_g.ctl->sticky, __ATOMIC_RELAXED) == 0) {
		atomic_store(&cw_owed, (uint32_t)res);
		return CUDA_SUCCESS;
	}
	return res;
}

static int wait_stream(struct cw_obj *o, void *arg)
{
	int captures = 0;
	(void)arg;
	cw_set_current_ctx_id(o->ctx);
	if (cw_capture_status(o->id, &captures) != 0 || captures)
		return 0;
	return (int)cw_own_said(cw_own_wait(o->id));
}

static int wait_ctx(struct cw_obj *o, void *arg)
{
	struct cw_ctx *c = (struct cw_ctx *)o;
	(void)arg;
	if (atomic_load(&c->state) != CW_CTX_LIVE)
		return 0;
	cw_set_current_ctx_id(o->id);
	return (int)cw_own_said(cwop_CtxSynchronize());
}

CUresult cw_gpu_wait(uint32_t stream)
{
	uint64_t work = cw_work();
	uint32_t before = cw_current_ctx_id();
	int res = 0;
	if (stream) {
		struct cw_obj *o = cw_handle_by_id(CW_KIND_STREAM, stream);
		if (o)
			res = wait_stream(o, NULL);
	} else if (cw_unlikely(cw_capture_any())) {
		/* Waiting for a context would end what its streams capture. */
		int mode = cw_capture_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
		res = cw_handle_each(CW_KIND_STREAM, wait_stream, NULL);
		cw_capture_mode(mode);
	} else {
		res = cw_handle_each(CW_KIND_CTX, wait_ctx, NULL);
	}
	cw_set_current_ctx_id(before);
	cw_heard((CUresult)res);
	if (res == 0 && !stream)
		atomic_store(&idle_at, work);
	return (CUresult)res;
}
