/*
 * Registered memory that does not fill its pages. The pages' other bytes are somebody else's: a
 * stack, a heap, variables. So these pages cannot become the worker's, and a second one stands for
 * each there, at the same address; what either side wrote is carried to the other before each
 * request, after each answer, and now and then in between. Whole pages inside of a range are shared
 * as ever, unless they are few, which are carried too.
 *
 * At CUDA's synchronisation points both sides see the same. In between they do within a millisecond
 * or so, in no order: what a kernel and the processor tell each other while it runs belongs into
 * memory of whole pages, and atomic operations of both on one word are not promised by
 * HOST_NATIVE_ATOMIC_SUPPORTED.
 */
#ifndef CW_MEMORY_PARTS_H
#define CW_MEMORY_PARTS_H

#include "memory/memory.h"

#pragma GCC visibility push(hidden)

/* Makes r, whose memory is writable, reachable by the device at its own address, with r->region for
 * whole pages if there are many. CUDA_ERROR_NOT_SUPPORTED if that cannot be done here. */
CUresult cw_parts_register(struct cw_range *r);
/* Ends that; what the device wrote is there when it returns. The region is the caller's. */
void cw_parts_end(const struct cw_range *r);
/* Whether the worker has [ptr, ptr+size) of r as one piece. */
int cw_parts_whole(const struct cw_range *r, uint64_t ptr, uint64_t size);

#pragma GCC visibility pop
#endif
