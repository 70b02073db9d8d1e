/* Devices: handles, what they are called, where they are. */
#include "device.h"
#include "gen/entries.h"
#include "snapshot.h"
#include "structs.h"

#include <stdio.h>
#include <string.h>

/* A handle is an ordinal's address in here. */
static char handles[CW_SNAPSHOT_DEVICES];

nvmlDevice_t cw_nvml_handle(unsigned index) { return (nvmlDevice_t)(void *)&handles[index]; }

int cw_nvml_device(nvmlDevice_t handle, struct cw_device *d, unsigned *index)
{
	uintptr_t at = (uintptr_t)handle - (uintptr_t)handles;
	struct cw_view v;
	int res;

	if (!cw_nvml_ready())
		return NVML_UNINITIALIZED;
	res = cw_nvml_look(&v);
	if (res)
		return res;
	if (!handle || at >= v.head->device_count) {
		res = NVML_INVALID_ARGUMENT;
	} else {
		*d = v.devices[at];
		if (index)
			*index = (unsigned)at;
	}
	cw_nvml_leave();
	return res;
}

int cw_nvml_known(unsigned value, unsigned *out)
{
	if (!out)
		return NVML_INVALID_ARGUMENT;
	if (value == CW_UNKNOWN32)
		return NVML_NOT_SUPPORTED;
	*out = value;
	return NVML_SUCCESS;
}

int cw_nvml_u32(nvmlDevice_t handle, unsigned *out, size_t offset)
{
	struct cw_device d;
	uint32_t value;
	int res = cw_nvml_device(handle, &d, NULL);

	if (res)
		return res;
	memcpy(&value, (const char *)&d + offset, sizeof value);
	return cw_nvml_known(value, out);
}

int cw_nvml_u64(nvmlDevice_t handle, unsigned long long *out, size_t offset)
{
	struct cw_device d;
	uint64_t value;
	int res = cw_nvml_device(handle, &d, NULL);

	if (res)
		return res;
	if (!out)
		return NVML_INVALID_ARGUMENT;
	memcpy(&value, (const char *)&d + offset, sizeof value);
	if (value == CW_UNKNOWN64)
		return NVML_NOT_SUPPORTED;
	*out = value;
	return NVML_SUCCESS;
}

int cw_nvml_text(const char *text, char *out, unsigned len)
{
	if (!out)
		return NVML_INVALID_ARGUMENT;
	if (!*text)
		return NVML_NOT_SUPPORTED;
	if (strlen(text) + 1 > len)
		return NVML_INSUFFICIENT_SIZE;
	strcpy(out, text);
	return NVML_SUCCESS;
}

static void format_uuid(const uint8_t *u, char out[41])
{
	snprintf(out, 41, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2], u[3], u[4], u[5],
		 u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

nvmlReturn_t cwi_nvmlDeviceGetCount_v2(unsigned *count)
{
	struct cw_view v;
	int res = count ? cw_nvml_look(&v) : NVML_INVALID_ARGUMENT;

	if (res)
		return res;
	*count = v.head->device_count;
	cw_nvml_leave();
	return NVML_SUCCESS;
}

nvmlReturn_t cwi_nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
	unsigned count;
	int res = cwi_nvmlDeviceGetCount_v2(&count);

	if (res)
		return res;
	if (!device || index >= count)
		return NVML_INVALID_ARGUMENT;
	*device = cw_nvml_handle(index);
	return NVML_SUCCESS;
}

static int by_uuid(const char *text, const unsigned char *bytes, nvmlDevice_t *device)
{
	struct cw_view v;
	int res = device && (text || bytes) ? cw_nvml_look(&v) : NVML_INVALID_ARGUMENT;

	if (res)
		return res;
	res = NVML_NOT_FOUND;
	for (unsigned i = 0; i < v.head->device_count && res; i++) {
		char own[41];

		format_uuid(v.devices[i].uuid, own);
		if (text ? strcmp(own, text) : memcmp(v.devices[i].uuid, bytes, 16))
			continue;
		*device = cw_nvml_handle(i);
		res = NVML_SUCCESS;
	}
	cw_nvml_leave();
	return res;
}

nvmlReturn_t cwi_nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) { return by_uuid(uuid, NULL, device); }

nvmlReturn_t cwi_nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device)
{
	enum { ASCII = 1, BINARY = 2 };

	if (!uuid)
		return NVML_INVALID_ARGUMENT;
	if (uuid->version != CW_NVML_VERSION(struct nvmlUUID, 1))
		return NVML_VERSION_MISMATCH;
	if (uuid->type == BINARY)
		return by_uuid(NULL, uuid->value.bytes, device);
	if (uuid->type != ASCII || !memchr(uuid->value.str, 0, sizeof uuid->value.str))
		return NVML_INVALID_ARGUMENT;
	return by_uuid(uuid->value.str, NULL, device);
}

