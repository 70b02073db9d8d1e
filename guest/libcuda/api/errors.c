/* cuGetErrorName and cuGetErrorString: static strings, valid before cuInit. An unknown code gives
 * CUDA_ERROR_INVALID_VALUE, and NULL in the result. */
#include "api/api.h"

CUresult cwi_cuGetErrorName(CUresult error, const char **str)
{
	if (!str)
		return CUDA_ERROR_INVALID_VALUE;
	*str = cw_result_name((int)error);
	return *str ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cwi_cuGetErrorString(CUresult error, const char **str)
{
	if (!str)
		return CUDA_ERROR_INVALID_VALUE;
	*str = cw_result_text((int)error);
	return *str ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
