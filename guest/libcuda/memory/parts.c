/* See parts.h. Lock order: making > list; the list's lock is a leaf, as requests settle under it. */
#include "memory/parts.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "session/lock.h"

enum { PAGE = 4096, CARRIED = 64 << 10 /* whole pages up to here are carried */ };
enum { NAP_US = 100, LONG_NAP_US = 1000, RESTLESS = 200 /* short naps after a change */, STACK = 64 << 10 };

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
static int carrying; /* under list: the thread runs */

/* --- carrying ------------------------------------------------------------------------------------------------------- */

/* One unit: where one side changed, the other follows; where both did, the application's value stays. 1: something changed. */
#define UNIT(type)                                                                                                             \
	static int settle_##type(type *app, type *dev, type *last)                                                             \
	{                                                                                                                      \
		type a = __atomic_load_n(app, __ATOMIC_ACQUIRE), d = __atomic_load_n(dev, __ATOMIC_ACQUIRE);                   \
		if (a == *last && d == *last)                                                                                  \
			return 0;                                                                                              \
		type to = a == *last ? d : a;                                                                                  \
		/* a value that changes meanwhile is left to the next time */                                                  \
		if (a != to && !__atomic_compare_exchange_n(app, &a, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))               \
			return 1;                                                                                              \
		if (d != to && !__atomic_compare_exchange_n(dev, &d, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))               \
			return 1;                                                                                              \
		*last = to;                                                                                                    \
		return 1;                                                                                                      \
	}
UNIT(uint8_t)
UNIT(uint64_t)

/* Both sides may have changed a word, each other bytes of it. */
static int settle_word(uint8_t *app, uint8_t *dev, uint8_t *last)
{
	uint64_t a = __atomic_load_n((uint64_t *)app, __ATOMIC_RELAXED), d = __atomic_load_n((uint64_t *)dev, __ATOMIC_RELAXED), l;
	memcpy(&l, last, sizeof l);
	if (a == l || d == l)
		return settle_uint64_t((uint64_t *)app, (uint64_t *)dev, (uint64_t *)last);
	for (int i = 0; i < 8; i++)
		settle_uint8_t(app + i, dev + i, last + i);
	return 1;
}

static int settle_span(struct piece *p, const struct span *s)
{
	uint8_t *app = (uint8_t *)(uintptr_t)p->at, *dev = p->region->va;
	int changed = 0;
	for (uint64_t i = s->lo - p->at, end = s->hi - p->at; i < end;) {
		if (i % 8 == 0 && end - i >= 8) {
			changed |= settle_word(app + i, dev + i, p->last + i);
			i += 8;
		} else {
			changed |= settle_uint8_t(app + i, dev + i, p->last + i);
			i++;
		}
	}
	return changed;
}

/* Under the list's lock. Memory that the application unmapped without a word is left alone. */
static int settle_all(void)
{
	unsigned char resident[CARRIED / PAGE];
	int changed = 0;
	for (struct piece *p = pieces; p; p = p->next)
		if (mincore((void *)(uintptr_t)p->at, p->size, resident) == 0 || errno != ENOMEM)
			for (const struct span *s = p->spans; s; s = s->next)
				changed |= settle_span(p, s);
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
static void start_carrier(void)
{
	pthread_attr_t attr;
	pthread_t thread;
	sigset_t all, old;
	if (carrying || pthread_attr_init(&attr) != 0)
		return;
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, STACK);
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &old);
	carrying = pthread_create(&thread, &attr, carrier, NULL) == 0;
	sigprocmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
}

/* --- pieces ---------------------------------------------------------------------------------------------------------- */

/* Under making. */
static struct piece *piece_of(uint64_t at, uint64_t size, uint32_t flags)
{
	for (struct piece *p = pieces; p; p = p->next)
		if (p->at == at)
			return p;
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

/* --- ranges ---------------------------------------------------------------------------------------------------------- */

/* A range's parts: [base, lo) of a page, whole pages [lo, hi), [hi, end) of a page. Any may be empty; one within a page is the first. */
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
