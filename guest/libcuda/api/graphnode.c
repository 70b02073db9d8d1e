/* Nodes: adding, changing and removing them. Every typed entry comes down to the generic form. */
#include "api/graphnode.h"
#include "memory/memory.h"

#include <stdlib.h>
#include <string.h>

/* Objects for the bodies of a conditional node, their ids in the parameters. */
static CUresult offer_bodies(struct cw_node_params *p, uint32_t size, struct cw_graph ***out)
{
	struct cw_graph **g = calloc(size, sizeof *g);
	uint32_t i;

	for (i = 0; g && i < size && (g[i] = cw_graph_fresh()); i++)
		memcpy(p->wire + sizeof(struct cw_conditional_node) + i * sizeof(uint32_t), &g[i]->o.id, sizeof(uint32_t));
	*out = g;
	if (g && i == size)
		return CUDA_SUCCESS;
	while (i > 0)
		cw_graph_discard(&g[--i]->o);
	free(g);
	*out = NULL;
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static void settle_bodies(struct cw_graph_node *n, struct cw_graph **g, uint32_t size, CUresult res)
{
	for (uint32_t i = 0; i < size; i++) {
		if (res)
			cw_graph_discard(&g[i]->o);
		else
			cw_graph_publish(g[i], n);
		if (!res)
			n->params->bodies[i] = (CUgraph)g[i];
	}
	free(g);
}

/* The address of an allocation node is memory of the device from now on, as far as the graph is
 * concerned. */
static void note_alloc(CUgraphNodeParams *np, struct cw_node_params *p, uint64_t ptr)
{
	struct cw_alloc_node w;

	memcpy(&w, p->wire, sizeof w);
	w.ptr = ptr;
	memcpy(p->wire, &w, sizeof w);
	np->alloc.ptr = ptr;
	cw_memory_note_graph(ptr, w.size);
}

static CUresult add(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps, const CUgraphEdgeData *edges, size_t count,
		    CUgraphNodeParams *np)
{
	struct cw_graph *g = cw_graph_get(graph), **bodies = NULL;
	struct cw_node_params *p = NULL;
	struct cw_graph_node *n;
	uint32_t *ids = NULL;
	uint64_t value = 0;
	CUresult res;

	if (!out || !g || !np || (count && !deps))
		return CUDA_ERROR_INVALID_VALUE;
	if ((res = cw_graph_ids(g, deps, count, &ids)))
		return res;
	n = cw_graph_node_fresh();
	res = n ? cw_node_pack(np, &p) : CUDA_ERROR_OUT_OF_MEMORY;
	if (!res && np->type == CW_NODE_CONDITIONAL)
		res = offer_bodies(p, np->conditional.size, &bodies);
	if (!res && p->pageable)
		res = cw_node_add_pageable(g, n->o.id, ids, count * sizeof *ids, edges, cw_edge_bytes(edges, count), p);
	else if (!res)
		res = cwop_GraphAddNode(g->o.id, n->o.id, (uint32_t)np->type, ids, count * sizeof *ids, edges, cw_edge_bytes(edges, count),
					p->wire, p->len, &value);
	free(ids);
	if (n && !res) {
		n->params = p;
		p = NULL;
		cw_graph_node_publish(n, g, np->type);
		if (np->type == CW_NODE_GRAPH && np->graph.ownership == CW_CHILD_MOVED)
			cw_graph_move(cw_graph_get(np->graph.graph), n);
		*out = (CUgraphNode)n;
	} else if (n) {
		cw_graph_discard(&n->o);
	}
	if (bodies) {
		settle_bodies(n, bodies, np->conditional.size, res);
		np->conditional.bodies = res ? NULL : n->params->bodies;
	}
	if (!res && np->type == CW_NODE_MEM_ALLOC)
		note_alloc(np, n->params, value);
	free(p);
	return res;
}

CUresult cwi_cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t count, CUgraphNodeParams *p)
{
	return add(node, graph, deps, NULL, count, p);
}

CUresult cwi_cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, const CUgraphEdgeData *edges, size_t count,
			       CUgraphNodeParams *p)
{
	return add(node, graph, deps, edges, count, p);
}

CUresult cwi_cuGraphDestroyNode(CUgraphNode node)
{
	struct cw_graph_node *n = cw_graph_node_get(node);
	CUresult res = n ? cwop_GraphDestroyNode(n->o.id) : CUDA_ERROR_INVALID_VALUE;

	if (!res)
		cw_graph_node_free(n);
	return res;
}

/* --- setting ---------------------------------------------------------------------------------- */

