/* Initialisation, versions, and the settings that the environment gives. */
#include "api/api.h"

#include <stdlib.h>
#include <string.h>

struct cw_settings cw_settings;

/* A real driver reads these once, at cuInit; the rest (CUDA_VISIBLE_DEVICES, ...) the worker's
 * driver reads from SessionInit. */
static void read_settings(void)
{
	const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");
	const char *loading = getenv("CUDA_MODULE_LOADING");

	cw_settings.blocking = blocking && atoi(blocking) != 0;
	cw_settings.eager = loading && strcmp(loading, "EAGER") == 0;
}

CUresult cwi_cuInit(unsigned int flags)
{
	CUresult res;

	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	read_settings();
	res = cw_session_open();
	if (res)
		return res;
	res = cw_devices_init();
	if (res)
		return res;
	return cw_device_count() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

/* The interface that this library was generated for; only told when there is no host to ask. */
enum { INTERFACE_VERSION = 13000 };

/*
 * Works before cuInit, and without a device, on a real driver. Ours is the host's, so the session
 * opens here; when no host is reachable the answer is the library's own, and cuInit says what is
 * wrong.
 */
CUresult cwi_cuDriverGetVersion(int *version)
{
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = cw_session_open() == CUDA_SUCCESS ? cw_session_info()->driver_version : INTERFACE_VERSION;
	return CUDA_SUCCESS;
}

/* Without a profiler attached these do nothing on a real driver either; a guest has none. */
CUresult cwi_cuProfilerStart(void)
{
	struct cw_ctx *c;

	return cw_ctx_current(&c);
}

CUresult cwi_cuProfilerStop(void)
{
	struct cw_ctx *c;

	return cw_ctx_current(&c);
}
