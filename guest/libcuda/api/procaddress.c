/* cuGetProcAddress, both forms, over the generated table. Works before cuInit. */
#include "api/procaddress.h"
#include "api/api.h"

enum { PER_THREAD = 2, FLAG_MAX = 3 };

static CUresult find(const char *name, void **pfn, int version, cuuint64_t flags, enum cw_proc_status *status)
{
	if (!name || !pfn || flags > FLAG_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	*status = cw_proc_find(cw_procs, cw_proc_count, name, version, (flags & PER_THREAD) != 0, pfn);
	if (*status != CW_PROC_FOUND && *name)
		cw_log(CW_LOG_TRACE, "cuGetProcAddress: no %s for version %d, flags %u", name, version, (unsigned)flags);
	return CUDA_SUCCESS;
}

/* The form of CUDA 11.3 to 11.8: a miss is an error, and leaves *pfn alone. */
CUresult cwi_cuGetProcAddress(const char *name, void **pfn, int version, cuuint64_t flags)
{
	enum cw_proc_status status;
	CUresult res = find(name, pfn, version, flags, &status);

	return res ? res : status == CW_PROC_FOUND ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* The form of CUDA 12: a miss is told by the status, and by NULL. */
CUresult cwi_cuGetProcAddress_v2(const char *name, void **pfn, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *out)
{
	enum cw_proc_status status;
	CUresult res = find(name, pfn, version, flags, &status);

	if (res)
		return res;
	if (status != CW_PROC_FOUND)
		*pfn = NULL;
	if (out)
		*out = (CUdriverProcAddressQueryResult)status;
	return CUDA_SUCCESS;
}
