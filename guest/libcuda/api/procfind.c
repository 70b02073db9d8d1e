/* The search behind cuGetProcAddress, free of the real table. */
#include "api/procaddress.h"

#include <string.h>

enum { PER_THREAD_SINCE = 7000 };

/* First row whose name is not less. */
static size_t lower_bound(const struct cw_proc *rows, size_t count, const char *name)
{
	size_t lo = 0, hi = count;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (strcmp(rows[mid].name, name) < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

enum cw_proc_status cw_proc_find(const struct cw_proc *rows, size_t count, const char *name, int version, int per_thread, void **out)
{
	size_t first = lower_bound(rows, count, name), end = first;
	int twins = 0, known = 0;
	void *best = NULL;

	for (; end < count && !strcmp(rows[end].name, name); end++) {
		known |= rows[end].since > 0;
		twins |= rows[end].since > 0 && rows[end].thread != NULL;
	}
	if (!known)
		return CW_PROC_NOT_FOUND;
	twins &= per_thread;
	if (twins && version < PER_THREAD_SINCE)
		return CW_PROC_VERSION;
	for (size_t i = first; i < end; i++) {
		if (rows[i].since <= 0 || rows[i].since > version)
			continue;
		if (!twins)
			best = rows[i].plain;
		else if (rows[i].thread)
			best = rows[i].thread;
	}
	if (!best)
		return CW_PROC_VERSION;
	*out = best;
	return CW_PROC_FOUND;
}
