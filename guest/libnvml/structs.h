/*
 * Structs that the entries read or fill, under their public names. A test compares sizes and
 * offsets with the public header. The first word of versioned ones is their size with the version
 * in the top byte.
 */
#ifndef CW_NVML_STRUCTS_H
#define CW_NVML_STRUCTS_H

#include "gen/nvml_abi.h"

#define CW_NVML_VERSION(type, n) ((unsigned)sizeof(type) | (unsigned)(n) << 24)

struct nvmlMemory {
	unsigned long long total, free, used;
};

struct nvmlMemory_v2 {
	unsigned version;
	unsigned long long total, reserved, free, used;
};

struct nvmlBAR1Memory {
	unsigned long long bar1Total, bar1Free, bar1Used;
};

struct nvmlUtilization {
	unsigned gpu, memory;
};

struct nvmlPciInfo {
	char busIdLegacy[16];
	unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
	char busId[32];
};

struct nvmlPciInfoExt {
	unsigned version, domain, bus, device, pciDeviceId, pciSubSystemId, baseClass, subClass;
	char busId[32];
};

struct nvmlProcessInfo_v1 {
	unsigned pid;
	unsigned long long usedGpuMemory;
};

struct nvmlProcessInfo {
	unsigned pid;
	unsigned long long usedGpuMemory;
	unsigned gpuInstanceId, computeInstanceId;
};

struct cw_process_detail {
	unsigned pid;
	unsigned long long usedGpuMemory;
	unsigned gpuInstanceId, computeInstanceId;
	unsigned long long usedGpuCcProtectedMemory;
};

struct nvmlProcessDetailList {
	unsigned version, mode, numProcArrayEntries;
	struct cw_process_detail *procArray;
};

struct nvmlFieldValue {
	unsigned fieldId, scopeId;
	long long timestamp, latencyUsec;
	unsigned valueType;
	nvmlReturn_t nvmlReturn;
	union {
		double d;
		unsigned ui;
		unsigned long long ull;
	} value;
};

struct nvmlGpuFabricInfo {
	unsigned char clusterUuid[16];
	nvmlReturn_t status;
	unsigned cliqueId;
	unsigned char state;
};

/* Version 2 ends before healthSummary. */
struct nvmlGpuFabricInfoV {
	unsigned version;
	unsigned char clusterUuid[16];
	nvmlReturn_t status;
	unsigned cliqueId;
	unsigned char state;
	unsigned healthMask;
	unsigned char healthSummary;
};

struct nvmlTemperature {
	unsigned version, sensorType;
	int temperature;
};

struct nvmlMarginTemperature {
	unsigned version;
	int marginTemperature;
};

struct nvmlUUID {
	unsigned version, type;
	union {
		char str[41];
		unsigned char bytes[16];
	} value;
};

#endif
