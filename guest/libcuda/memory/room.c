/*
 * Which pieces of managed memory lie at the GPU when there is not room for all, and when they
 * change places.
 *
 * What a kernel will touch nobody knows before; but launches name what they use, by the addresses
 * among their arguments. Each launch warms the pieces of an allocation from the one that it names
 * to the end, the first most, and all cool with each. A piece that lies here and is a good deal
 * warmer than one at the GPU changes places with it, and what else of its allocation is warmer: not
 * for one launch, and not where all are used alike, as there whatever lies here is reached over the
 * link once each time, which is the least that can be had. Time that goes into moving is followed
 * by as much without: who uses more than there is room for, in turns, has the link's speed, and
 * half of it at worst.
 *
 * Moving needs a GPU that is idle. A thread waits for that, and the launch that asked waits for the
 * thread, not for much longer than what it has given the GPU takes over the link: a kernel may wait
 * for what is launched next. Whether time enough has passed is known then and not before: launches
 * are given in microseconds and take the GPU seconds, so that by the clock of who gives them all
 * would be given before it is time to look again.
 */
#include <string.h>
#include <sys/prctl.h>

#include "api/callback.h"
#include "api/capture.h"
#include "memory/resident.h"
#include "session/ahead.h"
#include "session/internal.h"

enum {
	ASKED_MS =
		/* A launch waits for the mover, at most, and LINK_MS for each GiB that was named
		 * and lies here, up to ASKED_MOST_MS. */
	1000,
	LINK_MS = 64, /* twice what a link takes for it (H100) */
	ASKED_MOST_MS = 10000,
	LOOK_MS = 1000, /* the GPU's free memory is asked for, at most each */
	GAP_MOST = 256, /* launches between two looks that came too early, at most */
	LOST_MOST = 3,
	/* A prefetch waits for pieces to be at another GPU, at most: as long as it takes to see
	 * that the GPUs are idle, which they are not while another waits. */
	TO_MS = 5
};
/* Bytes a link carries in a ms (H100, 33 GB/s), by which it is judged whether moves have paid. */
#define LINK_BYTES 33000000ll

_Atomic uint32_t cw_short;

/* Under the resident lock. */
static struct {
	uint64_t launch;      /* that many were told of */
	uint64_t free;	      /* of the GPU's memory, when it was asked for last */
	int64_t looked, next; /* ms; next: not before that */
	int64_t moved, took;  /* ms; when pieces moved last, and for how long */
	/* Times that some did; how many before the last did not pay, each after the other. */
	uint32_t moves, lost;
	/* Bytes that were named and lay here since the GPU was last seen idle. */
	uint64_t by_link;
	/* Launches: none looks before number look; how many were left out last. */
	uint64_t look, gap;
	uint64_t to_gpu, to_guest;  /* bytes that moved */
	uint64_t evicted, returned; /* pieces */
	uint32_t wishes;	    /* calls that would have pieces at another GPU */
} room;
static _Atomic int freed; /* since it was looked */

/* --- warmth ----------------------------------------------------------------------------------- */

static uint32_t heat_of(const struct cw_area *a) { return cw_heat(&a->warmth, room.launch); }

static void name(uint64_t addr)
{
	struct cw_area *a = cw_area_at(addr);
	struct cw_group *g = a ? a->group : NULL;
	for (uint32_t i = g ? a->index : 0, first = i; g && i < g->count; i++) {
		a = g->all[i];
		if (a->warmth.launch != room.launch) {
			a->named++;
			room.by_link += cw_piece_away(a) ? a->size : 0;
		}
		cw_warm(&a->warmth, room.launch, cw_warm_by(i, first, g->count));
	}
}

/* --- what to move ----------------------------------------------------------------------------- */

static int movable(const struct cw_area *a) { return a->group && !a->group->still; }

/* Whether it lies at that GPU, and might leave. */
static int may_leave(const struct cw_area *a, int device) { return a->memory && !cw_piece_away(a) && movable(a) && a->device == device; }

/* The warmest piece that lies here. */
static struct cw_area *warmest(void)
{
	struct cw_area *best = NULL;
	for (struct cw_area *a = cw_areas; a; a = a->next)
		if (cw_piece_away(a) && movable(a) && (!best || heat_of(a) > heat_of(best)))
			best = a;
	return best;
}

/* The coolest piece at a GPU, but those that were looked at before, by heat and place. */
static struct cw_area *coolest(int device)
{
	struct cw_area *best = NULL;
	for (struct cw_area *a = cw_areas; a; a = a->next)
		if (may_leave(a, device) &&
		    (!best || heat_of(a) < heat_of(best) || (heat_of(a) == heat_of(best) && a->index > best->index)))
			best = a;
	return best;
}

