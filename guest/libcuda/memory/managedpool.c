/*
 * Pools of managed memory. A pool has managed memory in stocks and gives out slices of it
 * (slices.h). What was freed in a stream is used again by that stream at once, by another behind an
 * event of it, and goes back when a wait of the program's has shown that nothing uses it.
 *
 * Lock order: the lock here is held while stocks are made and ended, and so stands above the
 * resident lock.
 */
#include <stdlib.h>

#include "api/capture.h"
#include "memory/managedpool.h"
#include "memory/resident.h"
#include "memory/slices.h"
#include "memory/streamorder.h"
#include "session/ahead.h"

enum { FOLLOW_EVENTS = 1, OPPORTUNISTIC, INTERNAL_DEPENDENCIES, THRESHOLD, RESERVED, RESERVED_HIGH, USED, USED_HIGH };
enum { GRAIN = 2 << 20 };
#define STOCK_MOST (64ull << 20) /* stocks grow with the pool up to this, for sizes below it */

struct cw_managed_pool {
	struct cw_managed_pool *next;
	struct cw_place home; /* where its memory is preferred */
	struct cw_slices have;
	uint64_t threshold, reserved_high, used_high;
	int allow[INTERNAL_DEPENDENCIES + 1];
	uint8_t ended;
};

/* Which pools a location has. */
struct home {
	struct home *next;
	struct cw_place at;
	struct cw_pool *standard, *current; /* NULL: none was asked for yet; the standard one */
};

static struct cw_lock lock;
static struct cw_managed_pool *pools;
static struct home *homes;
static _Atomic uint64_t frees; /* in stream order, so far */
_Atomic uint32_t cw_managed_pools;

/* --- which pools there are -------------------------------------------------------------------- */

static CUresult home_of(const CUmemLocation *l, struct cw_place *out)
{
	if (!l)
		return CUDA_ERROR_INVALID_VALUE;
	*out = (struct cw_place){(int16_t)l->type, 0};
	switch ((int)l->type) {
	case CU_MEM_LOCATION_TYPE_NONE:
	case CU_MEM_LOCATION_TYPE_HOST: return CUDA_SUCCESS;
	case CU_MEM_LOCATION_TYPE_DEVICE:
		if (!cw_device_get(l->id))
			return CUDA_ERROR_INVALID_VALUE;
		break;
	case CU_MEM_LOCATION_TYPE_HOST_NUMA:
		if (l->id < 0 || l->id > 1023)
			return CUDA_ERROR_INVALID_VALUE;
		break;
	default: return CUDA_ERROR_INVALID_VALUE;
	}
	out->id = (int16_t)l->id;
	return CUDA_SUCCESS;
}

/* Where the device has no managed memory there are no pools of it either. Elsewhere there are,
 * whatever attribute 89 says: whoever needs both at once asks for that. */
