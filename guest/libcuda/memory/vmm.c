/* Address reservations and mappings: cuMemAddressReserve, cuMemMap, cuMemSetAccess and their
 * reverses. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "memory/vmm.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

enum { MAPPED = 1 << CW_RANGE_MAPPED };
enum { UNIT = 2 << 20 /* granularity on every GPU */, FAR = 1 << 30 };

struct cw_lock cw_vmm_lock;

/* Reservations by address. Under cw_vmm_lock. */
static struct {
	struct cw_resv **all;
	uint32_t count, cap;
} resvs;

/* Index of the first reservation that ends after addr. */
static uint32_t lower(uint64_t addr)
{
	uint32_t lo = 0, hi = resvs.count;
	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;
		if (resvs.all[mid]->base + resvs.all[mid]->size <= addr)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* The reservation that holds all of [addr, addr+size). */
static struct cw_resv *around(uint64_t addr, uint64_t size)
{
	uint32_t i = lower(addr);
	if (i == resvs.count || resvs.all[i]->base > addr)
		return NULL;
	struct cw_resv *v = resvs.all[i];
	return size <= v->size - (addr - v->base) ? v : NULL;
}

static int insert(struct cw_resv *v)
{
	if (resvs.count == resvs.cap) {
		uint32_t cap = resvs.cap ? resvs.cap * 2 : 32;
		struct cw_resv **all = realloc(resvs.all, cap * sizeof *all);
		if (!all)
			return 0;
		resvs.all = all;
		resvs.cap = cap;
	}
	uint32_t i = lower(v->base);
	memmove(&resvs.all[i + 1], &resvs.all[i], (resvs.count - i) * sizeof *resvs.all);
	resvs.all[i] = v;
	resvs.count++;
	return 1;
}

/* --- reservations ----------------------------------------------------------------------------- */

int cw_addresses_take(uint64_t base, uint64_t size)
{
	void *want = (void *)(uintptr_t)base;
	void *p = mmap(want, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
	if (p != MAP_FAILED && p != want)
		munmap(p, size); /* kernels before 4.17 take the address for a hint */
	return p == want;
}

void cw_addresses_give(uint64_t base, uint64_t size) { munmap((void *)(uintptr_t)base, size); }

static int guard(struct cw_resv *v)
{
	v->guarded = (uint8_t)cw_addresses_take(v->base, v->size);
	return v->guarded;
}

static CUresult reserve_once(uint64_t size, uint64_t align, uint64_t wish, uint64_t flags, struct cw_resv **out)
{
	struct cw_resv *v = (struct cw_resv *)cw_handle_new(CW_KIND_RESV);
	if (!v)
		return CUDA_ERROR_OUT_OF_MEMORY;
	v->size = size;
	CUresult res = cwop_MemAddressReserve(v->o.id, (uint32_t)flags, size, align, wish, &v->base);
	if (res != 0)
		cw_handle_free(CW_KIND_RESV, &v->o);
	else
		*out = v;
	return res;
}

static CUresult unreserve(struct cw_resv *v)
{
	CUresult res = cwop_MemAddressFree(v->o.id);
	if (res != 0)
		return res;
	if (v->guarded)
		cw_addresses_give(v->base, v->size);
	cw_handle_free(CW_KIND_RESV, &v->o);
	return CUDA_SUCCESS;
}

/*
 * Addresses that are free in this process too. The driver takes small ranges from its process's own
 * mappings, which may be anything in this one, and well-aligned ones from a window of its own,
 * which is free here. A range that does not fit is held until the second is there, or it would come
 * again.
 */
static CUresult reserve(uint64_t size, uint64_t align, uint64_t wish, uint64_t flags, struct cw_resv **out)
{
	struct cw_resv *first = NULL, *second = NULL;
	CUresult res = reserve_once(size, align, wish, flags, &first);
	if (res != 0)
		return res;
	if (guard(first)) {
		*out = first;
		return CUDA_SUCCESS;
	}
	res = reserve_once(size, align > FAR ? align : FAR, 0, flags, &second);
	unreserve(first);
	if (res != 0)
		return res;
	if (!guard(second)) {
		unreserve(second);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = second;
	return CUDA_SUCCESS;
}

CUresult cw_addresses_reserve(uint64_t size, uint64_t wish, struct cw_resv **out)
{
	cw_lock_acquire(&cw_vmm_lock);
	CUresult res = reserve(size, 0, wish, 0, out);
	cw_lock_release(&cw_vmm_lock);
	return res;
}

CUresult cw_addresses_again(uint64_t base, uint64_t size, struct cw_resv **out)
{
	cw_lock_acquire(&cw_vmm_lock);
	CUresult res = reserve_once(size, 0, base, 0, out);
	if (res == 0 && (*out)->base != base) {
		unreserve(*out);
		*out = NULL;
		res = CUDA_ERROR_OUT_OF_MEMORY;
	}
	cw_lock_release(&cw_vmm_lock);
	return res;
}

CUresult cw_addresses_leave(struct cw_resv *v)
{
	v->guarded = 0;
	return cw_addresses_unreserve(v);
}

CUresult cw_addresses_unreserve(struct cw_resv *v)
{
	cw_lock_acquire(&cw_vmm_lock);
	CUresult res = unreserve(v);
	cw_lock_release(&cw_vmm_lock);
	return res;
}

CUresult cwi_cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t align, CUdeviceptr addr, unsigned long long flags)
{
	struct cw_resv *v = NULL;
	if (!ptr || size == 0 || flags > UINT32_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	cw_lock_acquire(&cw_vmm_lock);
	CUresult res = reserve(size, align, addr, flags, &v);
	if (res == 0 && !insert(v)) {
		unreserve(v);
		res = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (res == 0)
		*ptr = v->base;
	cw_lock_release(&cw_vmm_lock);
	return res;
}

CUresult cwi_cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
	CUresult res = CUDA_ERROR_INVALID_VALUE;
	cw_lock_acquire(&cw_vmm_lock);
	uint32_t i = lower(ptr);
	if (i < resvs.count && resvs.all[i]->base == ptr && resvs.all[i]->size == size && resvs.all[i]->mappings == 0) {
		res = unreserve(resvs.all[i]);
		if (res == 0) {
			resvs.count--;
			memmove(&resvs.all[i], &resvs.all[i + 1], (resvs.count - i) * sizeof *resvs.all);
		}
	}
	cw_lock_release(&cw_vmm_lock);
	return res;
}

/* --- mappings --------------------------------------------------------------------------------- */

static CUresult map(struct cw_mapping *m, uint64_t flags)
{
	struct cw_range r = {.base = m->base,
			     .size = m->size,
			     .kind = CW_RANGE_MAPPED,
			     .ctx = cw_current_ctx_id(),
			     .device = m->mem->device,
			     .dev = m->base,
			     .mapping = m};
	CUresult res = cwop_MemMap(m->o.id, m->resv->o.id, m->mem->o.id, (uint32_t)flags, m->base, m->size, m->offset);
	if (res != 0)
		return res;
	if (cw_range_add(&r) != 0) {
		cwop_MemUnmap(m->o.id);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	m->mem->maps++;
	m->resv->mappings++;
	return CUDA_SUCCESS;
}

CUresult cwi_cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	CUresult res = CUDA_ERROR_INVALID_VALUE;
	cw_lock_acquire(&cw_vmm_lock);
	struct cw_memhandle *mem = cw_memhandle_get(handle);
	struct cw_resv *v = around(ptr, size);
	/* Whether this part of the memory may be mapped is the driver's to say. */
	if (mem && v && size != 0 && flags <= UINT32_MAX && !cw_range_overlaps(ptr, size)) {
		struct cw_mapping *m = (struct cw_mapping *)cw_handle_new(CW_KIND_MAPPING);
		res = CUDA_ERROR_OUT_OF_MEMORY;
		if (m) {
			m->base = ptr;
			m->size = size;
			m->offset = offset;
			m->resv = v;
			m->mem = mem;
			res = map(m, flags);
			if (res != 0)
				cw_handle_free(CW_KIND_MAPPING, &m->o);
		}
	}
	cw_lock_release(&cw_vmm_lock);
	return res;
}

/* The first mapping that ends after addr and begins before end, or NULL. */
static struct cw_mapping *next_mapping(uint64_t addr, uint64_t end)
{
	struct cw_range r;
	return cw_range_next(addr, end, &r) && r.kind == CW_RANGE_MAPPED ? r.mapping : NULL;
}

/* Whether every mapping that [ptr, ptr+size) touches lies wholly in it and, unless gaps are fine,
 * without a gap. */
static int whole(uint64_t ptr, uint64_t size, int gaps)
{
	uint64_t at = ptr, end = ptr + size;
	struct cw_mapping *m;
	if (size == 0 || !around(ptr, size))
		return 0;
	while ((m = next_mapping(at, end))) {
		if (m->base < at || m->base + m->size > end || (m->base > at && !gaps))
			return 0;
		at = m->base + m->size;
	}
	return gaps || at == end;
}

static CUresult unmap(struct cw_mapping *m)
{
	struct cw_range r;
	CUresult res = cwop_MemUnmap(m->o.id);
	if (res != 0)
		return res;
	cw_range_take(m->base, MAPPED, &r);
	m->resv->mappings--;
	m->mem->maps--;
	res = cw_memhandle_settle(m->mem);
	cw_handle_free(CW_KIND_MAPPING, &m->o);
	return res;
}

/* What is not mapped stays so. */
CUresult cwi_cuMemUnmap(CUdeviceptr ptr, size_t size)
{
	CUresult res = CUDA_ERROR_INVALID_VALUE;
	cw_lock_acquire(&cw_vmm_lock);
	if (ptr % UNIT == 0 && size % UNIT == 0 && whole(ptr, size, 1)) {
		struct cw_mapping *m;
		res = CUDA_SUCCESS;
		while (res == 0 && (m = next_mapping(ptr, ptr + size)))
			res = unmap(m);
	}
	cw_lock_release(&cw_vmm_lock);
	return res;
}

/* --- access ----------------------------------------------------------------------------------- */

static CUresult check_access(const CUmemAccessDesc *desc, size_t count)
{
	if (!desc || count == 0)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++) {
		if (desc[i].flags != 0 && desc[i].flags != 1 && desc[i].flags != 3)
			return CUDA_ERROR_INVALID_VALUE;
		if (desc[i].location.type == CU_MEM_LOCATION_TYPE_HOST || desc[i].location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA)
			/* device memory is not mapped for the CPU */
			return CUDA_ERROR_NOT_SUPPORTED;
		if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || !cw_device_get(desc[i].location.id) ||
		    desc[i].location.id >= CW_VMM_DEVICES)
			return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

static CUresult set_access(struct cw_mapping *m, const CUmemAccessDesc *desc, size_t count)
{
	int any = 0;
	for (size_t i = 0; i < count; i++) {
		CUresult res = cwop_MemSetAccess(m->o.id, (uint32_t)desc[i].location.id, (uint32_t)desc[i].flags);
		if (res != 0)
			return res;
		m->access[desc[i].location.id] = (uint8_t)desc[i].flags;
	}
	for (int d = 0; d < CW_VMM_DEVICES; d++)
		if (m->access[d] > any)
			any = m->access[d];
	cw_range_set_access(m->base, any);
	return CUDA_SUCCESS;
}

CUresult cwi_cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
	CUresult res = check_access(desc, count);
	if (res != 0)
		return res;
	cw_lock_acquire(&cw_vmm_lock);
	res = CUDA_ERROR_INVALID_VALUE;
	if (whole(ptr, size, 0)) {
		res = CUDA_SUCCESS;
		for (uint64_t at = ptr; res == 0 && at < ptr + size;) {
			struct cw_mapping *m = next_mapping(at, ptr + size);
			at += m->size;
			res = set_access(m, desc, count);
		}
	}
	cw_lock_release(&cw_vmm_lock);
	return res;
}

CUresult cwi_cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
	struct cw_range r;
	CUresult res = CUDA_ERROR_INVALID_VALUE;
	if (!flags || !location)
		return CUDA_ERROR_INVALID_VALUE;
	if (location->type != CU_MEM_LOCATION_TYPE_DEVICE && location->type != CU_MEM_LOCATION_TYPE_HOST)
		return CUDA_ERROR_INVALID_VALUE;
	if (!cw_device_get(location->id) || location->id >= CW_VMM_DEVICES)
		return CUDA_ERROR_INVALID_DEVICE;
	cw_lock_acquire(&cw_vmm_lock);
	if (cw_range_find(ptr, &r) && r.kind == CW_RANGE_MAPPED) {
		*flags = r.mapping->access[location->id];
		res = CUDA_SUCCESS;
	}
	cw_lock_release(&cw_vmm_lock);
	return res;
}

int cw_mapping_answer(const struct cw_range *r, uint64_t ptr, int attr, uint64_t *value, CUresult *res)
{
	struct cw_range now;
	*res = CUDA_SUCCESS;
	switch (attr) {
	case CU_POINTER_ATTRIBUTE_CONTEXT: /* belongs to none */ *value = 0; return 1;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		*value = ptr;
		*res = r->access ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
		return 1;
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: *value = r->access; return 1;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
	case 20: /* MEMORY_BLOCK_ID */ break;
	default: return 0;
	}
	cw_lock_acquire(&cw_vmm_lock);
	if (!cw_range_find(ptr, &now) || now.kind != CW_RANGE_MAPPED) /* unmapped meanwhile */
		*res = CUDA_ERROR_INVALID_VALUE;
	else if (attr == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)
		*value = now.mapping->resv->base;
	else if (attr == CU_POINTER_ATTRIBUTE_RANGE_SIZE)
		*value = now.mapping->resv->size;
	else if (attr == CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES)
		*value = now.mapping->mem->handles;
	else
		*value = now.mapping->mem->o.id;
	cw_lock_release(&cw_vmm_lock);
	return 1;
}
