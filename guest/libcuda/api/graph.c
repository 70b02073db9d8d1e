/* Graphs: their objects, and the lists of nodes that the worker sends. */
#include "api/graph.h"
#include "api/callback.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- objects ---------------------------------------------------------------------------------- */

struct cw_graph *cw_graph_fresh(void) { return (struct cw_graph *)cw_handle_alloc(); }

void cw_graph_move(struct cw_graph *g, struct cw_graph_node *parent)
{
	g->parent = parent;
	g->next = parent->inner;
	parent->inner = g;
}

void cw_graph_publish(struct cw_graph *g, struct cw_graph_node *parent)
{
	if (parent)
		cw_graph_move(g, parent);
	cw_handle_publish(&g->o, CW_KIND_GRAPH);
}

struct cw_graph_node *cw_graph_node_fresh(void) { return (struct cw_graph_node *)cw_handle_alloc(); }

void cw_graph_node_publish(struct cw_graph_node *n, struct cw_graph *g, int type)
{
	n->graph = g;
	n->type = type;
	n->next = g->nodes;
	if (g->nodes)
		g->nodes->prev = n;
	g->nodes = n;
	cw_handle_publish(&n->o, CW_KIND_GRAPHNODE);
}

void cw_graph_discard(struct cw_obj *fresh)
{
	cw_handle_publish(fresh, CW_KIND_GRAPH);
	cw_handle_free(CW_KIND_GRAPH, fresh);
}

static void end_node(struct cw_graph_node *n)
{
	while (n->inner) {
		struct cw_graph *g = n->inner;
		n->inner = g->next;
		cw_graph_free(g);
	}
	free(n->params);
	n->params = NULL;
	cw_handle_free(CW_KIND_GRAPHNODE, &n->o);
}

void cw_graph_node_free(struct cw_graph_node *n)
{
	if (n->prev)
		n->prev->next = n->next;
	else
		n->graph->nodes = n->next;
	if (n->next)
		n->next->prev = n->prev;
	end_node(n);
}

void cw_graph_free(struct cw_graph *g)
{
	while (g->nodes) {
		struct cw_graph_node *n = g->nodes;
		g->nodes = n->next;
		end_node(n);
	}
	cw_handle_free(CW_KIND_GRAPH, &g->o);
}

CUresult cw_graph_ids(const struct cw_graph *g, const CUgraphNode *nodes, size_t count, uint32_t **ids)
{
	*ids = NULL;
	if (count == 0)
		return CUDA_SUCCESS;
	if (!nodes || count > CW_HANDLE_COUNT)
		return CUDA_ERROR_INVALID_VALUE;
	uint32_t *out = malloc(count * sizeof *out);
	if (!out)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < count; i++) {
		struct cw_graph_node *n = cw_graph_node_get(nodes[i]);
		if (!n || (g && n->graph != g)) {
			free(out);
			return CUDA_ERROR_INVALID_VALUE;
		}
		out[i] = n->o.id;
	}
	*ids = out;
	return CUDA_SUCCESS;
}

/* --- lists ------------------------------------------------------------------------------------ */

/* Makes objects of the offered ids that the worker used, in order, and gives the others back. */
static void settle_names(struct cw_graph_list *l, struct cw_graph *g)
{
	size_t used = 0;

	for (size_t i = 0; i < l->count && g; i++) {
		const struct cw_graph_edge *e = &l->edge[i];
		if (used < l->named && e->from == l->names[used])
			cw_graph_node_publish(l->fresh[used++], g, (int)e->from_type);
		if (used < l->named && e->to == l->names[used])
			cw_graph_node_publish(l->fresh[used++], g, (int)e->to_type);
	}
	for (; used < l->named; used++)
		cw_graph_discard(&l->fresh[used]->o);
	l->named = 0;
}

void cw_graph_list_free(struct cw_graph_list *l)
{
	settle_names(l, NULL);
	free(l->edge);
	free(l->names);
	free(l->fresh);
	memset(l, 0, sizeof *l);
}

