/* What nodes are asked about: parameters and attributes. */
#include "api/callback.h"
#include "api/graphnode.h"

#include <stdlib.h>
#include <string.h>

/* The child graph of a node, which the worker names on first demand. */
static CUresult name_child(struct cw_graph_node *n, struct cw_graph *fresh, const struct cw_node_params *p)
{
	struct cw_child_node w;

	memcpy(&w, p->wire, sizeof w);
	if (w.graph == fresh->o.id)
		cw_graph_publish(fresh, n);
	else
		cw_graph_discard(&fresh->o);
	return CUDA_SUCCESS;
}

/* Fetches what the worker knows of a node. */
static CUresult fetch(struct cw_graph_node *n, struct cw_node_params **out)
{
	struct cw_graph *fresh = n->type == CW_NODE_GRAPH ? cw_graph_fresh() : NULL;
	size_t cap = 512, len = 0;
	struct cw_node_params *p = NULL;
	CUresult res;

	if (n->type == CW_NODE_GRAPH && !fresh)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (;;) {
		free(p);
		p = cw_node_params_new(cap, CW_PARAM_BYTES_MAX / 8);
		if (!p) {
			res = CUDA_ERROR_OUT_OF_MEMORY;
			break;
		}
		uint32_t type = 0;
		res = cwop_GraphNodeGetParams(n->o.id, fresh ? fresh->o.id : 0, &type, p->wire, cap, &len);
		if (res || len <= cap)
			break;
		cap = len;
	}
	if (!res) {
		p->len = len;
		if (fresh)
			name_child(n, fresh, p);
		*out = p;
		return res;
	}
	if (fresh)
		cw_graph_discard(&fresh->o);
	free(p);
	return res;
}

static CUcontext context_of(uint32_t id) { return (CUcontext)(id ? cw_handle_by_id(CW_KIND_CTX, id) : NULL); }

/* The kernel that a function is, or comes from: runtimes know their functions by it. */
static CUkernel kernel_of(struct cw_func *f)
{
	if (cw_handle_by_id(CW_KIND_KERNEL, f->o.id))
		return (CUkernel)f;
	return f->owner ? (CUkernel)cw_handle_by_id(CW_KIND_KERNEL, f->owner->id) : NULL;
}

static CUresult get_kernel(struct cw_node_params *p, struct CUDA_KERNEL_NODE_PARAMS_st *out)
{
	struct cw_kernel_node w;
	struct cw_func *f;

	memcpy(&w, p->wire, sizeof w);
	f = (struct cw_func *)cw_handle_by_id(CW_KIND_FUNC, w.func);
	if (!f)
		f = (struct cw_func *)cw_handle_by_id(CW_KIND_KERNEL, w.func);
	if (!f)
		return CUDA_ERROR_INVALID_HANDLE;
	for (uint32_t i = 0; i < f->info->param_count && i < CW_PARAM_BYTES_MAX / 8; i++)
		p->args[i] = p->wire + sizeof w + f->info->params[i].offset;
	*out = (struct CUDA_KERNEL_NODE_PARAMS_st){
		.func = p->by_kernel ? NULL : (CUfunction)f,
		.kern = kernel_of(f),
		.grid = {w.gx, w.gy, w.gz},
		.block = {w.bx, w.by, w.bz},
		.shared = w.shared,
		.args = p->args,
		.ctx = context_of(w.ctx),
	};
	return CUDA_SUCCESS;
}

static void get_memcpy(const struct cw_node_params *p, struct CUDA_MEMCPY_NODE_PARAMS_st *out)
{
	struct cw_memcpy_operand s, d;
	struct cw_memcpy_node w;
	CUDA_MEMCPY3D *m = &out->copy;

	memcpy(&s, p->wire, sizeof s);
	memcpy(&d, p->wire + sizeof s, sizeof d);
	memcpy(&w, p->wire + 2 * sizeof s, sizeof w);
	memset(out, 0, sizeof *out);
	out->ctx = context_of(w.ctx);
	m->srcXInBytes = s.x, m->srcY = s.y, m->srcZ = s.z, m->srcLOD = s.lod, m->srcMemoryType = (CUmemorytype)s.type;
	m->dstXInBytes = d.x, m->dstY = d.y, m->dstZ = d.z, m->dstLOD = d.lod, m->dstMemoryType = (CUmemorytype)d.type;
	if (s.type == CU_MEMORYTYPE_HOST)
		m->srcHost = (const void *)(uintptr_t)s.ptr;
	else if (s.type == CU_MEMORYTYPE_ARRAY)
		m->srcArray = (CUarray)cw_handle_by_id(CW_KIND_ARRAY, s.array);
	else
		m->srcDevice = s.ptr;
	if (d.type == CU_MEMORYTYPE_HOST)
		m->dstHost = (void *)(uintptr_t)d.ptr;
	else if (d.type == CU_MEMORYTYPE_ARRAY)
		m->dstArray = (CUarray)cw_handle_by_id(CW_KIND_ARRAY, d.array);
	else
		m->dstDevice = d.ptr;
	m->srcPitch = s.pitch, m->srcHeight = s.height, m->dstPitch = d.pitch, m->dstHeight = d.height;
	m->WidthInBytes = w.width, m->Height = w.height, m->Depth = w.depth;
}

