/*
 * Hints about managed memory: cuMemAdvise, cuMemPrefetchAsync and their kin. A hint is checked as
 * by a driver and recorded, page by page, for cuMemRangeGetAttribute to tell. Prefetches move what
 * can move (resident.h): to the GPU at once, to the CPU with its first touch. What is read mostly
 * may have duplicates (duplicates.c). Other advice moves nothing.
 *
 * Lock order: the hints lock, then the range lock. A range's record lives as long as the range can
 * be found under the hints lock.
 */
#include <stdlib.h>
#include <string.h>

#include "memory/managed.h"
#include "memory/resident.h"
#include "session/lock.h"

enum { PAGE = 4096 };
enum { SET_READ_MOSTLY = 1, UNSET_READ_MOSTLY, SET_PREFERRED, UNSET_PREFERRED, SET_ACCESSED_BY, UNSET_ACCESSED_BY };
enum {
	ATTR_READ_MOSTLY = 1,
	ATTR_PREFERRED,
	ATTR_ACCESSED_BY,
	ATTR_LAST,
	ATTR_PREFERRED_TYPE,
	ATTR_PREFERRED_ID,
	ATTR_LAST_TYPE,
	ATTR_LAST_ID
};
enum { DEVICE_CPU = -1, DEVICE_INVALID = -2 };
#define BY_HOST (1ull << 63)

static struct cw_lock lock;

struct cw_managed *cw_managed_new(uint64_t size)
{
	struct cw_managed *m = calloc(1, sizeof *m);
	struct cw_stretch *s = calloc(4, sizeof *s);
	if (!m || !s) {
		free(m);
		free(s);
		return NULL;
	}
	s->end = (size + PAGE - 1) & ~(uint64_t)(PAGE - 1);
	*m = (struct cw_managed){1, 4, s};
	return m;
}

void cw_managed_free(struct cw_managed *m)
{
	if (!m)
		return;
	cw_lock_acquire(&lock);
	free(m->all);
	free(m);
	cw_lock_release(&lock);
}

/* --- stretches -------------------------------------------------------------------------------- */

/* Makes a stretch begin at `at`, a multiple of the page size; the index of that stretch, or -1
 * without memory. */
static int64_t cut(struct cw_managed *m, uint64_t at)
{
	uint64_t begin = 0;
	uint32_t i = 0;
	for (; i < m->count && m->all[i].end <= at; i++)
		begin = m->all[i].end;
	if (begin == at || i == m->count)
		return i;
	if (m->count == m->cap) {
		struct cw_stretch *more = realloc(m->all, 2ull * m->cap * sizeof *more);
		if (!more)
			return -1;
		m->all = more;
		m->cap *= 2;
	}
	memmove(&m->all[i + 1], &m->all[i], (m->count - i) * sizeof *m->all);
	m->count++;
	m->all[i].end = at;
	return i + 1;
}

static int alike(const struct cw_stretch *a, const struct cw_stretch *b)
{
	return a->mostly == b->mostly && a->by == b->by && a->preferred.type == b->preferred.type && a->preferred.id == b->preferred.id &&
	       a->last.type == b->last.type && a->last.id == b->last.id;
}

static void join(struct cw_managed *m)
{
	uint32_t kept = 0;
	for (uint32_t i = 1; i < m->count; i++) {
		if (alike(&m->all[kept], &m->all[i]))
			m->all[kept].end = m->all[i].end;
		else
			m->all[++kept] = m->all[i];
	}
	m->count = kept + 1;
}

/* Under the lock: the record behind [ptr, ptr+n), which must lie in one managed allocation, and the
 * offset of ptr. */
static struct cw_managed *find(uint64_t ptr, uint64_t n, uint64_t *off)
{
	struct cw_range r;
	if (n == 0 || !cw_range_find(ptr, &r) || r.kind != CW_RANGE_MANAGED)
		return NULL;
	*off = ptr - r.base;
	return n <= ((r.size + PAGE - 1) & ~(uint64_t)(PAGE - 1)) - *off ? r.managed : NULL;
}

/* Whether memory is of a pool, which a driver lets nobody advise (580: 801, where it prefetches as
 * ever). */
static int of_pool(uint64_t ptr)
{
	struct cw_range r;
	return cw_range_find(ptr, &r) && r.kind == CW_RANGE_MANAGED && r.slice != NULL;
}

