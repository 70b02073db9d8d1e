/*
 * Devices through libcuda.so.1 of the same process: which there are, and what they are called. The first question that needs a
 * device initialises CUDA in the process (so do not ask before a fork whose child uses CUDA).
 */
#include "nvml.h"
#include "device.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
/* the versions that glibc 2.17 has, in libdl */
__asm__(".symver dlopen,dlopen@GLIBC_2.2.5");
__asm__(".symver dlsym,dlsym@GLIBC_2.2.5");
#endif

enum { DEVICES_MAX = 64, NAME_MAX_LEN = 96, PCI_BUS = 33, PCI_DEVICE = 34, PCI_DOMAIN = 50, PCI_ID = 139, PCI_SUBSYSTEM = 140 };

/* The CUDA entries that are used; every result is a CUresult. */
static struct {
	int (*init)(unsigned);
	int (*version)(int *);
	int (*count)(int *);
	int (*name)(char *, int, int);
	int (*uuid)(uint8_t[16], int);
	int (*attribute)(int *, int, int);
	int (*bus_id)(char *, int, int);
	int (*by_bus_id)(int *, const char *);
} cuda;

/* lock guards what follows; cuda is constant once loaded is 1. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int loaded, load_result, started, start_result, device_count;

static int symbol(void *lib, const char *name, void *slot)
{
	void *p = dlsym(lib, name);

	memcpy(slot, &p, sizeof p);
	return p != NULL;
}

/* Finds libcuda once. Called with lock held. */
static int load(void)
{
	void *lib;

	if (loaded)
		return load_result;
	loaded = 1;
	lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!lib)
		return load_result = NVML_LIBRARY_NOT_FOUND;
	if (!symbol(lib, "cuInit", &cuda.init) || !symbol(lib, "cuDriverGetVersion", &cuda.version) ||
	    !symbol(lib, "cuDeviceGetCount", &cuda.count) || !symbol(lib, "cuDeviceGetName", &cuda.name) ||
	    !symbol(lib, "cuDeviceGetUuid_v2", &cuda.uuid) || !symbol(lib, "cuDeviceGetAttribute", &cuda.attribute) ||
	    !symbol(lib, "cuDeviceGetPCIBusId", &cuda.bus_id) || !symbol(lib, "cuDeviceGetByPCIBusId", &cuda.by_bus_id))
		return load_result = NVML_FUNCTION_NOT_FOUND;
	return load_result = NVML_SUCCESS;
}

int cw_nvml_cuda_version(int *version)
{
	int res;

	pthread_mutex_lock(&lock);
	res = load();
	pthread_mutex_unlock(&lock);
	if (res)
		return res;
	return cuda.version(version) ? NVML_UNKNOWN : NVML_SUCCESS;
}

/* Starts CUDA, once. A host without a device is no error: there are none. */
static int start(int *count)
{
	enum { NO_DEVICE = 100 };
	int res;

	if (!cw_nvml_ready())
		return NVML_UNINITIALIZED;
	pthread_mutex_lock(&lock);
	res = load();
	if (!res && !started) {
		int cu = cuda.init(0);

		started = 1;
		if (cu == 0)
			cu = cuda.count(&device_count);
		start_result = cu && cu != NO_DEVICE ? NVML_DRIVER_NOT_LOADED : NVML_SUCCESS;
	}
	if (!res)
		res = start_result;
	*count = device_count;
	pthread_mutex_unlock(&lock);
	return res;
}

/* A handle is an ordinal's address in here. */
static const char handles[DEVICES_MAX];

static int device(const void *handle, int *ordinal)
{
	uintptr_t at = (uintptr_t)handle - (uintptr_t)handles;
	int count = 0, res = start(&count);

	if (res)
		return res;
	if (!handle || at >= (uintptr_t)count || at >= DEVICES_MAX)
		return NVML_INVALID_ARGUMENT;
	*ordinal = (int)at;
	return NVML_SUCCESS;
}

static int give(char *out, unsigned len, const char *text)
{
	if (strlen(text) + 1 > len)
		return NVML_INSUFFICIENT_SIZE;
	strcpy(out, text);
	return NVML_SUCCESS;
}

static int format_uuid(int ordinal, char out[48])
{
	uint8_t u[16];

	if (cuda.uuid(u, ordinal))
		return NVML_UNKNOWN;
	snprintf(out, 48, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2], u[3], u[4], u[5],
		 u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
	return NVML_SUCCESS;
}

NVML_EXPORT int nvmlDeviceGetCount_v2(unsigned *count);
NVML_EXPORT int nvmlDeviceGetCount_v2(unsigned *count)
{
	int n = 0, res;

	if (!count)
		return NVML_INVALID_ARGUMENT;
	res = start(&n);
	if (!res)
		*count = (unsigned)(n < DEVICES_MAX ? n : DEVICES_MAX);
	return res;
}

NVML_EXPORT int nvmlDeviceGetCount(unsigned *count);
NVML_EXPORT int nvmlDeviceGetCount(unsigned *count)
{
	return nvmlDeviceGetCount_v2(count);
}

NVML_EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, const void **out);
NVML_EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, const void **out)
{
	unsigned count = 0;
	int res = nvmlDeviceGetCount_v2(&count);

	if (res)
		return res;
	if (!out || index >= count)
		return NVML_INVALID_ARGUMENT;
	*out = &handles[index];
	return NVML_SUCCESS;
}

