/* Where managed memory lies: addresses that both processes have free, device memory behind them,
 * small blocks. See resident.h. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "memory/pieces.h"
#include "memory/runs.h"
#include "memory/uffd.h"
#include "memory/vmm.h"

enum { GRAIN = 2 << 20 /* of device memory */, READ_WRITE = 3 /* CU_MEM_ACCESS_FLAGS_PROT_READWRITE */ };

/* Allocations up to CW_SHARED_LARGEST share areas of GRAIN bytes, which is the least that device
 * memory at a chosen address comes in. As natively, what is given out again is not cleared. One
 * that is attached to the host from its beginning is to be attached to a stream later, on its
 * own. */
struct cw_blocks {
	struct cw_runs runs;
};
_Static_assert((uint64_t)CW_RUN_UNIT *CW_RUN_UNITS == GRAIN, "runs of a whole area");

/* --- device memory ---------------------------------------------------------------------------- */

static uint32_t new_id(enum cw_kind kind)
{
	struct cw_obj *o = cw_handle_new(kind);
	return o ? o->id : 0;
}

static void end_id(enum cw_kind kind, uint32_t id)
{
	struct cw_obj *o = id ? cw_handle_by_id(kind, id) : NULL;
	if (o)
		cw_handle_free(kind, o);
}

/* Every GPU reaches it, as far as they reach each other: else memory of this process is what all
 * can use. */
static CUresult open_to_all(const struct cw_area *a)
{
	CUresult res = CUDA_SUCCESS;
	for (int d = 0; d < cw_device_count() && res == 0; d++) {
		int32_t can = d == a->device;
		if (!can)
			res = cwop_DeviceCanAccessPeer((uint32_t)d, (uint32_t)a->device, &can);
		if (res == 0)
			res = can ? cwop_MemSetAccess(a->mapping, (uint32_t)d, READ_WRITE) : CUDA_ERROR_NOT_SUPPORTED;
	}
	return res;
}

void cw_area_unmap(struct cw_area *a)
{
	if (a->mapping && cwop_MemUnmap(a->mapping) != 0)
		cw_log(CW_LOG_INFO, "managed memory at %#llx stays mapped at the GPU", (unsigned long long)a->base);
	end_id(CW_KIND_MAPPING, a->mapping);
	a->mapping = 0;
}

void cw_area_unback(struct cw_area *a)
{
	cw_area_unmap(a);
	if (a->memory)
		cwop_MemRelease(a->memory);
	if (a->memory && a->beyond)
		cw_beyond_released(a);
	end_id(CW_KIND_MEMHANDLE, a->memory);
	a->memory = 0;
}

/* What the worker's machine may have in its place is not refused by the GPU. */
static uint32_t place_of(const struct cw_area *a)
{
	if (a->beyond)
		return CW_MEM_ON_HOST;
	return cw_beyond_far() ? CW_MEM_IF_ROOM : CW_MEM_ON_DEVICE;
}

CUresult cw_area_create(struct cw_area *a)
{
	/* An object without references: the application cannot name it. */
	uint32_t memory = new_id(CW_KIND_MEMHANDLE);
	CUresult res = memory ? cwop_MemCreate(memory, (uint32_t)a->device, a->backed, 0, 0, place_of(a)) : CUDA_ERROR_OUT_OF_MEMORY;
	if (res == 0)
		a->memory = memory;
	else
		end_id(CW_KIND_MEMHANDLE, memory);
	return res;
}

CUresult cw_area_map(struct cw_area *a, const struct cw_resv *resv)
{
	uint32_t mapping = new_id(CW_KIND_MAPPING);
	CUresult res = mapping ? cwop_MemMap(mapping, resv->o.id, a->memory, 0, a->base, a->backed, 0) : CUDA_ERROR_OUT_OF_MEMORY;
	if (res == 0)
		a->mapping = mapping;
	else
		end_id(CW_KIND_MAPPING, mapping);
	if (res == 0 && (res = open_to_all(a)) != 0)
		cw_area_unmap(a);
	return res;
}

static void unback(struct cw_area *a)
{
	cw_area_unback(a);
	if (a->resv)
		cw_addresses_unreserve(a->resv);
}

static CUresult back(struct cw_area *a)
{
	CUresult res = cw_addresses_reserve(a->backed, 0, &a->resv);
	if (res != 0)
		return res;
	a->base = a->resv->base;
	res = cw_area_create(a);
	if (res == CUDA_ERROR_OUT_OF_MEMORY && cw_beyond_far()) /* else the memory is had here */
		res = cw_beyond_create(a);
	if (res == 0)
		res = cw_area_map(a, a->resv);
	if (res != 0)
		unback(a);
	return res;
}

/* --- areas ------------------------------------------------------------------------------------ */

/* In place of what keeps the addresses free here. Not a forked child's: natively it has none of it
 * either. */
