/* Between context.c and primary.c. */
#ifndef CW_API_CONTEXT_H
#define CW_API_CONTEXT_H

#include <stdint.h>

#pragma GCC visibility push(hidden)
uint64_t cw_ctx_next_uid(void);
int cw_ctx_flags_valid(unsigned flags);
#pragma GCC visibility pop

#endif
