/* JIT options of a load: what travels, and where results go back. */
#ifndef CW_API_JIT_H
#define CW_API_JIT_H

#include <stddef.h>
#include <stdint.h>

#include "gen/cuda_abi.h"

#pragma GCC visibility push(hidden)

enum { CW_JIT_MAX = 64 };

struct cw_jit {
	uint64_t pairs[2 * CW_JIT_MAX]; /* {option, value}: the options that travel */
	uint32_t count;
	char *info, *error; /* the caller's log buffers, or NULL */
	uint32_t info_cap, error_cap;
	/* The caller's value slots that are written back. */
	void **wall_slot, **info_size_slot, **error_size_slot;
};

/* cw_jit_parse sorts count options. CUDA_ERROR_INVALID_VALUE for a missing array or an unknown
 * option, CUDA_ERROR_NOT_SUPPORTED for options whose values are tables of pointers (symbol names
 * and addresses). */
CUresult cw_jit_parse(struct cw_jit *j, unsigned count, const int *options, void **values);
/* cw_jit_finish writes wall time (milliseconds) and the logs back; logs holds info_len + error_len
 * bytes. */
void cw_jit_finish(const struct cw_jit *j, float wall_ms, const char *logs, size_t logs_len, uint32_t info_len, uint32_t error_len);

#pragma GCC visibility pop
#endif
