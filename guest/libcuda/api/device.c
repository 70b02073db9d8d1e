/* Devices: what SessionInit told, with the few attributes whose feature is not forwarded reported
 * as absent. */
#include "api/api.h"
#include "memory/managed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { P2P_ATTRIBUTE_LAST = 5 };

/* What the host's driver has and no call here keeps. Whether atomic operations across the link
 * work, the worker has tried. */
static const struct adjustment {
	int attr, value, unmapped;
} adjustments[] = {
#define ADJUST(attr, value, unmapped) {attr, value, unmapped},
#include "gen/attributes.h"
#undef ADJUST
};

/* Written once by cw_devices_init under the session's open, constant afterwards. */
static struct cw_device *devices;
static int device_count;
static struct cw_lock build_lock;

static void adjust(struct cw_device *d)
{
	for (size_t i = 0; i < sizeof adjustments / sizeof *adjustments; i++) {
		const struct adjustment *a = &adjustments[i];

		if (d->known[a->attr] && (!a->unmapped || !cw_can_map()))
			d->attrs[a->attr] = a->value;
	}
	/* Memory that moves needs nothing shared. */
	if (!cw_can_map() && d->known[CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY] && cw_managed_moves(0))
		d->attrs[CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY] = 1;
	if (d->attrs[CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS] && cw_managed_moves(1))
		d->attrs[CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS] = 0;
}

static void build(void)
{
	const struct cw_info *info = cw_session_info();
	struct cw_device *list = calloc(info->device_count ? info->device_count : 1, sizeof *list);

	if (!list)
		return;
	for (uint32_t i = 0; i < info->device_count; i++) {
		struct cw_device *d = &list[i];
		const struct cw_device_info *wire = &info->devices[i];

		d->ordinal = (int)i;
		d->info = wire;
		for (uint32_t a = 0; a < wire->attr_count && a < CW_DEVICE_ATTRS; a++) {
			d->known[a] = wire->attr_valid[a / 8] >> (a % 8) & 1;
			d->attrs[a] = d->known[a] ? wire->attrs[a] : 0;
		}
		adjust(d);
	}
	devices = list;
	device_count = (int)info->device_count;
}

CUresult cw_devices_init(void)
{
	cw_lock_acquire(&build_lock);
	if (!devices)
		build();
	cw_lock_release(&build_lock);
	return devices ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

struct cw_device *cw_device_get(CUdevice dev) { return dev >= 0 && dev < device_count ? &devices[dev] : NULL; }

/* cuDriverGetVersion may have opened the session already, but before cuInit nothing else works. */
CUresult cw_no_device(void) { return devices ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_NOT_INITIALIZED; }

int cw_device_count(void) { return device_count; }

int cw_device_attr(const struct cw_device *d, int attr) { return d->attrs[attr]; }

/* --- entries ---------------------------------------------------------------------------------- */

CUresult cwi_cuDeviceGetCount(int *count)
{
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = device_count;
	return devices ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cwi_cuDeviceGet(CUdevice *dev, int ordinal)
{
	if (!dev)
		return CUDA_ERROR_INVALID_VALUE;
	if (!cw_device_get(ordinal))
		return cw_no_device();
	*dev = ordinal;
	return CUDA_SUCCESS;
}

CUresult cwi_cuDeviceGetName(char *name, int len, CUdevice dev)
{
	struct cw_device *d = cw_device_get(dev);

	if (!name || len <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (!d)
		return cw_no_device();
	snprintf(name, (size_t)len, "%.*s", (int)sizeof d->info->name, (const char *)d->info->name);
	return CUDA_SUCCESS;
}

CUresult cwi_cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
	struct cw_device *d = cw_device_get(dev);

	if (!uuid)
		return CUDA_ERROR_INVALID_VALUE;
	if (!d)
		return cw_no_device();
	memcpy(uuid, d->info->uuid, 16);
	return CUDA_SUCCESS;
}

/* Differs from v1 on a MIG slice only. */
CUresult cwi_cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
	struct cw_device *d = cw_device_get(dev);

	if (!uuid)
		return CUDA_ERROR_INVALID_VALUE;
	if (!d)
		return cw_no_device();
	memcpy(uuid, d->info->uuid_v2, 16);
	return CUDA_SUCCESS;
}

/* A locally unique id names an adapter to Windows; Linux drivers have none. */
CUresult cwi_cuDeviceGetLuid(char *luid, unsigned int *mask, CUdevice dev)
{
	(void)luid, (void)mask;
	return cw_device_get(dev) ? CUDA_ERROR_NOT_SUPPORTED : cw_no_device();
}

CUresult cwi_cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	struct cw_device *d = cw_device_get(dev);

	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (!d)
		return cw_no_device();
	*bytes = d->info->total_mem;
	return CUDA_SUCCESS;
}

/* The ABI of CUDA 3.1 and older: 32 bits. */
CUresult cwi_cuDeviceTotalMem(unsigned int *bytes, CUdevice dev)
{
	size_t total = 0;
	CUresult res = cwi_cuDeviceTotalMem_v2(&total, dev);

	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (!res)
		*bytes = total > 0xffffffffu ? 0xffffffffu : (unsigned)total;
	return res;
}

