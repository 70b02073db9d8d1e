/*
 * Graphs: what the files graph*.c and capture.c share.
 *
 * A graph is not thread-safe (CUDA driver API, "Graph object thread safety"), and neither is its
 * object here: nodes hang on their graph in a list without a lock. Nodes that capture or cloning
 * made get their objects when the application first asks for them.
 */
#ifndef CW_API_GRAPH_H
#define CW_API_GRAPH_H

#include "api/api.h"

#pragma GCC visibility push(hidden)

struct cw_graph {
	struct cw_obj o;
	struct cw_graph_node *nodes;
	struct cw_graph_node *parent; /* of a graph inside a node */
	struct cw_graph *next;	      /* next graph inside the same node */
};
CW_OBJ_FITS(struct cw_graph);

struct cw_graph_node {
	struct cw_obj o;
	struct cw_graph *graph;
	struct cw_graph_node *next, *prev;
	struct cw_graph *inner;	       /* child graph, or bodies of a conditional */
	struct cw_node_params *params; /* what GetParams answers with; NULL: not known here yet */
	uint64_t callback;	       /* of a host node that was added here */
	int32_t type;
};
CW_OBJ_FITS(struct cw_graph_node);

struct cw_graph_exec {
	struct cw_obj o;
	uint64_t flags;
};
CW_OBJ_FITS(struct cw_graph_exec);

static inline struct cw_graph *cw_graph_get(CUgraph g) { return (struct cw_graph *)cw_handle_get(CW_KIND_GRAPH, g); }
static inline struct cw_graph_node *cw_graph_node_get(CUgraphNode n) { return (struct cw_graph_node *)cw_handle_get(CW_KIND_GRAPHNODE, n); }
static inline struct cw_graph_exec *cw_graph_exec_get(CUgraphExec x) { return (struct cw_graph_exec *)cw_handle_get(CW_KIND_GRAPHEXEC, x); }

/* An object whose id may be offered to the worker; then either published or discarded. NULL: none
 * left. */
struct cw_graph *cw_graph_fresh(void);
void cw_graph_publish(struct cw_graph *g, struct cw_graph_node *parent);
/* A graph of the application's becomes part of a child node, which it ends with. */
void cw_graph_move(struct cw_graph *g, struct cw_graph_node *parent);
struct cw_graph_node *cw_graph_node_fresh(void);
void cw_graph_node_publish(struct cw_graph_node *n, struct cw_graph *g, int type);
void cw_graph_discard(struct cw_obj *fresh);
/* Ends the objects of a graph, its nodes and what is inside them. */
void cw_graph_free(struct cw_graph *g);
void cw_graph_node_free(struct cw_graph_node *n);

/* Ids of nodes for the wire, which must all belong to g unless that is NULL. free() *ids.
 * CUDA_ERROR_INVALID_VALUE. */
CUresult cw_graph_ids(const struct cw_graph *g, const CUgraphNode *nodes, size_t count, uint32_t **ids);

/* A reply that lists nodes or edges. */
struct cw_graph_list {
	struct cw_graph_edge *edge;
	size_t count, cap;
	uint32_t *names; /* ids that are offered */
	struct cw_graph_node **fresh;
	size_t named;
};
void cw_graph_list_free(struct cw_graph_list *l);
/* After a reply of len bytes, of which cap were received, with so many nodes unnamed: 1 if it must
 * be asked again, for which l is then ready; 0 if it is complete, and every node has an object in
 * g; -1 out of memory. */
int cw_graph_list_more(struct cw_graph_list *l, size_t len, uint32_t unnamed, struct cw_graph *g);
static inline size_t cw_graph_list_bytes(const struct cw_graph_list *l) { return l->cap * sizeof *l->edge; }
static inline size_t cw_graph_names_bytes(const struct cw_graph_list *l) { return l->named * sizeof *l->names; }

/* The live node of an id, or NULL. */
static inline CUgraphNode cw_graph_node_of(uint32_t id) { return (CUgraphNode)(id ? cw_handle_by_id(CW_KIND_GRAPHNODE, id) : NULL); }

static inline size_t cw_edge_bytes(const CUgraphEdgeData *e, size_t count) { return e ? count * sizeof *e : 0; }

#pragma GCC visibility pop
#endif
