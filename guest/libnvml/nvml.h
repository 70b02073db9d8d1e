/* What the entries of libnvidia-ml share. Results are nvmlReturn_t values. */
#ifndef CW_NVML_H
#define CW_NVML_H

#define NVML_EXPORT __attribute__((visibility("default")))

enum {
	NVML_SUCCESS = 0,
	NVML_UNINITIALIZED = 1,
	NVML_INVALID_ARGUMENT = 2,
	NVML_NOT_SUPPORTED = 3,
	NVML_NOT_FOUND = 6,
	NVML_INSUFFICIENT_SIZE = 7,
	NVML_DRIVER_NOT_LOADED = 9,
	NVML_LIBRARY_NOT_FOUND = 12,
	NVML_FUNCTION_NOT_FOUND = 13,
	NVML_UNKNOWN = 999,
};

/* The answer of an entry that is not implemented: names it once per call site when CAUSEWAY_LOG asks for it. */
int cw_nvml_refuse(const char *name);

#endif