/* In a graph (exec NULL), where the node remembers it, or in an executable graph. */
static CUresult set(struct cw_graph_exec *x, CUgraphNode node, const CUgraphNodeParams *np)
{
	struct cw_graph_node *n = cw_graph_node_get(node);
	struct cw_node_params *p = NULL;
	CUresult res;

	if (!n || n->type != np->type)
		return CUDA_ERROR_INVALID_VALUE;
	res = cw_node_pack(np, &p);
	if (!res && np->type == CW_NODE_MEMCPY && (p->pageable || (n->params && n->params->pageable))) {
		cw_log(CW_LOG_ERROR, "changing graph nodes that copy pageable memory is not forwarded: pin it");
		res = CUDA_ERROR_NOT_SUPPORTED;
	}
	if (!res && x)
		res = cwop_GraphExecNodeSetParams(x->o.id, n->o.id, (uint32_t)np->type, p->wire, p->len);
	else if (!res)
		res = cwop_GraphNodeSetParams(n->o.id, (uint32_t)np->type, p->wire, p->len);
	if (!res && !x) {
		free(n->params);
		n->params = p;
		p = NULL;
	}
	free(p);
	return res;
}

static CUresult set_exec(CUgraphExec exec, CUgraphNode node, const CUgraphNodeParams *np)
{
	struct cw_graph_exec *x = cw_graph_exec_get(exec);

	return x ? set(x, node, np) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cwi_cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams *p) { return p ? set(NULL, node, p) : CUDA_ERROR_INVALID_VALUE; }

CUresult cwi_cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *p)
{
	return p ? set_exec(exec, node, p) : CUDA_ERROR_INVALID_VALUE;
}

/* --- the typed forms -------------------------------------------------------------------------- */

#define NODE const CUgraphNode *deps, size_t count
#define ADD(kind, ...) \
	CUgraphNodeParams np = {.type = kind, __VA_ARGS__}; \
	return add(node, graph, deps, NULL, count, &np)

/* The first form of a kernel's parameters ends before kernel and context. */
static void kernel_from_v1(CUgraphNodeParams *np, const CUDA_KERNEL_NODE_PARAMS_v1 *p)
{
	np->type = CW_NODE_KERNEL;
	memcpy(&np->kernel, p, sizeof *p);
}

CUresult cwi_cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, NODE, const CUDA_KERNEL_NODE_PARAMS_v1 *p)
{
	CUgraphNodeParams np = {0};

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	kernel_from_v1(&np, p);
	return add(node, graph, deps, NULL, count, &np);
}

CUresult cwi_cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, NODE, const CUDA_KERNEL_NODE_PARAMS *p)
{
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	ADD(CW_NODE_KERNEL, .kernel = *p);
}

CUresult cwi_cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, NODE, const CUDA_MEMCPY3D *p, CUcontext ctx)
{
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	ADD(CW_NODE_MEMCPY, .memcpy = {.ctx = ctx, .copy = *p});
}

CUresult cwi_cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, NODE, const CUDA_MEMSET_NODE_PARAMS *p, CUcontext ctx)
{
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	ADD(CW_NODE_MEMSET, .memset = {*p, ctx});
}

CUresult cwi_cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, NODE, const CUDA_HOST_NODE_PARAMS *p)
{
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	ADD(CW_NODE_HOST, .host = *p);
}

CUresult cwi_cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, NODE, CUgraph child) { ADD(CW_NODE_GRAPH, .graph = {child, 0}); }

CUresult cwi_cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, NODE) { ADD(CW_NODE_EMPTY, .reserved0 = {0}); }

CUresult cwi_cuGraphAddEventRecordNode(CUgraphNode *node, CUgraph graph, NODE, CUevent event) { ADD(CW_NODE_EVENT_RECORD, .event = event); }

CUresult cwi_cuGraphAddEventWaitNode(CUgraphNode *node, CUgraph graph, NODE, CUevent event) { ADD(CW_NODE_WAIT_EVENT, .event = event); }

CUresult cwi_cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, NODE, CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
	CUgraphNodeParams np = {.type = CW_NODE_MEM_ALLOC};
	CUresult res;

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	np.alloc = *p;
	res = add(node, graph, deps, NULL, count, &np);
	if (!res)
		p->ptr = np.alloc.ptr;
	return res;
}

CUresult cwi_cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, NODE, CUdeviceptr ptr) { ADD(CW_NODE_MEM_FREE, .free_ = ptr); }

CUresult cwi_cuGraphAddBatchMemOpNode(CUgraphNode *node, CUgraph graph, NODE, const CUDA_BATCH_MEM_OP_NODE_PARAMS *p)
{
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	ADD(CW_NODE_BATCH_MEM_OP, .batch = *p);
}

