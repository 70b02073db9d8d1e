/* Slices against a map of their units: they lie apart and within their stocks, and whoever is given
 * one may use it. */
#include <stdlib.h>
#include <string.h>

#include "memory/slices.h"
#include "session/tests/check.h"

enum { STOCKS = 4, UNITS = 256, LIVE = 64, ROUNDS = 40000, STREAMS = 3 };
#define BASE(k) (((uint64_t)(k) + 1) << 32)

/* Of each unit of a stock: who has it, 0 nobody, and behind whom it is free. */
struct unit {
	int owner;
	struct cw_behind behind;
};
static struct unit map[STOCKS][UNITS];
static int known[STOCKS];
static struct cw_slice *live[LIVE];
static struct cw_slices s;
static uint64_t frees;

static uint32_t next(uint32_t below)
{
	static uint64_t x = 0x2545f4914f6cdd1dull;
	x ^= x << 13, x ^= x >> 7, x ^= x << 17;
	return (uint32_t)((x >> 11) % below);
}

static struct unit *unit_at(uint64_t addr)
{
	uint64_t k = (addr >> 32) - 1, u = (addr & 0xffffffff) / CW_SLICE;
	CHECK(k < STOCKS && known[k] && u < UNITS);
	return &map[k][u];
}

static struct cw_behind stream(uint32_t i) { return (struct cw_behind){1 + i % 2, 10 + i, 100 + i, 0}; }

static void add(int k)
{
	struct cw_range r = {.base = BASE(k), .size = UNITS * CW_SLICE};
	CHECK(!known[k] && cw_slices_add(&s, &r, r.size));
	known[k] = 1;
	memset(map[k], 0, sizeof map[k]);
}

static void take(int i, int others)
{
	struct cw_behind me = stream(next(STREAMS));
	uint64_t size = (uint64_t)(1 + next(next(2) ? 8 : 100)) * CW_SLICE;
	struct cw_slice *x = cw_slices_find(&s, size, &me, others);
	if (!x)
		return;
	CHECK(!x->used && x->size >= size);
	cw_slices_take(&s, x, size);
	CHECK(x->used && x->size == size);
	for (uint64_t at = x->base; at < x->base + size; at += CW_SLICE) {
		struct unit *u = unit_at(at);
		CHECK(u->owner == 0);
		CHECK(others || u->behind.stream == 0 || cw_behind_same(&u->behind, &me));
		/* What the slice says it is behind covers what each of its units is. */
		CHECK(u->behind.stream == 0 || (cw_behind_same(&u->behind, &x->behind) && x->behind.when >= u->behind.when));
		u->owner = i + 1;
	}
	live[i] = x;
}

static void give(int i)
{
	struct cw_behind b = next(8) ? stream(next(STREAMS)) : (struct cw_behind){0};
	if (b.stream)
		b.when = ++frees;
	for (uint64_t at = live[i]->base; at < live[i]->base + live[i]->size; at += CW_SLICE) {
		struct unit *u = unit_at(at);
		CHECK(u->owner == i + 1);
		u->owner = 0;
		u->behind = b;
	}
	cw_slices_give(&s, live[i], &b);
	live[i] = NULL;
}

static void settle(void)
{
	struct cw_behind passed = stream(next(STREAMS));
	passed.when = frees - (frees ? next(frees < 20 ? (uint32_t)frees : 20) : 0);
	if (next(3) == 0)
		passed.stream = 0;
	cw_slices_settle(&s, &passed);
	/* A unit may stay behind for longer, with its neighbours of the same stream. */
	for (struct cw_stock *k = s.all; k; k = k->next)
		for (struct cw_slice *x = k->first; x; x = x->after)
			for (uint64_t at = x->base; !x->used && x->behind.stream == 0 && at < x->base + x->size; at += CW_SLICE) {
				struct unit *u = unit_at(at);
				CHECK(u->behind.stream == 0 || (u->behind.ctx == passed.ctx && u->behind.when <= passed.when &&
								(passed.stream == 0 || cw_behind_same(&u->behind, &passed))));
				u->behind = (struct cw_behind){0};
			}
}

/* A stream's work is another's now, or nobody's. */
static void inherit(void)
{
	struct cw_behind from = stream(next(STREAMS)), to = {0};
	if (next(2))
		to = (struct cw_behind){from.ctx, 50 + from.ctx, 500, 0};
	int some = 0, told = cw_slices_behind(&s, &from);
	for (int k = 0; k < STOCKS; k++)
		for (int u = 0; u < UNITS; u++)
			if (map[k][u].owner == 0 && cw_behind_same(&map[k][u].behind, &from)) {
				some = 1;
				to.when = to.stream ? map[k][u].behind.when : 0;
				map[k][u].behind = to;
			}
	CHECK(told || !some); /* what is said may be of more units than wait */
	to.when = 0;
	cw_slices_inherit(&s, &from, &to);
	CHECK(!cw_slices_behind(&s, &from));
}

static void removed(void)
{
	struct cw_stock *k = cw_slices_remove(&s, UINT64_MAX);
	if (!k)
		return;
	for (uint64_t at = k->range.base; at < k->range.base + k->size; at += CW_SLICE)
		CHECK(unit_at(at)->owner == 0 && unit_at(at)->behind.stream == 0);
	known[(k->range.base >> 32) - 1] = 0;
	free(k);
}

/* Slices follow each other without gaps, and the sums are right. */
static void whole(void)
{
	uint64_t reserved = 0, used = 0;
	for (struct cw_stock *k = s.all; k; k = k->next) {
		uint64_t at = k->range.base;
		struct cw_slice *before = NULL;
		for (struct cw_slice *x = k->first; x; before = x, x = x->after) {
			CHECK(x->base == at && x->size > 0 && x->before == before && x->of == k);
			at += x->size;
			used += x->used ? x->size : 0;
		}
		CHECK(at == k->range.base + k->size);
		reserved += k->size;
	}
	CHECK(reserved == s.reserved && used == s.used);
}

int main(void)
{
	for (int round = 0; round < ROUNDS; round++) {
		int i = (int)next(LIVE);
		switch (next(8)) {
		case 0: settle(); break;
		case 1:
			if (next(4))
				removed();
			else
				inherit();
			break;
		case 2:
			if (!known[i % STOCKS])
				add(i % STOCKS);
			break;
		default:
			if (live[i])
				give(i);
			else
				take(i, next(4) == 0);
		}
		if (round % 16 == 0)
			whole();
	}
	for (int i = 0; i < LIVE; i++)
		if (live[i])
			give(i);
	for (uint32_t ctx = 1; ctx <= 2; ctx++)
		cw_slices_settle(&s, &(struct cw_behind){ctx, 0, 0, frees});
	memset(map, 0, sizeof map);
	/* All of a stock that is free is one slice again. */
	for (struct cw_stock *k = s.all; k; k = k->next)
		CHECK(!k->first->after && k->first->behind.stream == 0);
	while (s.all)
		removed();
	CHECK(s.reserved == 0 && s.used == 0);
	return 0;
}
