/* Address reservations and mappings: cuMemAddressReserve, cuMemMap, cuMemSetAccess and their reverses. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "memory/vmm.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

enum { MAPPED = 1 << CW_RANGE_MAPPED, TRIES = 8 };

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

/* --- reservations -------------------------------------------------------------------------------------------------- */

/* Takes the addresses in this process too, so that nothing else can live there: what an address names must stay one thing. */
static int guard(uint64_t base, uint64_t size)
{
	void *want = (void *)(uintptr_t)base;
	void *p = mmap(want, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
	if (p == MAP_FAILED)
		return 0;
	if (p == want)
		return 1;
	munmap(p, size); /* kernels before 4.17 take the address for a hint */
	return 0;
}

/* Free addresses of this process as a wish for the worker. */
static uint64_t propose(uint64_t size, uint64_t align)
{
	uint64_t unit = align > 2u << 20 ? align : 2u << 20;
	if (size + unit < size)
		return 0;
	void *p = mmap(NULL, size + unit, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		return 0;
	munmap(p, size + unit);
	return ((uint64_t)(uintptr_t)p + unit - 1) / unit * unit;
}

/* Asks the worker until its addresses are free here as well. */
static CUresult reserve(struct cw_resv *v, uint64_t align, uint64_t wish, uint64_t flags)
{
	for (int i = 0; i < TRIES; i++) {
		CUresult res = cwop_MemAddressReserve(v->o.id, (uint32_t)flags, v->size, align, wish, &v->base);
		if (res != 0)
			return res;
		v->guarded = (uint8_t)guard(v->base, v->size);
		if (v->guarded)
			return CUDA_SUCCESS;
		cwop_MemAddressFree(v->o.id);
		wish = propose(v->size, align);
	}
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult unreserve(struct cw_resv *v)
{
	CUresult res = cwop_MemAddressFree(v->o.id);
	if (res != 0)
		return res;
	if (v->guarded)
		munmap((void *)(uintptr_t)v->base, v->size);
	cw_handle_free(CW_KIND_RESV, &v->o);
	return CUDA_SUCCESS;
}

CUresult cwi_cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t align, CUdeviceptr addr, unsigned long long flags)
{
	if (!ptr || size == 0 || flags > UINT32_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	struct cw_resv *v = (struct cw_resv *)cw_handle_new(CW_KIND_RESV);
	if (!v)
		return CUDA_ERROR_OUT_OF_MEMORY;
	v->size = size;
	cw_lock_acquire(&cw_vmm_lock);
	CUresult res = reserve(v, align, addr, flags);
	if (res == 0 && !insert(v)) {
		unreserve(v);
		res = CUDA_ERROR_OUT_OF_MEMORY;
	} else if (res != 0) {
		cw_handle_free(CW_KIND_RESV, &v->o);
	} else {
		*ptr = v->base;
	}
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

/* --- mappings ------------------------------------------------------------------------------------------------------ */

static CUresult map(struct cw_mapping *m, uint64_t flags)
{
	struct cw_range r = {.base = m->base, .size = m->size, .kind = CW_RANGE_MAPPED, .ctx = cw_current_ctx_id(),
			     .device = m->mem->device, .dev = m->base, .mapping = m};
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
	if (mem && v && size != 0 && flags <= UINT32_MAX && offset <= mem->size && size <= mem->size - offset &&
	    !cw_range_overlaps(ptr, size)) {
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

/* The mapping that begins at addr and ends by end. Under the lock. */
static struct cw_mapping *mapping_at(uint64_t addr, uint64_t end)
{
	struct cw_range r;
	if (!cw_range_find(addr, &r) || r.kind != CW_RANGE_MAPPED || r.base != addr || r.size > end - addr)
		return NULL;
	return r.mapping;
}

/* Whether [ptr, ptr+size) is a run of whole mappings without a gap. Under the lock. */
static int whole(uint64_t ptr, uint64_t size)
{
	uint64_t end = ptr + size;
	if (size == 0 || !around(ptr, size))
		return 0;
	for (uint64_t at = ptr; at < end;) {
		struct cw_mapping *m = mapping_at(at, end);
		if (!m)
			return 0;
		at += m->size;
	}
	return 1;
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

CUresult cwi_cuMemUnmap(CUdeviceptr ptr, size_t size)
{
	CUresult res = CUDA_ERROR_INVALID_VALUE;
	cw_lock_acquire(&cw_vmm_lock);
	if (whole(ptr, size)) {
		res = CUDA_SUCCESS;
		for (uint64_t at = ptr; res == 0 && at < ptr + size;) {
			struct cw_mapping *m = mapping_at(at, ptr + size);
			at += m->size;
			res = unmap(m);
		}
	}
	cw_lock_release(&cw_vmm_lock);
	return res;
}

/* --- access -------------------------------------------------------------------------------------------------------- */

static CUresult check_access(const CUmemAccessDesc *desc, size_t count)
{
	if (!desc || count == 0)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++) {
		if (desc[i].flags != 0 && desc[i].flags != 1 && desc[i].flags != 3)
			return CUDA_ERROR_INVALID_VALUE;
		if (desc[i].location.type == CU_MEM_LOCATION_TYPE_HOST || desc[i].location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA)
			return CUDA_ERROR_NOT_SUPPORTED; /* device memory is not mapped for the CPU */
		if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
			return CUDA_ERROR_INVALID_VALUE;
		if (!cw_device_get(desc[i].location.id) || desc[i].location.id >= CW_VMM_DEVICES)
			return CUDA_ERROR_INVALID_DEVICE;
	}
	return CUDA_SUCCESS;
}

static CUresult set_access(struct cw_mapping *m, const CUmemAccessDesc *desc, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		CUresult res = cwop_MemSetAccess(m->o.id, (uint32_t)desc[i].location.id, (uint32_t)desc[i].flags);
		if (res != 0)
			return res;
		m->access[desc[i].location.id] = (uint8_t)desc[i].flags;
	}
	return CUDA_SUCCESS;
}

CUresult cwi_cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
	CUresult res = check_access(desc, count);
	if (res != 0)
		return res;
	cw_lock_acquire(&cw_vmm_lock);
	res = CUDA_ERROR_INVALID_VALUE;
	if (whole(ptr, size)) {
		res = CUDA_SUCCESS;
		for (uint64_t at = ptr; res == 0 && at < ptr + size;) {
			struct cw_mapping *m = mapping_at(at, ptr + size);
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
	if (location->type != CU_MEM_LOCATION_TYPE_DEVICE)
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
