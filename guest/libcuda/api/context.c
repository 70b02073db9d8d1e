/* Contexts: creation and the calling thread's stack. Primary contexts are in primary.c, questions
 * and settings in ctxinfo.c. */
#include "api/api.h"
#include "api/context.h"

enum { STACK_MAX = 64 };

/* The calling thread's stack; the top is the current context and also the session's id for records.
 * NULL is a legal entry (cuCtxSetCurrent(NULL) empties the top). */
struct ctx_stack {
	unsigned depth;
	struct cw_ctx *entry[STACK_MAX];
};
static __thread struct ctx_stack tls_stack;
static __thread struct cw_ctx *tls_current __attribute__((tls_model("initial-exec")));

static _Atomic uint64_t next_uid = 1;

uint64_t cw_ctx_next_uid(void) { return atomic_fetch_add(&next_uid, 1); }

/* Scheduling is one of automatic 0, spin 1, yield 2, blocking 4. */
int cw_ctx_flags_valid(unsigned flags)
{
	unsigned sched = flags & CU_CTX_SCHED_MASK;

	return (flags & ~(unsigned)CU_CTX_FLAGS_MASK) == 0 && sched != 3 && sched <= 4;
}

static void hold(struct cw_ctx *c)
{
	if (c && !c->is_primary)
		atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
}

static void drop(struct cw_ctx *c)
{
	if (!c || c->is_primary || atomic_fetch_sub(&c->refs, 1) != 1)
		return;
	cw_cls_free(c);
	cw_handle_free(CW_KIND_CTX, &c->o);
}

static void set_current(struct cw_ctx *c)
{
	tls_current = c;
	cw_set_current_ctx_id(c ? c->o.id : 0);
}

static CUresult push(struct cw_ctx *c)
{
	struct ctx_stack *s = &tls_stack;

	if (s->depth == STACK_MAX)
		return CUDA_ERROR_OUT_OF_MEMORY;
	hold(c);
	s->entry[s->depth++] = c;
	set_current(c);
	return CUDA_SUCCESS;
}

static void pop(void)
{
	struct ctx_stack *s = &tls_stack;
	struct cw_ctx *c = s->entry[--s->depth];

	set_current(s->depth ? s->entry[s->depth - 1] : NULL);
	drop(c);
}

CUresult cw_ctx_current(struct cw_ctx **ctx)
{
	struct cw_ctx *c = tls_current;

	if (cw_unlikely(!c))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (cw_unlikely(atomic_load_explicit(&c->state, memory_order_relaxed) != CW_CTX_LIVE))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	*ctx = c;
	return CUDA_SUCCESS;
}

CUresult cw_ctx_resolve(CUcontext handle, struct cw_ctx **ctx)
{
	struct cw_ctx *c;

	if (!handle)
		return cw_ctx_current(ctx);
	c = (struct cw_ctx *)cw_handle_get(CW_KIND_CTX, handle);
	if (!c)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (atomic_load(&c->state) != CW_CTX_LIVE)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	*ctx = c;
	return CUDA_SUCCESS;
}

/* --- creation --------------------------------------------------------------------------------- */

static CUresult create(CUcontext *out, unsigned flags, CUdevice dev, uint32_t version)
{
	struct cw_device *d = cw_device_get(dev);
	struct cw_ctx *c;
	CUresult res;

	if (!out || !cw_ctx_flags_valid(flags))
		return CUDA_ERROR_INVALID_VALUE;
	if (!d)
		return cw_no_device();
	if (tls_stack.depth == STACK_MAX)
		return CUDA_ERROR_OUT_OF_MEMORY;
	c = (struct cw_ctx *)cw_handle_alloc();
	if (!c)
		return CUDA_ERROR_OUT_OF_MEMORY;
	c->device = d;
	c->uid = cw_ctx_next_uid();
	c->version = version;
	atomic_store(&c->flags, flags);
	atomic_store(&c->refs, 1);
	c->o.ctx = c->o.id;
	cw_handle_publish(&c->o, CW_KIND_CTX);
	res = cwop_CtxCreate(c->o.id, (uint32_t)d->ordinal, flags);
	if (res) {
		drop(c);
		return res;
	}
	push(c);
	*out = (CUcontext)c;
	return CUDA_SUCCESS;
}

CUresult cwi_cuCtxCreate(CUcontext *ctx, unsigned int flags, CUdevice dev) { return create(ctx, flags, dev, 3010); }

CUresult cwi_cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev) { return create(ctx, flags, dev, 3020); }

/* Execution affinity (a share of the SMs under MPS) is not forwarded. */
CUresult cwi_cuCtxCreate_v3(CUcontext *ctx, CUexecAffinityParam *params, int count, unsigned int flags, CUdevice dev)
{
	if (count < 0 || (count > 0 && !params))
		return CUDA_ERROR_INVALID_VALUE;
	if (count > 0)
		return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
	return create(ctx, flags, dev, 3020);
}

/* As v3; sharing a context with a graphics API is not forwarded either. */
CUresult cwi_cuCtxCreate_v4(CUcontext *ctx, CUctxCreateParams *params, unsigned int flags, CUdevice dev)
{
	if (params && params->cigParams)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (params)
		return cwi_cuCtxCreate_v3(ctx, params->execAffinityParams, params->numExecAffinityParams, flags, dev);
	return create(ctx, flags, dev, 3020);
}