static CUresult possible(void)
{
	struct cw_device *d = cw_device_get(0);
	return d && cw_device_attr(d, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY) ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

/* Under the lock. */
static CUresult create(struct cw_place home, int standard, struct cw_pool **out)
{
	struct cw_managed_pool *m = calloc(1, sizeof *m);
	struct cw_pool *p = m ? (struct cw_pool *)cw_handle_alloc() : NULL;
	if (!p) {
		free(m);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	m->home = home;
	for (int i = FOLLOW_EVENTS; i <= INTERNAL_DEPENDENCIES; i++)
		m->allow[i] = 1;
	m->next = pools;
	pools = m;
	p->device = home.type == CU_MEM_LOCATION_TYPE_DEVICE ? home.id : 0;
	p->is_default = (uint8_t)standard;
	p->managed = m;
	cw_handle_publish(&p->o, CW_KIND_POOL);
	atomic_fetch_add(&cw_managed_pools, 1);
	*out = p;
	return CUDA_SUCCESS;
}

CUresult cw_managed_pool_create(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	struct cw_place home;
	struct cw_pool *p = NULL;
	CUresult res = home_of(&props->location, &home);
	/* As CUDA has it of managed pools. */
	if (res == 0 && (props->handleTypes != 0 || props->maxSize != 0 || props->usage != 0))
		res = CUDA_ERROR_INVALID_VALUE;
	if (res == 0)
		res = possible();
	if (res != 0)
		return res;
	cw_lock_acquire(&lock);
	res = create(home, 0, &p);
	cw_lock_release(&lock);
	if (res == 0)
		*pool = (CUmemoryPool)p;
	return res;
}

/* Under the lock. */
static CUresult find_home(struct cw_place at, struct home **out)
{
	CUresult res = CUDA_SUCCESS;
	struct home *h = homes;
	while (h && (h->at.type != at.type || h->at.id != at.id))
		h = h->next;
	if (!h) {
		h = calloc(1, sizeof *h);
		if (!h)
			return CUDA_ERROR_OUT_OF_MEMORY;
		h->at = at;
		res = create(at, 1, &h->standard);
		if (res != 0) {
			free(h);
			return res;
		}
		h->next = homes;
		homes = h;
	}
	*out = h;
	return res;
}

CUresult cw_managed_pool_of(const CUmemLocation *l, int current, CUmemoryPool *out)
{
	struct cw_place at;
	struct home *h = NULL;
	CUresult res = home_of(l, &at);
	if (res == 0)
		res = possible();
	if (res != 0)
		return res;
	cw_lock_acquire(&lock);
	res = find_home(at, &h);
	if (res == 0)
		*out = (CUmemoryPool)(current && h->current ? h->current : h->standard);
	cw_lock_release(&lock);
	return res;
}

CUresult cw_managed_pool_set(const CUmemLocation *l, struct cw_pool *p)
{
	struct cw_place at;
	struct home *h = NULL;
	CUresult res = home_of(l, &at);
	if (res == 0 && (!p->managed || p->managed->home.type != at.type || p->managed->home.id != at.id))
		res = CUDA_ERROR_INVALID_VALUE;
	if (res != 0)
		return res;
	cw_lock_acquire(&lock);
	res = find_home(at, &h);
	if (res == 0)
		h->current = p->is_default ? NULL : p;
	cw_lock_release(&lock);
	return res;
}

/* --- stocks ----------------------------------------------------------------------------------- */

/* Under the lock. */
static CUresult grow(struct cw_managed_pool *m, uint64_t size, const struct cw_ctx *c)
{
	uint64_t least = (size + GRAIN - 1) & ~(uint64_t)(GRAIN - 1), more = m->have.reserved / 4 & ~(uint64_t)(GRAIN - 1);
	more = more > STOCK_MOST ? STOCK_MOST : more;
	for (uint64_t want = more > least ? more : least;; want = least) {
		struct cw_range r = {.size = want,
				     .kind = CW_RANGE_MANAGED,
				     .ctx = c->o.id,
				     .device = c->device->ordinal,
				     .flags = CU_MEM_ATTACH_GLOBAL};
		CUresult res = cw_managed_obtain(&r);
		if (res == 0 && !cw_slices_add(&m->have, &r, want)) {
			cw_managed_end(&r);
			res = CUDA_ERROR_OUT_OF_MEMORY;
		}
		if (res == 0 && m->have.reserved > m->reserved_high)
			m->reserved_high = m->have.reserved;
		if (res == 0 || want == least)
			return res;
	}
}

/* Under the lock: what nothing uses goes back until no more than keep is left. The GPU is known to
 * have done with it: nothing is waited for. */
static void shrink(struct cw_managed_pool *m, uint64_t keep)
{
	struct cw_stock *k;
	while (m->have.reserved > keep && (k = cw_slices_remove(&m->have, UINT64_MAX))) {
		cw_managed_end(&k->range);
		free(k);
	}
}

/* Under the lock: an ended pool's memory goes as it can, and with the last of it the pool. */
static void tidy(void)
{
	for (struct cw_managed_pool **p = &pools, *m; (m = *p);) {
		shrink(m, m->ended ? 0 : m->threshold);
		if (m->ended && !m->have.all) {
			*p = m->next;
			free(m);
			atomic_fetch_sub(&cw_managed_pools, 1);
		} else {
			p = &m->next;
		}
	}
}

void cw_managed_pool_end(struct cw_managed_pool *m)
{
	cw_lock_acquire(&lock);
	for (struct home *h = homes; h; h = h->next)
		if (h->current && h->current->managed == m)
			h->current = NULL;
	m->ended = 1;
	tidy();
	cw_lock_release(&lock);
}

/* Under the lock: whether nobody has destroyed it meanwhile. */
static int lives(const struct cw_pool *p) { return cw_handle_by_id(CW_KIND_POOL, p->o.id) == &p->o; }

CUresult cw_managed_pool_trim(struct cw_pool *p, uint64_t keep)
{
	cw_lock_acquire(&lock);
	int there = lives(p);
	if (there)
		shrink(p->managed, keep);
	cw_lock_release(&lock);
	return there ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Under the lock: a slice that another stream's work may still use. */
static struct cw_slice *from_others(struct cw_managed_pool *m, uint64_t size, const struct cw_behind *me)
{
	struct cw_slice *x = m->allow[INTERNAL_DEPENDENCIES] ? cw_slices_find(&m->have, size, me, 1) : NULL;
	return x && cw_order_behind(me->stream, &x->behind) == 0 ? x : NULL;
}

uint64_t cw_managed_pools_mark(void) { return atomic_load(&frees); }

CUresult cw_managed_pools_waited(CUresult res, uint32_t stream, uint64_t mark)
{
	if (cw_likely(mark == 0) || res != 0)
		return res;
	struct cw_behind passed = {cw_current_ctx_id(), 0, 0, mark};
	if (stream) {
		passed = cw_behind(stream);
		passed.when = mark;
	}
	cw_lock_acquire(&lock);
	for (struct cw_managed_pool *m = pools; m; m = m->next)
		cw_slices_settle(&m->have, &passed);
	/* Else its end would wait for them, and who waits next for the lock here. */
	if (!cw_host_is_ahead())
		tidy();
	cw_lock_release(&lock);
	return CUDA_SUCCESS;
}

void cw_managed_pools_left(uint32_t stream)
{
	if (cw_likely(atomic_load(&cw_managed_pools) == 0))
		return;
	struct cw_behind from = cw_behind(stream), to = {0};
	uint32_t known = 0; /* whether to is */
	cw_lock_acquire(&lock);
	for (struct cw_managed_pool *m = pools; m; m = m->next)
		if (cw_slices_behind(&m->have, &from) && (known || (known = cw_order_left(&from, &to))))
			cw_slices_inherit(&m->have, &from, &to);
	if (known && !cw_host_is_ahead())
		tidy();
	cw_lock_release(&lock);
}

/* --- allocations ------------------------------------------------------------------------------ */

/* Under the lock. */
static CUresult take(struct cw_pool *p, uint64_t size, const struct cw_behind *me, const struct cw_ctx *c, struct cw_range *r)
{
	struct cw_managed_pool *m = p->managed;
	uint64_t whole = (size + CW_SLICE - 1) & ~(uint64_t)(CW_SLICE - 1);
	struct cw_slice *x = cw_slices_find(&m->have, whole, me, 0);
	CUresult res = CUDA_SUCCESS;
	if (!x)
		x = from_others(m, whole, me);
	if (!x && (res = grow(m, whole, c)) == 0)
		x = cw_slices_find(&m->have, whole, me, 0);
	if (!x)
		return res;
	cw_slices_take(&m->have, x, whole);
	if (m->have.used > m->used_high)
		m->used_high = m->have.used;
	*r = x->of->range;
	r->dev += x->base - r->base;
	r->base = x->base;
	r->size = size;
	r->sync_memops = 1;
	r->pool = p->o.id;
	r->slice = x;
	r->of = m;
	return CUDA_SUCCESS;
}

CUresult cw_managed_pool_alloc(struct cw_pool *p, uint64_t size, uint32_t stream, CUdeviceptr *out)
{
	struct cw_behind me = cw_behind(stream);
	struct cw_range r;
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);
	if (res == 0 && size > SIZE_MAX / 2)
		res = CUDA_ERROR_OUT_OF_MEMORY;
	if (res != 0)
		return res;
	struct cw_managed *record = cw_managed_new(size);
	if (!record)
		return CUDA_ERROR_OUT_OF_MEMORY;
	cw_lock_acquire(&lock);
	res = lives(p) ? take(p, size, &me, c, &r) : CUDA_ERROR_INVALID_VALUE;
	if (res == 0) {
		record->all[0].preferred = r.of->home;
		r.managed = record;
		if (cw_range_add(&r) != 0) {
			cw_slices_give(&r.of->have, r.slice, &r.slice->behind);
			res = CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	cw_lock_release(&lock);
	if (res == 0)
		*out = r.base;
	else
		cw_managed_free(record);
	return res;
}

void cw_managed_pool_free(const struct cw_range *r, uint32_t stream)
{
	struct cw_behind b = {0};
	if (stream)
		b = cw_behind(stream);
	cw_managed_free(r->managed);
	cw_lock_acquire(&lock);
	if (stream)
		b.when = atomic_fetch_add(&frees, 1) + 1;
	cw_slices_give(&r->of->have, r->slice, &b);
	if (!stream || r->of->ended)
		tidy();
	cw_lock_release(&lock);
}

/* --- attributes ------------------------------------------------------------------------------- */

CUresult cw_managed_pool_get(struct cw_pool *p, int attr, uint64_t *value)
{
	CUresult res = CUDA_SUCCESS;
	cw_lock_acquire(&lock);
	struct cw_managed_pool *m = p->managed;
	switch (lives(p) ? attr : 0) {
	case FOLLOW_EVENTS:
	case OPPORTUNISTIC:
	case INTERNAL_DEPENDENCIES: *value = (uint64_t)m->allow[attr]; break;
	case THRESHOLD: *value = m->threshold; break;
	case RESERVED: *value = m->have.reserved; break;
	case RESERVED_HIGH: *value = m->reserved_high; break;
	case USED: *value = m->have.used; break;
	case USED_HIGH: *value = m->used_high; break;
	default: res = CUDA_ERROR_INVALID_VALUE;
	}
	cw_lock_release(&lock);
	return res;
}

/* The high-water marks may be set to 0 alone, which begins them anew. */
CUresult cw_managed_pool_change(struct cw_pool *p, int attr, uint64_t value)
{
	CUresult res = CUDA_SUCCESS;
	cw_lock_acquire(&lock);
	struct cw_managed_pool *m = p->managed;
	if (!lives(p))
		res = CUDA_ERROR_INVALID_VALUE;
	else if (attr >= FOLLOW_EVENTS && attr <= INTERNAL_DEPENDENCIES)
		m->allow[attr] = value != 0;
	else if (attr == THRESHOLD)
		m->threshold = value;
	else if (attr == RESERVED_HIGH && value == 0)
		m->reserved_high = m->have.reserved;
	else if (attr == USED_HIGH && value == 0)
		m->used_high = m->have.used;
	else
		res = CUDA_ERROR_INVALID_VALUE;
	cw_lock_release(&lock);
	return res;
}
