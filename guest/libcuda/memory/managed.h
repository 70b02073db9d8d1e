/* Managed memory: between managed.c (allocations) and managed_hints.c (what is advised and
 * recorded). */
#ifndef CW_MEMORY_MANAGED_H
#define CW_MEMORY_MANAGED_H

#include "memory/memory.h"

#pragma GCC visibility push(hidden)

/* A place for memory: CUmemLocation's type and id. type 0: none. */
struct cw_place {
	int16_t type, id;
};

/* What holds for a stretch of a managed allocation up to `end` (bytes from its base, a multiple of
 * the page size). */
struct cw_stretch {
	uint64_t end;
	struct cw_place preferred, last;
	uint64_t by; /* bit 63: the host; bit i: device i */
	uint8_t mostly;
};

/* What is recorded about one allocation. managed_hints.c guards it. */
struct cw_managed {
	uint32_t count, cap;
	struct cw_stretch *all;
};

struct cw_managed *cw_managed_new(uint64_t size); /* NULL: no memory */
/* Memory of r->size bytes for a managed range, and its end, which waits for nothing: the GPU has
 * done with it. */
CUresult cw_managed_obtain(struct cw_range *r);
void cw_managed_end(const struct cw_range *r);
/* Whether managed memory moves between GPU and CPU in this process, which then may not use it at
 * once; concurrent: the device says that they may. */
int cw_managed_moves(int concurrent);
/* Takes the record out of use and frees it. */
void cw_managed_free(struct cw_managed *m);

#pragma GCC visibility pop
#endif