/* Whether one is to take the other's place; begun: others of its allocation did just now. */
static int takes_place(const struct cw_area *a, const struct cw_area *of, const struct cw_group *begun)
{
	return cw_warmer(heat_of(a), heat_of(of), a->group == begun ? CW_WARM : CW_MUCH_WARMER);
}

static uint64_t ask_free(int64_t now)
{
	uint64_t total = 0;
	if (atomic_exchange(&freed, 0) || now - room.looked >= LOOK_MS) {
		room.looked = now;
		if (cwop_MemGetInfo(&room.free, &total) != 0)
			room.free = 0;
	}
	return room.free;
}

/* A piece that is to come to the GPU, if it pays: there is room for it, or for what may leave in
 * its place. */
static struct cw_area *worthy(int64_t now, const struct cw_group *begun)
{
	struct cw_area *a = warmest();
	if (!a)
		return NULL;
	uint64_t have = ask_free(now);
	for (struct cw_area *v = cw_areas; v && have < a->backed; v = v->next)
		if (may_leave(v, a->device) && takes_place(a, v, begun))
			have += v->backed;
	return have >= a->backed ? a : NULL;
}

void cw_room_short(void) { atomic_fetch_add(&cw_short, 1); }

static void moves(struct cw_area *a)
{
	a->since = a->named;
	a->moves = room.moves;
}

static CUresult out(struct cw_area *a)
{
	CUresult res = cw_piece_out(a);
	if (res != 0)
		return res;
	cw_room_short();
	room.to_guest += a->size;
	room.evicted++;
	moves(a);
	room.free += a->backed;
	return res;
}

static CUresult in(struct cw_area *a)
{
	CUresult res = cw_piece_in(a);
	if (res != 0) {
		room.free = 0; /* whatever was said */
		room.looked = cw_now_ms();
		return res;
	}
	atomic_fetch_sub(&cw_short, 1);
	room.to_gpu += a->size;
	room.returned++;
	moves(a);
	room.free -= room.free < a->backed ? room.free : a->backed;
	return res;
}

/* One piece comes to the GPU, of the allocation that is returned. NULL: none is to, or could. */
static struct cw_group *improve(const struct cw_group *begun)
{
	struct cw_area *a = worthy(cw_now_ms(), begun), *v;
	if (!a)
		return NULL;
	while (room.free < a->backed) {
		v = coolest(a->device);
		if (!v || !takes_place(a, v, begun) || out(v) != 0)
			return NULL;
	}
	return in(a) == 0 ? a->group : NULL;
}

void cw_room_tell(void)
{
	uint64_t at_gpu = 0, here = 0;
	for (struct cw_area *a = cw_areas; a; a = a->next)
		*(cw_piece_away(a) ? &here : &at_gpu) += a->size;
	cwop_ManagedPlaces(at_gpu, here, room.to_gpu, room.to_guest, room.evicted, room.returned);
}

/* --- the mover -------------------------------------------------------------------------------- */

static struct {
	struct cw_lock lock;
	int started;
	_Atomic uint32_t asked, done; /* futexes */
} mover;

/*
 * Under the lock: nothing of the GPU's touches managed memory, and nothing will until `loud`; nor
 * does a function of the application that a stream calls: it would wait for the lock, and the
 * worker, which lets go of a piece, for it.
 */
static int quiet(void)
{
	atomic_fetch_add(&cw_copies, (uint64_t)CW_COPY); /* before the look: see cw_begin */
	if (cw_gpu_idle() && !cw_capture_any() && cw_host_bar())
		return 1;
	atomic_fetch_sub(&cw_copies, (uint64_t)CW_COPY);
	return 0;
}

static void loud(void)
{
	cw_host_unbar();
	atomic_fetch_sub(&cw_copies, (uint64_t)CW_COPY);
}

/* Too early: not with the next launch again, and later and later, as each look keeps the GPU from
 * having the next launch ready. */
static void leave_out(void)
{
	room.gap = room.gap == 0 ? 1 : room.gap < GAP_MOST ? 2 * room.gap : GAP_MOST;
	room.look = room.launch + room.gap;
}

/* How many of the last moves, each after the other, have not paid until now: what they brought to
 * the GPU must have been named so much more than what they took from it that the link would have
 * taken longer, for these and for those that will undo them. */
static uint32_t lost(void)
{
	int64_t gain = 0;
	for (struct cw_area *a = cw_areas; a; a = a->next)
		if (room.moves != 0 && a->moves == room.moves)
			gain += (cw_piece_away(a) ? -1 : 1) * (int64_t)a->size * (int64_t)(a->named - a->since);
	if (gain >= 2 * room.took * LINK_BYTES)
		return 0;
	return room.lost < LOST_MOST ? room.lost + 1 : LOST_MOST;
}

