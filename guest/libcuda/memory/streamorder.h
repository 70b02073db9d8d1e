/* What waits for a stream's work: slices of pools of managed memory (slices.h), and memory that is
 * attached. Locks of theirs may be held. */
#ifndef CW_MEMORY_STREAMORDER_H
#define CW_MEMORY_STREAMORDER_H

#include "memory/slices.h"

#pragma GCC visibility push(hidden)

/* What is free behind a stream. */
struct cw_behind cw_behind(uint32_t stream);
/* Has a stream wait for what another was given until now. */
CUresult cw_order_behind(uint32_t stream, const struct cw_behind *b);
/* A stream is about to be destroyed: what was behind it is behind another instead, of the
 * library's, or (stream 0) nothing. 0: it cannot be said. */
int cw_order_left(const struct cw_behind *from, struct cw_behind *to);

#pragma GCC visibility pop
#endif
