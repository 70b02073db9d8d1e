/* Small pinned allocations against a map of the units of each region: they lie apart, where the
 * device has them, in regions that are there as long as they fit, and the regions that nothing lies
 * in go but for the last. */
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "memory/memory.h"
#include "session/internal.h"
#include "session/tests/fake_worker.h"

enum { UNIT = 512, UNITS = 4096, SLABS = 4, MOST = 400, ROUNDS = 6000 };

static struct {
	const struct cw_region *r; /* NULL: none */
	uint8_t taken[UNITS];
} slab[SLABS];

static struct cw_range live[MOST];
static int lives;

static uint32_t next(uint32_t below)
{
	static uint64_t x = 0x2545f4914f6cdd1dull;
	x ^= x << 13, x ^= x >> 7, x ^= x << 17;
	return (uint32_t)((x >> 11) % below);
}

static int regions(void)
{
	int n = 0;
	for (const struct cw_region *r = cw_s.regions; r; r = r->next)
		n++;
	return n;
}

static int slabs(void)
{
	int n = 0;
	for (int i = 0; i < SLABS; i++)
		n += slab[i].r != NULL;
	return n;
}

static int fits(int i, uint32_t n)
{
	uint32_t run = 0;
	for (uint32_t u = 0; slab[i].r && u < UNITS && run < n; u++)
		run = slab[i].taken[u] ? 0 : run + 1;
	return slab[i].r && run == n;
}

static uint32_t units(const struct cw_range *r) { return (uint32_t)((r->size + UNIT - 1) / UNIT); }

/* The slab that a range lies in, and its first unit there. */
static int place(const struct cw_range *r, uint32_t *first)
{
	for (int i = 0; i < SLABS; i++)
		if (slab[i].r && r->base - (uintptr_t)slab[i].r->va < UNIT * UNITS) {
			*first = (uint32_t)((r->base - (uintptr_t)slab[i].r->va) / UNIT);
			CHECK(r->base % UNIT == 0 && *first + units(r) <= UNITS);
			CHECK(r->dev - slab[i].r->dev == r->base - (uintptr_t)slab[i].r->va);
			return i;
		}
	return -1;
}

static void alloc(uint32_t size)
{
	struct cw_range *r = &live[lives];
	uint32_t first = 0;
	int room = 0, i = 0;
	memset(r, 0, sizeof *r);
	r->size = size;
	for (int k = 0; k < SLABS; k++)
		room |= fits(k, units(r));
	if (!room && slabs() == SLABS)
		return; /* enough of them */
	CHECK(cw_slab_alloc(r) == 0);
	if (!room) {
		while (slab[i].r)
			i++;
		memset(slab[i].taken, 0, UNITS);
		slab[i].r = cw_s.regions;
	}
	i = place(r, &first);
	CHECK(i >= 0);
	for (uint32_t u = first; u < first + units(r); u++) {
		CHECK(!slab[i].taken[u]);
		slab[i].taken[u] = 1;
	}
	lives++;
}

static void release(int k)
{
	struct cw_range r = live[k];
	uint32_t first;
	int i = place(&r, &first), others = slabs() > 1;
	live[k] = live[--lives];
	memset(slab[i].taken + first, 0, units(&r));
	cw_slab_free(&r);
	if (others && !memchr(slab[i].taken, 1, UNITS))
		slab[i].r = NULL;
}

int main(void)
{
	setenv("CAUSEWAY_LOG", "none", 1);
	struct fake_options o = {.handler = fake_device, .caps = CW_CAP_MAP, .sleep_after_us = 50};
	pid_t w = fake_worker_start(&o);
	CHECK(cw_session_open() == 0);
	cw_set_current_ctx_id(5);
	for (int n = 0, grows = 1; n < ROUNDS; n++) {
		if (lives == MOST || (lives == 0 && n > 100))
			grows = lives == 0;
		int adds = lives < MOST && next(8) < (grows ? 5 : 3);
		if (adds)
			alloc(next(2)	? (1 + next(6)) * 32 * UNIT
			      : next(6) ? 1 + next(20 * UNIT)
					: 1 + next(300 * UNIT)); /* many side by side with holes */
		else if (lives > 0)
			release((int)next((uint32_t)lives));
		CHECK(regions() == slabs());
	}
	while (lives > 0)
		release(lives - 1);
	CHECK(regions() == 1 && slabs() == 1);
	alloc(UNIT * UNITS); /* all of it is free, and one region has room for it */
	CHECK(lives == 1 && regions() == 1);
	fake_worker_kill(w);
	puts("slab_test ok");
	return 0;
}
