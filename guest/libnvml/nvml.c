/* libnvidia-ml for guests: initialisation, error texts, versions, what is refused. */
#include "device.h"
#include "gen/entries.h"
#include "snapshot.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Atomic int users;

int cw_nvml_ready(void) { return atomic_load(&users) > 0; }

int cw_nvml_tracing(void)
{
	const char *log = getenv("CAUSEWAY_LOG");

	return log && !strcmp(log, "trace");
}

int cw_nvml_said(const char *name, int result)
{
	if (result && cw_nvml_tracing())
		fprintf(stderr, "causeway: %s: %s\n", name, cwi_nvmlErrorString(result));
	return result;
}

int cw_nvml_refuse(_Atomic int *said, const char *name, const char *reason)
{
	const char *log = getenv("CAUSEWAY_LOG");

	if (!cw_nvml_ready())
		return NVML_UNINITIALIZED;
	if (log && (!strcmp(log, "info") || !strcmp(log, "trace")) && !atomic_exchange(said, 1))
		fprintf(stderr, "causeway: %s is not supported: %s\n", name, reason);
	return NVML_NOT_SUPPORTED;
}

/* Initialisation is counted, as the interface demands; the host is asked when a device is. */
nvmlReturn_t cwi_nvmlInitWithFlags(unsigned flags)
{
	(void)flags; /* no GPUs, no attach: both are how this library starts anyway */
	if (!cw_nvml_source_present())
		return NVML_DRIVER_NOT_LOADED;
	atomic_fetch_add(&users, 1);
	return NVML_SUCCESS;
}

nvmlReturn_t cwi_nvmlInit_v2(void) { return cwi_nvmlInitWithFlags(0); }

nvmlReturn_t cwi_nvmlShutdown(void)
{
	int n = atomic_load(&users);

	do {
		if (n == 0)
			return NVML_UNINITIALIZED;
	} while (!atomic_compare_exchange_weak(&users, &n, n - 1));
	return NVML_SUCCESS;
}

const char *cwi_nvmlErrorString(nvmlReturn_t result)
{
	static const char *const text[] = {
		"Success",
		"Uninitialized",
		"Invalid Argument",
		"Not Supported",
		"Insufficient Permissions",
		"Already Initialized",
		"Not Found",
		"Insufficient Size",
		"Insufficient External Power",
		"Driver Not Loaded",
		"Timeout",
		"Interrupt Request Issue",
		"NVML Shared Library Not Found",
		"Function Not Found",
		"Corrupted infoROM",
		"GPU is lost",
		"GPU requires reset",
		"GPU access blocked by the operating system",
		"Driver/library version mismatch",
		"In use by another client",
		"Insufficient Memory",
		"No data",
		"vGPU ECC not supported",
		"Insufficient resources",
		"Frequency not supported",
		"Argument version mismatch",
		"Requested functionality has been deprecated",
		"Not ready",
		"GPU not found",
		"Invalid state",
	};

	if (result >= 0 && (size_t)result < sizeof text / sizeof *text)
		return text[result];
	return "Unknown Error";
}

nvmlReturn_t cwi_nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	struct cw_view v;
	int res;

	if (!version)
		return NVML_INVALID_ARGUMENT;
	res = cw_nvml_look(&v);
	if (res)
		return res;
	*version = (int)v.head->cuda_version;
	cw_nvml_leave();
	return NVML_SUCCESS;
}

nvmlReturn_t cwi_nvmlSystemGetDriverVersion(char *version, unsigned length)
{
	struct cw_view v;
	int res = cw_nvml_look(&v);

	if (res)
		return res;
	res = cw_nvml_text(v.head->driver_version, version, length);
	cw_nvml_leave();
	return res;
}

nvmlReturn_t cwi_nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
	struct cw_view v;
	int res = cw_nvml_look(&v);

	if (res)
		return res;
	res = cw_nvml_text(v.head->nvml_version, version, length);
	cw_nvml_leave();
	return res;
}

nvmlReturn_t cwi_nvmlGetExcludedDeviceCount(unsigned *count)
{
	return cwi_nvmlUnitGetCount(count); /* devices are not offered, rather than excluded */
}

nvmlReturn_t cwi_nvmlUnitGetCount(unsigned *count)
{
	if (!count)
		return NVML_INVALID_ARGUMENT;
	*count = 0;
	return NVML_SUCCESS;
}
