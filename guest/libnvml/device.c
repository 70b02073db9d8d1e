/* Devices: which there are, and what they are called. */
#include "nvml.h"
#include "device.h"
#include "snapshot.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* A handle is an ordinal's address in here. */
static const char handles[CW_NVML_DEVICES_MAX];

static int snapshot(const struct cw_nvml_snapshot **s)
{
	if (!cw_nvml_ready())
		return NVML_UNINITIALIZED;
	*s = cw_nvml_snapshot();
	return (*s)->result;
}

static int device(const void *handle, const struct cw_nvml_device **d)
{
	uintptr_t at = (uintptr_t)handle - (uintptr_t)handles;
	const struct cw_nvml_snapshot *s;
	int res = snapshot(&s);

	if (res)
		return res;
	if (!handle || at >= (uintptr_t)s->count)
		return NVML_INVALID_ARGUMENT;
	*d = &s->devices[at];
	return NVML_SUCCESS;
}

int cw_nvml_cuda_version(int *version)
{
	const struct cw_nvml_snapshot *s;
	int res = snapshot(&s);

	if (!res)
		*version = s->cuda_version;
	return res;
}

static int give(char *out, unsigned len, const char *text)
{
	if (strlen(text) + 1 > len)
		return NVML_INSUFFICIENT_SIZE;
	strcpy(out, text);
	return NVML_SUCCESS;
}

static void format_uuid(const struct cw_nvml_device *d, char out[48])
{
	const uint8_t *u = d->uuid;

	snprintf(out, 48, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2], u[3], u[4], u[5],
		 u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

NVML_EXPORT int nvmlDeviceGetCount_v2(unsigned *count);
NVML_EXPORT int nvmlDeviceGetCount_v2(unsigned *count)
{
	const struct cw_nvml_snapshot *s;
	int res = snapshot(&s);

	if (res || !count)
		return res ? res : NVML_INVALID_ARGUMENT;
	*count = (unsigned)s->count;
	return NVML_SUCCESS;
}

NVML_EXPORT int nvmlDeviceGetCount(unsigned *count);
NVML_EXPORT int nvmlDeviceGetCount(unsigned *count)
{
	return nvmlDeviceGetCount_v2(count);
}

NVML_EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, const void **out);
NVML_EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, const void **out)
{
	const struct cw_nvml_snapshot *s;
	int res = snapshot(&s);

	if (res)
		return res;
	if (!out || index >= (unsigned)s->count)
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
	const struct cw_nvml_snapshot *s;
	int res = snapshot(&s);

	if (res || !uuid || !out)
		return res ? res : NVML_INVALID_ARGUMENT;
	for (int i = 0; i < s->count; i++) {
		char text[48];

		format_uuid(&s->devices[i], text);
		if (!strcmp(text, uuid)) {
			*out = &handles[i];
			return NVML_SUCCESS;
		}
	}
	return NVML_NOT_FOUND;
}

/* domain:bus:device.function in hexadecimal; the function may be missing. */
NVML_EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *id, const void **out);
NVML_EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *id, const void **out)
{
	const struct cw_nvml_snapshot *s;
	unsigned domain, bus, dev, function = 0;
	int res = snapshot(&s);

	if (res || !id || !out || sscanf(id, "%x:%x:%x.%x", &domain, &bus, &dev, &function) < 3)
		return res ? res : NVML_INVALID_ARGUMENT;
	for (int i = 0; i < s->count; i++) {
		const struct cw_nvml_device *d = &s->devices[i];

		if ((unsigned)d->domain == domain && (unsigned)d->bus == bus && (unsigned)d->device == dev) {
			*out = &handles[i];
			return NVML_SUCCESS;
		}
	}
	return NVML_NOT_FOUND;
}

NVML_EXPORT int nvmlDeviceGetHandleByPciBusId(const char *id, const void **out);
NVML_EXPORT int nvmlDeviceGetHandleByPciBusId(const char *id, const void **out)
{
	return nvmlDeviceGetHandleByPciBusId_v2(id, out);
}

NVML_EXPORT int nvmlDeviceGetIndex(const void *handle, unsigned *index);
NVML_EXPORT int nvmlDeviceGetIndex(const void *handle, unsigned *index)
{
	const struct cw_nvml_device *d;
	int res = device(handle, &d);

	if (res || !index)
		return res ? res : NVML_INVALID_ARGUMENT;
	*index = (unsigned)((const char *)handle - handles);
	return NVML_SUCCESS;
}

NVML_EXPORT int nvmlDeviceGetName(const void *handle, char *name, unsigned len);
NVML_EXPORT int nvmlDeviceGetName(const void *handle, char *name, unsigned len)
{
	const struct cw_nvml_device *d;
	int res = device(handle, &d);

	if (res || !name)
		return res ? res : NVML_INVALID_ARGUMENT;
	return give(name, len, d->name);
}

NVML_EXPORT int nvmlDeviceGetUUID(const void *handle, char *uuid, unsigned len);
NVML_EXPORT int nvmlDeviceGetUUID(const void *handle, char *uuid, unsigned len)
{
	const struct cw_nvml_device *d;
	char text[48];
	int res = device(handle, &d);

	if (res || !uuid)
		return res ? res : NVML_INVALID_ARGUMENT;
	format_uuid(d, text);
	return give(uuid, len, text);
}

NVML_EXPORT int nvmlDeviceGetCudaComputeCapability(const void *handle, int *major, int *minor);
NVML_EXPORT int nvmlDeviceGetCudaComputeCapability(const void *handle, int *major, int *minor)
{
	const struct cw_nvml_device *d;
	int res = device(handle, &d);

	if (res || !major || !minor)
		return res ? res : NVML_INVALID_ARGUMENT;
	*major = d->major;
	*minor = d->minor;
	return NVML_SUCCESS;
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
	const struct cw_nvml_device *d;
	int res = device(handle, &d);

	if (res || !out)
		return res ? res : NVML_INVALID_ARGUMENT;
	if (!d->pci_known || !d->pci_id)
		return NVML_NOT_SUPPORTED;
	*out = (struct pci_info){.domain = (unsigned)d->domain, .bus = (unsigned)d->bus, .device = (unsigned)d->device,
				 .id = (unsigned)d->pci_id, .subsystem = (unsigned)d->subsystem};
	snprintf(out->bus_id_legacy, sizeof out->bus_id_legacy, "%04X:%02X:%02X.0", out->domain & 0xffff, out->bus & 0xff,
		 out->device & 0xff);
	snprintf(out->bus_id, sizeof out->bus_id, "%08X:%02X:%02X.0", out->domain, out->bus & 0xff, out->device & 0xff);
	return NVML_SUCCESS;
}
