/*
 * Functions of the application that streams will call (cuLaunchHostFunc), and what must not stand
 * behind them in the ring. The worker takes one record after the other. One in which a driver waits
 * for such a function, because it takes no more behind work that has not begun or because it waits
 * for the device, keeps it from all that the function, or who holds a lock that the function wants,
 * asks of it: they would wait for each other. So who asks for such a thing waits here, before the
 * worker knows of it. None of this is for ever: the function may wait for this thread, as it could
 * natively.
 */
#include <string.h>

#include "session/ahead.h"
#include "session/internal.h"

#include "gen/ops.h"

/* A driver takes some 1000 launches behind work that has not begun. */
enum { STREAMS = 32, BEHIND = 512, LEGACY = 1, AGAIN = 3, LEAST_WAY_MS = 20 };

static struct {
	struct cw_lock lock;
	/* Of two generations: who waits for those that are there now begins another, so that what
	 * others add meanwhile keeps nobody. */
	uint32_t count[2], young;
	uint32_t barred;
	uint16_t era; /* those of before are waited for no more: cw_host_done knows them by it */
	struct {
		uint32_t stream, count; /* functions that it will call; 0: a free entry */
		uint32_t behind;	/* pieces of work since one was added, or called */
		uint8_t late;		/* waited for in vain: not again until there is another */
	} on[STREAMS];
} ahead;
_Atomic uint32_t cw_hosts_ahead;
int64_t cw_host_longest_ms = 10000;
static _Atomic uint64_t since; /* cw_work when one was last added or called */
static _Atomic int late;

/* How many ask in vain to go when none is ahead, as others add without pause; and how long these
 * make way for them, each time they add one. */
static _Atomic int crowded;
static _Atomic int64_t way_ms;

__thread uint32_t cw_own_work __attribute__((tls_model("initial-exec")));

static void rest(int turn)
{
	struct timespec nap = {0, turn < 20 ? 50000 : 1000000};
	nanosleep(&nap, NULL);
}

static void make_way(void)
{
	int64_t until = 0;
	for (int turn = 0; cw_unlikely(atomic_load(&crowded) != 0) && !cw_own_work && !cw_is_dead(&cw_s); turn++) {
		if (until == 0)
			until = cw_now_ms() + atomic_load(&way_ms);
		if (cw_now_ms() >= until)
			return;
		rest(turn);
	}
}

int cw_host_bar(void)
{
	cw_lock_acquire(&ahead.lock);
	int none = !cw_host_is_ahead();
	ahead.barred += (uint32_t)none;
	cw_lock_release(&ahead.lock);
	return none;
}

void cw_host_unbar(void)
{
	cw_lock_acquire(&ahead.lock);
	ahead.barred--;
	cw_lock_release(&ahead.lock);
}

/* Takes the lock, when nobody bars. */
static void admit(void)
{
	make_way();
	cw_lock_acquire(&ahead.lock);
	for (int turn = 0; cw_unlikely(ahead.barred != 0) && !cw_own_work && !cw_is_dead(&cw_s); turn++) {
		cw_lock_release(&ahead.lock);
		rest(turn);
		cw_lock_acquire(&ahead.lock);
	}
}

uint32_t cw_host_add(uint32_t stream)
{
	int i = -1;
	admit();
	for (int k = 0; k < STREAMS; k++)
		if (ahead.on[k].count && ahead.on[k].stream == stream)
			i = k;
	for (int k = 0; k < STREAMS && i < 0; k++)
		if (ahead.on[k].count == 0)
			i = k;
	uint32_t young = ahead.young;
	ahead.count[young]++;
	if (i >= 0) {
		ahead.on[i].stream = stream;
		ahead.on[i].count++;
		ahead.on[i].behind = ahead.on[i].late = 0;
	}
	atomic_store(&since, cw_work());
	atomic_store(&late, 0);
	atomic_fetch_add(&cw_hosts_ahead, 1);
	uint32_t era = ahead.era;
	cw_lock_release(&ahead.lock);
	return 1u << 31 | era << 8 | (uint32_t)(i + 1) << 1 | young;
}

void cw_host_done(uint32_t ticket)
{
	if (ticket == 0)
		return;
	uint32_t i = ticket >> 1 & 127;
	cw_lock_acquire(&ahead.lock);
	if ((uint16_t)(ticket >> 8) == ahead.era) {
		ahead.count[ticket & 1]--;
		if (i > 0) {
			ahead.on[i - 1].count--;
			ahead.on[i - 1].behind = 0;
		}
		atomic_store(&since, cw_work());
		atomic_fetch_sub(&cw_hosts_ahead, 1);
	}
	cw_lock_release(&ahead.lock);
}

