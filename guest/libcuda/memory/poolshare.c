/* Memory pools of other processes, and pointers into them. */
#include <string.h>

#include "memory/pool.h"
#include "memory/share.h"
#include "memory/vmm.h"

_Static_assert(sizeof(CUmemPoolPtrExportData) == sizeof(struct cw_shared), "CUmemPoolPtrExportData");

/* A reply without a whole token is none. */
static CUresult whole(CUresult res, size_t len) { return res == 0 && len != CW_SHARE_TOKEN_SIZE ? CUDA_ERROR_UNKNOWN : res; }

CUresult cwi_cuMemPoolExportToShareableHandle(void *out, CUmemoryPool pool, CUmemAllocationHandleType type, unsigned long long flags)
{
	struct cw_pool *p = cw_pool_get(pool);
	struct cw_shared s;
	size_t len = 0;
	if (!out || !p || p->managed || type != CW_MEM_POSIX_FD || flags != 0)
		return CUDA_ERROR_INVALID_VALUE;
	cw_share_init(&s, CW_SHARE_POOL);
	CUresult res = cwop_PoolExport(p->o.id, s.token, sizeof s.token, &len);
	res = whole(res, len);
	if (res != 0)
		return res;
	int fd = cw_share_to_fd(&s);
	if (fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	memcpy(out, &fd, sizeof fd);
	return CUDA_SUCCESS;
}

CUresult cwi_cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle, CUmemAllocationHandleType type, unsigned long long flags)
{
	struct cw_shared s;
	uint32_t dev = 0;
	if (!pool || flags != 0 || (type != CW_MEM_POSIX_FD && type != CW_MEM_FABRIC))
		return CUDA_ERROR_INVALID_VALUE;
	if (type == CW_MEM_FABRIC)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!cw_share_from_fd((int)(intptr_t)handle, CW_SHARE_POOL, &s))
		return CUDA_ERROR_UNKNOWN;
	struct cw_pool *p = (struct cw_pool *)cw_handle_alloc();
	if (!p)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult res = cwop_PoolImport(p->o.id, s.token, sizeof s.token, &dev);
	p->device = (int)dev;
	p->o.flags = dev;
	p->imported = 1;
	cw_handle_publish(&p->o, CW_KIND_POOL);
	if (res != 0)
		cw_handle_free(CW_KIND_POOL, &p->o);
	else
		*pool = (CUmemoryPool)p;
	return res;
}

CUresult cwi_cuMemPoolExportPointer(CUmemPoolPtrExportData *out, CUdeviceptr ptr)
{
	struct cw_shared s;
	struct cw_range r;
	size_t len = 0;
	if (!out || !cw_range_find(ptr, &r) || r.kind != CW_RANGE_DEVICE || r.base != ptr || r.pool == 0)
		return CUDA_ERROR_INVALID_VALUE;
	cw_share_init(&s, CW_SHARE_POINTER);
	CUresult res = cwop_PoolExportPointer(ptr, s.token, sizeof s.token, &len);
	res = whole(res, len);
	if (res == 0)
		memcpy(out, &s, sizeof s);
	return res;
}

CUresult cwi_cuMemPoolImportPointer(CUdeviceptr *out, CUmemoryPool pool, CUmemPoolPtrExportData *data)
{
	struct cw_pool *p = cw_pool_get(pool);
	struct cw_shared s;
	uint64_t ptr = 0, size = 0;
	if (!out || !p || !data)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&s, data, sizeof s);
	if (!p->imported || !cw_share_is(&s, CW_SHARE_POINTER))
		return CUDA_ERROR_INVALID_VALUE;
	CUresult res = cwop_PoolImportPointer(p->o.id, s.token, sizeof s.token, &ptr, &size);
	if (res != 0)
		return res;
	struct cw_range r = {.base = ptr,
			     .size = size,
			     .kind = CW_RANGE_DEVICE,
			     .ctx = cw_current_ctx_id(),
			     .device = p->device,
			     .dev = ptr,
			     .pool = p->o.id};
	if (cw_range_add(&r) != 0) {
		cwop_MemFree(ptr);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*out = ptr;
	return CUDA_SUCCESS;
}