static CUresult destroy(CUcontext handle)
{
	struct cw_ctx *c = (struct cw_ctx *)cw_handle_get(CW_KIND_CTX, handle);
	uint32_t live = CW_CTX_LIVE;
	CUresult res;

	if (!c || c->is_primary || c->is_green)
		return CUDA_ERROR_INVALID_CONTEXT;
	cw_cls_clear(c);
	if (atomic_load(&c->state) == live)
		cw_ctx_finish(c);
	if (!atomic_compare_exchange_strong(&c->state, &live, CW_CTX_GONE))
		return CUDA_ERROR_INVALID_CONTEXT;
	res = cwop_CtxDestroy(c->o.id);
	cw_ctx_objects_gone(c);
	if (tls_stack.depth && tls_current == c)
		pop();
	drop(c);
	return res;
}

CUresult cwi_cuCtxDestroy(CUcontext ctx) { return destroy(ctx); }

CUresult cwi_cuCtxDestroy_v2(CUcontext ctx) { return destroy(ctx); }

/* --- the stack -------------------------------------------------------------------------------- */

CUresult cwi_cuCtxGetCurrent(CUcontext *ctx)
{
	if (!ctx)
		return CUDA_ERROR_INVALID_VALUE;
	*ctx = (CUcontext)tls_current;
	return CUDA_SUCCESS;
}

CUresult cwi_cuCtxSetCurrent(CUcontext handle)
{
	struct ctx_stack *s = &tls_stack;
	struct cw_ctx *c = NULL;

	if (handle) {
		c = (struct cw_ctx *)cw_handle_get(CW_KIND_CTX, handle);
		if (!c)
			return CUDA_ERROR_INVALID_CONTEXT;
		if (!c->is_primary && atomic_load(&c->state) != CW_CTX_LIVE)
			return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	}
	if (c && c == tls_current)
		return CUDA_SUCCESS;
	if (s->depth)
		pop();
	return c ? push(c) : CUDA_SUCCESS;
}

CUresult cwi_cuCtxPushCurrent(CUcontext handle)
{
	struct cw_ctx *c = (struct cw_ctx *)cw_handle_get(CW_KIND_CTX, handle);

	if (!c)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!c->is_primary && atomic_load(&c->state) != CW_CTX_LIVE)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	return push(c);
}

CUresult cwi_cuCtxPushCurrent_v2(CUcontext handle) { return cwi_cuCtxPushCurrent(handle); }

CUresult cwi_cuCtxPopCurrent(CUcontext *out)
{
	if (!tls_stack.depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (out)
		*out = (CUcontext)tls_current;
	pop();
	return CUDA_SUCCESS;
}

CUresult cwi_cuCtxPopCurrent_v2(CUcontext *out) { return cwi_cuCtxPopCurrent(out); }

/* The usage count of the CUDA 1.x API: attach works on the current context only, with a count of
 * one. */
CUresult cwi_cuCtxAttach(CUcontext *ctx, unsigned int flags)
{
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);

	if (!ctx || flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (res)
		return res;
	hold(c);
	*ctx = (CUcontext)c;
	return CUDA_SUCCESS;
}

CUresult cwi_cuCtxDetach(CUcontext ctx)
{
	struct cw_ctx *c = (struct cw_ctx *)cw_handle_get(CW_KIND_CTX, ctx);

	if (!c || c != tls_current)
		return CUDA_ERROR_INVALID_CONTEXT;
	/* attached more often than the stack holds it: only the count falls */
	if (!c->is_primary && atomic_load(&c->refs) > 2) {
		drop(c);
		return CUDA_SUCCESS;
	}
	return destroy(ctx);
}

/* --- contexts of green contexts --------------------------------------------------------------- */

CUresult cw_ctx_of_green(struct cw_device *d, uint32_t green, uint64_t uid, struct cw_ctx **out)
{
	struct cw_ctx *c = (struct cw_ctx *)cw_handle_alloc();
	CUresult res;

	if (!c)
		return CUDA_ERROR_OUT_OF_MEMORY;
	c->device = d;
	c->uid = uid ? uid : cw_ctx_next_uid();
	c->version = 3020;
	c->is_green = 1;
	atomic_store(&c->flags, CU_CTX_MAP_HOST);
	atomic_store(&c->refs, 1);
	c->o.ctx = c->o.id;
	cw_handle_publish(&c->o, CW_KIND_CTX);
	res = cwop_CtxFromGreenCtx(c->o.id, green);
	if (res)
		drop(c);
	else
		*out = c;
	return res;
}

void cw_ctx_green_gone(struct cw_ctx *c)
{
	uint32_t live = CW_CTX_LIVE;

	cw_cls_clear(c);
	if (atomic_load(&c->state) == live)
		cw_ctx_finish(c);
	if (!atomic_compare_exchange_strong(&c->state, &live, CW_CTX_GONE))
		return;
	cw_ctx_objects_gone(c);
	drop(c);
}
