/* Memory pools: the default one of each device, the application's own, and those of other
 * processes. */
#ifndef CW_MEMORY_POOL_H
#define CW_MEMORY_POOL_H

#include "memory/memory.h"

#pragma GCC visibility push(hidden)

struct cw_pool {
	struct cw_obj o;
	int device;
	uint8_t is_default;
	uint8_t imported;		 /* another process's: nothing can be allocated from it */
	struct cw_managed_pool *managed; /* of managed type, which the worker knows nothing of */
};
CW_OBJ_FITS(struct cw_pool);

static inline struct cw_pool *cw_pool_get(CUmemoryPool pool) { return (struct cw_pool *)cw_handle_get(CW_KIND_POOL, pool); }

/* The pool that cuMemAllocAsync uses on a device. */
CUresult cw_pool_current(CUdevice dev, CUmemoryPool *out);

#pragma GCC visibility pop
#endif
