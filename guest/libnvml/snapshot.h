/* What this library knows about the devices: taken once, constant afterwards. */
#ifndef CW_NVML_SNAPSHOT_H
#define CW_NVML_SNAPSHOT_H

#include <stdint.h>

enum { CW_NVML_DEVICES_MAX = 64 };

struct cw_nvml_device {
	char name[96];
	uint8_t uuid[16];
	int major, minor;
	int pci_known; /* the five that follow are valid */
	int domain, bus, device, pci_id, subsystem;
};

struct cw_nvml_snapshot {
	int result; /* nvmlReturn_t of taking it */
	int cuda_version;
	int count;
	struct cw_nvml_device devices[CW_NVML_DEVICES_MAX];
};

/* The snapshot, taken by the first caller. Never NULL; see result. */
const struct cw_nvml_snapshot *cw_nvml_snapshot(void);

#endif
