/*
 * Event sets. The host forwards no events, so devices have no event types; a set can be made, and
 * waiting for it times out.
 */
#include "device.h"
#include "gen/entries.h"

#include <stdatomic.h>
#include <time.h>

struct nvmlEventSet_st {
	_Atomic int used;
};

enum { SETS_MAX = 256 };

/* A set is an element of this, so any pointer can be checked. */
static struct nvmlEventSet_st sets[SETS_MAX];

static int valid(nvmlEventSet_t set)
{
	uintptr_t at = (uintptr_t)set - (uintptr_t)sets;

	return at < sizeof sets && at % sizeof *sets == 0 && set->used;
}

nvmlReturn_t cwi_nvmlEventSetCreate(nvmlEventSet_t *set)
{
	if (!set)
		return NVML_INVALID_ARGUMENT;
	for (int i = 0; i < SETS_MAX; i++)
		if (!atomic_exchange(&sets[i].used, 1)) {
			*set = &sets[i];
			return NVML_SUCCESS;
		}
	return NVML_MEMORY;
}

nvmlReturn_t cwi_nvmlEventSetFree(nvmlEventSet_t set)
{
	if (!valid(set))
		return NVML_INVALID_ARGUMENT;
	atomic_store(&set->used, 0);
	return NVML_SUCCESS;
}

nvmlReturn_t cwi_nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeoutms)
{
	struct timespec t = {.tv_sec = timeoutms / 1000, .tv_nsec = timeoutms % 1000 * 1000000l};

	if (!valid(set) || !data)
		return NVML_INVALID_ARGUMENT;
	while (nanosleep(&t, &t))
		;
	return NVML_TIMEOUT;
}

nvmlReturn_t cwi_nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeoutms)
{
	return cwi_nvmlEventSetWait_v2(set, data, timeoutms);
}

nvmlReturn_t cwi_nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
	struct cw_device d;
	int res = types ? cw_nvml_device(device, &d, NULL) : NVML_INVALID_ARGUMENT;

	if (!res)
		*types = 0;
	return res;
}

nvmlReturn_t cwi_nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
	struct cw_device d;
	int res = valid(set) ? cw_nvml_device(device, &d, NULL) : NVML_INVALID_ARGUMENT;

	if (res)
		return res;
	return types ? NVML_NOT_SUPPORTED : NVML_SUCCESS;
}
