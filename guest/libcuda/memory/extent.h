#ifndef CW_MEMORY_EXTENT_H
#define CW_MEMORY_EXTENT_H

#include "memory/memory.h"

#pragma GCC visibility push(hidden)

/* Copies by extents, if CAUSEWAY_COPY=extents asks for them and they can be had: 1, and *res.
 * Returns as a transfer does. */
int cw_copy_extents(uint32_t direction, uint64_t device, const void *host, uint64_t size, uint32_t stream, CUresult *res);

#pragma GCC visibility pop
#endif
