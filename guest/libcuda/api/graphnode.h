/* Parameters of graph nodes: the structs of the driver API, and what a node remembers of them. */
#ifndef CW_API_GRAPHNODE_H
#define CW_API_GRAPHNODE_H

#include "api/graph.h"

#pragma GCC visibility push(hidden)

/*
 * What a node does, in the form that travels, in one block of the heap that the node owns: pointers
 * that GetParams hands out point into it. args: addresses of a kernel's arguments in the packed
 * bytes, then NULL.
 */
struct cw_node_params {
	size_t len;
	void **args;
	CUgraph *bodies; /* of a conditional */
	CUhostFn fn;	 /* of a host node */
	void *data;
	int by_kernel; /* the application named a CUkernel */
	int pageable;  /* of a copy: CW_PAGEABLE_* */
	_Alignas(16) uint8_t wire[];
};

enum { CW_PAGEABLE_SRC = 1, CW_PAGEABLE_DST = 2 };
/* Adds a copy with an operand that the worker does not reach, as a child graph. */
CUresult cw_node_add_pageable(struct cw_graph *g, uint32_t node, const uint32_t *deps, size_t deps_bytes, const void *edges,
			      size_t edges_bytes, const struct cw_node_params *p);
/* A block with room for len bytes, for count arguments or bodies. NULL: no memory. */
struct cw_node_params *cw_node_params_new(size_t len, size_t count);
/* Checks and packs; *out is to be freed. Kernels, child graphs, events and so on become ids. */
CUresult cw_node_pack(const CUgraphNodeParams *p, struct cw_node_params **out);
/* The other way. The worker is asked for what the application did not say itself. */
CUresult cw_node_unpack(struct cw_graph_node *n, CUgraphNodeParams *p);

#pragma GCC visibility pop
#endif