static void improve_all(int64_t begun)
{
	const struct cw_group *g = NULL, *last;
	int moved = 0;
	if (!worthy(begun, NULL))
		return;
	uint32_t before = lost();
	int64_t rest =
		/* What does not pay is tried more and more seldom: 1, 4, 16, 32. */
		room.took << (before < LOST_MOST ? 2 * before : 5);
	if (begun < room.moved + rest) {
		leave_out();
		return;
	}
	room.lost = before;
	room.moves++;
	while ((last = g, g = improve(last)) != NULL)
		moved = 1;
	if (!moved)
		return;
	room.gap = 0;
	room.moved = cw_now_ms();
	room.took = room.moved - begun;
	cw_room_tell();
	cw_log(CW_LOG_TRACE, "managed memory: %llu pieces have left the GPU, %llu have come back; this took %lld ms",
	       (unsigned long long)room.evicted, (unsigned long long)room.returned, (long long)room.took);
}

/* What the program would have at another GPU goes there. */
static void go_over(void)
{
	for (struct cw_area *a = cw_areas; a; a = a->next) {
		CUresult res = a->to ? cw_piece_to(a, a->to - 1) : CUDA_SUCCESS;
		if (res != 0)
			cw_log(CW_LOG_TRACE, "managed memory at %#llx does not go to GPU %d (%d)", (unsigned long long)a->base, a->to - 1,
			       (int)res);
		a->to = 0;
	}
}

static uint32_t wishes(void)
{
	cw_lock_acquire(&cw_resident_lock);
	uint32_t n = room.wishes;
	cw_lock_release(&cw_resident_lock);
	return n;
}

/* There was no moment for it: nobody looks for some time, and what was wished is over, but for what
 * has been since. */
static void give_up(uint32_t wished)
{
	cw_lock_acquire(&cw_resident_lock);
	room.next = cw_now_ms() + 4 * ASKED_MS;
	for (struct cw_area *a = cw_areas; a && room.wishes == wished; a = a->next)
		a->to = 0;
	cw_lock_release(&cw_resident_lock);
}

static int move_some(void)
{
	cw_lock_acquire(&cw_resident_lock);
	int ok = quiet();
	if (ok) {
		go_over();
		int64_t now = cw_now_ms();
		room.by_link = 0;
		if (now < room.moved + room.took)
			leave_out();
		else
			improve_all(now);
		loud();
	}
	cw_lock_release(&cw_resident_lock);
	return ok;
}

static void *move(void *arg)
{
	(void)arg;
	prctl(PR_SET_NAME, "causeway-mover");
	for (uint32_t last = 0;;) {
		uint32_t asked = atomic_load(&mover.asked);
		if (asked == last) {
			cw_futex_wait(&mover.asked, asked, CW_FUTEX_PRIVATE, NULL);
			continue;
		}
		last = asked;
		uint32_t wished = wishes();
		int ok = 0;
		for (int64_t until = cw_now_ms() + ASKED_MS; !ok && cw_now_ms() < until && cw_check_alive() == 0;)
			ok = cw_gpu_wait(0) == 0 && move_some();
		if (!ok)
			give_up(wished);
		atomic_store(&mover.done, asked);
		cw_futex_wake(&mover.done, INT32_MAX, CW_FUTEX_PRIVATE);
	}
	return NULL;
}

/* Whether the mover waits for the GPUs for somebody who asked before. */
static int waits(void) { return atomic_load(&mover.done) != atomic_load(&mover.asked); }

/* Has the mover look, and waits for it, so many ms at most. */
static void ask(int64_t most)
{
	cw_lock_acquire(&mover.lock);
	if (!mover.started)
		mover.started = cw_thread_start(move, NULL) == 0;
	int started = mover.started;
	cw_lock_release(&mover.lock);
	if (!started)
		return;
	uint32_t turn = atomic_fetch_add(&mover.asked, 1) + 1, done;
	cw_futex_wake(&mover.asked, 1, CW_FUTEX_PRIVATE);
	for (int64_t until = cw_now_ms() + most; (int32_t)((done = atomic_load(&mover.done)) - turn) < 0 && cw_now_ms() < until;) {
		struct timespec t = {0, 1000000 * (most < 20 ? most : 20)};
		cw_futex_wait(&mover.done, done, CW_FUTEX_PRIVATE, &t);
	}
}

/* As long as that is harmless. by_link: what the GPU has to reach over the link before it is idle,
 * at most. */
