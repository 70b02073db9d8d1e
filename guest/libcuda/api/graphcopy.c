/*
 * Copies of pageable memory in a capture. The real driver reads or writes such memory when the graph runs; the worker cannot reach
 * it. So the captured copy is one of pinned memory of ours, and a host function beside it moves the bytes between that and the
 * application's, in the graph's order. The pinned memory belongs to the graph by a user object, and serves others after it.
 */
#include "api/callback.h"
#include "api/capture.h"
#include "api/graph.h"
#include "memory/memory.h"

#include <stdlib.h>
#include <string.h>

struct shadow {
	uint8_t *dst;
	const uint8_t *src;
	size_t size;
	void *mem; /* pinned, cap bytes */
	size_t cap;
	uint64_t move; /* host function that copies */
	struct cw_obj *object;
	struct shadow *next;
};

static struct {
	struct cw_lock lock;
	struct shadow *free_;
} pool;

static void move(void *arg)
{
	const struct shadow *s = arg;

	memmove(s->dst, s->src, s->size);
}

/* Runs on the callback thread, when no graph holds the copy any more. */
static void end(void *arg)
{
	struct shadow *s = arg;

	cw_hostfn_drop(s->move);
	cw_handle_free(CW_KIND_USEROBJ, s->object);
	cw_lock_acquire(&pool.lock);
	s->next = pool.free_;
	pool.free_ = s;
	cw_lock_release(&pool.lock);
}

static struct shadow *reuse(size_t size)
{
	struct shadow **p, *s;

	cw_lock_acquire(&pool.lock);
	for (p = &pool.free_; (s = *p) && s->cap < size; p = &s->next)
		;
	if (s)
		*p = s->next;
	cw_lock_release(&pool.lock);
	return s;
}

/* Pinned memory that the worker reaches; making it is harmless to captures. */
static CUresult make(size_t size, struct shadow **out)
{
	struct shadow *s = reuse(size);
	struct cw_side side;
	int mode;
	CUresult res;

	*out = s;
	if (s)
		return CUDA_SUCCESS;
	s = calloc(1, sizeof *s);
	if (!s)
		return CUDA_ERROR_OUT_OF_MEMORY;
	mode = cw_capture_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
	res = cwi_cuMemHostAlloc(&s->mem, size, 0);
	if (!res && (cw_side_host(s->mem, size, &side) || !side.worker)) {
		cw_log(CW_LOG_ERROR, "copies of pageable memory are captured only where the host maps guest memory");
		cwi_cuMemFreeHost(s->mem);
		res = CUDA_ERROR_NOT_SUPPORTED;
	}
	cw_capture_mode(mode);
	if (res) {
		free(s);
		return res;
	}
	s->cap = size;
	*out = s;
	return CUDA_SUCCESS;
}

/* The capture's graph holds the copy from now on. */
static CUresult hold(struct shadow *s, uint32_t stream)
{
	enum { NO_DESTRUCTOR_SYNC = 1, MOVE = 1 };
	uint32_t graph = 0;
	uint64_t id;
	CUresult res = cw_capture_graph(stream, &graph);

	if (!res)
		res = cw_hostfn_new(end, s, 0, &id);
	if (res)
		return res;
	s->object = cw_handle_new(CW_KIND_USEROBJ);
	res = s->object ? cwop_UserObjectCreate(s->object->id, id, 1, NO_DESTRUCTOR_SYNC) : CUDA_ERROR_OUT_OF_MEMORY;
	if (res)
		cw_hostfn_drop(id);
	return res ? res : cwop_GraphUserObject(graph, s->object->id, 0, 1, MOVE);
}

CUresult cw_capture_pageable(const struct cw_side *dst, const struct cw_side *src, size_t size, uint32_t stream)
{
	struct shadow *s;
	void *app_dst = (void *)(uintptr_t)dst->addr;
	const void *app_src = (const void *)(uintptr_t)src->addr;
	/* both in host memory: the function does it all */
	CUresult res = make(dst->device || src->device ? size : 1, &s);

	if (res)
		return res;
	s->dst = dst->device ? s->mem : app_dst;
	s->src = src->device ? s->mem : app_src;
	s->size = size;
	res = cw_hostfn_new(move, s, 1, &s->move);
	if (!res)
		res = hold(s, stream);
	if (!res && src->device)
		res = cwop_Memcpy((uintptr_t)s->mem, src->addr, size, stream);
	if (!res)
		res = cwop_LaunchHostFunc(stream, s->move, 0);
	if (!res && dst->device)
		res = cwop_Memcpy(dst->addr, (uintptr_t)s->mem, size, stream);
	return cw_capture_settle(res);
}
