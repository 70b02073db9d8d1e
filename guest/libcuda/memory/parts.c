/* See parts.h. Lock order: making > list; the list's lock is a leaf, as requests settle under
 * it. */
#include "memory/parts.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "session/internal.h"
#include "session/lock.h"

enum { PAGE = 4096, CARRIED = 64 << 10 /* whole pages up to here are carried */ };
enum { NAP_US = 100, LONG_NAP_US = 1000, RESTLESS = 200 /* short naps after a change */, STACK = 64 << 10 };
enum { SHOTS = 256 << 10, TURNS = 64, MOST = 128 /* pieces: each request looks at all of them */ };

/* Bytes of a piece that belong to one registered range. */
struct span {
	struct span *next;
	uint64_t lo, hi;
};

/* Pages that stand for pages of the application. */
struct piece {
	struct piece *next;
	uint64_t at, size;	  /* of the application's */
	struct cw_region *region; /* the worker's, at the same address there; va here */
	uint8_t *last;		  /* what both sides had when they were last alike */
	struct span *spans;
};

static struct cw_lock making, list;
static struct piece *pieces;
static int carrying;   /* under list: the thread runs */
static uint32_t count; /* of pieces; under making */

/* --- carrying --------------------------------------------------------------------------------- */

static int swap_uint8_t(uint8_t *at, uint8_t from, uint8_t to)
{
	return __atomic_compare_exchange_n(at, &from, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static int swap_uint64_t(uint64_t *at, uint64_t from, uint64_t to)
{
	return __atomic_compare_exchange_n(at, &from, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

#define swap(at, from, to) _Generic((at), uint8_t *: swap_uint8_t, uint64_t *: swap_uint64_t)((at), (from), (to))

/* One byte: where one side changed, the other follows; where both did, the application's value
 * stays. a: the application's, not long ago. 1: something changed. */
static int settle_byte(uint8_t *app, uint8_t a, uint8_t *dev, uint8_t *last)
{
	for (int turn = 0; turn < TURNS; turn++) {
		uint8_t d = __atomic_load_n(dev, __ATOMIC_ACQUIRE);
		if (a == *last && d == *last)
			return turn > 0;
		if (a != *last ? a == d || swap(dev, d, a) : swap(app, a, d)) {
			*last = a != *last ? a : d;
			return 1;
		}
		a = __atomic_load_n(app, __ATOMIC_ACQUIRE);
	}
	return 1; /* who goes on writing it looks again */
}

/* A word at once if only one side changed it. Both may have, each other bytes. */
static int settle_word(uint8_t *app, const uint8_t *shot, uint8_t *dev, uint8_t *last)
{
	uint64_t a, d = __atomic_load_n((uint64_t *)dev, __ATOMIC_ACQUIRE), l;
	memcpy(&a, shot, sizeof a);
	memcpy(&l, last, sizeof l);
	if (a == l && d == l)
		return 0;
	if (d == l ? swap((uint64_t *)dev, d, a) : a == l && swap((uint64_t *)app, a, d)) {
		memcpy(last, d == l ? &a : &d, sizeof a);
		return 1;
	}
	for (int i = 0; i < 8; i++)
		settle_byte(app + i, shot[i], dev + i, last + i);
	return 1;
}

/* shot: the piece as the application had it not long ago. */
static int settle_span(struct piece *p, const struct span *s, const uint8_t *shot)
{
	uint8_t *app = (uint8_t *)(uintptr_t)p->at, *dev = p->region->va;
	uint64_t i = s->lo - p->at, end = s->hi - p->at;
	int changed = 0;
	if (!memcmp(shot + i, p->last + i, end - i) && !memcmp(dev + i, p->last + i, end - i))
		return 0;
	while (i < end) {
		if (i % 8 == 0 && end - i >= 8) {
			changed |= settle_word(app + i, shot + i, dev + i, p->last + i);
			i += 8;
		} else {
			changed |= settle_byte(app + i, shot[i], dev + i, p->last + i);
			i++;
		}
	}
	return changed;
}

/*
 * Pieces are looked at in copies that the kernel makes, many by one call: it says where memory is
 * gone that the application unmapped without a word, at whatever moment, and such pieces are left
 * alone. Under the list's lock.
 */
static struct {
	int file; /* that the kernel copies into */
	uint8_t *view;
} shots = {.file = -1};

static int shots_ready(void)
{
	if (shots.view)
		return 1;
	if (shots.file < 0)
		shots.file = cw_memfd(SHOTS);
	if (shots.file >= 0)
		shots.view = cw_map_shared(shots.file, SHOTS, NULL);
	return shots.view != NULL;
}

/* Settles pieces from p on, as many as one call takes, and returns the one behind them. */
static struct piece *settle_some(struct piece *p, int *changed)
{
	struct iovec v[SHOTS / PAGE];
	struct piece *last = p;
	uint64_t total = 0, done = 0;
	int n = 0;
	for (; last && total + last->size <= SHOTS; total += last->size, last = last->next)
		v[n++] = (struct iovec){(void *)(uintptr_t)last->at, last->size};
	/* Not pwritev itself, which is a point where threads are cancelled. */
	long got = syscall(SYS_pwritev, shots.file, v, (unsigned long)n, 0l, 0l);
	for (; p != last && got >= (long)(done + p->size); done += p->size, p = p->next)
		for (const struct span *s = p->spans; s; s = s->next)
			*changed |= settle_span(p, s, shots.view + done);
	return p == last ? p : p->next; /* p is gone */
}

static int settle_all(void)
{
	int changed = 0;
	for (struct piece *p = pieces; p;)
		p = settle_some(p, &changed);
	return changed;
}

static void settle(void)
{
	cw_lock_acquire(&list);
	settle_all();
	cw_lock_release(&list);
}

/* For who watches memory without asking CUDA. Ends with the last piece. */
static void *carrier(void *arg)
{
	(void)arg;
	prctl(PR_SET_NAME, "causeway-parts");
	for (int restless = RESTLESS;;) {
		struct timespec nap = {0, 1000l * (restless > 0 ? NAP_US : LONG_NAP_US)};
		nanosleep(&nap, NULL);
		cw_lock_acquire(&list);
		restless = settle_all() ? RESTLESS : restless - 1;
		if (!pieces)
			carrying = 0;
		int go_on = carrying;
		cw_lock_release(&list);
		if (!go_on)
			return NULL;
	}
}

/* Under the list's lock. Without the thread the requests carry alone. */
static void start_carrier(void) { carrying = carrying || cw_thread_begin(STACK, 0, carrier, NULL) == 0; }

/* --- pieces ----------------------------------------------------------------------------------- */

/* Under making. */
static struct piece *piece_of(uint64_t at, uint64_t size, uint32_t flags)
{
	for (struct piece *p = pieces; p; p = p->next)
		if (p->at == at)
			return p;
	if (count >= MOST || !shots_ready()) {
		cw_log(CW_LOG_INFO, "%u parts of pages are registered: this one stays without a device address", count);
		return NULL;
	}
	struct piece *p = calloc(1, sizeof *p);
	uint8_t *last = malloc(size);
	CUresult res = p && last ? cw_region_add_at(at, size, flags, &p->region) : CUDA_ERROR_OUT_OF_MEMORY;
	if (res != 0) {
		cw_log(CW_LOG_INFO, "%llu bytes at %#llx cannot be registered for the GPU: %d", (unsigned long long)size,
		       (unsigned long long)at, (int)res);
		free(last);
		free(p);
		return NULL;
	}
	p->at = at;
	p->size = size;
	p->last = last;
	cw_lock_acquire(&list);
	p->next = pieces;
	pieces = p;
	count++;
	start_carrier();
	cw_lock_release(&list);
	atomic_store(&cw_around_requests, settle);
	return p;
}

/* Under making: a piece that stands for nothing any more goes. */
static void drop_unused(struct piece *p)
{
	if (p->spans)
		return;
	cw_lock_acquire(&list);
	struct piece **at = &pieces;
	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	count--;
	if (!pieces)
		atomic_store(&cw_around_requests, NULL);
	cw_lock_release(&list);
	cw_region_drop(p->region);
	free(p->last);
	free(p);
}

/* [lo, hi) of the pages at. */
static CUresult add(uint64_t at, uint64_t size, uint64_t lo, uint64_t hi, uint32_t flags)
{
	struct span *s = malloc(sizeof *s);
	cw_lock_acquire(&making);
	struct piece *p = s ? piece_of(at, size, flags) : NULL;
	if (p) {
		cw_lock_acquire(&list);
		memcpy(p->region->va + (lo - at), (void *)(uintptr_t)lo, hi - lo);
		memcpy(p->last + (lo - at), p->region->va + (lo - at), hi - lo);
		*s = (struct span){p->spans, lo, hi};
		p->spans = s;
		cw_lock_release(&list);
	} else {
		free(s);
	}
	cw_lock_release(&making);
	return p ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

static void end(uint64_t at, uint64_t lo)
{
	cw_lock_acquire(&making);
	for (struct piece *p = pieces; p; p = p->next) {
		if (p->at != at)
			continue;
		cw_lock_acquire(&list);
		struct span **s = &p->spans, *gone;
		while (*s && (*s)->lo != lo)
			s = &(*s)->next;
		if ((gone = *s))
			*s = gone->next;
		cw_lock_release(&list);
		free(gone);
		drop_unused(p);
		break;
	}
	cw_lock_release(&making);
}

/* --- ranges ----------------------------------------------------------------------------------- */

/* A range's parts: [base, lo) of a page, whole pages [lo, hi), [hi, end) of a page. Any may be
 * empty; one within a page is the first. */
struct parts {
	uint64_t lo, hi, end;
};

static struct parts parts_of(const struct cw_range *r)
{
	struct parts p = {(r->base + PAGE - 1) & ~(uint64_t)(PAGE - 1), (r->base + r->size) & ~(uint64_t)(PAGE - 1), r->base + r->size};
	if (p.lo > p.hi)
		p.lo = p.hi = p.end;
	return p;
}

static uint64_t page_of(uint64_t at) { return at & ~(uint64_t)(PAGE - 1); }

static int carried(const struct parts *p) { return p->hi > p->lo && p->hi - p->lo <= CARRIED; }

CUresult cw_parts_register(struct cw_range *r)
{
	struct parts p = parts_of(r);
	CUresult res = CUDA_SUCCESS;
	int first = p.lo > r->base, middle = carried(&p), last = p.end > p.hi;
	if (p.hi > p.lo && !middle)
		res = cw_region_adopt_parted((void *)(uintptr_t)p.lo, p.hi - p.lo, r->flags, &r->region);
	if (!res && first && (res = add(page_of(r->base), PAGE, r->base, p.lo, r->flags)))
		first = 0;
	if (!res && middle && (res = add(p.lo, p.hi - p.lo, p.lo, p.hi, r->flags)))
		middle = 0;
	if (!res && last && (res = add(p.hi, PAGE, p.hi, p.end, r->flags)))
		last = 0;
	if (!res) {
		r->dev = r->base;
		r->parts = 1;
		return CUDA_SUCCESS;
	}
	if (first)
		end(page_of(r->base), r->base);
	if (middle)
		end(p.lo, p.lo);
	if (r->region)
		cw_region_drop(r->region);
	r->region = NULL;
	return res;
}

void cw_parts_end(const struct cw_range *r)
{
	struct parts p = parts_of(r);
	cwop_CtxSynchronize(); /* the device may be writing; its answer settles */
	if (p.lo > r->base)
		end(page_of(r->base), r->base);
	if (carried(&p))
		end(p.lo, p.lo);
	if (p.end > p.hi)
		end(p.hi, p.hi);
}

int cw_parts_whole(const struct cw_range *r, uint64_t ptr, uint64_t size)
{
	struct parts p = parts_of(r);
	uint64_t end = ptr < p.lo ? p.lo : ptr < p.hi ? p.hi : p.end;
	return size <= end - ptr;
}