CUresult cwi_cuDeviceGetAttribute(int *value, CUdevice_attribute attr, CUdevice dev)
{
	struct cw_device *d = cw_device_get(dev);

	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	if (!d)
		return cw_no_device();
	if ((unsigned)attr >= CW_DEVICE_ATTRS || !d->known[(unsigned)attr])
		return CUDA_ERROR_INVALID_VALUE;
	*value = d->attrs[(unsigned)attr];
	return CUDA_SUCCESS;
}

CUresult cwi_cuDeviceComputeCapability(int *major, int *minor, CUdevice dev)
{
	struct cw_device *d = cw_device_get(dev);

	if (!major || !minor)
		return CUDA_ERROR_INVALID_VALUE;
	if (!d)
		return cw_no_device();
	*major = (int)d->info->compute / 10;
	*minor = (int)d->info->compute % 10;
	return CUDA_SUCCESS;
}

CUresult cwi_cuDeviceGetProperties(CUdevprop *prop, CUdevice dev)
{
	struct cw_device *d = cw_device_get(dev);
	const int32_t *a;

	if (!prop)
		return CUDA_ERROR_INVALID_VALUE;
	if (!d)
		return cw_no_device();
	a = d->attrs;
	*prop = (CUdevprop){
		.maxThreadsPerBlock = a[1],
		.maxThreadsDim = {a[2], a[3], a[4]},
		.maxGridSize = {a[5], a[6], a[7]},
		.sharedMemPerBlock = a[8],
		.totalConstantMemory = a[9],
		.SIMDWidth = a[10],
		.memPitch = a[11],
		.regsPerBlock = a[12],
		.clockRate = a[13],
		.textureAlign = a[14],
	};
	return CUDA_SUCCESS;
}

/* domain:bus:device.function, as the host numbers them. */
static void bus_id(const struct cw_device *d, char *out, size_t len)
{
	if (d->info->pci_bus_id[0])
		snprintf(out, len, "%.*s", (int)sizeof d->info->pci_bus_id, (const char *)d->info->pci_bus_id);
	else
		snprintf(out, len, "%04x:%02x:%02x.0", (unsigned)d->attrs[CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID],
			 (unsigned)d->attrs[CU_DEVICE_ATTRIBUTE_PCI_BUS_ID], (unsigned)d->attrs[CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID]);
}

CUresult cwi_cuDeviceGetPCIBusId(char *id, int len, CUdevice dev)
{
	struct cw_device *d = cw_device_get(dev);

	if (!id || len <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (!d)
		return cw_no_device();
	bus_id(d, id, (size_t)len);
	return CUDA_SUCCESS;
}

/* Accepts domain:bus:device.function, domain:bus:device and bus:device.function, all
 * hexadecimal. */
static int parse_bus_id(const char *s, unsigned v[3])
{
	unsigned function = 0;
	char rest;

	if (sscanf(s, "%x:%x:%x.%x%c", &v[0], &v[1], &v[2], &function, &rest) == 4 ||
	    sscanf(s, "%x:%x:%x%c", &v[0], &v[1], &v[2], &rest) == 3)
		return 1;
	v[0] = 0;
	return sscanf(s, "%x:%x.%x%c", &v[1], &v[2], &function, &rest) == 3;
}

CUresult cwi_cuDeviceGetByPCIBusId(CUdevice *dev, const char *id)
{
	unsigned want[3], have[3];

	if (!dev || !id || !parse_bus_id(id, want))
		return CUDA_ERROR_INVALID_VALUE;
	for (int i = 0; i < device_count; i++) {
		char text[32];

		bus_id(&devices[i], text, sizeof text);
		if (parse_bus_id(text, have) && !memcmp(want, have, sizeof want)) {
			*dev = i;
			return CUDA_SUCCESS;
		}
	}
	return cw_no_device();
}

/* --- pairs of devices ------------------------------------------------------------------------- */

CUresult cwi_cuDeviceCanAccessPeer(int *can, CUdevice dev, CUdevice peer)
{
	int32_t value = 0;
	CUresult res;

	if (!can)
		return CUDA_ERROR_INVALID_VALUE;
	if (!cw_device_get(dev) || !cw_device_get(peer))
		return cw_no_device();
	if (dev == peer) {
		*can = 0;
		return CUDA_SUCCESS;
	}
	res = cwop_DeviceCanAccessPeer((uint32_t)dev, (uint32_t)peer, &value);
	if (!res)
		*can = value;
	return res;
}

CUresult cwi_cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attr, CUdevice src, CUdevice dst)
{
	int32_t v = 0;
	CUresult res;

	if (!value || (int)attr < 1 || (int)attr > P2P_ATTRIBUTE_LAST)
		return CUDA_ERROR_INVALID_VALUE;
	if (!cw_device_get(src) || !cw_device_get(dst) || src == dst)
		return cw_no_device();
	res = cwop_DeviceGetP2PAttribute((uint32_t)attr, (uint32_t)src, (uint32_t)dst, &v);
	if (!res)
		*value = v;
	return res;
}
