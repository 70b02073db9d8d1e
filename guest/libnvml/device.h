/* Devices, as the process's CUDA session knows them. */
#ifndef CW_NVML_DEVICE_H
#define CW_NVML_DEVICE_H

/* Between init and shutdown? */
int cw_nvml_ready(void);
/* CUDA driver version of the host. */
int cw_nvml_cuda_version(int *version);

#endif