/* --- work behind them ------------------------------------------------------------------------- */

/* Under the lock: what keeps a stream that has more behind it than a driver takes, -1. */
static int keeps(uint32_t stream, uint32_t more)
{
	for (int k = 0; k < STREAMS; k++)
		if (ahead.on[k].count && (ahead.on[k].stream == stream || ahead.on[k].stream == LEGACY || stream == LEGACY) &&
		    !ahead.on[k].late && (ahead.on[k].behind += more) > BEHIND)
			return k;
	return -1;
}

void cw_host_behind(uint32_t stream)
{
	int64_t until = 0;
	for (int turn = 0;; turn++) {
		cw_lock_acquire(&ahead.lock);
		int k = keeps(stream, turn == 0);
		if (k >= 0 && until != 0 && cw_now_ms() >= until)
			ahead.on[k].late = 1;
		cw_lock_release(&ahead.lock);
		if (k < 0 || cw_own_work || cw_is_dead(&cw_s))
			return;
		if (until == 0)
			until = cw_now_ms() + cw_host_longest_ms;
		rest(turn);
	}
}

void cw_host_let_run(void)
{
	int64_t until = cw_now_ms() + cw_host_longest_ms;
	for (int turn = 0; !atomic_load(&late) && cw_host_is_ahead() && cw_work() - atomic_load(&since) > BEHIND && !cw_is_dead(&cw_s);
	     turn++) {
		rest(turn);
		if (cw_now_ms() >= until)
			atomic_store(&late, 1);
	}
}

/* --- what waits for the device ---------------------------------------------------------------- */

/* Under the lock: they do not come, as when their context has failed, or wait for what waits for
 * them. */
static void give_up(void)
{
	memset(ahead.count, 0, sizeof ahead.count);
	memset(ahead.on, 0, sizeof ahead.on);
	ahead.era++;
	atomic_store(&cw_hosts_ahead, 0);
}

/* Waits until those that are there now have been called, or given up. */
static void await_these(int64_t until)
{
	int begun = -1; /* the generation that is waited for */
	for (int turn = 0;; turn++) {
		cw_lock_acquire(&ahead.lock);
		if (begun < 0 && ahead.count[!ahead.young] == 0) {
			begun = (int)ahead.young;
			ahead.young = !ahead.young;
		}
		int done = begun >= 0 && ahead.count[begun] == 0;
		if (!done && (cw_now_ms() >= until || cw_is_dead(&cw_s))) {
			give_up();
			done = 1;
		}
		cw_lock_release(&ahead.lock);
		if (done)
			return;
		rest(turn);
	}
}

void cw_host_before_copy(void)
{
	if (cw_can_map() || cw_own_work)
		return;
	cw_before_drain();
	if (cw_host_is_ahead())
		await_these(cw_now_ms() + cw_host_longest_ms);
}

/*
 * Where others add without pause there is always one ahead, and one that needs the ring would be
 * waited for with this in front of what it needs. So after some rounds they make way, for as long
 * as a round needs by all that is known, and not for longer: who adds may hold a lock that one
 * ahead wants.
 */
CUresult cw_host_begin_after(struct cw_tx *tx, uint16_t op, uint32_t fixed, uint32_t var, uint32_t slot)
{
	int64_t until = cw_now_ms() + cw_host_longest_ms;
	/* Which waits for memory at most, not for graphs that run. */
	if (op != CW_OP_GRAPH_INSTANTIATE)
		cw_before_drain();
	CUresult res;
	int rounds = 0; /* in vain */
	for (int64_t begun = cw_now_ms();; rounds++) {
		int last = cw_own_work || begun >= until;
		if (!last && cw_host_is_ahead())
			await_these(until);
		res = cw_begin_slot(&cw_s, tx, op, fixed, var, slot);
		/* The ring is held: what was added since is before this in it, or will be
		 * behind. */
		if (res != 0 || last || !cw_host_is_ahead())
			break;
		cw_take_back(&cw_s, tx);
		int64_t now = cw_now_ms();
		if (rounds >= AGAIN)
			atomic_store(&way_ms, LEAST_WAY_MS + 2 * (now - begun));
		if (rounds == AGAIN)
			atomic_fetch_add(&crowded, 1);
		begun = now;
	}
	if (rounds > AGAIN)
		atomic_fetch_sub(&crowded, 1);
	return res;
}