static void get_alloc(struct cw_node_params *p, struct CUDA_MEM_ALLOC_NODE_PARAMS_st *out)
{
	struct cw_alloc_node w;

	memcpy(&w, p->wire, sizeof w);
	memcpy(&out->props, p->wire + sizeof w, sizeof out->props);
	out->access = w.access ? p->wire + sizeof w + sizeof out->props : NULL;
	out->access_count = w.access;
	out->size = w.size;
	out->ptr = w.ptr;
}

static CUresult unpack(struct cw_node_params *p, CUgraphNodeParams *out)
{
	struct cw_memset_node ms;
	struct cw_host_node h;
	struct cw_child_node c;
	struct cw_event_node e;
	struct cw_free_node f;
	struct cw_batch_node b;
	struct cw_conditional_node k;

	switch (out->type) {
	case CW_NODE_KERNEL: return get_kernel(p, &out->kernel);
	case CW_NODE_MEMCPY: get_memcpy(p, &out->memcpy); break;
	case CW_NODE_MEMSET:
		memcpy(&ms, p->wire, sizeof ms);
		out->memset = (struct CUDA_MEMSET_NODE_PARAMS_v2_st){{ms.dst, ms.pitch, ms.value, ms.element, ms.width, ms.height},
								     context_of(ms.ctx)};
		break;
	case CW_NODE_HOST:
		memcpy(&h, p->wire, sizeof h);
		if (!p->fn && !cw_hostfn_find(h.id, &p->fn, &p->data))
			return CUDA_ERROR_INVALID_VALUE;
		out->host = (struct CUDA_HOST_NODE_PARAMS_st){p->fn, p->data};
		break;
	case CW_NODE_GRAPH:
		memcpy(&c, p->wire, sizeof c);
		out->graph = (struct CUDA_CHILD_GRAPH_NODE_PARAMS_st){(CUgraph)cw_handle_by_id(CW_KIND_GRAPH, c.graph), (int)c.ownership};
		break;
	case CW_NODE_WAIT_EVENT:
	case CW_NODE_EVENT_RECORD:
		memcpy(&e, p->wire, sizeof e);
		out->event = (CUevent)cw_handle_by_id(CW_KIND_EVENT, e.event);
		break;
	case CW_NODE_MEM_ALLOC: get_alloc(p, &out->alloc); break;
	case CW_NODE_MEM_FREE:
		memcpy(&f, p->wire, sizeof f);
		out->free_ = f.ptr;
		break;
	case CW_NODE_BATCH_MEM_OP:
		memcpy(&b, p->wire, sizeof b);
		out->batch = (struct CUDA_BATCH_MEM_OP_NODE_PARAMS_st){context_of(b.ctx), b.count,
								       (CUstreamBatchMemOpParams *)(void *)(p->wire + sizeof b), b.flags};
		break;
	case CW_NODE_CONDITIONAL:
		memcpy(&k, p->wire, sizeof k);
		out->conditional = (struct CUDA_CONDITIONAL_NODE_PARAMS_st){k.handle, (int)k.type, k.size, p->bodies, context_of(k.ctx)};
		break;
	}
	return CUDA_SUCCESS;
}

CUresult cw_node_unpack(struct cw_graph_node *n, CUgraphNodeParams *out)
{
	memset(out, 0, sizeof *out);
	out->type = n->type;
	/* the graph that was added is not the one that the node owns */
	if (!n->params || (n->type == CW_NODE_GRAPH && !n->inner)) {
		struct cw_node_params *p = NULL;
		CUresult res = fetch(n, &p);
		if (res)
			return res;
		free(n->params);
		n->params = p;
	}
	return unpack(n->params, out);
}

/* --- the typed forms -------------------------------------------------------------------------- */

/* The parameters of a node of this type. */
static CUresult get(CUgraphNode node, int type, CUgraphNodeParams *np, const void *out)
{
	struct cw_graph_node *n = cw_graph_node_get(node);

	if (!n || !out || n->type != type)
		return CUDA_ERROR_INVALID_VALUE;
	return cw_node_unpack(n, np);
}

