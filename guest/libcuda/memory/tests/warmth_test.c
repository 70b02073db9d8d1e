/* Which pieces of managed memory take which places: patterns of launches, and how often pieces
 * change places with them. */
#include <unistd.h>

#include "memory/warmth.h"
#include "session/tests/fake_worker.h"

enum { PIECES = 6, ROOM = 4 };

struct gpu {
	struct cw_warmth w[PIECES];
	int there[PIECES];
	uint64_t launch;
	int moves;
};

static struct gpu fresh(void)
{
	struct gpu g = {.launch = 1};
	for (int i = 0; i < ROOM; i++)
		g.there[i] = 1;
	return g;
}

/* A launch that names the pieces [lo, hi) as allocations of their own; then what is much warmer
 * takes the place of what is coolest. */
static void names(struct gpu *g, int lo, int hi)
{
	g->launch++;
	for (int i = lo; i < hi; i++)
		cw_warm(&g->w[i % PIECES], g->launch, CW_WARM);
	for (;;) {
		int in = -1, out = -1;
		for (int i = 0; i < PIECES; i++) {
			uint32_t h = cw_heat(&g->w[i], g->launch);
			if (!g->there[i] && (in < 0 || h > cw_heat(&g->w[in], g->launch)))
				in = i;
			if (g->there[i] && (out < 0 || h < cw_heat(&g->w[out], g->launch)))
				out = i;
		}
		if (!cw_much_warmer(cw_heat(&g->w[in], g->launch), cw_heat(&g->w[out], g->launch)))
			return;
		g->there[in] = 1;
		g->there[out] = 0;
		g->moves++;
	}
}

static void sweeps(void)
{
	/* One allocation that every kernel names from its beginning. */
	struct gpu g = fresh();
	for (int n = 0; n < 1000; n++) {
		g.launch++;
		for (uint32_t i = 0; i < PIECES; i++)
			cw_warm(&g.w[i], g.launch, cw_warm_by(i, 0, PIECES));
		for (int in = ROOM; in < PIECES; in++)
			for (int out = 0; out < ROOM; out++)
				CHECK(!cw_much_warmer(cw_heat(&g.w[in], g.launch), cw_heat(&g.w[out], g.launch)));
	}
	CHECK(cw_warm_by(0, 0, 1) == CW_WARM && cw_warm_by(PIECES - 1, 0, PIECES) > CW_WARM / 2);
}

static void one_launch(void)
{
	struct gpu g = fresh();
	names(&g, 4, 6);
	CHECK(g.moves == 0);
	for (int n = 0; n < 10; n++)
		names(&g, 4, 6);
	CHECK(g.moves == 2 && g.there[4] && g.there[5]);
}

static void phases(void)
{
	struct gpu g = fresh();
	for (int phase = 0; phase < 9; phase++) {
		int before = g.moves;
		for (int n = 0; n < 60; n++)
			names(&g, 2 * (phase % 3), 2 * (phase % 3) + 4);
		for (int i = 0; i < 4; i++)
			CHECK(g.there[(2 * (phase % 3) + i) % PIECES]);
		CHECK(g.moves - before == (phase ? 2 : 0)); /* each piece that is new, once */
	}
}

static void in_turn(void)
{
	/* All are used again soon: nothing moves, whatever the order. */
	for (int step = 1; step < PIECES; step++) {
		struct gpu g = fresh();
		for (int n = 0; n < 600; n++)
			names(&g, step * n % PIECES, step * n % PIECES + 2);
		CHECK(g.moves <= ROOM);
	}
}

static void twice_in_a_launch(void)
{
	struct cw_warmth a = {0}, b = {0};
	cw_warm(&a, 5, 100);
	cw_warm(&a, 5, 200);
	cw_warm(&a, 5, 50);
	cw_warm(&b, 5, 200);
	CHECK(a.heat == b.heat && a.by == 200);
	CHECK(cw_heat(&a, 100000) == 0);
}

int main(void)
{
	sweeps();
	one_launch();
	phases();
	in_turn();
	twice_in_a_launch();
	return 0;
}
