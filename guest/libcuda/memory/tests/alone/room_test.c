/*
 * The rule by which pieces of managed memory change places, against a model of what that costs
 * (room_model.h) and what a rule would cost that knew what comes: the pieces of work of
 * scripts/bench/managed/over.cuh, and patterns that no rule but leaving all in its place serves
 * well.
 */
#include "memory/tests/alone/room_model.h"

#include "memory/room.c"
#include "session/lock.c"
#include "session/signals.c"

enum { LAUNCHES_MOST = 8192 };

/* A piece of work: which set each launch reads and writes, and after which the program waits for
 * the GPU. */
static struct {
	int sets, each, room; /* each and room in pieces */
	int n;
	int8_t names[LAUNCHES_MOST], waits[LAUNCHES_MOST];
} work;

static void work_of(int sets, int each, int room_for)
{
	memset(&work, 0, sizeof work);
	work.sets = sets;
	work.each = each;
	work.room = room_for;
}

static void launch_of(int s, int waits)
{
	CHECK(work.n < LAUNCHES_MOST);
	work.names[work.n] = (int8_t)s;
	work.waits[work.n++] = (int8_t)waits;
}

/* --- what it takes ---------------------------------------------------------------------------- */

static double at_gpu(void) { return 2.0 * PIECE / HBM; }
static double by_link(void) { return PIECE / LINK; } /* both ways at once */
static double exchange(void) { return 2.0 * PIECE / moves_at; }

/* With all in its place. */
static double still(void)
{
	double t = 0;
	for (int k = 0; k < work.n; k++) {
		int first = work.names[k] * work.each, there = work.room - first;
		there = there < 0 ? 0 : there > work.each ? work.each : there;
		t += there * at_gpu() + (work.each - there) * by_link();
	}
	return t;
}

static int next_use(int s, int from)
{
	while (from < work.n && work.names[from] != s)
		from++;
	return from;
}

static int uses(int s, int from, int to)
{
	int n = 0;
	for (; from < to; from++)
		n += work.names[from] == s;
	return n;
}

/* By a rule that knows what comes: what is used last of all goes, if what comes in its place is
 * used often enough until then. */
static double knowing(void)
{
	int there[SETS_MOST] = {0}, left = work.room;
	double t = 0;
	for (int s = 0; s < work.sets; s++) {
		there[s] = left < work.each ? left : work.each;
		left -= there[s];
	}
	for (int k = 0; k < work.n; k++) {
		int s = work.names[k];
		while (there[s] < work.each) {
			int v = -1, at = k;
			for (int o = 0; o < work.sets; o++)
				if (o != s && there[o] > 0 && next_use(o, k) > at)
					at = next_use(v = o, k);
			if (v < 0 || uses(s, k, at) * (by_link() - at_gpu()) <= exchange())
				break;
			there[v]--;
			there[s]++;
			t += exchange();
		}
		t += there[s] * at_gpu() + (work.each - there[s]) * by_link();
	}
	return t;
}

/* --- by the rule that is ---------------------------------------------------------------------- */

static void make(int s)
{
	struct cw_group *g = calloc(1, sizeof *g + EACH_MOST * sizeof g->all[0]);
	CHECK(g);
	set[s] = g;
	g->base = (uint64_t)(s + 1) << 40;
	g->piece = PIECE;
	g->count = (uint32_t)work.each;
	for (uint32_t i = 0; i < g->count; i++) {
		struct cw_area *a = g->all[i] = calloc(1, sizeof *a);
		CHECK(a);
		a->base = g->base + i * PIECE;
		a->size = a->backed = PIECE;
		a->group = g;
		a->index = i;
		if (i > 0)
			g->all[i - 1]->beside = a;
		if (gpu.room >= PIECE) {
			gpu.room -= PIECE;
			a->memory = 1;
		} else {
			a->region = (struct cw_region *)a;
			cw_room_short();
		}
	}
	for (uint32_t i = g->count; i-- > 0;) {
		g->all[i]->next = cw_areas;
		cw_areas = g->all[i];
	}
}

static void begin(void)
{
	memset(&gpu, 0, sizeof gpu);
	memset(&room, 0, sizeof room);
	memset(&mover, 0, sizeof mover);
	atomic_store(&cw_short, 0);
	atomic_store(&freed, 1);
	cw_areas = NULL;
	gpu.now = gpu.free_at = 1000;
	gpu.room = (uint64_t)work.room * PIECE;
	for (int s = 0; s < work.sets; s++)
		make(s);
}