CUresult cw_area_open(struct cw_area *a)
{
	void *want = (void *)(uintptr_t)a->base;
	void *p = mmap(want, a->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	if (p == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	madvise(p, a->size, MADV_DONTFORK);
	if (a->size >= GRAIN)
		madvise(p, a->size, MADV_HUGEPAGE);
	return CUDA_SUCCESS;
}

struct cw_area *cw_area_new(uint64_t size, const struct cw_range *r)
{
	uint64_t whole = (size + CW_PAGE - 1) & ~(uint64_t)(CW_PAGE - 1);
	uint32_t units = (uint32_t)((whole + CW_UNIT - 1) / CW_UNIT);
	struct cw_area *a = calloc(1, sizeof *a + units);
	if (!a)
		return NULL;
	a->size = whole;
	a->backed = (size + GRAIN - 1) & ~(uint64_t)(GRAIN - 1);
	a->units = units;
	a->device = r->device;
	a->ctx = r->ctx;
	a->attach = CU_MEM_ATTACH_GLOBAL;
	a->first = r->flags == CU_MEM_ATTACH_HOST ? CU_MEM_ATTACH_HOST : CU_MEM_ATTACH_GLOBAL;
	a->fresh = 1;
	return a;
}

static CUresult new_area(const struct cw_range *r, uint64_t size, struct cw_area **out)
{
	struct cw_area *a = cw_area_new(size, r);
	CUresult res = a ? back(a) : CUDA_ERROR_OUT_OF_MEMORY;
	if (!a)
		return res;
	if (res == 0 && (res = cw_area_open(a)) != 0)
		unback(a);
	if (res != 0)
		free(a);
	else
		*out = a;
	return res;
}

/* It is in the list no more. */
static void end_area(struct cw_area *a)
{
	cw_pages_forget(a->base, a->size);
	cw_addresses_give(a->base, a->backed); /* who waits there tries again, and finds nothing */
	a->resv->guarded = 0;
	unback(a);
	free(a->blocks);
	free(a);
}

/* --- small blocks ----------------------------------------------------------------------------- */

/* Under the lock. */
static int take_block(struct cw_range *r)
{
	uint32_t n = cw_runs_of(r->size);
	for (struct cw_area *a = cw_areas; a; a = a->next) {
		uint32_t first = a->blocks && a->device == r->device ? cw_runs_find(&a->blocks->runs, n) : CW_RUN_UNITS;
		if (first == CW_RUN_UNITS)
			continue;
		cw_runs_mark(&a->blocks->runs, first, n, 1);
		r->base = a->base + (uint64_t)first * CW_RUN_UNIT;
		r->area = a;
		return 1;
	}
	return 0;
}

/* Under the lock: whether the area is to go. One stays: programs that make one small object after
 * the other are common. */
static int give_block(const struct cw_range *r)
{
	struct cw_area *a = r->area;
	uint32_t n = cw_runs_of(r->size), others = 0;
	cw_runs_mark(&a->blocks->runs, (uint32_t)((r->base - a->base) / CW_RUN_UNIT), n, 0);
	for (struct cw_area *o = cw_areas; o; o = o->next)
		others += o != a && o->blocks != NULL;
	return a->blocks->runs.used == 0 && others > 0;
}

/* --- allocations ------------------------------------------------------------------------------ */

CUresult cw_resident_alloc(struct cw_range *r)
{
	int small = r->size <= CW_SHARED_LARGEST && r->flags != CU_MEM_ATTACH_HOST, found = 0;
	struct cw_area *a = NULL;
	if (cw_uffd_open() != 0)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!small)
		return cw_pieces_alloc(r);
	if (small) {
		cw_lock_acquire(&cw_resident_lock);
		found = take_block(r);
		cw_lock_release(&cw_resident_lock);
	}
	if (!found) {
		struct cw_blocks *blocks = small ? calloc(1, sizeof *blocks) : NULL;
		CUresult res = small && !blocks ? CUDA_ERROR_OUT_OF_MEMORY : new_area(r, small ? (uint64_t)GRAIN : r->size, &a);
		if (res != 0) {
			free(blocks);
			return res;
		}
		a->blocks = blocks;
		r->area = a;
		r->base = a->base;
		cw_lock_acquire(&cw_resident_lock);
		cw_area_list(a);
		if (small)
			cw_runs_mark(&blocks->runs, 0, cw_runs_of(r->size), 1);
		cw_lock_release(&cw_resident_lock);
	}
	r->dev = r->base;
	return CUDA_SUCCESS;
}

void cw_resident_free(const struct cw_range *r)
{
	cw_gpu_wait(0); /* as the real call: the device may be using the memory */
	cw_resident_end(r);
}

void cw_resident_end(const struct cw_range *r)
{
	struct cw_area *a = r->area;
	if (a->group) {
		cw_pieces_free(a->group);
		return;
	}
	cw_lock_acquire(&cw_resident_lock);
	int gone = !a->blocks || give_block(r);
	if (gone)
		cw_area_unlist(a);
	cw_lock_release(&cw_resident_lock);
	if (gone)
		end_area(a);
}