/* Calls set for the stretches that make up the pages of [ptr, ptr+n). */
static CUresult change(uint64_t ptr, uint64_t n, void (*set)(struct cw_stretch *s, const void *arg), const void *arg)
{
	uint64_t off = 0;
	CUresult res = CUDA_ERROR_INVALID_VALUE;
	cw_lock_acquire(&lock);
	struct cw_managed *m = find(ptr, n, &off);
	if (m) {
		uint64_t lo = off & ~(uint64_t)(PAGE - 1), hi = (off + n + PAGE - 1) & ~(uint64_t)(PAGE - 1);
		int64_t last = cut(m, hi), first = last < 0 ? last : cut(m, lo);
		res = first < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
		for (int64_t i = first; res == 0 && i < m->count && m->all[i].end <= hi; i++)
			set(&m->all[i], arg);
		join(m);
	}
	cw_lock_release(&lock);
	return res;
}

/* --- places ----------------------------------------------------------------------------------- */

static CUresult place_of(const CUmemLocation *l, struct cw_place *out)
{
	switch ((int)l->type) {
	case CU_MEM_LOCATION_TYPE_DEVICE:
		if (!cw_device_get(l->id))
			return CUDA_ERROR_INVALID_DEVICE;
		break;
	case CU_MEM_LOCATION_TYPE_HOST:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: *out = (struct cw_place){(int16_t)l->type, -1}; return CUDA_SUCCESS;
	case CU_MEM_LOCATION_TYPE_HOST_NUMA:
		if (l->id < 0 || l->id > 1023)
			return CUDA_ERROR_INVALID_VALUE;
		break;
	default: return CUDA_ERROR_INVALID_VALUE;
	}
	*out = (struct cw_place){(int16_t)l->type, (int16_t)l->id};
	return CUDA_SUCCESS;
}

static CUmemLocation of_device(CUdevice dev)
{
	CUmemLocation l = {dev == DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE, dev == DEVICE_CPU ? 0 : dev};
	return l;
}

/* A place as the attributes that know only devices tell it. */
static int device_of(struct cw_place p) { return p.type == CU_MEM_LOCATION_TYPE_DEVICE ? p.id : p.type == 0 ? DEVICE_INVALID : DEVICE_CPU; }

/* --- advice ----------------------------------------------------------------------------------- */

struct advice {
	int what;
	struct cw_place place;
};

static void take_advice(struct cw_stretch *s, const void *arg)
{
	const struct advice *a = arg;
	uint64_t who = a->place.type == CU_MEM_LOCATION_TYPE_DEVICE ? 1ull << (a->place.id & 31) : BY_HOST;
	switch (a->what) {
	case SET_READ_MOSTLY:
	case UNSET_READ_MOSTLY: s->mostly = a->what == SET_READ_MOSTLY; break;
	case SET_PREFERRED: s->preferred = a->place; break;
	case UNSET_PREFERRED: s->preferred = (struct cw_place){0, 0}; break;
	case SET_ACCESSED_BY: s->by |= who; break;
	case UNSET_ACCESSED_BY: s->by &= ~who; break;
	}
}

static void mostly(uint64_t ptr, uint64_t n, int on)
{
	struct cw_range r;
	if (cw_range_find(ptr, &r) && r.area)
		cw_resident_mostly(ptr, n, on);
}

static CUresult advise(CUdeviceptr ptr, size_t n, int what, const CUmemLocation *where)
{
	struct advice a = {what, {0, 0}};
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);
	if (res != 0)
		return res;
	if (what < SET_READ_MOSTLY || what > UNSET_ACCESSED_BY)
		return CUDA_ERROR_INVALID_VALUE;
	if (what == SET_PREFERRED || what == SET_ACCESSED_BY || what == UNSET_ACCESSED_BY)
		res = place_of(where, &a.place) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	if (what >= SET_ACCESSED_BY && a.place.type != CU_MEM_LOCATION_TYPE_DEVICE && a.place.type != CU_MEM_LOCATION_TYPE_HOST)
		res = CUDA_ERROR_INVALID_VALUE; /* a processor, not a node of one's memory */
	if (res == 0 && of_pool(ptr))
		res = CUDA_ERROR_NOT_SUPPORTED;
	if (res == 0)
		res = change(ptr, n, take_advice, &a);
	if (res == 0 && what <= UNSET_READ_MOSTLY)
		mostly(ptr, n, what == SET_READ_MOSTLY);
	return res;
}

CUresult cwi_cuMemAdvise(CUdeviceptr ptr, size_t n, CUmem_advise what, CUdevice dev)
{
	CUmemLocation l = of_device(dev);
	return advise(ptr, n, (int)what, &l);
}

CUresult cwi_cuMemAdvise_v2(CUdeviceptr ptr, size_t n, CUmem_advise what, CUmemLocation where) { return advise(ptr, n, (int)what, &where); }

/* --- prefetching ------------------------------------------------------------------------------ */