CUresult cwi_cuGraphConditionalHandleCreate(CUgraphConditionalHandle *out, CUgraph graph, CUcontext ctx, unsigned int value,
					    unsigned int flags)
{
	struct cw_graph *g = cw_graph_get(graph);
	struct cw_ctx *c;
	CUresult res;

	if (!out || !g)
		return CUDA_ERROR_INVALID_VALUE;
	res = cw_ctx_resolve(ctx, &c);
	return res ? res : cwop_GraphConditionalCreate(g->o.id, c->o.id, value, flags, out);
}

#define SET(kind, ...) \
	CUgraphNodeParams np = {.type = kind, __VA_ARGS__}; \
	return set(NULL, node, &np)
#define SET_EXEC(kind, ...) \
	CUgraphNodeParams np = {.type = kind, __VA_ARGS__}; \
	return set_exec(exec, node, &np)
#define NEED(p) \
	if (!(p)) \
	return CUDA_ERROR_INVALID_VALUE

CUresult cwi_cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *p)
{
	CUgraphNodeParams np = {0};

	NEED(p);
	kernel_from_v1(&np, p);
	return set(NULL, node, &np);
}

CUresult cwi_cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p)
{
	NEED(p);
	SET(CW_NODE_KERNEL, .kernel = *p);
}

/* The context stays what it was. */
static CUcontext copy_context(CUgraphNode node)
{
	struct cw_graph_node *n = cw_graph_node_get(node);
	size_t at = 2 * sizeof(struct cw_memcpy_operand);
	struct cw_memcpy_node w;
	struct cw_memset_node m;
	uint32_t id = 0;

	if (n && n->params && n->type == CW_NODE_MEMCPY) {
		memcpy(&w, n->params->wire + at, sizeof w);
		id = w.ctx;
	} else if (n && n->params && n->type == CW_NODE_MEMSET) {
		memcpy(&m, n->params->wire, sizeof m);
		id = m.ctx;
	}
	return (CUcontext)(id ? cw_handle_by_id(CW_KIND_CTX, id) : NULL);
}

CUresult cwi_cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D *p)
{
	NEED(p);
	SET(CW_NODE_MEMCPY, .memcpy = {.ctx = copy_context(node), .copy = *p});
}

CUresult cwi_cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *p)
{
	NEED(p);
	SET(CW_NODE_MEMSET, .memset = {*p, copy_context(node)});
}

CUresult cwi_cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS *p)
{
	NEED(p);
	SET(CW_NODE_HOST, .host = *p);
}

CUresult cwi_cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event) { SET(CW_NODE_EVENT_RECORD, .event = event); }

CUresult cwi_cuGraphEventWaitNodeSetEvent(CUgraphNode node, CUevent event) { SET(CW_NODE_WAIT_EVENT, .event = event); }

CUresult cwi_cuGraphBatchMemOpNodeSetParams(CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS *p)
{
	NEED(p);
	SET(CW_NODE_BATCH_MEM_OP, .batch = *p);
}

CUresult cwi_cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *p)
{
	CUgraphNodeParams np = {0};

	NEED(p);
	kernel_from_v1(&np, p);
	return set_exec(exec, node, &np);
}

CUresult cwi_cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p)
{
	NEED(p);
	SET_EXEC(CW_NODE_KERNEL, .kernel = *p);
}

CUresult cwi_cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D *p, CUcontext ctx)
{
	NEED(p);
	SET_EXEC(CW_NODE_MEMCPY, .memcpy = {.ctx = ctx, .copy = *p});
}

CUresult cwi_cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *p, CUcontext ctx)
{
	NEED(p);
	SET_EXEC(CW_NODE_MEMSET, .memset = {*p, ctx});
}

CUresult cwi_cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS *p)
{
	NEED(p);
	SET_EXEC(CW_NODE_HOST, .host = *p);
}

CUresult cwi_cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child)
{
	SET_EXEC(CW_NODE_GRAPH, .graph = {child, 0});
}

CUresult cwi_cuGraphExecEventRecordNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event)
{
	SET_EXEC(CW_NODE_EVENT_RECORD, .event = event);
}

CUresult cwi_cuGraphExecEventWaitNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event)
{
	SET_EXEC(CW_NODE_WAIT_EVENT, .event = event);
}

CUresult cwi_cuGraphExecBatchMemOpNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS *p)
{
	NEED(p);
	SET_EXEC(CW_NODE_BATCH_MEM_OP, .batch = *p);
}
