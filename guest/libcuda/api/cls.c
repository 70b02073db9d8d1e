/*
 * Context-local storage: a small map from an opaque key to an opaque value for each context.
 * Runtime libraries read it at the head of nearly every call, so a read takes no lock.
 *
 * Nodes are pushed at the head of the context's list and stay linked until the context's object
 * itself goes. An empty node (value NULL and live 0) is used again for the same key. Writers hold
 * storage_lock; destructors run without it.
 */
#include "api/api.h"

#include <stdlib.h>

struct cw_cls {
	struct cw_cls *next;
	void *key;
	_Atomic(void *) value;
	_Atomic uint32_t live;
	void (*dtor)(CUcontext, void *, void *);
};

static struct cw_lock storage_lock;

static struct cw_cls *find(struct cw_ctx *c, const void *key)
{
	struct cw_cls *n = atomic_load_explicit(&c->cls, memory_order_acquire);

	while (n && n->key != key)
		n = n->next;
	return n;
}

/* The context of a call: also a primary context that is not active, whose storage a runtime clears
 * after a reset. */
static struct cw_ctx *context(CUcontext ctx)
{
	if (!ctx) {
		CUcontext current = NULL;

		cwi_cuCtxGetCurrent(&current);
		return (struct cw_ctx *)current;
	}
	return (struct cw_ctx *)cw_handle_get(CW_KIND_CTX, ctx);
}

CUresult cw_cls_get(void **value, CUcontext ctx, void *key)
{
	struct cw_ctx *c;
	struct cw_cls *n;

	if (cw_unlikely(atomic_load_explicit(&cw_g.state, memory_order_acquire) != CW_OPEN))
		return cw_check_alive();
	c = context(ctx);
	if (!c)
		return CUDA_ERROR_INVALID_CONTEXT;
	n = find(c, key);
	if (!n || !atomic_load_explicit(&n->live, memory_order_acquire))
		return CUDA_ERROR_INVALID_HANDLE;
	*value = atomic_load_explicit(&n->value, memory_order_relaxed);
	return CUDA_SUCCESS;
}

CUresult cw_cls_put(CUcontext ctx, void *key, void *value, void (*dtor)(CUcontext, void *, void *))
{
	CUresult res = cw_check_alive();
	struct cw_ctx *c;
	struct cw_cls *n;

	if (res)
		return res;
	c = context(ctx);
	if (!c)
		return CUDA_ERROR_INVALID_CONTEXT;
	cw_lock_acquire(&storage_lock);
	n = find(c, key);
	if (!n) {
		n = calloc(1, sizeof *n);
		if (!n) {
			cw_lock_release(&storage_lock);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
		n->key = key;
		n->next = atomic_load_explicit(&c->cls, memory_order_relaxed);
		atomic_store_explicit(&c->cls, n, memory_order_release);
	}
	n->dtor = dtor;
	atomic_store_explicit(&n->value, value, memory_order_relaxed);
	atomic_store_explicit(&n->live, 1, memory_order_release);
	cw_lock_release(&storage_lock);
	return CUDA_SUCCESS;
}

CUresult cw_cls_delete(CUcontext ctx, void *key)
{
	CUresult res = cw_check_alive();
	struct cw_ctx *c;
	struct cw_cls *n;

	if (res)
		return res;
	c = context(ctx);
	if (!c)
		return CUDA_ERROR_INVALID_CONTEXT;
	cw_lock_acquire(&storage_lock);
	n = find(c, key);
	res = n && atomic_exchange(&n->live, 0) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
	cw_lock_release(&storage_lock);
	return res;
}

/* Runs the destructors of everything stored; for a context that is about to be destroyed or
 * reset. */
void cw_cls_clear(struct cw_ctx *c)
{
	for (;;) {
		struct cw_cls *n;
		void (*dtor)(CUcontext, void *, void *);
		void *value;

		cw_lock_acquire(&storage_lock);
		for (n = atomic_load(&c->cls); n && !atomic_load(&n->live); n = n->next)
			;
		if (!n) {
			cw_lock_release(&storage_lock);
			return;
		}
		atomic_store(&n->live, 0);
		dtor = n->dtor;
		value = atomic_load(&n->value);
		cw_lock_release(&storage_lock);
		if (dtor)
			dtor((CUcontext)c, n->key, value);
	}
}

/* Frees the list of a context that nobody holds any more. */
void cw_cls_free(struct cw_ctx *c)
{
	struct cw_cls *n = atomic_exchange(&c->cls, NULL);

	while (n) {
		struct cw_cls *next = n->next;

		free(n);
		n = next;
	}
}
