/* Physical memory of cuMemCreate for other processes. */
#include <string.h>

#include "memory/share.h"
#include "memory/vmm.h"

static CUresult export_fd(struct cw_memhandle *m, int *fd)
{
	struct cw_shared s;
	size_t len = 0;
	cw_share_init(&s, CW_SHARE_PHYSICAL);
	CUresult res = cwop_MemExport(m->o.id, s.token, sizeof s.token, &len);
	if (res == 0 && len != sizeof s.token)
		res = CUDA_ERROR_UNKNOWN;
	if (res == 0 && (*fd = cw_share_to_fd(&s)) < 0)
		res = CUDA_ERROR_OPERATING_SYSTEM;
	return res;
}

/* Descriptors only: fabric handles, for other machines, cannot be asked for at cuMemCreate, so no
 * memory has them. */
CUresult cwi_cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
					  unsigned long long flags)
{
	CUresult res = CUDA_ERROR_INVALID_VALUE;
	int fd;
	if (!out || flags != 0 || type != CW_MEM_POSIX_FD)
		return CUDA_ERROR_INVALID_VALUE;
	cw_lock_acquire(&cw_vmm_lock);
	struct cw_memhandle *m = cw_memhandle_get(handle);
	if (m && m->handles & CW_MEM_POSIX_FD)
		res = export_fd(m, &fd);
	cw_lock_release(&cw_vmm_lock);
	if (res == 0)
		memcpy(out, &fd, sizeof fd);
	return res;
}

CUresult cwi_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle, CUmemAllocationHandleType type)
{
	struct cw_shared s;
	uint32_t dev = 0;
	if (!handle || (type != CW_MEM_POSIX_FD && type != CW_MEM_FABRIC))
		return CUDA_ERROR_INVALID_VALUE;
	if (type == CW_MEM_FABRIC)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!cw_share_from_fd((int)(intptr_t)os_handle, CW_SHARE_PHYSICAL, &s))
		/* As the driver answers for a file that is none of its own. */
		return CUDA_ERROR_UNKNOWN;
	struct cw_memhandle *m = (struct cw_memhandle *)cw_handle_alloc();
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult res = cwop_MemImport(m->o.id, s.token, sizeof s.token, &dev, &m->handles, &m->size, &m->flags);
	m->device = (int32_t)dev;
	m->refs = 1;
	cw_handle_publish(&m->o, CW_KIND_MEMHANDLE);
	if (res != 0)
		cw_handle_free(CW_KIND_MEMHANDLE, &m->o);
	else
		*handle = (CUmemGenericAllocationHandle)(uintptr_t)m;
	return res;
}
