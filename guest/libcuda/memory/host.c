/*
 * Pinned memory. With a carrier that can map, an allocation is a region that the worker maps at the
 * same address: one pointer is valid here and in kernels. Without, it is ordinary memory whose
 * copies are staged, and it has no device pointer (801): better than one that is wrong.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "api/capture.h"
#include "memory/backing.h"
#include "memory/copypool.h"
#include "memory/parts.h"

enum {
	ALLOC_FLAGS = 7 /* PORTABLE, DEVICEMAP, WRITECOMBINED */,
	REGISTER_FLAGS = 15,
	PORTABLE = 1,
	IOMEMORY = 4,
	DEVICEMAP = 2,
	READ_ONLY = 8
};

#define HOST_KINDS (1u << CW_RANGE_PINNED | 1u << CW_RANGE_HOST)

static CUresult plain(struct cw_range *r)
{
	void *p = mmap(NULL, r->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	r->base = (uintptr_t)p;
	r->kind = CW_RANGE_HOST;
	return CUDA_SUCCESS;
}

static CUresult pinned(struct cw_range *r)
{
	r->kind = CW_RANGE_PINNED;
	if (r->size <= CW_SLAB_LARGEST)
		return cw_slab_alloc(r);
	CUresult res = cw_region_add(CW_REGION_PINNED, r->size, r->flags, &r->region);
	if (res != 0)
		return res;
	r->base = (uintptr_t)r->region->va;
	r->dev = r->region->dev;
	return CUDA_SUCCESS;
}

static void release(const struct cw_range *r)
{
	if (r->slab) {
		/* As the real call, this waits for the device, which may be using the memory. */
		cwop_CtxSynchronize();
		cw_slab_free(r);
	} else if (r->region)
		cw_region_drop(r->region);
	else
		munmap((void *)(uintptr_t)r->base, r->size);
}

CUresult cwi_cuMemHostAlloc(void **out, size_t size, unsigned int flags)
{
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);
	if (res != 0)
		return res;
	if (!out || size == 0 || (flags & ~(unsigned)ALLOC_FLAGS))
		return CUDA_ERROR_INVALID_VALUE;
	if (cw_unlikely(cw_capture_any()) && (res = cw_capture_unsafe()) != 0)
		return res;
	if (size > SIZE_MAX / 2)
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct cw_range r = {.size = size, .ctx = c->o.id, .device = c->device->ordinal, .flags = flags};
	res = cw_can_map() ? pinned(&r) : CUDA_ERROR_NOT_SUPPORTED;
	/* The host lends or maps no more: memory that can be copied is better than none. Its device
	 * pointer is refused. */
	if (res != 0 && cw_check_alive() == 0)
		res = plain(&r);
	if (res != 0)
		return res;
	if (cw_range_add(&r) != 0) {
		release(&r);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = (void *)(uintptr_t)r.base;
	return CUDA_SUCCESS;
}

CUresult cwi_cuMemAllocHost_v2(void **out, size_t size) { return cwi_cuMemHostAlloc(out, size, 0); }

CUresult cwi_cuMemFreeHost(void *p)
{
	struct cw_range r;
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);
	if (res != 0)
		return res;
	if (!p || !cw_range_take((uintptr_t)p, HOST_KINDS, &r))
		return CUDA_ERROR_INVALID_VALUE;
	release(&r);
	return CUDA_SUCCESS;
}

CUresult cwi_cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *p, unsigned int flags)
{
	struct cw_range r;
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);
	if (res != 0)
		return res;
	if (!out || flags != 0 || !cw_range_find((uintptr_t)p, &r) || r.kind == CW_RANGE_DEVICE || r.kind == CW_RANGE_FOREIGN ||
	    r.kind == CW_RANGE_MANAGED)
		return CUDA_ERROR_INVALID_VALUE;
	if (r.dev == 0)
		return CUDA_ERROR_NOT_SUPPORTED;
	*out = r.dev + ((uintptr_t)p - r.base);
	return CUDA_SUCCESS;
}

CUresult cwi_cuMemHostGetFlags(unsigned int *out, void *p)
{
	struct cw_range r;
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);
	if (res != 0)
		return res;
	if (!out || !cw_range_find((uintptr_t)p, &r) ||
	    (r.kind != CW_RANGE_PINNED && r.kind != CW_RANGE_HOST && r.kind != CW_RANGE_MANAGED && r.kind != CW_RANGE_REGISTERED))
		return CUDA_ERROR_INVALID_VALUE;
	if (r.kind == CW_RANGE_MANAGED) { /* a real driver answers for it too */
		*out = DEVICEMAP;
		return CUDA_SUCCESS;
	}
	*out = (r.kind == CW_RANGE_REGISTERED ? r.flags & PORTABLE : r.flags) |
	       (r.dev ? DEVICEMAP : 0); /* unified addressing maps every allocation */
	return CUDA_SUCCESS;
}