/* [domain:]bus:device[.function] in hexadecimal. */
nvmlReturn_t cwi_nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device)
{
	unsigned domain = 0, bus, dev;
	struct cw_view v;
	int res;

	if (!id || !device || (sscanf(id, "%x:%x:%x", &domain, &bus, &dev) != 3 && (domain = 0, sscanf(id, "%x:%x", &bus, &dev) != 2)))
		return NVML_INVALID_ARGUMENT;
	res = cw_nvml_look(&v);
	if (res)
		return res;
	res = NVML_NOT_FOUND;
	for (unsigned i = 0; i < v.head->device_count && res; i++) {
		const struct cw_device *d = &v.devices[i];

		if (d->pci_domain == domain && d->pci_bus == bus && d->pci_device == dev) {
			*device = cw_nvml_handle(i);
			res = NVML_SUCCESS;
		}
	}
	cw_nvml_leave();
	return res;
}

nvmlReturn_t cwi_nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index)
{
	struct cw_device d;

	return index ? cw_nvml_device(device, &d, index) : NVML_INVALID_ARGUMENT;
}

nvmlReturn_t cwi_nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length)
{
	struct cw_device d;
	int res = cw_nvml_device(device, &d, NULL);

	return res ? res : cw_nvml_text(d.name, name, length);
}

nvmlReturn_t cwi_nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned length)
{
	struct cw_device d;
	int res = cw_nvml_device(device, &d, NULL);

	return res ? res : cw_nvml_text(d.vbios, version, length);
}

nvmlReturn_t cwi_nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length)
{
	struct cw_device d;
	char text[41];
	int res = cw_nvml_device(device, &d, NULL);

	if (res)
		return res;
	format_uuid(d.uuid, text);
	return cw_nvml_text(text, uuid, length);
}

nvmlReturn_t cwi_nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
	struct cw_device d;
	int res = cw_nvml_device(device, &d, NULL);

	if (res || !major || !minor)
		return res ? res : NVML_INVALID_ARGUMENT;
	*major = (int)d.major;
	*minor = (int)d.minor;
	return NVML_SUCCESS;
}

nvmlReturn_t cwi_nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *mig)
{
	struct cw_device d;
	int res = mig ? cw_nvml_device(device, &d, NULL) : NVML_INVALID_ARGUMENT;

	if (!res)
		*mig = 0;
	return res;
}

/* Where the device is on its host; ids that the host does not tell are 0. */
static int pci_info(nvmlDevice_t device, struct nvmlPciInfo *out)
{
	struct cw_device d;
	int res = cw_nvml_device(device, &d, NULL);

	if (res)
		return res;
	if (d.pci_domain == CW_UNKNOWN32)
		return NVML_NOT_SUPPORTED;
	*out = (struct nvmlPciInfo){.domain = d.pci_domain,
				    .bus = d.pci_bus,
				    .device = d.pci_device,
				    .pciDeviceId = d.pci_id == CW_UNKNOWN32 ? 0 : d.pci_id,
				    .pciSubSystemId = d.pci_subsystem == CW_UNKNOWN32 ? 0 : d.pci_subsystem};
	snprintf(out->busIdLegacy, sizeof out->busIdLegacy, "%04X:%02X:%02X.0", d.pci_domain & 0xffff, d.pci_bus & 0xff,
		 d.pci_device & 0xff);
	snprintf(out->busId, sizeof out->busId, "%08X:%02X:%02X.0", d.pci_domain, d.pci_bus & 0xff, d.pci_device & 0xff);
	return NVML_SUCCESS;
}

static int pci_info_head(nvmlDevice_t device, nvmlPciInfo_t *out, size_t size)
{
	struct nvmlPciInfo all;
	int res = out ? pci_info(device, &all) : NVML_INVALID_ARGUMENT;

	if (!res)
		memcpy(out, &all, size);
	return res;
}

/* Old callers' structs are shorter. */
nvmlReturn_t cwi_nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	return pci_info_head(device, pci, offsetof(struct nvmlPciInfo, pciSubSystemId));
}

nvmlReturn_t cwi_nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	return pci_info_head(device, pci, offsetof(struct nvmlPciInfo, busId));
}

nvmlReturn_t cwi_nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) { return pci_info_head(device, pci, sizeof *pci); }

nvmlReturn_t cwi_nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *pci)
{
	enum { DISPLAY_CONTROLLER = 3, CONTROLLER_3D = 2 };
	struct nvmlPciInfo all;
	int res;

	if (!pci)
		return NVML_INVALID_ARGUMENT;
	if (pci->version != CW_NVML_VERSION(struct nvmlPciInfoExt, 1))
		return NVML_VERSION_MISMATCH;
	res = pci_info(device, &all);
	if (res)
		return res;
	pci->domain = all.domain;
	pci->bus = all.bus;
	pci->device = all.device;
	pci->pciDeviceId = all.pciDeviceId;
	pci->pciSubSystemId = all.pciSubSystemId;
	pci->baseClass = DISPLAY_CONTROLLER;
	pci->subClass = CONTROLLER_3D;
	memcpy(pci->busId, all.busId, sizeof pci->busId);
	return NVML_SUCCESS;
}
