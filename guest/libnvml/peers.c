/* How the vGPU's devices reach each other: peer status, topology, NVLink, fabric. */
#include "device.h"
#include "gen/entries.h"
#include "peers.h"
#include "snapshot.h"
#include "structs.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { TOPOLOGY_INTERNAL = 0, LINKS_MAX = 18, P2P_KINDS = 5 };

static int pair(nvmlDevice_t a, nvmlDevice_t b, struct cw_pair *out)
{
	struct cw_device d;
	struct cw_view v;
	unsigned i, j;
	int res = cw_nvml_device(a, &d, &i);

	if (!res)
		res = cw_nvml_device(b, &d, &j);
	if (res || (res = cw_nvml_look(&v)))
		return res;
	res = NVML_NOT_SUPPORTED;
	for (unsigned k = 0; k < v.head->pair_count && res; k++)
		if (v.pairs[k].a == i && v.pairs[k].b == j) {
			*out = v.pairs[k];
			res = NVML_SUCCESS;
		}
	cw_nvml_leave();
	return res;
}

nvmlReturn_t cwi_nvmlDeviceGetP2PStatus(nvmlDevice_t device1, nvmlDevice_t device2, nvmlGpuP2PCapsIndex_t index, nvmlGpuP2PStatus_t *status)
{
	struct cw_pair p;
	int res = status && index < P2P_KINDS ? pair(device1, device2, &p) : NVML_INVALID_ARGUMENT;

	return res ? res : cw_nvml_known(p.p2p[index], status);
}

nvmlReturn_t cwi_nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device1, nvmlDevice_t device2, nvmlGpuTopologyLevel_t *level)
{
	struct cw_pair p;
	int res = level ? pair(device1, device2, &p) : NVML_INVALID_ARGUMENT;

	if (!res && device1 == device2)
		p.topology = TOPOLOGY_INTERNAL;
	return res ? res : cw_nvml_known(p.topology, level);
}

nvmlReturn_t cwi_nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, nvmlGpuTopologyLevel_t level, unsigned *count, nvmlDevice_t *list)
{
	unsigned self, n = 0, room;
	struct cw_device d;
	struct cw_view v;
	int res = count ? cw_nvml_device(device, &d, &self) : NVML_INVALID_ARGUMENT;

	if (res || (res = cw_nvml_look(&v)))
		return res;
	room = list ? *count : 0;
	for (unsigned i = 0; i < v.head->pair_count; i++) {
		if (v.pairs[i].a != self || v.pairs[i].b == self || v.pairs[i].topology != level)
			continue;
		if (n < room)
			list[n] = cw_nvml_handle(v.pairs[i].b);
		n++;
	}
	cw_nvml_leave();
	*count = room && room < n ? room : n;
	return NVML_SUCCESS;
}

nvmlReturn_t cwi_nvmlDeviceOnSameBoard(nvmlDevice_t device1, nvmlDevice_t device2, int *same)
{
	struct cw_device a, b;
	int res = same ? cw_nvml_device(device1, &a, NULL) : NVML_INVALID_ARGUMENT;

	if (!res)
		res = cw_nvml_device(device2, &b, NULL);
	if (!res)
		*same = device1 == device2 || (a.board != CW_UNKNOWN32 && a.board == b.board);
	return res;
}

/* A link of a device. Links that end elsewhere are not told: NVML_NOT_SUPPORTED, as where there is
 * none. */
static int link_of(nvmlDevice_t device, unsigned number, struct cw_link *out)
{
	struct cw_device d;
	struct cw_view v;
	unsigned self;
	int res = number < LINKS_MAX ? cw_nvml_device(device, &d, &self) : NVML_INVALID_ARGUMENT;

	if (res || (res = cw_nvml_look(&v)))
		return res;
	res = NVML_NOT_SUPPORTED;
	for (unsigned i = 0; i < v.head->link_count && res; i++)
		if (v.links[i].device == self && v.links[i].link == number) {
			*out = v.links[i];
			res = NVML_SUCCESS;
		}
	cw_nvml_leave();
	return res;
}

enum { SWITCH = 2 }; /* nvmlIntNvLinkDeviceType_t */

/* Active links of device i to the switches, or to device j. */
static unsigned links_to(const struct cw_view *v, unsigned i, unsigned j)
{
	const struct cw_device *to = &v->devices[j];
	unsigned n = 0;

	for (unsigned k = 0; k < v->head->link_count; k++) {
		const struct cw_link *l = &v->links[k];

		n += l->device == i && l->state == 1 &&
		     (l->remote_type == SWITCH ||
		      (l->remote_domain == to->pci_domain && l->remote_bus == to->pci_bus && l->remote_device == to->pci_device));
	}
	return n;
}

unsigned cw_nvml_links_between(nvmlDevice_t a, nvmlDevice_t b)
{
	struct cw_device d;
	struct cw_view v;
	unsigned i, j, n, m;

	if (a == b || cw_nvml_device(a, &d, &i) || cw_nvml_device(b, &d, &j) || cw_nvml_look(&v))
		return 0;
	n = m = 0;
	if (i < v.head->device_count && j < v.head->device_count) {
		/* It may have changed meanwhile. */
		n = links_to(&v, i, j);
		m = links_to(&v, j, i);
	}
	cw_nvml_leave();
	return n < m ? n : m;
}

nvmlReturn_t cwi_nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, nvmlEnableState_t *isActive)
{
	struct cw_link l;
	int res = isActive ? link_of(device, link, &l) : NVML_INVALID_ARGUMENT;

	return res ? res : cw_nvml_known(l.state, isActive);
}

