/* What the application's own memory is made of, and what is left of memory that was registered:
 * backing.c, kept.c. */
#ifndef CW_MEMORY_BACKING_H
#define CW_MEMORY_BACKING_H

#include <stdint.h>

#include "memory/memory.h"

#pragma GCC visibility push(hidden)

/* CW_PRIVATE: writable memory of this process alone, some of it of a file or a stack.
 * CW_UNWRITABLE: some of it cannot be written. */
enum cw_backing { CW_UNMAPPED, CW_OTHER, CW_UNWRITABLE, CW_PRIVATE, CW_ANONYMOUS, CW_SHARED };

/* The files behind a range. */
struct cw_backed {
	uint64_t print; /* cw_print of all its mappings if each is a shared one of a file, else 0 */
	/* Of a shared mapping that covers the range: to be closed by who asked, or -1 (it cannot be
	 * opened, or is ours). */
	int file;
	uint64_t at; /* where the range begins in it */
};

/* Whether [at, end) is writable anonymous memory (or what became of it at an earlier registration),
 * a shared mapping of a file, other memory, or nothing in places. */
enum cw_backing cw_backing_of(uint64_t at, uint64_t end, struct cw_backed *out);

/*
 * Regions of memory that is no longer registered stay with the worker for a while, a few of them:
 * programs that register the same memory again and again then pay once. The pages are the carrier's
 * file that took the place of the application's own; as long as that is what it has there,
 * registering it again is a matter of this process alone.
 */

/* Keeps r's region if that is worth it; 1 if the caller has nothing to drop. */
int cw_keep(const struct cw_range *r);
/* What was kept of addresses that are other memory by now, and is on its way out. */
enum { CW_KEPT_MOST = 16 };
struct cw_stale {
	uint32_t count;
	struct cw_region *all[CW_KEPT_MOST];
	struct cw_tx tx[CW_KEPT_MOST];
};

/* The region of just this memory, if it was kept and the memory is still the region's. What else
 * was kept of these addresses is dropped before anything that is sent later; the caller ends that
 * when it has nothing else to wait for. */
struct cw_region *cw_kept(uint64_t base, uint64_t size, const struct cw_backed *b, struct cw_stale *stale);
void cw_stale_end(struct cw_stale *stale);

#pragma GCC visibility pop
#endif
