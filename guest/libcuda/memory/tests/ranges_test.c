/* The range map against an array that is searched from end to end, and readers against a writer. */
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "memory/memory.h"
#include "session/tests/fake_worker.h"

enum { SPACE = 4096, ROUNDS = 60000 };

static struct cw_range model[SPACE];
static int models;

static uint64_t next(void)
{
	static uint64_t x = 0x9e3779b97f4a7c15ull;
	x ^= x << 13, x ^= x >> 7, x ^= x << 17;
	return x >> 11;
}

static int overlaps(const struct cw_range *r, uint64_t at, uint64_t size) { return r->base < at + size && at < r->base + r->size; }

static void add(void)
{
	struct cw_range r = {.base = next() % SPACE, .size = next() % 40, .kind = next() % 4 ? CW_RANGE_DEVICE : CW_RANGE_FOREIGN};
	int clash = 0;
	for (int i = 0; i < models; i++)
		clash |= overlaps(&model[i], r.base, r.size) && model[i].kind != CW_RANGE_FOREIGN;
	int err = cw_range_add(&r);
	if (r.size == 0) {
		CHECK(err == -EINVAL);
		return;
	}
	/* Foreign ranges in the way go even if another range refuses the newcomer behind them; the
	 * model follows what is left. */
	for (int i = 0; i < models; i++) {
		struct cw_range seen;
		if (overlaps(&model[i], r.base, r.size) && model[i].kind == CW_RANGE_FOREIGN &&
		    (!clash || !cw_range_find(model[i].base, &seen) || seen.id != model[i].id))
			model[i--] = model[--models];
	}
	CHECK(err == (clash ? -EEXIST : 0));
	if (clash)
		return;
	static uint64_t newest; /* an id is one range's for ever */
	CHECK(r.id > newest);
	newest = r.id;
	model[models++] = r;
}

static void check_point(uint64_t at)
{
	struct cw_range got, *want = NULL;
	for (int i = 0; i < models; i++)
		if (overlaps(&model[i], at, 1))
			want = &model[i];
	int found = cw_range_find(at, &got);
	CHECK(found == (want != NULL) && (!found || (got.id == want->id && got.base == want->base && got.size == want->size)));
}

static void take(void)
{
	uint64_t at = models && next() % 3 ? model[next() % (uint64_t)models].base : next() % SPACE;
	unsigned kinds = next() % 2 ? 1u << CW_RANGE_DEVICE : 1u << CW_RANGE_DEVICE | 1u << CW_RANGE_FOREIGN;
	struct cw_range got;
	int k = -1;
	for (int i = 0; i < models; i++)
		if (model[i].base == at && (kinds >> model[i].kind & 1))
			k = i;
	CHECK(cw_range_take(at, kinds, &got) == (k >= 0));
	if (k >= 0) {
		CHECK(got.id == model[k].id);
		model[k] = model[--models];
	}
}

static int drop_all(const struct cw_range *r, void *arg)
{
	(void)r, (void)arg;
	return 1;
}

static _Atomic int stop;

/* Ranges that never change stay found, whatever is added and removed around them. */
static void *reader(void *arg)
{
	(void)arg;
	uint64_t finds = 0;
	while (!atomic_load(&stop) || finds < 1000) {
		for (uint64_t i = 0; i < 16; i++) {
			struct cw_range r;
			CHECK(cw_range_find(i * 1000 + 99, &r) && r.base == i * 1000 && r.size == 100);
		}
		finds++;
	}
	return NULL;
}

static void concurrent(void)
{
	pthread_t t[3];
	for (uint64_t i = 0; i < 16; i++)
		CHECK(cw_range_add(&(struct cw_range){.base = i * 1000, .size = 100, .kind = CW_RANGE_DEVICE}) == 0);
	for (int i = 0; i < 3; i++)
		CHECK(pthread_create(&t[i], NULL, reader, NULL) == 0);
	for (int n = 0; n < 3000; n++) {
		struct cw_range r;
		uint64_t base = next() % 16 * 1000 + 100 + next() % 800;
		if (cw_range_add(&(struct cw_range){.base = base, .size = 50, .kind = CW_RANGE_PINNED}) == 0)
			CHECK(cw_range_take(base, 1u << CW_RANGE_PINNED, &r));
	}
	atomic_store(&stop, 1);
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
}

/* Mapped ranges side by side are one to copies, as far as a device may touch them. */
static void mapped(void)
{
	struct cw_range r;
	for (uint64_t i = 0; i < 4; i++)
		CHECK(cw_range_add(&(struct cw_range){.base = 1000 + i * 100, .size = 100, .kind = CW_RANGE_MAPPED}) == 0);
	CHECK(cw_range_add(&(struct cw_range){.base = 1400, .size = 100, .kind = CW_RANGE_DEVICE}) == 0);
	CHECK(cw_range_add(&(struct cw_range){.base = 1600, .size = 100, .kind = CW_RANGE_MAPPED}) == 0);
	CHECK(cw_range_reach(1000) == 0 && cw_range_reach(999) == 0 && cw_range_reach(1410) == 90 && cw_range_reach(1500) == 0);
	for (uint64_t i = 0; i < 4; i++)
		if (i != 2)
			cw_range_set_access(1000 + i * 100, 3);
	CHECK(cw_range_reach(1000) == 200 && cw_range_reach(1199) == 1 && cw_range_reach(1200) == 0 && cw_range_reach(1350) == 50);
	cw_range_set_access(1200, 1);
	cw_range_set_access(1250, 0); /* no range begins there */
	CHECK(cw_range_reach(1001) == 399);
	CHECK(cw_range_next(0, 1000, &r) == 0 && cw_range_next(0, 1001, &r) == 1 && r.base == 1000);
	CHECK(cw_range_next(1100, 1101, &r) == 1 && r.base == 1100 && cw_range_next(1500, 1600, &r) == 0);
	cw_range_sweep(drop_all, NULL);
}

int main(void)
{
	for (int n = 0; n < ROUNDS; n++) {
		if (next() % 2)
			add();
		else
			take();
		check_point(next() % (SPACE + 50));
		CHECK(cw_range_count() == (uint32_t)models);
	}
	struct cw_range r = {.base = UINT64_MAX - 3, .size = 8, .kind = CW_RANGE_DEVICE};
	CHECK(cw_range_add(&r) == -EINVAL && !cw_range_find(UINT64_MAX, &r) && !cw_range_overlaps(UINT64_MAX - 8, 8));
	cw_range_sweep(drop_all, NULL);
	CHECK(cw_range_count() == 0);
	mapped();
	concurrent();
	puts("ranges_test ok");
	return 0;
}