static void ask_for_room(uint64_t by_link)
{
	int64_t most = ASKED_MS + (int64_t)(by_link >> 20) * LINK_MS / 1024;
	ask(most < ASKED_MOST_MS ? most : ASKED_MOST_MS);
}

/* Whether the calling thread may wait for the GPU. */
static int may_wait(void) { return !cw_capture_any() && !cw_in_callback; }

void cw_room_named(const uint8_t *args, uint32_t size)
{
	int64_t now = cw_now_ms();
	cw_lock_acquire(&cw_resident_lock);
	room.launch++;
	for (uint32_t at = 0; at + sizeof(uint64_t) <= size; at += sizeof(uint64_t)) {
		uint64_t word;
		memcpy(&word, args + at, sizeof word);
		if (word >> 32 != 0)
			name(word);
	}
	int pays = now >= room.next && room.launch >= room.look && cw_pieces_return() && worthy(now, NULL) != NULL;
	uint64_t by_link = room.by_link;
	cw_lock_release(&cw_resident_lock);
	if (pays && may_wait())
		ask_for_room(by_link);
}

void cw_room_wish(uint64_t ptr, uint64_t size, int at_gpu)
{
	uint32_t lo, hi;
	int wanting = 0;
	if (at_gpu && atomic_load(&cw_short) == 0)
		return;
	cw_lock_acquire(&cw_resident_lock);
	for (struct cw_area *a = cw_area_at(ptr); a && a->group && cw_units_within(a, ptr, size, &lo, &hi); a = a->beside) {
		a->warmth = (struct cw_warmth){room.launch, at_gpu ? CW_WISHED : 0, 0};
		wanting |= at_gpu && cw_piece_away(a);
	}
	int pays = wanting && cw_pieces_return() && worthy(cw_now_ms(), NULL) != NULL;
	uint64_t by_link = room.by_link;
	if (pays)
		room.took = 0; /* it is asked for */
	cw_lock_release(&cw_resident_lock);
	if (pays && may_wait())
		ask_for_room(by_link);
}

void cw_room_to(uint64_t ptr, uint64_t size, int device)
{
	int some = 0;
	if (cw_device_count() < 2 || !may_wait())
		return;
	cw_lock_acquire(&cw_resident_lock);
	for (struct cw_area *a = cw_area_at(ptr); a && a->group && a->base < ptr + size; a = a->beside) {
		int all = a->base >= ptr && a->base + a->size <= ((ptr + size + CW_UNIT - 1) & ~(uint64_t)(CW_UNIT - 1));
		if (!all || !movable(a))
			continue;
		a->to = a->device == device ? 0 : (uint8_t)(device + 1);
		some |= a->to;
	}
	room.wishes += some != 0;
	cw_lock_release(&cw_resident_lock);
	if (some)
		ask(waits() ? 0 : TO_MS);
}

void cw_room_freed(void) { atomic_store(&freed, 1); }

/* --- for ordinary memory ---------------------------------------------------------------------- */

/* Under the lock, while it is quiet: pieces leave a GPU until there is room. */
static int clear_room(uint64_t size)
{
	int device = -1, left = 0;
	struct cw_ctx *c;
	if (cw_ctx_current(&c) == 0)
		device = c->device->ordinal;
	atomic_store(&freed, 1);
	ask_free(cw_now_ms());
	uint64_t have = room.free;
	for (struct cw_area *a = cw_areas; a && have < size; a = a->next)
		if (may_leave(a, device))
			have += a->backed;
	if (have < size)
		return 0; /* not even all of it would do */
	while (room.free < size) {
		struct cw_area *v = coolest(device);
		if (!v || out(v) != 0)
			break;
		left = 1;
	}
	if (left)
		cw_room_tell();
	return left;
}

int cw_room_make(uint64_t size)
{
	enum { TRIES = 4, ROUND = 2 << 20 };
	int left = 0, ok = 0;
	cw_lock_acquire(&cw_resident_lock);
	int some = 0;
	for (struct cw_area *a = cw_areas; a && !some; a = a->next)
		some = may_leave(a, a->device);
	cw_lock_release(&cw_resident_lock);
	if (!some || !may_wait() || !cw_pieces_return())
		return 0;
	for (int i = 0; i < TRIES && !ok; i++) {
		if (cw_gpu_wait(0) != 0)
			return 0;
		cw_lock_acquire(&cw_resident_lock);
		ok = quiet();
		if (ok) {
			left = clear_room((size + 2 * ROUND - 1) & ~(uint64_t)(ROUND - 1));
			loud();
		}
		cw_lock_release(&cw_resident_lock);
	}
	return left;
}
