/*
 * Copies of pageable memory in graphs. The real driver reads or writes such memory when the graph
 * runs; the worker cannot reach it. So the graph's copy is one of pinned memory of ours, and a host
 * function beside it moves the bytes between that and the application's, in the graph's order. In a
 * capture the two follow each other; a node is a child graph of the two. The pinned memory belongs
 * to the graph by a user object, and serves others after it.
 */
#include "api/callback.h"
#include "api/capture.h"
#include "api/graphnode.h"
#include "memory/memory.h"

#include <stdlib.h>
#include <string.h>

struct shadow {
	uint8_t *dst;
	const uint8_t *src;
	size_t width, height, depth; /* bytes, rows, slices */
	size_t dst_pitch, dst_slice, src_pitch, src_slice;
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

	for (size_t z = 0; z < s->depth; z++)
		for (size_t y = 0; y < s->height; y++)
			memmove(s->dst + z * s->dst_slice + y * s->dst_pitch, s->src + z * s->src_slice + y * s->src_pitch, s->width);
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
	struct cw_operand operand;
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
	if (!res && (cw_operand_host(s->mem, size, &operand) || !operand.worker)) {
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

/* The graph holds the copy from now on. */
static CUresult hold(struct shadow *s, uint32_t graph)
{
	enum { NO_DESTRUCTOR_SYNC = 1, MOVE = 1 };
	uint64_t id;
	CUresult res = cw_hostfn_new(end, s, 0, &id);

	if (res)
		return res;
	s->object = cw_handle_new(CW_KIND_USEROBJ);
	res = s->object ? cwop_UserObjectCreate(s->object->id, id, 1, NO_DESTRUCTOR_SYNC) : CUDA_ERROR_OUT_OF_MEMORY;
	if (res)
		cw_hostfn_drop(id);
	return res ? res : cwop_GraphUserObject(graph, s->object->id, 0, 1, MOVE);
}

CUresult cw_capture_pageable(const struct cw_operand *dst, const struct cw_operand *src, size_t size, uint32_t stream)
{
	struct shadow *s;
	void *app_dst = (void *)(uintptr_t)dst->addr;
	const void *app_src = (const void *)(uintptr_t)src->addr;
	/* both in host memory: the function does it all */
	CUresult res = make(dst->device || src->device ? size : 1, &s);
	uint32_t graph = 0;

	if (!res)
		res = cw_capture_graph(stream, &graph);
	if (res)
		return res;
	s->dst = dst->device ? s->mem : app_dst;
	s->src = src->device ? s->mem : app_src;
	s->width = size;
	s->height = s->depth = 1;
	res = cw_hostfn_new(move, s, 1, &s->move);
	if (!res)
		res = hold(s, graph);
	if (!res && src->device)
		res = cwop_Memcpy((uintptr_t)s->mem, src->addr, size, stream);
	if (!res)
		res = cwop_LaunchHostFunc(stream, s->move, 0);
	if (!res && dst->device)
		res = cwop_Memcpy(dst->addr, (uintptr_t)s->mem, size, stream);
	return cw_capture_settle(res);
}

/* --- nodes ------------------------------------------------------------------------------------ */

struct copy {
	struct cw_memcpy_operand src, dst;
	struct cw_memcpy_node box;
};

/* The first byte of an operand's box, and how far rows and slices are apart. */
static uint64_t place(const struct cw_memcpy_operand *w, const struct cw_memcpy_node *box, size_t *pitch, size_t *slice)
{
	uint64_t height = w->height ? w->height : w->y + box->height;

	*pitch = w->pitch ? w->pitch : w->x + box->width;
	*slice = *pitch * height;
	return w->ptr + w->z * *slice + w->y * *pitch + w->x;
}

/* The operand becomes one of pinned memory of the same layout. */
static void replace(struct cw_memcpy_operand *w, const void *mem, size_t pitch, size_t slice)
{
	*w = (struct cw_memcpy_operand){.type = CU_MEMORYTYPE_HOST, .ptr = (uintptr_t)mem, .pitch = pitch, .height = slice / pitch};
}

/* The child graph: a host function before the copy, or after it, or alone. */
static CUresult child(struct cw_graph *g, const struct shadow *s, const struct copy *w, int before, int after)
{
	struct cw_host_node h = {s->move};
	struct cw_graph_node *n[2] = {cw_graph_node_fresh(), cw_graph_node_fresh()};
	CUresult res = n[0] && n[1] ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	int first = before || !after;

	if (!res && first)
		res = cwop_GraphAddNode(g->o.id, n[0]->o.id, CW_NODE_HOST, NULL, 0, NULL, 0, &h, sizeof h, NULL);
	if (!res && (before || after))
		res = cwop_GraphAddNode(g->o.id, n[1]->o.id, CW_NODE_MEMCPY, &n[0]->o.id, before ? 4 : 0, NULL, 0, w, sizeof *w, NULL);
	if (!res && !first)
		res = cwop_GraphAddNode(g->o.id, n[0]->o.id, CW_NODE_HOST, &n[1]->o.id, 4, NULL, 0, &h, sizeof h, NULL);
	/* the worker's ids go with the graph */
	for (int i = 0; i < 2; i++)
		if (n[i] && !res && (i == 0 || before || after))
			cw_graph_node_publish(n[i], g, i ? CW_NODE_MEMCPY : CW_NODE_HOST);
		else if (n[i])
			cw_graph_discard(&n[i]->o);
	return res;
}

CUresult cw_node_add_pageable(struct cw_graph *g, uint32_t node, const uint32_t *deps, size_t deps_bytes, const void *edges,
			      size_t edges_bytes, const struct cw_node_params *p)
{
	struct copy w;
	struct shadow *s, box;
	CUgraph inner;
	struct cw_child_node c = {0};
	uint64_t from, to;
	int in = p->pageable & CW_PAGEABLE_SRC, out = p->pageable & CW_PAGEABLE_DST, both = in && out;
	CUresult res;

	memcpy(&w, p->wire, sizeof w);
	memset(&box, 0, sizeof box);
	from = place(&w.src, &w.box, &box.src_pitch, &box.src_slice);
	to = place(&w.dst, &w.box, &box.dst_pitch, &box.dst_slice);
	res = make(both ? 1 : (in ? box.src_slice : box.dst_slice) * w.box.depth, &s);
	if (res)
		return res;
	s->width = w.box.width, s->height = w.box.height, s->depth = w.box.depth;
	/* the pinned copy has the layout of the application's */
	s->src_pitch = both || in ? box.src_pitch : box.dst_pitch, s->src_slice = both || in ? box.src_slice : box.dst_slice;
	s->dst_pitch = both || out ? box.dst_pitch : box.src_pitch, s->dst_slice = both || out ? box.dst_slice : box.src_slice;
	s->src = in ? (const uint8_t *)(uintptr_t)from : s->mem;
	s->dst = out ? (uint8_t *)(uintptr_t)to : s->mem;
	if (in && !both)
		replace(&w.src, s->mem, box.src_pitch, box.src_slice);
	if (out && !both)
		replace(&w.dst, s->mem, box.dst_pitch, box.dst_slice);
	res = cw_hostfn_new(move, s, 1, &s->move);
	if (!res)
		res = hold(s, g->o.id);
	if (!res)
		res = cwi_cuGraphCreate(&inner, 0);
	if (res)
		return res;
	res = child((struct cw_graph *)inner, s, &w, in && !both, out && !both);
	c.graph = ((struct cw_graph *)inner)->o.id;
	if (!res)
		res = cwop_GraphAddNode(g->o.id, node, CW_NODE_GRAPH, deps, deps_bytes, edges, edges_bytes, &c, sizeof c, NULL);
	cwi_cuGraphDestroy(inner);
	return res;
}