static void set_last(struct cw_stretch *s, const void *arg) { s->last = *(const struct cw_place *)arg; }

/* To the CPU at its first touch: work that is ahead may still use the bytes, and the call does not
 * wait for it. */
static CUresult move_to(struct cw_place p, uint64_t ptr, uint64_t n)
{
	struct cw_range r;
	if (!cw_range_find(ptr, &r) || !r.area)
		return CUDA_SUCCESS;
	n = n < r.size - (ptr - r.base) ? n : r.size - (ptr - r.base);
	if (p.type == CU_MEM_LOCATION_TYPE_DEVICE)
		cw_room_to(ptr, n, p.id);
	cw_room_wish(ptr, n, p.type == CU_MEM_LOCATION_TYPE_DEVICE);
	if (p.type == CU_MEM_LOCATION_TYPE_DEVICE)
		return cw_resident_yield(ptr, n);
	cw_resident_wish(ptr, n);
	return CUDA_SUCCESS;
}

static CUresult prefetch(int ptds, CUdeviceptr ptr, size_t n, const CUmemLocation *where, unsigned flags, CUstream stream)
{
	struct cw_place p;
	struct cw_ctx *c;
	uint32_t id;
	CUresult res = cw_ctx_current(&c);
	if (res == 0)
		res = cw_stream_id(stream, ptds, &id);
	if (res == 0 && flags != 0)
		res = CUDA_ERROR_INVALID_VALUE;
	if (res == 0)
		res = place_of(where, &p);
	if (res == 0)
		res = change(ptr, n, set_last, &p);
	return res ? res : move_to(p, ptr, n);
}

CUresult cwi_cuMemPrefetchAsync(int ptds, CUdeviceptr ptr, size_t n, CUdevice dev, CUstream stream)
{
	CUmemLocation l = of_device(dev);
	return prefetch(ptds, ptr, n, &l, 0, stream);
}

CUresult cwi_cuMemPrefetchAsync_v2(int ptds, CUdeviceptr ptr, size_t n, CUmemLocation where, unsigned int flags, CUstream stream)
{
	return prefetch(ptds, ptr, n, &where, flags, stream);
}

/* Whether every range of a batch lies in managed memory. */
static CUresult batch_check(int ptds, const CUdeviceptr *ptrs, const size_t *sizes, size_t count, unsigned long long flags, CUstream stream)
{
	struct cw_ctx *c;
	uint32_t id;
	CUresult res = cw_ctx_current(&c);
	if (res == 0)
		res = cw_stream_id(stream, ptds, &id);
	if (res != 0)
		return res;
	if (!ptrs || !sizes || count == 0 || flags != 0 || id == 1)
		return CUDA_ERROR_INVALID_VALUE; /* batches do not go on the legacy stream */
	cw_lock_acquire(&lock);
	for (size_t i = 0; i < count && res == 0; i++) {
		uint64_t off;
		if (!find(ptrs[i], sizes[i], &off))
			res = CUDA_ERROR_INVALID_VALUE;
	}
	cw_lock_release(&lock);
	return res;
}

/* What is discarded may keep its bytes: reading it before it is written is undefined. */
CUresult cwi_cuMemDiscardBatchAsync(int ptds, CUdeviceptr *ptrs, size_t *sizes, size_t count, unsigned long long flags, CUstream stream)
{
	return batch_check(ptds, ptrs, sizes, count, flags, stream);
}

/* Location k holds from range idxs[k] to the one before idxs[k+1]. */
CUresult cwi_cuMemPrefetchBatchAsync(int ptds, CUdeviceptr *ptrs, size_t *sizes, size_t count, CUmemLocation *where, size_t *idxs,
				     size_t places, unsigned long long flags, CUstream stream)
{
	CUresult res = batch_check(ptds, ptrs, sizes, count, flags, stream);
	if (res == 0 && (!where || !idxs || places == 0 || places > count || idxs[0] != 0))
		res = CUDA_ERROR_INVALID_VALUE;
	for (size_t k = 0; k < places && res == 0; k++) {
		size_t end = k + 1 < places ? idxs[k + 1] : count;
		if (idxs[k] >= end || end > count)
			return CUDA_ERROR_INVALID_VALUE;
		for (size_t i = idxs[k]; i < end && res == 0; i++)
			res = prefetch(ptds, ptrs[i], sizes[i], &where[k], 0, stream);
	}
	return res;
}

CUresult cwi_cuMemDiscardAndPrefetchBatchAsync(int ptds, CUdeviceptr *ptrs, size_t *sizes, size_t count, CUmemLocation *where, size_t *idxs,
					       size_t places, unsigned long long flags, CUstream stream)
{
	return cwi_cuMemPrefetchBatchAsync(ptds, ptrs, sizes, count, where, idxs, places, flags, stream);
}

