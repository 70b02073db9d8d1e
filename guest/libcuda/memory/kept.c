/* Regions that are kept for the next registration of the same memory. See backing.h. */
#include "memory/backing.h"
#include "session/lock.h"

/* Pages of memory that the application gave back meanwhile stay until their region is dropped: so
 * few, and not large ones. */
enum { MOST = CW_KEPT_MOST, MOST_BYTES = 64 << 20 };

static struct {
	struct cw_lock lock;
	struct cw_region *all[MOST]; /* oldest first */
	uint32_t count;
	uint64_t bytes;
} kept;

/* Under the lock. */
static struct cw_region *take(uint32_t i)
{
	struct cw_region *r = kept.all[i];
	kept.count--;
	kept.bytes -= r->size;
	for (; i < kept.count; i++)
		kept.all[i] = kept.all[i + 1];
	return r;
}

int cw_keep(const struct cw_range *range)
{
	struct cw_region *r = range->region, *old[MOST];
	uint32_t n = 0;
	if (r->print == 0 || r->parted || r->size > MOST_BYTES)
		return 0;
	cw_lock_acquire(&kept.lock);
	while (kept.count == MOST || kept.bytes + r->size > MOST_BYTES)
		old[n++] = take(0);
	kept.all[kept.count++] = r;
	kept.bytes += r->size;
	cw_lock_release(&kept.lock);
	for (uint32_t i = 0; i < n; i++)
		cw_region_drop(old[i]);
	return 1;
}

struct cw_region *cw_kept(uint64_t base, uint64_t size, const struct cw_backed *b, struct cw_stale *stale)
{
	struct cw_region *found = NULL;
	stale->count = 0;
	cw_lock_acquire(&kept.lock);
	for (uint32_t i = 0; i < kept.count;) {
		struct cw_region *r = kept.all[i];
		uint64_t at = (uintptr_t)r->va;
		if (at >= base + size || base >= at + r->size)
			i++;
		else if (at == base && r->size == size && b->print == r->print)
			found = take(i);
		else
			stale->all[stale->count++] = take(i);
	}
	cw_lock_release(&kept.lock);
	for (uint32_t i = 0; i < stale->count; i++)
		cw_region_let(stale->all[i], &stale->tx[i]);
	return found;
}

void cw_stale_end(struct cw_stale *stale)
{
	for (uint32_t i = 0; i < stale->count; i++)
		cw_region_end(stale->all[i], &stale->tx[i]);
}