static void end(void)
{
	for (int s = 0; s < work.sets; s++) {
		for (uint32_t i = 0; i < set[s]->count; i++)
			free(set[s]->all[i]);
		free(set[s]);
	}
	cw_areas = NULL;
}

static void wait_for_gpu(void)
{
	if (gpu.free_at > gpu.now)
		gpu.now = gpu.free_at;
}

static void launch(int s)
{
	uint64_t args[2] = {set[s]->base, 7};
	gpu.now += ISSUE;
	if (gpu.pending > 0 && gpu.pending <= gpu.now)
		turn();
	if (atomic_load(&cw_short) != 0)
		cw_room_named((const uint8_t *)args, sizeof args);
	double t = 0;
	for (uint32_t i = 0; i < set[s]->count; i++)
		t += set[s]->all[i]->region ? by_link() : at_gpu();
	gpu.free_at = (gpu.free_at > gpu.now ? gpu.free_at : gpu.now) + t;
}

static double runs(double *part, int parts)
{
	begin();
	double t = gpu.now, last = t;
	int k = 0;
	for (int i = 0; i < work.n; i++) {
		launch(work.names[i]);
		if (!work.waits[i])
			continue;
		wait_for_gpu();
		if (k < parts)
			part[k++] = gpu.now - last;
		last = gpu.now;
	}
	wait_for_gpu();
	t = gpu.now - t;
	end();
	return t;
}

/* --- what it is held against ------------------------------------------------------------------ */

/* Three sets of which two fit, 60 launches on each of two, three phases. */
static void phases(int each)
{
	work_of(3, each, 2 * each);
	for (int phase = 0; phase < 3; phase++)
		for (int k = 0; k < 60; k++) {
			launch_of(phase, 0);
			launch_of((phase + 1) % 3, k == 59);
		}
}

static void tells(const char *name, double most)
{
	double part[3] = {0}, t = runs(part, 3), none = still(), best = knowing() < none ? knowing() : none;
	printf("%-40s %6.3f s (%.3f, %.3f, %.3f), knowing what comes %.3f: %.2f; all in its place %.3f, %llu pieces came, %.3f s of "
	       "moves\n",
	       name, t, part[0], part[1], part[2], best, t / best, none, (unsigned long long)room.returned, gpu.moving);
	if (most > 0)
		CHECK(t <= most);
}

/* After turns in which moving did not pay, and which made it seldom, a set that is used for long is
 * found nevertheless. */
static void after_turns(void)
{
	double part[3] = {0};
	work_of(3, 16, 32);
	for (int k = 0; k < 400; k++)
		launch_of(k / 4 % 3, k == 399);
	for (int k = 0; k < 800; k++)
		launch_of(1 + k % 2, k == 599 || k == 799);
	runs(part, 3);
	printf("two sets after turns: %.3f s, the last 200 launches %.3f\n", part[1], part[2]);
	CHECK(part[1] < 600 * 16 * by_link() / 2 && part[2] < 1.01 * 200 * 16 * at_gpu());
}

/* Nothing moves while a function of the application is ahead, which may want the lock. */
static void behind_a_function(void)
{
	phases(16);
	begin();
	for (gpu.function = 1; gpu.function >= 0; gpu.function--) {
		for (int i = 0; i < work.n; i++) {
			launch(work.names[i]);
			wait_for_gpu();
		}
		CHECK(gpu.function ? room.returned == 0 && room.evicted == 0 : room.returned > 0);
	}
	end();
}

static int at_gpu_now(void)
{
	int n = 0;
	for (struct cw_area *a = cw_areas; a; a = a->next)
		n += !cw_piece_away(a);
	return n;
}

/* The vGPU's limit falls by half of what the program has at the GPU. Nothing leaves for that alone;
 * as what lies here is used, pieces leave until the limit is kept, one for each that finds no room,
 * and what is used is at the GPU in the end. */
static void lowered(void)
{
	enum { EACH = 16, LESS = EACH };
	work_of(3, EACH, 2 * EACH);
	begin();
	for (int k = 0; k < 60; k++)
		launch(k % 2);
	CHECK(at_gpu_now() == 2 * EACH);
	gpu.lowered = 1;
	gpu.over = LESS * PIECE;
	for (int k = 0; k < 60; k++)
		launch(k % 2);
	CHECK(at_gpu_now() == 2 * EACH && gpu.refused == 0);
	for (int k = 0; k < 2000; k++) {
		launch(2);
		wait_for_gpu();
	}
	printf("a limit lowered by %d of %d pieces: %d are at the GPU, %d found no room\n", LESS, 2 * EACH, at_gpu_now(), gpu.refused);
	CHECK(gpu.over == 0 && at_gpu_now() == 2 * EACH - LESS && gpu.refused > 0 && gpu.refused <= LESS);
	for (int i = 0; i < EACH; i++)
		CHECK(!set[2]->all[i]->region);
	end();
}

