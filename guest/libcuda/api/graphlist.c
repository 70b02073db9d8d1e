/* What is asked about a graph's shape, and edges. */
#include "api/graph.h"

#include <stdlib.h>
#include <string.h>

/* A list as the worker has it, every node with an object. cw_graph_list_free it, also after an
 * error. */
static CUresult fetch(uint32_t what, struct cw_graph *g, struct cw_graph_node *n, struct cw_graph_list *l)
{
	for (;;) {
		uint32_t unnamed = 0;
		size_t len = 0;
		CUresult res = cwop_GraphList(what, g->o.id, n ? n->o.id : 0, l->names, cw_graph_names_bytes(l), &unnamed, l->edge,
					      cw_graph_list_bytes(l), &len);
		if (res)
			return res;
		int more = cw_graph_list_more(l, len, unnamed, g);
		if (more <= 0)
			return more < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
	}
}

struct out {
	CUgraphNode *from, *to;
	CUgraphEdgeData *data;
	size_t *count;
};

static int plain(const struct cw_graph_edge *e)
{
	static const uint8_t zero[8];

	return !memcmp(e->data, zero, sizeof zero);
}

/* The arrays hold *count entries; what is left of them becomes NULL, and *count what there is.
 * Without arrays only the count. */
static CUresult list(uint32_t what, struct cw_graph *g, struct cw_graph_node *n, const struct out *o)
{
	struct cw_graph_list l = {0};
	CUresult res;

	if (!g || !o->count || (what == CW_GRAPH_LIST_EDGES && !o->from != !o->to))
		return CUDA_ERROR_INVALID_VALUE;
	res = fetch(what, g, n, &l);
	for (size_t i = 0; !res && !o->data && o->from && i < l.count; i++)
		if (!plain(&l.edge[i]))
			res = CUDA_ERROR_LOSSY_QUERY;
	if (!res && o->from) {
		size_t room = *o->count, k = room < l.count ? room : l.count;
		for (size_t i = 0; i < room; i++) {
			o->from[i] = i < k ? cw_graph_node_of(l.edge[i].from) : NULL;
			if (o->to)
				o->to[i] = i < k ? cw_graph_node_of(l.edge[i].to) : NULL;
			if (o->data && i < k)
				memcpy(&o->data[i], l.edge[i].data, sizeof o->data[i]);
		}
		*o->count = k;
	} else if (!res) {
		*o->count = l.count;
	}
	cw_graph_list_free(&l);
	return res;
}

CUresult cwi_cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	return list(CW_GRAPH_LIST_NODES, cw_graph_get(graph), NULL, &(struct out){nodes, NULL, NULL, count});
}

CUresult cwi_cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	return list(CW_GRAPH_LIST_ROOTS, cw_graph_get(graph), NULL, &(struct out){nodes, NULL, NULL, count});
}

CUresult cwi_cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data, size_t *count)
{
	return list(CW_GRAPH_LIST_EDGES, cw_graph_get(graph), NULL, &(struct out){from, to, data, count});
}

CUresult cwi_cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
	return cwi_cuGraphGetEdges_v2(graph, from, to, NULL, count);
}

static CUresult around(uint32_t what, CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *data, size_t *count)
{
	struct cw_graph_node *n = cw_graph_node_get(node);

	return list(what, n ? n->graph : NULL, n, &(struct out){nodes, NULL, data, count});
}

CUresult cwi_cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *data, size_t *count)
{
	return around(CW_GRAPH_LIST_BEFORE, node, nodes, data, count);
}

CUresult cwi_cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *nodes, size_t *count)
{
	return around(CW_GRAPH_LIST_BEFORE, node, nodes, NULL, count);
}

CUresult cwi_cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *data, size_t *count)
{
	return around(CW_GRAPH_LIST_AFTER, node, nodes, data, count);
}

CUresult cwi_cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *nodes, size_t *count)
{
	return around(CW_GRAPH_LIST_AFTER, node, nodes, NULL, count);
}

CUresult cwi_cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
	struct cw_graph_node *n = cw_graph_node_get(node);

	if (!n || !type)
		return CUDA_ERROR_INVALID_VALUE;
	*type = n->type;
	return CUDA_SUCCESS;
}

/* --- edges ------------------------------------------------------------------------------------ */

static CUresult set(int remove, CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *data, size_t count)
{
	struct cw_graph *g = cw_graph_get(graph);
	uint32_t *before = NULL, *after = NULL;
	CUresult res;

	if (!g)
		return CUDA_ERROR_INVALID_VALUE;
	if (count == 0)
		return CUDA_SUCCESS;
	res = cw_graph_ids(g, from, count, &before);
	if (!res)
		res = cw_graph_ids(g, to, count, &after);
	if (!res)
		res = cwop_GraphSetEdges(g->o.id, (uint32_t)remove, before, count * sizeof *before, after, count * sizeof *after, data,
					 cw_edge_bytes(data, count));
	free(before);
	free(after);
	return res;
}

CUresult cwi_cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *data,
				       size_t count)
{
	return set(0, graph, from, to, data, count);
}

CUresult cwi_cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
	return set(0, graph, from, to, NULL, count);
}

CUresult cwi_cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *data,
					  size_t count)
{
	return set(1, graph, from, to, data, count);
}

CUresult cwi_cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
	return set(1, graph, from, to, NULL, count);
}