nvmlReturn_t cwi_nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned link, unsigned *version)
{
	struct cw_link l;
	int res = version ? link_of(device, link, &l) : NVML_INVALID_ARGUMENT;

	return res ? res : cw_nvml_known(l.link_version, version);
}

nvmlReturn_t cwi_nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned link, nvmlNvLinkCapability_t capability, unsigned *capResult)
{
	struct cw_link l;
	int res = capResult && capability < 6 ? link_of(device, link, &l) : NVML_INVALID_ARGUMENT;

	if (!res)
		*capResult = l.capabilities >> capability & 1;
	return res;
}

nvmlReturn_t cwi_nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned link, nvmlIntNvLinkDeviceType_t *type)
{
	struct cw_link l;
	int res = type ? link_of(device, link, &l) : NVML_INVALID_ARGUMENT;

	return res ? res : cw_nvml_known(l.remote_type, type);
}

static int remote(nvmlDevice_t device, unsigned link, nvmlPciInfo_t *pci, size_t size)
{
	struct nvmlPciInfo all;
	struct cw_link l;
	int res = pci ? link_of(device, link, &l) : NVML_INVALID_ARGUMENT;

	if (res)
		return res;
	/* A switch that its owner cannot see has an address of ones on a real driver too: NCCL goes
	 * by the answer, not the address. */
	if (l.remote_domain == CW_UNKNOWN32 && l.remote_type != SWITCH)
		return NVML_NOT_SUPPORTED;
	all = (struct nvmlPciInfo){.domain = l.remote_domain,
				   .bus = l.remote_bus,
				   .device = l.remote_device,
				   .pciDeviceId = l.remote_id == CW_UNKNOWN32 && l.remote_type != SWITCH ? 0 : l.remote_id};
	snprintf(all.busIdLegacy, sizeof all.busIdLegacy, "%04X:%02X:%02X.0", all.domain & 0xffff, all.bus & 0xff, all.device & 0xff);
	snprintf(all.busId, sizeof all.busId, "%08X:%02X:%02X.0", all.domain, all.bus & 0xff, all.device & 0xff);
	memcpy(pci, &all, size);
	return NVML_SUCCESS;
}

/* Old callers' structs are shorter. */
nvmlReturn_t cwi_nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned link, nvmlPciInfo_t *pci)
{
	return remote(device, link, pci, offsetof(struct nvmlPciInfo, busId));
}

nvmlReturn_t cwi_nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link, nvmlPciInfo_t *pci)
{
	return remote(device, link, pci, sizeof *pci);
}

/* A vGPU is as near to one processor of the guest as to another: all of them, in words of 64. */
nvmlReturn_t cwi_nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned words, unsigned long *set)
{
	long cpus = sysconf(_SC_NPROCESSORS_CONF);
	struct cw_device d;
	int res = words && set && cpus > 0 ? cw_nvml_device(device, &d, NULL) : NVML_INVALID_ARGUMENT;

	if (res)
		return res;
	memset(set, 0, words * sizeof *set);
	for (unsigned long i = 0; i < (unsigned long)cpus && i / 64 < words; i++)
		set[i / 64] |= 1ul << i % 64;
	return NVML_SUCCESS;
}

nvmlReturn_t cwi_nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned words, unsigned long *set, nvmlAffinityScope_t scope)
{
	enum { SOCKET = 1 };

	return scope <= SOCKET ? cwi_nvmlDeviceGetCpuAffinity(device, words, set) : NVML_INVALID_ARGUMENT;
}

/* All memory nodes of the guest. */
nvmlReturn_t cwi_nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned words, unsigned long *set, nvmlAffinityScope_t scope)
{
	enum { SOCKET = 1, NODES = 1024 };
	struct cw_device d;
	int res = words && set && scope <= SOCKET ? cw_nvml_device(device, &d, NULL) : NVML_INVALID_ARGUMENT;

	if (res)
		return res;
	memset(set, 0, words * sizeof *set);
	for (unsigned i = 0; i < NODES && i / 64 < words; i++) {
		char path[64];

		snprintf(path, sizeof path, "/sys/devices/system/node/node%u", i);
		if (access(path, F_OK) == 0)
			set[i / 64] |= 1ul << i % 64;
	}
	return NVML_SUCCESS;
}

/*
 * A vGPU is in no fabric: handles of memory that reach across machines are not offered. State 0
 * says "not supported", which is what devices without a fabric answer.
 */
nvmlReturn_t cwi_nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info)
{
	struct cw_device d;
	int res = info ? cw_nvml_device(device, &d, NULL) : NVML_INVALID_ARGUMENT;

	if (!res)
		*info = (struct nvmlGpuFabricInfo){.status = NVML_SUCCESS};
	return res;
}

nvmlReturn_t cwi_nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *info)
{
	enum { V2_SIZE = 36 };
	struct nvmlGpuFabricInfoV none;
	struct cw_device d;
	size_t size;
	int res;

	if (!info)
		return NVML_INVALID_ARGUMENT;
	if (info->version == (V2_SIZE | 2u << 24))
		size = V2_SIZE;
	else if (info->version == CW_NVML_VERSION(struct nvmlGpuFabricInfoV, 3))
		size = sizeof none;
	else
		return NVML_VERSION_MISMATCH;
	res = cw_nvml_device(device, &d, NULL);
	if (res)
		return res;
	memset(&none, 0, sizeof none);
	none.version = info->version;
	memcpy(info, &none, size);
	return NVML_SUCCESS;
}
