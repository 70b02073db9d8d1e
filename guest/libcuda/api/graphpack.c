/* Node parameters: from the application's structs into the form that travels. */
#include "api/callback.h"
#include "api/graphnode.h"
#include "memory/array.h"
#include "memory/resident.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH_MAX = 256, ACCESS_MAX = 64, ACCESS_SIZE = 12, BODIES_MAX = 1 << 16 };

struct cw_node_params *cw_node_params_new(size_t len, size_t count)
{
	size_t at = (sizeof(struct cw_node_params) + len + 7) & ~(size_t)7;
	struct cw_node_params *p = calloc(1, at + (count + 1) * sizeof(void *));

	if (p) {
		p->len = len;
		p->args = (void **)((uint8_t *)p + at);
		p->bodies = (CUgraph *)p->args;
	}
	return p;
}

/* A context handle as ids travel: 0 for NULL. */
static CUresult context_id(CUcontext handle, uint32_t *id)
{
	struct cw_ctx *c;
	CUresult res;

	*id = 0;
	if (!handle)
		return CUDA_SUCCESS;
	res = cw_ctx_resolve(handle, &c);
	if (!res)
		*id = c->o.id;
	return res;
}

static CUresult pack_kernel(const struct CUDA_KERNEL_NODE_PARAMS_st *k, struct cw_node_params **out)
{
	const struct cw_func *f = cw_func_get(k->func ? (const void *)k->func : (const void *)k->kern);
	const struct cw_func_info *info;
	struct cw_kernel_node w = {0};
	struct cw_node_params *p;
	struct cw_packed packed = {0};
	CUresult res;

	if (!f)
		return CUDA_ERROR_INVALID_HANDLE;
	info = f->info;
	if ((res = context_id(k->ctx, &w.ctx)))
		return res;
	if (k->extra) {
		if (k->args || cw_params_packed(k->extra, info->param_bytes, &packed))
			return CUDA_ERROR_INVALID_VALUE;
	} else if (info->param_count && !k->args) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	w.func = f->o.id;
	w.gx = k->grid[0], w.gy = k->grid[1], w.gz = k->grid[2];
	w.bx = k->block[0], w.by = k->block[1], w.bz = k->block[2];
	w.shared = k->shared;
	w.size = info->param_bytes;
	p = cw_node_params_new(sizeof w + info->param_bytes, info->param_count);
	if (!p)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(p->wire, &w, sizeof w);
	p->by_kernel = !k->func;
	if (packed.data)
		memcpy(p->wire + sizeof w, packed.data, packed.size < info->param_bytes ? packed.size : info->param_bytes);
	else
		cw_params_gather(p->wire + sizeof w, info->params, info->param_count, k->args);
	*out = p;
	return CUDA_SUCCESS;
}

/* One operand of a copy, and whether the worker does not reach it. */
static CUresult operand(struct cw_memcpy_operand *w, CUmemorytype type, const void *host, CUdeviceptr device, CUarray array,
			const CUDA_MEMCPY3D *m, int *pageable)
{
	uint64_t base = type == CU_MEMORYTYPE_HOST ? (uintptr_t)host : device, row = w->x + m->WidthInBytes, at, span;
	uint64_t pitch = w->pitch ? w->pitch : row, height = w->height ? w->height : w->y + m->Height;
	struct cw_operand s;
	CUresult res;

	w->type = type;
	if (type == CU_MEMORYTYPE_ARRAY) {
		struct cw_array *a = cw_array_get(array);

		if (!a || w->lod)
			return CUDA_ERROR_INVALID_VALUE;
		w->array = a->o.id;
		return cw_array_holds(a, w->x, w->y, w->z, m->WidthInBytes, m->Height, m->Depth);
	}
	if (__builtin_mul_overflow(w->z, height, &at) || __builtin_add_overflow(at, w->y, &at) || __builtin_mul_overflow(at, pitch, &at) ||
	    __builtin_add_overflow(at, w->x, &at) || __builtin_mul_overflow(m->Depth - 1, height, &span) ||
	    __builtin_add_overflow(span, m->Height - 1, &span) || __builtin_mul_overflow(span, pitch, &span) ||
	    __builtin_add_overflow(span, m->WidthInBytes, &span))
		return CUDA_ERROR_INVALID_VALUE;
	if (type == CU_MEMORYTYPE_HOST)
		res = cw_operand_host((const void *)(uintptr_t)(base + at), span, &s);
	else
		res = type == CU_MEMORYTYPE_DEVICE ? cw_operand_device(base + at, span, &s) : cw_operand_any(base + at, span, &s);
	if (res)
		return res;
	cw_operand_still(&s);
	*pageable = !s.worker;
	w->ptr = s.addr - at;
	return CUDA_SUCCESS;
}

