/* JIT options: plain values travel, log buffers and the wall time are written back here. */
#include "jit.h"

#include <string.h>

enum {
	WALL_TIME = 2, INFO_LOG = 3, INFO_SIZE = 4, ERROR_LOG = 5, ERROR_SIZE = 6,
	SYMBOL_NAMES = 17, SYMBOL_ADDRESSES = 18, SYMBOL_COUNT = 19,
	KERNEL_NAMES = 25, KERNEL_COUNT = 26, VARIABLE_NAMES = 27, VARIABLE_COUNT = 28,
	LAST = 34,
	LOG_MAX = 1 << 20, /* longest log that is asked for */
	INVALID_VALUE = 1, NOT_SUPPORTED = 801,
};

static int plain(struct cw_jit *j, int option, void *value)
{
	if (j->count == CW_JIT_MAX)
		return INVALID_VALUE;
	j->pairs[2 * j->count] = (uint64_t)option;
	/* values of plain options are 32-bit integers or enums in a pointer's place */
	j->pairs[2 * j->count + 1] = (uint32_t)(uintptr_t)value;
	j->count++;
	return 0;
}

static uint32_t capacity(void *value)
{
	uint32_t n = (uint32_t)(uintptr_t)value;

	return n > LOG_MAX ? LOG_MAX : n;
}

int cw_jit_parse(struct cw_jit *j, unsigned count, const int *options, void **values)
{
	memset(j, 0, sizeof *j);
	if (count && (!options || !values))
		return INVALID_VALUE;
	for (unsigned i = 0; i < count; i++) {
		int res = 0;

		switch (options[i]) {
		case WALL_TIME:
			/* it travels too, as the wish to have the time measured */
			j->wall_slot = &values[i];
			res = plain(j, WALL_TIME, NULL);
			break;
		case INFO_LOG:
			j->info = values[i];
			break;
		case INFO_SIZE:
			j->info_cap = capacity(values[i]);
			j->info_size_slot = &values[i];
			break;
		case ERROR_LOG:
			j->error = values[i];
			break;
		case ERROR_SIZE:
			j->error_cap = capacity(values[i]);
			j->error_size_slot = &values[i];
			break;
		case SYMBOL_NAMES:
		case SYMBOL_ADDRESSES:
		case SYMBOL_COUNT:
		case KERNEL_NAMES:
		case KERNEL_COUNT:
		case VARIABLE_NAMES:
		case VARIABLE_COUNT:
			return NOT_SUPPORTED;
		default:
			if (options[i] < 0 || options[i] > LAST)
				return INVALID_VALUE;
			res = plain(j, options[i], values[i]);
		}
		if (res)
			return res;
	}
	if (!j->info)
		j->info_cap = 0;
	if (!j->error)
		j->error_cap = 0;
	return 0;
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
