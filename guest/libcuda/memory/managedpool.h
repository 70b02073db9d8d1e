/* Pools of managed memory (CUDA 13): memory in stream order that lies as cuMemAllocManaged's does.
 * The worker knows nothing of such a pool. */
#ifndef CW_MEMORY_MANAGEDPOOL_H
#define CW_MEMORY_MANAGEDPOOL_H

#include "memory/managed.h"
#include "memory/pool.h"

#pragma GCC visibility push(hidden)

/* cuMemPoolCreate, cuMemGetDefaultMemPool, cuMemGetMemPool and cuMemSetMemPool of managed type. */
CUresult cw_managed_pool_create(CUmemoryPool *pool, const CUmemPoolProps *props);
CUresult cw_managed_pool_of(const CUmemLocation *l, int current, CUmemoryPool *out);
CUresult cw_managed_pool_set(const CUmemLocation *l, struct cw_pool *p);
/* Its handle is gone: it ends with the last of its memory. */
void cw_managed_pool_end(struct cw_managed_pool *m);

CUresult cw_managed_pool_get(struct cw_pool *p, int attr, uint64_t *value);
CUresult cw_managed_pool_change(struct cw_pool *p, int attr, uint64_t value);
CUresult cw_managed_pool_trim(struct cw_pool *p, uint64_t keep);

/* Memory for the stream of that id, of the current context. */
CUresult cw_managed_pool_alloc(struct cw_pool *p, uint64_t size, uint32_t stream, CUdeviceptr *out);
/* Gives back what a range that is no longer in the map stood for; stream 0: the GPU has done with
 * it. */
void cw_managed_pool_free(const struct cw_range *r, uint32_t stream);

#pragma GCC visibility pop
#endif
