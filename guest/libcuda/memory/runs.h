/* Memory in 4096 pieces of 512 bytes, of which small allocations take runs. */
#ifndef CW_MEMORY_RUNS_H
#define CW_MEMORY_RUNS_H

#include <stdint.h>

enum { CW_RUN_UNIT = 512, CW_RUN_UNITS = 4096 };

struct cw_runs {
	uint32_t used;
	uint64_t taken[CW_RUN_UNITS / 64]; /* bit set: in use */
};

static inline uint32_t cw_runs_of(uint64_t size) { return (uint32_t)((size + CW_RUN_UNIT - 1) / CW_RUN_UNIT); }

static inline void cw_runs_mark(struct cw_runs *r, uint32_t first, uint32_t n, int on)
{
	for (uint32_t u = first; u < first + n; u++)
		if (on)
			r->taken[u / 64] |= 1ull << (u % 64);
		else
			r->taken[u / 64] &= ~(1ull << (u % 64));
	r->used = on ? r->used + n : r->used - n;
}

/* First run of n free units, or CW_RUN_UNITS. */
static inline uint32_t cw_runs_find(const struct cw_runs *r, uint32_t n)
{
	uint32_t run = 0;
	if (CW_RUN_UNITS - r->used < n)
		return CW_RUN_UNITS;
	for (uint32_t u = 0; u < CW_RUN_UNITS; u++) {
		if (u % 64 == 0 && r->taken[u / 64] == UINT64_MAX) {
			run = 0;
			u += 63;
			continue;
		}
		run = r->taken[u / 64] >> (u % 64) & 1 ? 0 : run + 1;
		if (run == n)
			return u + 1 - n;
	}
	return CW_RUN_UNITS;
}

#endif
