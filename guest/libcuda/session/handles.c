/*
 * The handle slab. One reservation of address space, filled from the bottom; freed ids wait in a
 * first-in-first-out list so that a stale handle stays detectable for a while. Lookups read the
 * slab only below the high-water mark.
 */
#include <string.h>
#include <sys/mman.h>

#include "session/internal.h"

struct free_obj {
	struct cw_obj o;
	uint32_t next;
};
CW_OBJ_FITS(struct free_obj);
_Static_assert(CW_OBJ_SIZE % 64 == 0, "objects are 64-byte aligned");

static struct {
	struct cw_lock lock;	 /* alloc and free */
	_Atomic(uint8_t *) slab; /* set once */
	_Atomic uint32_t used;	 /* ids below were handed out at some time */
	uint32_t oldest, newest; /* free list, 0 = none */
	uint32_t free_count;
} h;

static struct cw_obj *at(uint8_t *slab, uint32_t id) { return (struct cw_obj *)(slab + (size_t)id * CW_OBJ_SIZE); }

static uint8_t *slab_make(void)
{
	uint8_t *slab = atomic_load_explicit(&h.slab, memory_order_relaxed);
	if (slab)
		return slab;
	void *p = mmap(NULL, (size_t)CW_HANDLE_COUNT * CW_OBJ_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
		       0);
	if (p == MAP_FAILED)
		return NULL;
	atomic_store_explicit(&h.used, CW_HANDLE_RESERVED, memory_order_relaxed);
	atomic_store_explicit(&h.slab, p, memory_order_release);
	return p;
}

struct cw_obj *cw_handle_alloc(void)
{
	struct cw_obj *o = NULL;
	cw_lock_acquire(&h.lock);
	uint8_t *slab = slab_make();
	uint32_t used = atomic_load_explicit(&h.used, memory_order_relaxed);
	if (!slab) {
		/* no address space: the caller reports out of memory */
	} else if (h.free_count > CW_HANDLE_DELAY || (used == CW_HANDLE_COUNT && h.free_count > 0)) {
		uint32_t id = h.oldest;
		o = at(slab, id);
		h.oldest = ((struct free_obj *)o)->next;
		h.free_count--;
		o->id = id;
	} else if (used < CW_HANDLE_COUNT) {
		o = at(slab, used);
		o->id = used;
		atomic_store_explicit(&h.used, used + 1, memory_order_release);
	}
	cw_lock_release(&h.lock);
	if (o) {
		o->name = NULL;
		o->ctx = o->flags = 0;
		memset(o + 1, 0, CW_OBJ_SIZE - sizeof *o);
	}
	return o;
}

void cw_handle_publish(struct cw_obj *o, enum cw_kind kind) { atomic_store_explicit(&o->kind, kind, memory_order_release); }

struct cw_obj *cw_handle_new(enum cw_kind kind)
{
	struct cw_obj *o = cw_handle_alloc();
	if (o)
		cw_handle_publish(o, kind);
	return o;
}

struct cw_obj *cw_handle_by_id(enum cw_kind kind, uint32_t id)
{
	uint8_t *slab = atomic_load_explicit(&h.slab, memory_order_acquire);
	if (!slab || id >= atomic_load_explicit(&h.used, memory_order_acquire))
		return NULL;
	struct cw_obj *o = at(slab, id);
	return kind != CW_KIND_FREE && atomic_load_explicit(&o->kind, memory_order_acquire) == (uint32_t)kind ? o : NULL;
}

struct cw_obj *cw_handle_get(enum cw_kind kind, const void *app_handle)
{
	uintptr_t slab = (uintptr_t)atomic_load_explicit(&h.slab, memory_order_acquire);
	uintptr_t off = (uintptr_t)app_handle - slab;
	if (slab == 0 || off % CW_OBJ_SIZE != 0 || off / CW_OBJ_SIZE >= CW_HANDLE_COUNT)
		return NULL;
	return cw_handle_by_id(kind, (uint32_t)(off / CW_OBJ_SIZE));
}

int cw_handle_free(enum cw_kind kind, struct cw_obj *o)
{
	uint32_t want = kind;
	if (kind == CW_KIND_FREE || !atomic_compare_exchange_strong(&o->kind, &want, CW_KIND_FREE))
		return 0;
	cw_lock_acquire(&h.lock);
	uint8_t *slab = atomic_load_explicit(&h.slab, memory_order_relaxed);
	((struct free_obj *)o)->next = 0;
	if (h.free_count == 0)
		h.oldest = o->id;
	else
		((struct free_obj *)at(slab, h.newest))->next = o->id;
	h.newest = o->id;
	h.free_count++;
	cw_lock_release(&h.lock);
	return 1;
}

int cw_handle_each(enum cw_kind kind, int (*fn)(struct cw_obj *o, void *arg), void *arg)
{
	uint32_t used = atomic_load_explicit(&h.used, memory_order_acquire);
	for (uint32_t id = CW_HANDLE_RESERVED; id < used; id++) {
		struct cw_obj *o = cw_handle_by_id(kind, id);
		int r = o ? fn(o, arg) : 0;
		if (r != 0)
			return r;
	}
	return 0;
}

CUresult cw_stream_id(CUstream stream, int ptds, uint32_t *id)
{
	uintptr_t v = (uintptr_t)stream;
	if (v == 0)
		*id = ptds ? 2 : 1;
	else if (v <= 2)
		*id = (uint32_t)v;
	else {
		struct cw_obj *o = cw_handle_get(CW_KIND_STREAM, stream);
		if (!o)
			return CUDA_ERROR_INVALID_HANDLE;
		*id = o->id;
	}
	return 0;
}
