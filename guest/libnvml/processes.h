/* The list behind the entries for processes. */
#ifndef CW_NVML_PROCESSES_H
#define CW_NVML_PROCESSES_H

#include "gen/nvml_abi.h"
#include "gen/snapshot.h"

/* Writes one process to an array's element. */
typedef void (*cw_nvml_put)(void *to, const struct cw_process *p);

/*
 * Gives the processes of a device: at most *count elements of stride bytes are written; *count
 * becomes how many there are. More than fit, or to NULL: NVML_INSUFFICIENT_SIZE.
 */
int cw_nvml_processes(nvmlDevice_t device, unsigned *count, void *to, size_t stride, cw_nvml_put put);

/* What /proc of this guest calls a process: its first argument. False: it is not of this guest, or
 * gone. */
int cw_nvml_proc_name(unsigned pid, char *name, size_t cap);

#endif