static CUresult pack_memcpy(const struct CUDA_MEMCPY_NODE_PARAMS_st *n, struct cw_node_params **out)
{
	const CUDA_MEMCPY3D *m = &n->copy;
	struct {
		struct cw_memcpy_operand src, dst;
		struct cw_memcpy_node box;
	} w = {
		.src = {.x = m->srcXInBytes, .y = m->srcY, .z = m->srcZ, .lod = m->srcLOD, .pitch = m->srcPitch, .height = m->srcHeight},
		.dst = {.x = m->dstXInBytes, .y = m->dstY, .z = m->dstZ, .lod = m->dstLOD, .pitch = m->dstPitch, .height = m->dstHeight},
		.box = {m->WidthInBytes, m->Height, m->Depth, 0, 0},
	};
	int src = 0, dst = 0;
	CUresult res = context_id(n->ctx, &w.box.ctx);

	if (!m->WidthInBytes || !m->Height || !m->Depth)
		return CUDA_ERROR_INVALID_VALUE;
	if (!res)
		res = operand(&w.src, m->srcMemoryType, m->srcHost, m->srcDevice, m->srcArray, m, &src);
	if (!res)
		res = operand(&w.dst, m->dstMemoryType, m->dstHost, m->dstDevice, m->dstArray, m, &dst);
	if (res)
		return res;
	*out = cw_node_params_new(sizeof w, 0);
	if (!*out)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy((*out)->wire, &w, sizeof w);
	(*out)->pageable = (src ? CW_PAGEABLE_SRC : 0) | (dst ? CW_PAGEABLE_DST : 0);
	return CUDA_SUCCESS;
}

static CUresult pack_memset(const struct CUDA_MEMSET_NODE_PARAMS_v2_st *n, struct cw_node_params **out)
{
	const struct CUDA_MEMSET_NODE_PARAMS_st *m = &n->v1;
	struct cw_memset_node w = {
		.dst = m->dst, .pitch = m->pitch, .value = m->value, .element = m->element, .width = m->width, .height = m->height};
	uint64_t span = 0, row;
	struct cw_operand s;
	CUresult res = context_id(n->ctx, &w.ctx);

	if (res)
		return res;
	if ((m->element != 1 && m->element != 2 && m->element != 4) || !m->width || !m->height ||
	    __builtin_mul_overflow(m->width, m->element, &row) ||
	    (m->height > 1 && __builtin_mul_overflow(m->pitch, m->height - 1, &span)) || __builtin_add_overflow(span, row, &span))
		return CUDA_ERROR_INVALID_VALUE;
	if ((res = cw_operand_device(m->dst, span, &s)))
		return res;
	cw_operand_still(&s);
	*out = cw_node_params_new(sizeof w, 0);
	if (!*out)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy((*out)->wire, &w, sizeof w);
	return CUDA_SUCCESS;
}

/* The functions of host nodes stay callable: clones and executable graphs outlive the node. */
static CUresult pack_host(const struct CUDA_HOST_NODE_PARAMS_st *h, struct cw_node_params **out)
{
	struct cw_host_node w = {0};
	CUresult res = h->fn ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;

	if (!res)
		res = cw_hostfn_new(h->fn, h->data, 1, &w.id);
	if (res)
		return res;
	*out = cw_node_params_new(sizeof w, 0);
	if (!*out)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy((*out)->wire, &w, sizeof w);
	(*out)->fn = h->fn;
	(*out)->data = h->data;
	return CUDA_SUCCESS;
}

static CUresult plain(const void *w, size_t len, struct cw_node_params **out)
{
	*out = cw_node_params_new(len, 0);
	if (!*out)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy((*out)->wire, w, len);
	return CUDA_SUCCESS;
}

static CUresult pack_child(const struct CUDA_CHILD_GRAPH_NODE_PARAMS_st *c, struct cw_node_params **out)
{
	struct cw_graph *g = cw_graph_get(c->graph);
	struct cw_child_node w = {g ? g->o.id : 0, (uint32_t)c->ownership};

	if (!g)
		return CUDA_ERROR_INVALID_VALUE;
	if (c->ownership != CW_CHILD_CLONED && (c->ownership != CW_CHILD_MOVED || g->parent))
		return CUDA_ERROR_INVALID_VALUE;
	return plain(&w, sizeof w, out);
}

