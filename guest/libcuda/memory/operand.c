/* Which memory a pointer names: the decision that every copy begins with. */
#include <string.h>

#include "api/capture.h"
#include "memory/parts.h"
#include "memory/resident.h"

/* Memory that the map does not know may be a module's global: the worker's driver knows. Its extent
 * is remembered. */
static int ask_worker(uint64_t ptr, struct cw_range *r)
{
	uint64_t type = 0, base = 0, size = 0;
	if (cwop_PointerGetAttribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr, &type) != 0 || (uint32_t)type != CU_MEMORYTYPE_DEVICE)
		return 0;
	if (cwop_PointerGetAttribute(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, ptr, &base) != 0 ||
	    cwop_PointerGetAttribute(CU_POINTER_ATTRIBUTE_RANGE_SIZE, ptr, &size) != 0 || size == 0 || base > ptr || ptr - base >= size)
		return 0;
	cw_memory_note_global(base, size);
	*r = (struct cw_range){.base = base, .size = size, .kind = CW_RANGE_FOREIGN, .dev = base};
	return 1;
}

static int is_device(const struct cw_range *r)
{
	return r->kind == CW_RANGE_DEVICE || r->kind == CW_RANGE_FOREIGN || r->kind == CW_RANGE_MAPPED || r->kind == CW_RANGE_IPC ||
	       r->area;
}

/* Copies may run over several mappings (cuMemMap) that lie operand by operand and that a device may
 * touch. */
static int fits(const struct cw_range *r, uint64_t ptr, uint64_t size)
{
	return size <= (r->kind == CW_RANGE_MAPPED ? cw_range_reach(ptr) : r->size - (ptr - r->base));
}

static void from_range(const struct cw_range *r, uint64_t ptr, uint64_t size, struct cw_operand *out)
{
	out->device = (uint8_t)is_device(r);
	out->worker = out->device || (r->dev != 0 && (!r->parts || cw_parts_whole(r, ptr, size)));
	out->addr = out->worker ? r->dev + (ptr - r->base) : ptr;
	out->area = r->area;
	out->size = size;
}

CUresult cw_operands_use_area(const struct cw_operand *dst, const struct cw_operand *src)
{
	CUresult res = CUDA_SUCCESS;
	/* A fill's. */
	int same = dst->area == src->area && dst->addr == src->addr && dst->size == src->size;
	/* A handler's access would wait for this use to end. */
	cw_signals_hold();
	atomic_fetch_add(&cw_resident_users, 1); /* before the look at who has them: resident.h */
	if (cw_unlikely(cw_capture_any())) {	 /* a graph may hold the addresses */
		cw_operand_still(dst);
		cw_operand_still(src);
	}
	if (dst->area)
		res = cw_resident_yield(dst->addr, dst->size);
	if (res == 0 && src->area && !same)
		res = cw_resident_yield(src->addr, src->size);
	return res;
}

void cw_operands_done_area(const struct cw_operand *dst)
{
	if (dst->area) /* a copy that is not counted may still be on its way */
		cw_work_add();
	atomic_fetch_sub(&cw_resident_users, 1);
	cw_signals_let();
}

/* r: what the map knows of ptr, if it does. */
static CUresult in_device(struct cw_range *r, int found, CUdeviceptr ptr, uint64_t size, struct cw_operand *out)
{
	if (!found && !ask_worker(ptr, r)) {
		cw_log(CW_LOG_TRACE, "%#llx is in no memory of this process", (unsigned long long)ptr);
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!fits(r, ptr, size)) {
		cw_log(CW_LOG_TRACE, "%llu bytes at %#llx leave memory of %llu bytes (kind %d) at %#llx", (unsigned long long)size,
		       (unsigned long long)ptr, (unsigned long long)r->size, (int)r->kind, (unsigned long long)r->base);
		return CUDA_ERROR_INVALID_VALUE;
	}
	from_range(r, ptr, size, out);
	/* Pinned memory's device address is its own address, so it may stand here; memory that the
	 * device cannot reach may not. */
	return out->worker ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cw_operand_device(CUdeviceptr ptr, uint64_t size, struct cw_operand *out)
{
	struct cw_range r;
	int found = cw_range_find(ptr, &r);
	return in_device(&r, found, ptr, size, out);
}

int cw_operand_unreached(CUdeviceptr ptr, uint64_t size)
{
	struct cw_range r;
	struct cw_operand s;
	if (!cw_range_find(ptr, &r) || is_device(&r) || !fits(&r, ptr, size))
		return 0;
	from_range(&r, ptr, size, &s);
	return !s.worker;
}

static CUresult in_host(const struct cw_range *r, int found, uint64_t ptr, uint64_t size, struct cw_operand *out)
{
	*out = (struct cw_operand){.addr = ptr};
	if (ptr == 0)
		return CUDA_ERROR_INVALID_VALUE;
	/* A copy that begins in pinned memory and runs past its end is an ordinary one, as far as
	 * the memory exists. */
	if (found && (is_device(r) || fits(r, ptr, size))) {
		if (is_device(r) && !fits(r, ptr, size))
			return CUDA_ERROR_INVALID_VALUE;
		from_range(r, ptr, size, out);
	}
	return CUDA_SUCCESS;
}

CUresult cw_operand_host(const void *p, uint64_t size, struct cw_operand *out)
{
	struct cw_range r;
	int found = cw_range_find((uintptr_t)p, &r);
	return in_host(&r, found, (uintptr_t)p, size, out);
}

CUresult cw_operands_of(CUdeviceptr ptr, const void *p, uint64_t size, struct cw_operand *device, struct cw_operand *host)
{
	struct cw_range r[2];
	int found[2];
	cw_range_find_two((const uint64_t[2]){ptr, (uintptr_t)p}, r, found);
	CUresult res = in_device(&r[0], found[0], ptr, size, device);
	return res != 0 ? res : in_host(&r[1], found[1], (uintptr_t)p, size, host);
}

CUresult cw_operand_near(uint64_t ptr, uint64_t size, struct cw_range *near, struct cw_operand *out)
{
	uint64_t off = ptr - near->base;
	if (near->size != 0 && ptr >= near->base && off < near->size && size <= near->size - off && near->kind != CW_RANGE_MAPPED) {
		from_range(near, ptr, size, out);
		return CUDA_SUCCESS;
	}
	if (!cw_range_find(ptr, near))
		near->size = 0;
	return cw_operand_any(ptr, size, out);
}

CUresult cw_operand_any(uint64_t ptr, uint64_t size, struct cw_operand *out)
{
	struct cw_range r;
	if (cw_range_find(ptr, &r))
		return is_device(&r) ? cw_operand_device(ptr, size, out) : cw_operand_host((void *)(uintptr_t)ptr, size, out);
	return cw_operand_host((void *)(uintptr_t)ptr, size, out);
}
