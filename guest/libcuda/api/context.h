/* Between context.c and primary.c. */
#ifndef CW_API_CONTEXT_H
#define CW_API_CONTEXT_H

#include <stdint.h>

#include "gen/cuda_abi.h"

#pragma GCC visibility push(hidden)
uint64_t cw_ctx_next_uid(void);
int cw_ctx_flags_valid(unsigned flags);
/* The context of a green context: made once, gone with it, never destroyed by itself. */
struct cw_ctx;
struct cw_device;
CUresult cw_ctx_of_green(struct cw_device *d, uint32_t green, uint64_t uid, struct cw_ctx **out);
void cw_ctx_green_gone(struct cw_ctx *c);
/* Waits for a live context's work. Who ends a context does so first: the driver would wait for it
 * then, and with it all other threads of the process, whose requests the work may need. */
CUresult cw_ctx_finish(struct cw_ctx *c);
uint64_t cw_stream_next_uid(void);
#pragma GCC visibility pop

#endif
