/* Parameters of graph nodes: the structs of the driver API, and what a node remembers of them. */
#ifndef CW_API_GRAPHNODE_H
#define CW_API_GRAPHNODE_H

#include "api/graph.h"

#pragma GCC visibility push(hidden)

struct CUDA_KERNEL_NODE_PARAMS_v1_st {
	CUfunction func;
	unsigned int grid[3], block[3], shared;
	void **args, **extra;
};
struct CUDA_KERNEL_NODE_PARAMS_st { /* v2 and v3 */
	CUfunction func;
	unsigned int grid[3], block[3], shared;
	void **args, **extra;
	CUkernel kern;
	CUcontext ctx;
};
struct CUDA_MEMSET_NODE_PARAMS_st { /* v1; v2 adds a context */
	CUdeviceptr dst;
	size_t pitch;
	unsigned int value, element;
	size_t width, height;
};
struct CUDA_HOST_NODE_PARAMS_st {
	CUhostFn fn;
	void *data;
};
struct CUDA_MEM_ALLOC_NODE_PARAMS_st {
	uint8_t props[88]; /* CUmemPoolProps */
	const void *access;
	size_t access_count, size;
	CUdeviceptr ptr;
};
struct CUDA_BATCH_MEM_OP_NODE_PARAMS_st {
	CUcontext ctx;
	unsigned int count;
	CUstreamBatchMemOpParams *ops;
	unsigned int flags;
};
struct cw_memcpy_node_params {
	int flags, reserved;
	CUcontext ctx;
	CUDA_MEMCPY3D copy;
};
struct cw_memset_node_v2 {
	struct CUDA_MEMSET_NODE_PARAMS_st v1;
	CUcontext ctx;
};
struct cw_child_node_params {
	CUgraph graph;
	int ownership;
};
struct cw_conditional_params {
	CUgraphConditionalHandle handle;
	int type;
	unsigned int size;
	CUgraph *bodies; /* out */
	CUcontext ctx;
};
struct CUgraphNodeParams_st {
	CUgraphNodeType type;
	int reserved0[3];
	union {
		long long reserved1[29];
		struct CUDA_KERNEL_NODE_PARAMS_st kernel;
		struct cw_memcpy_node_params memcpy;
		struct cw_memset_node_v2 memset;
		struct CUDA_HOST_NODE_PARAMS_st host;
		struct cw_child_node_params graph;
		CUevent event;
		struct CUDA_MEM_ALLOC_NODE_PARAMS_st alloc;
		CUdeviceptr free_;
		struct CUDA_BATCH_MEM_OP_NODE_PARAMS_st batch;
		struct cw_conditional_params conditional;
	};
	long long reserved2;
};
_Static_assert(sizeof(struct CUDA_KERNEL_NODE_PARAMS_v1_st) == 56 && sizeof(struct CUDA_KERNEL_NODE_PARAMS_st) == 72, "kernel");
_Static_assert(sizeof(struct cw_memset_node_v2) == 48 && sizeof(struct cw_memcpy_node_params) == 216, "memset, memcpy");
_Static_assert(sizeof(struct CUDA_MEM_ALLOC_NODE_PARAMS_st) == 120 && sizeof(struct CUgraphNodeParams_st) == 256, "union");

/*
 * What a node does, in the form that travels, in one block of the heap that the node owns: pointers that GetParams hands out point
 * into it. args: addresses of a kernel's arguments in the packed bytes, then NULL.
 */
struct cw_node_params {
	size_t len;
	void **args;
	CUgraph *bodies; /* of a conditional */
	CUhostFn fn;	 /* of a host node */
	void *data;
	int by_kernel;	 /* the application named a CUkernel */
	int pageable;	 /* of a copy: CW_PAGEABLE_* */
	_Alignas(16) uint8_t wire[];
};

enum { CW_PAGEABLE_SRC = 1, CW_PAGEABLE_DST = 2 };
/* Adds a copy with a side that the worker does not reach, as a child graph. */
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