/* --- questions -------------------------------------------------------------------------------- */

static int number(const struct cw_stretch *s, int attr)
{
	switch (attr) {
	case ATTR_READ_MOSTLY: return s->mostly;
	case ATTR_PREFERRED: return device_of(s->preferred);
	case ATTR_LAST: return device_of(s->last);
	case ATTR_PREFERRED_TYPE: return s->preferred.type;
	case ATTR_PREFERRED_ID: return s->preferred.id;
	case ATTR_LAST_TYPE: return s->last.type;
	default: return s->last.id;
	}
}

/* What stands for a range whose parts differ. */
static int mixed(int attr) { return attr == ATTR_READ_MOSTLY || attr >= ATTR_PREFERRED_TYPE ? 0 : DEVICE_INVALID; }

static void accessed_by(uint64_t by, int *out, size_t n)
{
	size_t k = 0;
	for (int dev = 0; dev < 32 && k < n; dev++)
		if (by >> dev & 1)
			out[k++] = dev;
	if ((by & BY_HOST) && k < n)
		out[k++] = DEVICE_CPU;
	while (k < n)
		out[k++] = DEVICE_INVALID;
}

static CUresult ask(void *data, size_t size, int attr, CUdeviceptr ptr, size_t n)
{
	if (!data || attr < ATTR_READ_MOSTLY || attr > ATTR_LAST_ID || (attr == ATTR_ACCESSED_BY ? size == 0 || size % 4 != 0 : size != 4))
		return CUDA_ERROR_INVALID_VALUE;
	uint64_t off = 0, at = 0, by = UINT64_MAX;
	int value = 0, first = 1, differ = 0;
	cw_lock_acquire(&lock);
	struct cw_managed *m = find(ptr, n, &off);
	for (uint32_t i = 0; m && i < m->count && at < off + n; at = m->all[i++].end) {
		if (m->all[i].end <= off)
			continue;
		int v = number(&m->all[i], attr);
		differ |= !first && v != value;
		value = v;
		first = 0;
		by &= m->all[i].by;
	}
	if (differ)
		value = mixed(attr);
	cw_lock_release(&lock);
	if (!m)
		return CUDA_ERROR_INVALID_VALUE;
	if (attr == ATTR_ACCESSED_BY)
		accessed_by(by, data, size / 4);
	else
		memcpy(data, &value, 4);
	return CUDA_SUCCESS;
}

CUresult cwi_cuMemRangeGetAttribute(void *data, size_t size, CUmem_range_attribute attr, CUdeviceptr ptr, size_t n)
{
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);
	return res ? res : ask(data, size, (int)attr, ptr, n);
}

CUresult cwi_cuMemRangeGetAttributes(void **data, size_t *sizes, CUmem_range_attribute *attrs, size_t count, CUdeviceptr ptr, size_t n)
{
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);
	if (res == 0 && (!data || !sizes || !attrs || count == 0))
		res = CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count && res == 0; i++)
		res = ask(data[i], sizes[i], (int)attrs[i], ptr, n);
	return res;
}

/* --- attaching -------------------------------------------------------------------------------- */

/* Attachment limits who may touch the memory meanwhile. Memory that both reach at any time has no
 * use for it, but it has to be asked for rightly. */
CUresult cwi_cuStreamAttachMemAsync(int ptds, CUstream stream, CUdeviceptr ptr, size_t length, unsigned int flags)
{
	struct cw_stream *single = NULL;
	struct cw_range r;
	struct cw_ctx *c;
	uint32_t id;
	CUresult res = cw_ctx_current(&c);
	if (res == 0)
		res = cw_stream_id(stream, ptds, &id);
	if (res != 0)
		return res;
	if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE)
		return CUDA_ERROR_INVALID_VALUE;
	if (!cw_range_find(ptr, &r) || r.kind != CW_RANGE_MANAGED || r.base != ptr || (length != 0 && length != r.size))
		return CUDA_ERROR_INVALID_VALUE;
	if (flags == CU_MEM_ATTACH_SINGLE && id <= 2)
		return CUDA_ERROR_INVALID_VALUE; /* a default stream is nobody's own */
	if (flags == CU_MEM_ATTACH_SINGLE)
		single = (struct cw_stream *)cw_handle_by_id(CW_KIND_STREAM, id);
	if (flags == CU_MEM_ATTACH_SINGLE && !single)
		return CUDA_ERROR_INVALID_HANDLE; /* another thread has just ended it */
	return r.area && !r.slice ? cw_resident_attach(r.base, flags, single) : CUDA_SUCCESS;
}
