/*
 * libnvidia-ml for guests: initialisation, error texts, versions. Identity of the devices is in device.c. Sensors, processes and
 * topology are not forwarded: those entries answer NVML_ERROR_NOT_SUPPORTED.
 */
#include "nvml.h"
#include "device.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Atomic int users;

int cw_nvml_ready(void)
{
	return atomic_load(&users) > 0;
}

int cw_nvml_refuse(const char *name)
{
	const char *log = getenv("CAUSEWAY_LOG");

	if (!cw_nvml_ready())
		return NVML_UNINITIALIZED;
	if (log && (!strcmp(log, "info") || !strcmp(log, "trace")))
		fprintf(stderr, "causeway: %s is not forwarded\n", name);
	return NVML_NOT_SUPPORTED;
}

/* Initialisation is counted, as the interface demands; nothing is opened before a device is asked for. */
NVML_EXPORT int nvmlInitWithFlags(unsigned flags);
NVML_EXPORT int nvmlInitWithFlags(unsigned flags)
{
	(void)flags; /* no GPUs, no attach: both are how this library starts anyway */
	atomic_fetch_add(&users, 1);
	return NVML_SUCCESS;
}

NVML_EXPORT int nvmlInit(void);
NVML_EXPORT int nvmlInit(void)
{
	return nvmlInitWithFlags(0);
}

NVML_EXPORT int nvmlInit_v2(void);
NVML_EXPORT int nvmlInit_v2(void)
{
	return nvmlInitWithFlags(0);
}

NVML_EXPORT int nvmlShutdown(void);
NVML_EXPORT int nvmlShutdown(void)
{
	int n = atomic_load(&users);

	do {
		if (n == 0)
			return NVML_UNINITIALIZED;
	} while (!atomic_compare_exchange_weak(&users, &n, n - 1));
	return NVML_SUCCESS;
}

NVML_EXPORT const char *nvmlErrorString(int result);
NVML_EXPORT const char *nvmlErrorString(int result)
{
	static const char *const text[] = {
		"Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions", "Already Initialized",
		"Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded", "Timeout", "Interrupt Request Issue",
		"NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM", "GPU is lost", "GPU requires reset",
		"GPU access blocked by the operating system", "Driver/library version mismatch", "In use by another client",
		"Insufficient Memory", "No data", "vGPU ECC not supported", "Insufficient resources", "Frequency not supported",
		"Argument version mismatch", "Deprecated", "Not ready", "GPU not found", "Invalid state",
	};

	if (result >= 0 && (size_t)result < sizeof text / sizeof *text)
		return text[result];
	return "Unknown Error";
}

NVML_EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version);
NVML_EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	if (!version)
		return NVML_INVALID_ARGUMENT;
	if (!cw_nvml_ready())
		return NVML_UNINITIALIZED;
	return cw_nvml_cuda_version(version);
}

NVML_EXPORT int nvmlSystemGetCudaDriverVersion(int *version);
NVML_EXPORT int nvmlSystemGetCudaDriverVersion(int *version)
{
	return nvmlSystemGetCudaDriverVersion_v2(version);
}
