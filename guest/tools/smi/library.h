/*
 * The NVML functions that are used, found in libnvidia-ml.so.1 when the program starts. Their types
 * are those of the library's own generated header, so a wrong argument does not compile.
 */
#ifndef CW_SMI_LIBRARY_H
#define CW_SMI_LIBRARY_H

#include "gen/entries.h"
#include "nvml.h"
#include "structs.h"

/* clang-format off */
#define SMI_FUNCTIONS(X)                                                                                                   \
	X(nvmlInit_v2) X(nvmlErrorString) X(nvmlSystemGetDriverVersion) X(nvmlSystemGetNVMLVersion)                        \
	X(nvmlSystemGetCudaDriverVersion_v2) X(nvmlSystemGetProcessName) X(nvmlGetExcludedDeviceCount)                     \
	X(nvmlDeviceGetCount_v2) X(nvmlDeviceGetHandleByIndex_v2)                                                          \
	X(nvmlDeviceGetName) X(nvmlDeviceGetSerial) X(nvmlDeviceGetUUID) X(nvmlDeviceGetVbiosVersion)                      \
	X(nvmlDeviceGetBoardPartNumber) X(nvmlDeviceGetInforomImageVersion) X(nvmlDeviceGetInforomVersion)                 \
	X(nvmlDeviceGetGspFirmwareVersion) X(nvmlDeviceGetGspFirmwareMode)                                                 \
	X(nvmlDeviceGetIndex) X(nvmlDeviceGetMinorNumber) X(nvmlDeviceGetBoardId) X(nvmlDeviceGetMultiGpuBoard)            \
	X(nvmlDeviceGetModuleId) X(nvmlDeviceGetNumaNodeId) X(nvmlDeviceGetAccountingBufferSize)                           \
	X(nvmlDeviceGetCurrPcieLinkGeneration) X(nvmlDeviceGetMaxPcieLinkGeneration) X(nvmlDeviceGetGpuMaxPcieLinkGeneration) \
	X(nvmlDeviceGetCurrPcieLinkWidth) X(nvmlDeviceGetMaxPcieLinkWidth) X(nvmlDeviceGetPcieReplayCounter)               \
	X(nvmlDeviceGetFanSpeed) X(nvmlDeviceGetPerformanceState) X(nvmlDeviceGetComputeMode)                              \
	X(nvmlDeviceGetPowerUsage) X(nvmlDeviceGetPowerManagementLimit) X(nvmlDeviceGetEnforcedPowerLimit)                 \
	X(nvmlDeviceGetPowerManagementDefaultLimit) X(nvmlDeviceGetPowerManagementLimitConstraints)                        \
	X(nvmlDeviceGetPowerManagementMode) X(nvmlDeviceGetPersistenceMode) X(nvmlDeviceGetDisplayMode)                    \
	X(nvmlDeviceGetDisplayActive) X(nvmlDeviceGetAccountingMode) X(nvmlDeviceGetEccMode) X(nvmlDeviceGetMigMode)       \
	X(nvmlDeviceGetBrand) X(nvmlDeviceGetArchitecture) X(nvmlDeviceGetVirtualizationMode)                              \
	X(nvmlDeviceGetCudaComputeCapability) X(nvmlDeviceGetPciInfo_v3) X(nvmlDeviceGetPciInfoExt)                        \
	X(nvmlDeviceGetMemoryInfo_v2) X(nvmlDeviceGetBAR1MemoryInfo)                                                       \
	X(nvmlDeviceGetUtilizationRates) X(nvmlDeviceGetEncoderUtilization) X(nvmlDeviceGetDecoderUtilization)             \
	X(nvmlDeviceGetJpgUtilization) X(nvmlDeviceGetOfaUtilization) X(nvmlDeviceGetPcieThroughput)                       \
	X(nvmlDeviceGetEncoderStats) X(nvmlDeviceGetTotalEccErrors) X(nvmlDeviceGetMemoryErrorCounter)                     \
	X(nvmlDeviceGetRemappedRows) X(nvmlDeviceGetTemperature) X(nvmlDeviceGetTemperatureThreshold)                      \
	X(nvmlDeviceGetMarginTemperature) X(nvmlDeviceGetFieldValues)                                                      \
	X(nvmlDeviceGetClockInfo) X(nvmlDeviceGetMaxClockInfo) X(nvmlDeviceGetApplicationsClock)                           \
	X(nvmlDeviceGetDefaultApplicationsClock) X(nvmlDeviceGetMaxCustomerBoostClock)                                     \
	X(nvmlDeviceGetCurrentClocksEventReasons) X(nvmlDeviceGetSupportedClocksEventReasons)                              \
	X(nvmlDeviceGetComputeRunningProcesses_v3) X(nvmlDeviceGetGraphicsRunningProcesses_v3)                             \
	X(nvmlDeviceGetTopologyCommonAncestor) X(nvmlDeviceGetP2PStatus) X(nvmlDeviceGetNvLinkState)                       \
	X(nvmlDeviceGetNvLinkRemotePciInfo_v2) X(nvmlDeviceGetNvLinkRemoteDeviceType) X(nvmlDeviceGetCpuAffinity)          \
	X(nvmlDeviceGetMemoryAffinity) X(nvmlDeviceGetGpuFabricInfoV)
/* clang-format on */

struct smi_library {
#define SMI_MEMBER(name) __typeof__(name) *name;
	SMI_FUNCTIONS(SMI_MEMBER)
#undef SMI_MEMBER
};

/* Filled by smi_load, constant afterwards. */
extern struct smi_library nvml;

/* Where a function is in smi_library: tables name functions so. */
#define FN(name) offsetof(struct smi_library, name)
/* The function there; the caller knows its type. */
void *smi_function(size_t at);

/* Finds the library and its functions, and starts it. Says what is wrong on stdout, as NVIDIA's
 * program does; the result is an exit status. */
int smi_load(void);

#endif