#define GET(symbol, kind, type, member) \
	CUresult cwi_##symbol(CUgraphNode node, type *out) \
	{ \
		CUgraphNodeParams np; \
		CUresult res = get(node, kind, &np, out); \
		if (!res) \
			memcpy(out, &np.member, sizeof *out); \
		return res; \
	}

/* What the application named as a kernel, the first form has to name as a function; both are taken
 * everywhere. */
CUresult cwi_cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1 *out)
{
	CUgraphNodeParams np;
	CUresult res = get(node, CW_NODE_KERNEL, &np, out);

	if (res)
		return res;
	if (!np.kernel.func)
		np.kernel.func = (CUfunction)(void *)np.kernel.kern;
	memcpy(out, &np.kernel, sizeof *out);
	return CUDA_SUCCESS;
}

GET(cuGraphKernelNodeGetParams_v2, CW_NODE_KERNEL, CUDA_KERNEL_NODE_PARAMS, kernel)
GET(cuGraphMemcpyNodeGetParams, CW_NODE_MEMCPY, CUDA_MEMCPY3D, memcpy.copy)
GET(cuGraphMemsetNodeGetParams, CW_NODE_MEMSET, CUDA_MEMSET_NODE_PARAMS, memset.v1)
GET(cuGraphHostNodeGetParams, CW_NODE_HOST, CUDA_HOST_NODE_PARAMS, host)
GET(cuGraphChildGraphNodeGetGraph, CW_NODE_GRAPH, CUgraph, graph.graph)
GET(cuGraphEventRecordNodeGetEvent, CW_NODE_EVENT_RECORD, CUevent, event)
GET(cuGraphEventWaitNodeGetEvent, CW_NODE_WAIT_EVENT, CUevent, event)
GET(cuGraphMemAllocNodeGetParams, CW_NODE_MEM_ALLOC, CUDA_MEM_ALLOC_NODE_PARAMS, alloc)
GET(cuGraphMemFreeNodeGetParams, CW_NODE_MEM_FREE, CUdeviceptr, free_)
GET(cuGraphBatchMemOpNodeGetParams, CW_NODE_BATCH_MEM_OP, CUDA_BATCH_MEM_OP_NODE_PARAMS, batch)

/* --- attributes ------------------------------------------------------------------------------- */

enum { ATTR_PROGRAMMATIC_EVENT = 7, ATTR_COMPLETION_EVENT = 12 };

static int holds_event(CUkernelNodeAttrID attr) { return (int)attr == ATTR_PROGRAMMATIC_EVENT || (int)attr == ATTR_COMPLETION_EVENT; }

CUresult cwi_cuGraphKernelNodeGetAttribute(CUgraphNode node, CUkernelNodeAttrID attr, CUkernelNodeAttrValue *value)
{
	struct cw_graph_node *n = cw_graph_node_get(node);
	uint64_t id;
	size_t len = 0;
	CUresult res;

	if (!n || !value || n->type != CW_NODE_KERNEL)
		return CUDA_ERROR_INVALID_VALUE;
	res = cwop_GraphNodeGetAttribute(n->o.id, (uint32_t)attr, value, sizeof *value, &len);
	if (!res && holds_event(attr)) {
		memcpy(&id, value, sizeof id);
		value->programmaticEvent.event = (CUevent)cw_handle_by_id(CW_KIND_EVENT, (uint32_t)id);
	}
	return res;
}

CUresult cwi_cuGraphKernelNodeSetAttribute(CUgraphNode node, CUkernelNodeAttrID attr, const CUkernelNodeAttrValue *value)
{
	struct cw_graph_node *n = cw_graph_node_get(node);
	CUkernelNodeAttrValue v;

	if (!n || !value || n->type != CW_NODE_KERNEL)
		return CUDA_ERROR_INVALID_VALUE;
	v = *value;
	if (holds_event(attr)) {
		struct cw_event *e = (struct cw_event *)cw_handle_get(CW_KIND_EVENT, v.programmaticEvent.event);
		uint64_t id = e ? e->o.id : 0;
		if (!e)
			return CUDA_ERROR_INVALID_HANDLE;
		atomic_store_explicit(&e->recorded, 1, memory_order_relaxed);
		memcpy(&v, &id, sizeof id);
	}
	return cwop_GraphNodeSetAttribute(n->o.id, (uint32_t)attr, &v, sizeof v);
}

CUresult cwi_cuGraphKernelNodeCopyAttributes(CUgraphNode dst, CUgraphNode src)
{
	struct cw_graph_node *d = cw_graph_node_get(dst), *s = cw_graph_node_get(src);

	return d && s ? cwop_GraphNodeCopyAttributes(d->o.id, s->o.id) : CUDA_ERROR_INVALID_VALUE;
}