int cw_graph_list_more(struct cw_graph_list *l, size_t len, uint32_t unnamed, struct cw_graph *g)
{
	size_t count = len / sizeof *l->edge;
	int again = 0;

	l->count = count < l->cap ? count : l->cap;
	settle_names(l, g);
	if (count > l->cap) {
		struct cw_graph_edge *edge = realloc(l->edge, count * sizeof *edge);
		if (!edge)
			return -1;
		l->edge = edge;
		l->cap = count;
		again = 1;
	}
	if (unnamed && g) {
		uint32_t *names = realloc(l->names, unnamed * sizeof *names);
		if (names)
			l->names = names;
		struct cw_graph_node **fresh = realloc(l->fresh, unnamed * sizeof *fresh);
		if (fresh)
			l->fresh = fresh;
		if (!names || !fresh)
			return -1;
		for (; l->named < unnamed; l->named++) {
			struct cw_graph_node *n = cw_graph_node_fresh();
			if (!n)
				return -1;
			fresh[l->named] = n;
			names[l->named] = n->o.id;
		}
		again = 1;
	}
	return again;
}

/* --- graphs ----------------------------------------------------------------------------------- */

CUresult cwi_cuGraphCreate(CUgraph *graph, unsigned int flags)
{
	struct cw_graph *g;
	CUresult res;

	if (!graph || flags)
		return CUDA_ERROR_INVALID_VALUE;
	g = cw_graph_fresh();
	if (!g)
		return CUDA_ERROR_OUT_OF_MEMORY;
	cw_graph_publish(g, NULL);
	res = cwop_GraphCreate(g->o.id, flags);
	if (res)
		cw_graph_free(g);
	else
		*graph = (CUgraph)g;
	return res;
}

CUresult cwi_cuGraphDestroy(CUgraph graph)
{
	struct cw_graph *g = cw_graph_get(graph);
	CUresult res;

	if (!g || g->parent)
		return CUDA_ERROR_INVALID_VALUE;
	res = cwop_GraphDestroy(g->o.id);
	if (!res)
		cw_graph_free(g);
	return res;
}

CUresult cwi_cuGraphClone(CUgraph *clone, CUgraph original)
{
	struct cw_graph *o = cw_graph_get(original), *g;
	CUresult res;

	if (!clone || !o)
		return CUDA_ERROR_INVALID_VALUE;
	g = cw_graph_fresh();
	if (!g)
		return CUDA_ERROR_OUT_OF_MEMORY;
	cw_graph_publish(g, NULL);
	res = cwop_GraphClone(g->o.id, o->o.id);
	if (res)
		cw_graph_free(g);
	else
		*clone = (CUgraph)g;
	return res;
}

CUresult cwi_cuGraphNodeFindInClone(CUgraphNode *node, CUgraphNode original, CUgraph clone)
{
	struct cw_graph_node *o = cw_graph_node_get(original), *fresh;
	struct cw_graph *g = cw_graph_get(clone);
	uint32_t found = 0;
	CUresult res;

	if (!node || !o || !g)
		return CUDA_ERROR_INVALID_VALUE;
	fresh = cw_graph_node_fresh();
	if (!fresh)
		return CUDA_ERROR_OUT_OF_MEMORY;
	res = cwop_GraphFindInClone(o->o.id, g->o.id, fresh->o.id, &found);
	if (!res && found == fresh->o.id)
		cw_graph_node_publish(fresh, g, o->type);
	else
		cw_graph_discard(&fresh->o);
	if (!res)
		*node = cw_graph_node_of(found);
	return res;
}

/* Prints into a file of the guest. */
CUresult cwi_cuGraphDebugDotPrint(CUgraph graph, const char *path, unsigned int flags)
{
	struct cw_graph *g = cw_graph_get(graph);
	size_t cap = 0, len = 0;
	char *text = NULL;
	CUresult res;

	if (!g || !path)
		return CUDA_ERROR_INVALID_VALUE;
	for (;;) {
		res = cwop_GraphDebugDot(g->o.id, flags, text, cap, &len);
		if (res || len <= cap)
			break;
		free(text);
		text = malloc(len);
		if (!text)
			return CUDA_ERROR_OUT_OF_MEMORY;
		cap = len;
	}
	if (!res) {
		FILE *f = fopen(path, "we");
		size_t put = f ? fwrite(text, 1, len, f) : 0;
		if (!f || put != len || fclose(f))
			res = CUDA_ERROR_OPERATING_SYSTEM;
	}
	free(text);
	return res;
}
