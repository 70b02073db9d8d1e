/* JIT options: plain values travel, log buffers and the wall time are written back here. */
#include "api/jit.h"

#include <string.h>

enum { LOG_MAX = 1 << 20 }; /* longest log that is asked for */

static CUresult plain(struct cw_jit *j, int option, void *value)
{
	if (j->count == CW_JIT_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	j->pairs[2 * j->count] = (uint64_t)option;
	/* values of plain options are 32-bit integers or enums in a pointer's place */
	j->pairs[2 * j->count + 1] = (uint32_t)(uintptr_t)value;
	j->count++;
	return CUDA_SUCCESS;
}

static uint32_t capacity(void *value)
{
	uint32_t n = (uint32_t)(uintptr_t)value;

	return n > LOG_MAX ? LOG_MAX : n;
}

CUresult cw_jit_parse(struct cw_jit *j, unsigned count, const int *options, void **values)
{
	memset(j, 0, sizeof *j);
	if (count && (!options || !values))
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count; i++) {
		CUresult res = CUDA_SUCCESS;

		switch (options[i]) {
		case CU_JIT_WALL_TIME:
			/* it travels too, as the wish to have the time measured */
			j->wall_slot = &values[i];
			res = plain(j, CU_JIT_WALL_TIME, NULL);
			break;
		case CU_JIT_INFO_LOG_BUFFER: j->info = values[i]; break;
		case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
			j->info_cap = capacity(values[i]);
			j->info_size_slot = &values[i];
			break;
		case CU_JIT_ERROR_LOG_BUFFER: j->error = values[i]; break;
		case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
			j->error_cap = capacity(values[i]);
			j->error_size_slot = &values[i];
			break;
		case CU_JIT_GLOBAL_SYMBOL_NAMES:
		case CU_JIT_GLOBAL_SYMBOL_ADDRESSES:
		case CU_JIT_GLOBAL_SYMBOL_COUNT:
		case CU_JIT_REFERENCED_KERNEL_NAMES:
		case CU_JIT_REFERENCED_KERNEL_COUNT:
		case CU_JIT_REFERENCED_VARIABLE_NAMES:
		case CU_JIT_REFERENCED_VARIABLE_COUNT: return CUDA_ERROR_NOT_SUPPORTED;
		default:
			if (options[i] < 0 || options[i] >= CU_JIT_NUM_OPTIONS)
				return CUDA_ERROR_INVALID_VALUE;
			res = plain(j, options[i], values[i]);
		}
		if (res)
			return res;
	}
	if (!j->info)
		j->info_cap = 0;
	if (!j->error)
		j->error_cap = 0;
	return CUDA_SUCCESS;
}

/* A log goes back with its NUL, cut to the caller's size; its length replaces the size. */
static void log_back(char *buf, uint32_t cap, void **size_slot, const char *log, size_t len)
{
	if (buf && cap) {
		if (len > cap - 1)
			len = cap - 1;
		if (len)
			memcpy(buf, log, len);
		buf[len] = 0;
	}
	if (size_slot)
		*size_slot = (void *)(uintptr_t)(buf && cap ? len : 0);
}

void cw_jit_finish(const struct cw_jit *j, float wall_ms, const char *logs, size_t logs_len, uint32_t info_len, uint32_t error_len)
{
	if (info_len > logs_len)
		info_len = (uint32_t)logs_len;
	if (error_len > logs_len - info_len)
		error_len = (uint32_t)(logs_len - info_len);
	log_back(j->info, j->info_cap, j->info_size_slot, logs, info_len);
	log_back(j->error, j->error_cap, j->error_size_slot, logs + info_len, error_len);
	if (j->wall_slot) {
		memset(j->wall_slot, 0, sizeof *j->wall_slot);
		memcpy(j->wall_slot, &wall_ms, sizeof wall_ms);
	}
}