static CUresult pack_event(CUevent event, struct cw_node_params **out)
{
	struct cw_event *e = (struct cw_event *)cw_handle_get(CW_KIND_EVENT, event);
	struct cw_event_node w = {e ? e->o.id : 0, 0};

	if (!e)
		return CUDA_ERROR_INVALID_HANDLE;
	/* from now on only the worker knows */
	atomic_store_explicit(&e->recorded, 1, memory_order_relaxed);
	return plain(&w, sizeof w, out);
}

static CUresult pack_alloc(const struct CUDA_MEM_ALLOC_NODE_PARAMS_st *a, struct cw_node_params **out)
{
	struct cw_alloc_node w = {.size = a->size, .access = (uint32_t)a->access_count};
	struct cw_node_params *p;

	if (a->access_count > ACCESS_MAX || (a->access_count && !a->access))
		return CUDA_ERROR_INVALID_VALUE;
	p = cw_node_params_new(sizeof w + sizeof a->props + a->access_count * ACCESS_SIZE, 0);
	if (!p)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(p->wire, &w, sizeof w);
	memcpy(p->wire + sizeof w, &a->props, sizeof a->props);
	if (a->access_count)
		memcpy(p->wire + sizeof w + sizeof a->props, a->access, a->access_count * ACCESS_SIZE);
	*out = p;
	return CUDA_SUCCESS;
}

static CUresult pack_batch(const struct CUDA_BATCH_MEM_OP_NODE_PARAMS_st *b, struct cw_node_params **out)
{
	struct cw_batch_node w = {.count = b->count, .flags = b->flags};
	struct cw_node_params *p;
	CUresult res = context_id(b->ctx, &w.ctx);

	if (res)
		return res;
	if (b->count > BATCH_MAX || (b->count && !b->ops))
		return CUDA_ERROR_INVALID_VALUE;
	p = cw_node_params_new(sizeof w + b->count * sizeof *b->ops, 0);
	if (!p)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(p->wire, &w, sizeof w);
	if (b->count)
		memcpy(p->wire + sizeof w, b->ops, b->count * sizeof *b->ops);
	*out = p;
	return CUDA_SUCCESS;
}

/* The ids of the bodies are filled in by who adds the node. */
static CUresult pack_conditional(const struct CUDA_CONDITIONAL_NODE_PARAMS_st *c, struct cw_node_params **out)
{
	struct cw_conditional_node w = {.handle = c->handle, .type = (uint32_t)c->type, .size = c->size};
	CUresult res = context_id(c->ctx, &w.ctx);

	if (res)
		return res;
	if (c->size == 0 || c->size > BODIES_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	*out = cw_node_params_new(sizeof w + c->size * sizeof(uint32_t), c->size);
	if (!*out)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy((*out)->wire, &w, sizeof w);
	return CUDA_SUCCESS;
}

CUresult cw_node_pack(const CUgraphNodeParams *p, struct cw_node_params **out)
{
	struct cw_free_node f;

	*out = NULL;
	switch (p->type) {
	case CW_NODE_KERNEL: return pack_kernel(&p->kernel, out);
	case CW_NODE_MEMCPY: return pack_memcpy(&p->memcpy, out);
	case CW_NODE_MEMSET: return pack_memset(&p->memset, out);
	case CW_NODE_HOST: return pack_host(&p->host, out);
	case CW_NODE_GRAPH: return pack_child(&p->graph, out);
	case CW_NODE_EMPTY: return plain("", 0, out);
	case CW_NODE_WAIT_EVENT:
	case CW_NODE_EVENT_RECORD: return pack_event(p->event, out);
	case CW_NODE_MEM_ALLOC: return pack_alloc(&p->alloc, out);
	case CW_NODE_MEM_FREE: f.ptr = p->free_; return plain(&f, sizeof f, out);
	case CW_NODE_BATCH_MEM_OP: return pack_batch(&p->batch, out);
	case CW_NODE_CONDITIONAL: return pack_conditional(&p->conditional, out);
	case CW_NODE_EXT_SIGNAL:
	case CW_NODE_EXT_WAIT:
		cw_log(CW_LOG_ERROR, "graph nodes of external semaphores are not forwarded");
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	return CUDA_ERROR_INVALID_VALUE;
}