NVML_EXPORT int nvmlDeviceGetHandleByIndex(unsigned index, const void **out);
NVML_EXPORT int nvmlDeviceGetHandleByIndex(unsigned index, const void **out)
{
	return nvmlDeviceGetHandleByIndex_v2(index, out);
}

NVML_EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, const void **out);
NVML_EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, const void **out)
{
	unsigned count = 0;
	int res = nvmlDeviceGetCount_v2(&count);

	if (res)
		return res;
	if (!uuid || !out)
		return NVML_INVALID_ARGUMENT;
	for (unsigned i = 0; i < count; i++) {
		char text[48];

		if (!format_uuid((int)i, text) && !strcmp(text, uuid)) {
			*out = &handles[i];
			return NVML_SUCCESS;
		}
	}
	return NVML_NOT_FOUND;
}

NVML_EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *id, const void **out);
NVML_EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *id, const void **out)
{
	int count = 0, ordinal = 0, res = start(&count);

	if (res)
		return res;
	if (!id || !out)
		return NVML_INVALID_ARGUMENT;
	if (count == 0 || cuda.by_bus_id(&ordinal, id) || ordinal < 0 || ordinal >= DEVICES_MAX)
		return NVML_NOT_FOUND;
	*out = &handles[ordinal];
	return NVML_SUCCESS;
}

NVML_EXPORT int nvmlDeviceGetHandleByPciBusId(const char *id, const void **out);
NVML_EXPORT int nvmlDeviceGetHandleByPciBusId(const char *id, const void **out)
{
	return nvmlDeviceGetHandleByPciBusId_v2(id, out);
}

NVML_EXPORT int nvmlDeviceGetIndex(const void *handle, unsigned *index);
NVML_EXPORT int nvmlDeviceGetIndex(const void *handle, unsigned *index)
{
	int ordinal, res = device(handle, &ordinal);

	if (res || !index)
		return res ? res : NVML_INVALID_ARGUMENT;
	*index = (unsigned)ordinal;
	return NVML_SUCCESS;
}

NVML_EXPORT int nvmlDeviceGetName(const void *handle, char *name, unsigned len);
NVML_EXPORT int nvmlDeviceGetName(const void *handle, char *name, unsigned len)
{
	char text[NAME_MAX_LEN];
	int ordinal, res = device(handle, &ordinal);

	if (res || !name)
		return res ? res : NVML_INVALID_ARGUMENT;
	if (cuda.name(text, sizeof text, ordinal))
		return NVML_UNKNOWN;
	return give(name, len, text);
}

NVML_EXPORT int nvmlDeviceGetUUID(const void *handle, char *uuid, unsigned len);
NVML_EXPORT int nvmlDeviceGetUUID(const void *handle, char *uuid, unsigned len)
{
	char text[48];
	int ordinal, res = device(handle, &ordinal);

	if (res || !uuid)
		return res ? res : NVML_INVALID_ARGUMENT;
	res = format_uuid(ordinal, text);
	return res ? res : give(uuid, len, text);
}

NVML_EXPORT int nvmlDeviceGetCudaComputeCapability(const void *handle, int *major, int *minor);
NVML_EXPORT int nvmlDeviceGetCudaComputeCapability(const void *handle, int *major, int *minor)
{
	enum { MAJOR = 75, MINOR = 76 };
	int ordinal, res = device(handle, &ordinal);

	if (res || !major || !minor)
		return res ? res : NVML_INVALID_ARGUMENT;
	return cuda.attribute(major, MAJOR, ordinal) || cuda.attribute(minor, MINOR, ordinal) ? NVML_UNKNOWN : NVML_SUCCESS;
}

struct pci_info {
	char bus_id_legacy[16];
	unsigned domain, bus, device, id, subsystem;
	char bus_id[32];
};

/* Where the device is on its host. Hosts that do not tell the PCI ids of the device get no half answer. */
NVML_EXPORT int nvmlDeviceGetPciInfo_v3(const void *handle, struct pci_info *out);
NVML_EXPORT int nvmlDeviceGetPciInfo_v3(const void *handle, struct pci_info *out)
{
	int v[5], ordinal, res = device(handle, &ordinal);
	static const int attrs[5] = {PCI_DOMAIN, PCI_BUS, PCI_DEVICE, PCI_ID, PCI_SUBSYSTEM};

	if (res || !out)
		return res ? res : NVML_INVALID_ARGUMENT;
	for (int i = 0; i < 5; i++)
		if (cuda.attribute(&v[i], attrs[i], ordinal))
			return NVML_NOT_SUPPORTED;
	*out = (struct pci_info){.domain = (unsigned)v[0], .bus = (unsigned)v[1], .device = (unsigned)v[2], .id = (unsigned)v[3],
				 .subsystem = (unsigned)v[4]};
	snprintf(out->bus_id_legacy, sizeof out->bus_id_legacy, "%04X:%02X:%02X.0", out->domain & 0xffff, out->bus & 0xff,
		 out->device & 0xff);
	snprintf(out->bus_id, sizeof out->bus_id, "%08X:%02X:%02X.0", out->domain, out->bus & 0xff, out->device & 0xff);
	return NVML_SUCCESS;
}