/* What a prefetch names goes to another GPU, piece by piece, when all are idle. */
static void to_another(void)
{
	work_of(2, 4, 8);
	begin();
	const uint64_t base = set[0]->base;
	cw_room_to(base, 4 * PIECE, 1); /* there is one */
	CHECK(gone_over == 0);
	gpus = 2;
	cw_room_to(base, 4 * PIECE, 0); /* it is there */
	CHECK(gone_over == 0 && gpu.told == 0);
	cw_room_to(base + 1, 3 * PIECE, 1); /* whole pieces: the second and the third */
	CHECK(gone_over == 2 && set[0]->all[0]->device == 0 && set[0]->all[1]->device == 1 && set[0]->all[2]->device == 1);
	cw_room_to(base, 4 * PIECE - CW_UNIT + 1, 1);
	CHECK(gone_over == 4 && set[0]->all[0]->to == 0 && set[1]->all[0]->device == 0);
	refuses = 1;
	cw_room_to(base, PIECE, 0);
	refuses = 0;
	CHECK(gone_over == 4 && set[0]->all[0]->to == 0); /* and is not tried again by itself */
	set[0]->still = 1;
	cw_room_to(base, 4 * PIECE, 0);
	CHECK(gone_over == 4);
	set[0]->still = 0;
	double until = gpu.free_at = gpu.now + 0.5;
	cw_room_to(base, 2 * PIECE, 0);
	CHECK(gone_over == 6 && gpu.now >= until);
	double busy = gpu.now;
	until = gpu.free_at = busy + 0.5;
	atomic_fetch_add(&mover.asked, 1);
	/* The mover waits for the GPU already: the call does not. */
	cw_room_to(base + 2 * PIECE, 2 * PIECE, 0);
	CHECK(gone_over == 6 && gpu.now == busy && set[0]->all[3]->to == 1);
	turn();
	CHECK(gone_over == 8 && gpu.now >= until && set[0]->all[3]->to == 0);
	/* A wish for which there was no moment is over, and does not come true with the next; one
	 * that came meanwhile stays. */
	gpu.function = 1;
	cw_room_to(base, PIECE, 1);
	CHECK(gone_over == 8 && set[0]->all[0]->to == 0);
	atomic_fetch_add(&mover.asked, 1);
	cw_room_to(base, PIECE, 1);
	uint32_t before = room.wishes;
	cw_room_to(base + PIECE, PIECE, 1);
	give_up(before);
	CHECK(set[0]->all[0]->to == 2 && set[0]->all[1]->to == 2);
	give_up(room.wishes);
	CHECK(set[0]->all[0]->to == 0 && set[0]->all[1]->to == 0);
	gpu.function = 0;
	turn();
	cw_room_to(base + 2 * PIECE, PIECE, 1);
	CHECK(gone_over == 9 && set[0]->all[0]->device == 0 && set[0]->all[2]->device == 1);
	gpus = 1;
	end();
}

int main(void)
{
	behind_a_function();
	to_another();
	lowered();
	for (int costly = 0; costly < 2; costly++) {
		moves_at = costly ? 5e9 : 25e9;
		printf("moves at %.0f GB/s\n", moves_at / 1e9);
		phases(16);
		tells("phases, sets of 2 GiB", 2 * knowing());
		phases(48);
		tells("phases, sets of 6 GiB", 2 * knowing());
		work_of(1, 48, 32);
		for (int k = 0; k < 200; k++)
			launch_of(0, k % 20 == 19);
		tells("sweeps over one allocation", 1.001 * still());
		work_of(3, 16, 32);
		for (int k = 0; k < 600; k++)
			launch_of(k % 3, 0);
		tells("sweeps over three", 1.001 * still());
		for (int m = 2; m <= 24; m += m < 8 ? 1 : 4) {
			char name[64];
			work_of(3, 16, 32);
			for (int k = 0; k < 1200; k++)
				launch_of(k / m % 3, 0);
			snprintf(name, sizeof name, "%d launches on each in turn", m);
			tells(name, 1.15 * still());
		}
		after_turns();
	}
	return 0;
}
