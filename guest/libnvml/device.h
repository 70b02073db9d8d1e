/*
 * The devices, as the host last told them. Handles are this library's own: addresses that nobody
 * else has, checked before use.
 */
#ifndef CW_NVML_DEVICE_H
#define CW_NVML_DEVICE_H

#include "gen/nvml_abi.h"
#include "gen/snapshot.h"
#include "nvml.h"

/* Between init and shutdown? */
int cw_nvml_ready(void);
/* The answer of an entry that is refused; names it, with the reason, the first time if CAUSEWAY_LOG
 * asks for it. */
int cw_nvml_refuse(_Atomic int *said, const char *name, const char *reason);
/* CAUSEWAY_LOG=trace? */
int cw_nvml_tracing(void);
/* The result, which is traced with the entry's name unless it is NVML_SUCCESS. */
int cw_nvml_said(const char *name, int result);

/* What a number is that the host does not know. */
#define CW_UNKNOWN32 0xffffffffu
#define CW_UNKNOWN64 0xffffffffffffffffull

/* Copies a device; index may be NULL. Fails for what is no handle. */
int cw_nvml_device(nvmlDevice_t handle, struct cw_device *d, unsigned *index);
/* The handle of a device that exists. */
nvmlDevice_t cw_nvml_handle(unsigned index);
/* A field of the device, by its offset; NVML_NOT_SUPPORTED if the host does not know it. */
int cw_nvml_u32(nvmlDevice_t handle, unsigned *out, size_t offset);
int cw_nvml_u64(nvmlDevice_t handle, unsigned long long *out, size_t offset);
/* One number: NVML_NOT_SUPPORTED if unknown. */
int cw_nvml_known(unsigned value, unsigned *out);
/* A text with its NUL, if it fits. */
int cw_nvml_text(const char *text, char *out, unsigned len);

#endif
