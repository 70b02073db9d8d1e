/*
 * Small pinned allocations share regions: each region costs the host a mapping, a registration and,
 * in a VM, a loan that is renewed every second. A slab is one pinned region; an allocation takes a
 * run of its units.
 */
#include <stdlib.h>
#include <string.h>

#include "memory/memory.h"
#include "memory/runs.h"
#include "session/lock.h"

enum { PORTABLE = 1, DEVICEMAP = 2 }; /* CU_MEMHOSTALLOC_* */

struct slab {
	struct slab *next;
	struct cw_region *region;
	struct cw_runs runs;
};

static struct {
	struct cw_lock lock;
	struct slab *all;
} pool;

/* Under the lock. */
static int take(uint32_t n, struct cw_range *r)
{
	for (struct slab *s = pool.all; s; s = s->next) {
		uint32_t first = cw_runs_find(&s->runs, n);
		if (first == CW_RUN_UNITS)
			continue;
		cw_runs_mark(&s->runs, first, n, 1);
		r->base = (uintptr_t)s->region->va + (uint64_t)first * CW_RUN_UNIT;
		r->dev = s->region->dev + (uint64_t)first * CW_RUN_UNIT;
		r->slab = s;
		return 1;
	}
	return 0;
}

CUresult cw_slab_alloc(struct cw_range *r)
{
	uint32_t n = cw_runs_of(r->size);
	cw_lock_acquire(&pool.lock);
	int found = take(n, r);
	cw_lock_release(&pool.lock);
	if (found)
		return CUDA_SUCCESS;
	struct slab *s = calloc(1, sizeof *s);
	if (!s)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult res = cw_region_add(CW_REGION_PINNED, (size_t)CW_RUN_UNIT * CW_RUN_UNITS, PORTABLE | DEVICEMAP, &s->region);
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
	cw_runs_mark(&s->runs, (uint32_t)((r->base - (uintptr_t)s->region->va) / CW_RUN_UNIT), cw_runs_of(r->size), 0);
	/* The last slab stays: programs that pin one small buffer after the other are common. */
	if (s->runs.used == 0 && pool.all->next) {
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
