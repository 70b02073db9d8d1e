/*
 * Small pinned allocations share regions: each region costs the host a mapping, a registration and, in a VM, a lease that is
 * renewed every second. A slab is one pinned region of 4096 units; an allocation takes a run of them.
 */
#include <stdlib.h>
#include <string.h>

#include "memory/memory.h"
#include "session/lock.h"

enum { UNIT = 512, UNITS = 4096, WORDS = UNITS / 64 };
enum { PORTABLE = 1, DEVICEMAP = 2 }; /* CU_MEMHOSTALLOC_* */

struct slab {
	struct slab *next;
	struct cw_region *region;
	uint32_t used;
	uint64_t taken[WORDS]; /* bit set: unit in use */
};

static struct {
	struct cw_lock lock;
	struct slab *all;
} pool;

static int is_taken(const struct slab *s, uint32_t unit) { return (int)(s->taken[unit / 64] >> (unit % 64) & 1); }

static void mark(struct slab *s, uint32_t first, uint32_t n, int on)
{
	for (uint32_t u = first; u < first + n; u++)
		if (on)
			s->taken[u / 64] |= 1ull << (u % 64);
		else
			s->taken[u / 64] &= ~(1ull << (u % 64));
	s->used = on ? s->used + n : s->used - n;
}

/* First run of n free units, or UNITS. */
static uint32_t find_run(const struct slab *s, uint32_t n)
{
	uint32_t run = 0;
	for (uint32_t u = 0; u < UNITS; u++) {
		if (u % 64 == 0 && s->taken[u / 64] == UINT64_MAX) {
			run = 0;
			u += 63;
			continue;
		}
		run = is_taken(s, u) ? 0 : run + 1;
		if (run == n)
			return u + 1 - n;
	}
	return UNITS;
}

/* Under the lock. */
static int take(uint32_t n, struct cw_range *r)
{
	for (struct slab *s = pool.all; s; s = s->next) {
		uint32_t first = UNITS - s->used >= n ? find_run(s, n) : UNITS;
		if (first == UNITS)
			continue;
		mark(s, first, n, 1);
		r->base = (uintptr_t)s->region->va + (uint64_t)first * UNIT;
		r->dev = s->region->dev + (uint64_t)first * UNIT;
		r->slab = s;
		return 1;
	}
	return 0;
}

CUresult cw_slab_alloc(struct cw_range *r)
{
	uint32_t n = (uint32_t)((r->size + UNIT - 1) / UNIT);
	cw_lock_acquire(&pool.lock);
	int found = take(n, r);
	cw_lock_release(&pool.lock);
	if (found)
		return CUDA_SUCCESS;
	struct slab *s = calloc(1, sizeof *s);
	if (!s)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult res = cw_region_add(CW_REGION_PINNED, (size_t)UNIT * UNITS, PORTABLE | DEVICEMAP, &s->region);
	if (res != 0) {
		free(s);
		return res;
	}
	cw_lock_acquire(&pool.lock);
	s->next = pool.all;
	pool.all = s;
	take(n, r);
	cw_lock_release(&pool.lock);
	return CUDA_SUCCESS;
}

void cw_slab_free(const struct cw_range *r)
{
	struct slab *s = r->slab, *empty = NULL;
	cw_lock_acquire(&pool.lock);
	mark(s, (uint32_t)((r->base - (uintptr_t)s->region->va) / UNIT), (uint32_t)((r->size + UNIT - 1) / UNIT), 0);
	/* The last slab stays: programs that pin one small buffer after the other are common. */
	if (s->used == 0 && pool.all->next) {
		struct slab **p = &pool.all;
		while (*p != s)
			p = &(*p)->next;
		*p = s->next;
		empty = s;
	}
	cw_lock_release(&pool.lock);
	if (empty) {
		cw_region_drop(empty->region);
		free(empty);
	}
}