/* --- registering the application's own memory ------------------------------------------------- */

/* Pages that move are copied by as many hands as there are. */
struct shares {
	void (*work)(void *arg, uint32_t k);
	void *arg;
	uint32_t count;
	_Atomic uint32_t next;
};

static void take_shares(void *arg)
{
	struct shares *s = arg;
	for (uint32_t k; (k = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed)) < s->count;)
		s->work(s->arg, k);
}

static void share_out(uint32_t count, void (*work)(void *arg, uint32_t k), void *arg)
{
	struct shares s = {.work = work, .arg = arg, .count = count};
	cw_copypool_run(count, take_shares, &s);
}

CUresult cwi_cuMemHostRegister_v2(void *p, size_t size, unsigned int flags)
{
	uint64_t at = (uintptr_t)p, page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);
	if (res != 0)
		return res;
	if (at == 0 || size == 0 || at + size < at || (flags & ~(unsigned)REGISTER_FLAGS))
		return CUDA_ERROR_INVALID_VALUE;
	if (cw_unlikely(cw_capture_any()) && (res = cw_capture_unsafe()) != 0)
		return res;
	struct cw_range other;
	if (cw_range_overlaps(at, size))
		return cw_range_find(at, &other) && other.kind == CW_RANGE_MANAGED ? CUDA_ERROR_INVALID_VALUE
										   : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	struct cw_backed back = {.file = -1};
	enum cw_backing b = cw_backing_of(at, at + size, &back);
	if (b != CW_SHARED && back.file >= 0) { /* others go on behind it */
		close(back.file);
		back.file = -1;
	}
	if (b == CW_UNMAPPED || (b == CW_UNWRITABLE && !(flags & READ_ONLY)))
		return CUDA_ERROR_INVALID_VALUE;
	if (flags & IOMEMORY) {
		/* Memory of a device of the guest's is not reached from here, and this is none. */
		if (back.file >= 0)
			close(back.file);
		return b == CW_OTHER ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
	}
	struct cw_range r = {
		.base = at, .size = size, .kind = CW_RANGE_REGISTERED, .ctx = c->o.id, .device = c->device->ordinal, .flags = flags};
	int private = b == CW_ANONYMOUS || b == CW_PRIVATE;
	struct cw_stale stale;
	r.region = cw_kept(at, size, &back, &stale);
	/* Only whole pages can become shared memory: the neighbours of a part of a page belong to
	 * someone else (parts.h). */
	if (r.region) {
		r.dev = r.region->dev;
	} else if (cw_can_map() && b == CW_SHARED && back.file >= 0) {
		/* Which is shared anyhow: the rest of its pages too. */
		uint64_t before = at % page, end = (at + size + page - 1) & ~(page - 1);
		res = cw_region_adopt_file((void *)(uintptr_t)(at - before), end - (at - before), back.file, back.at - before, flags,
					   &r.region);
		if (res == 0)
			r.dev = r.region->dev + before;
	} else if (cw_can_map() && private && at % page == 0 && size % page == 0) {
		struct cw_region_hands hands = {cw_copypool_size(), share_out};
		res = cw_region_adopt(p, size, flags, &hands, &r.region);
		if (res == 0)
			r.dev = r.region->dev;
	} else if (cw_can_map() && private) {
		res = cw_parts_register(&r);
	}
	if (back.file >= 0)
		close(back.file);
	cw_stale_end(&stale);
	if (res != 0 && cw_check_alive() != 0)
		return res;
	if (cw_range_add(&r) != 0) {
		if (r.parts)
			cw_parts_end(&r);
		if (r.region)
			cw_region_drop(r.region);
		return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	}
	return CUDA_SUCCESS;
}

CUresult cwi_cuMemHostUnregister(void *p)
{
	struct cw_range r;
	struct cw_ctx *c;
	CUresult res = cw_ctx_current(&c);
	if (res != 0)
		return res;
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	if (!cw_range_take((uintptr_t)p, 1u << CW_RANGE_REGISTERED, &r)) {
		int inside = cw_range_find((uintptr_t)p, &r) && r.kind == CW_RANGE_REGISTERED && r.base != (uintptr_t)p;
		return inside ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	}
	if (r.parts)
		cw_parts_end(&r);
	if (r.region && !cw_keep(&r))
		cw_region_drop(r.region);
	return CUDA_SUCCESS;
}
