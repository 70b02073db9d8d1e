/* Devices, as the process's CUDA session knows them. */
#ifndef CW_NVML_DEVICE_H
#define CW_NVML_DEVICE_H

/* Between init and shutdown? */
int cw_nvml_ready(void);
/* CUDA driver version through libcuda.so.1: NVML_SUCCESS, NVML_LIBRARY_NOT_FOUND, NVML_FUNCTION_NOT_FOUND, NVML_UNKNOWN. */
int cw_nvml_cuda_version(int *version);

#endif
