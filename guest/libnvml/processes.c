/* Processes of this guest that use a device. Those of others are their owners' affair. */
#include "device.h"
#include "gen/entries.h"
#include "snapshot.h"
#include "structs.h"
#include "processes.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { NO_INSTANCE = -1, MODE_COMPUTE = 0, MODE_GRAPHICS = 1, MODE_MPS = 2 };

int cw_nvml_processes(nvmlDevice_t device, unsigned *count, void *to, size_t stride, cw_nvml_put put)
{
	struct cw_device d;
	struct cw_view v;
	unsigned index, n = 0, room;
	int res = count ? cw_nvml_device(device, &d, &index) : NVML_INVALID_ARGUMENT;

	if (res || (res = cw_nvml_look(&v)))
		return res;
	room = to ? *count : 0;
	for (unsigned i = 0; i < v.head->process_count; i++) {
		if (v.processes[i].device != index)
			continue;
		if (n < room)
			put((char *)to + n * stride, &v.processes[i]);
		n++;
	}
	cw_nvml_leave();
	*count = n;
	return n > room ? NVML_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static void put_v1(void *to, const struct cw_process *p)
{
	*(struct nvmlProcessInfo_v1 *)to = (struct nvmlProcessInfo_v1){.pid = p->pid, .usedGpuMemory = p->used};
}

static void put_v3(void *to, const struct cw_process *p)
{
	*(struct nvmlProcessInfo *)to = (struct nvmlProcessInfo){.pid = p->pid,
								 .usedGpuMemory = p->used,
								 .gpuInstanceId = (unsigned)NO_INSTANCE,
								 .computeInstanceId = (unsigned)NO_INSTANCE};
}

static void put_detail(void *to, const struct cw_process *p)
{
	*(struct cw_process_detail *)to = (struct cw_process_detail){.pid = p->pid,
								     .usedGpuMemory = p->used,
								     .gpuInstanceId = (unsigned)NO_INSTANCE,
								     .computeInstanceId = (unsigned)NO_INSTANCE,
								     .usedGpuCcProtectedMemory = CW_UNKNOWN64};
}

/* Graphics and MPS clients: there are none. */
static int none(nvmlDevice_t device, unsigned *count)
{
	struct cw_device d;
	int res = count ? cw_nvml_device(device, &d, NULL) : NVML_INVALID_ARGUMENT;

	if (!res)
		*count = 0;
	return res;
}

nvmlReturn_t cwi_nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned *infoCount, nvmlProcessInfo_v1_t *infos)
{
	return cw_nvml_processes(device, infoCount, infos, sizeof *infos, put_v1);
}

nvmlReturn_t cwi_nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *infoCount, nvmlProcessInfo_t *infos)
{
	return cw_nvml_processes(device, infoCount, infos, sizeof *infos, put_v3);
}

nvmlReturn_t cwi_nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned *infoCount, nvmlProcessInfo_v1_t *infos)
{
	(void)infos;
	return none(device, infoCount);
}

nvmlReturn_t cwi_nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *infoCount, nvmlProcessInfo_t *infos)
{
	(void)infos;
	return none(device, infoCount);
}

nvmlReturn_t cwi_nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned *infoCount, nvmlProcessInfo_v1_t *infos)
{
	(void)infos;
	return none(device, infoCount);
}

nvmlReturn_t cwi_nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *infoCount, nvmlProcessInfo_t *infos)
{
	(void)infos;
	return none(device, infoCount);
}

nvmlReturn_t cwi_nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *list)
{
	if (!list)
		return NVML_INVALID_ARGUMENT;
	if (list->version != CW_NVML_VERSION(struct nvmlProcessDetailList, 1))
		return NVML_VERSION_MISMATCH;
	switch (list->mode) {
	case MODE_COMPUTE:
		return cw_nvml_processes(device, &list->numProcArrayEntries, list->procArray, sizeof *list->procArray, put_detail);
	case MODE_GRAPHICS:
	case MODE_MPS: return none(device, &list->numProcArrayEntries);
	}
	return NVML_INVALID_ARGUMENT;
}

int cw_nvml_proc_name(unsigned pid, char *name, size_t cap)
{
	char path[32];
	ssize_t n;
	int fd;

	snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	n = read(fd, name, cap - 1);
	close(fd);
	if (n <= 0)
		return 0;
	name[n] = 0;
	return 1;
}

nvmlReturn_t cwi_nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length)
{
	char found[1024];
	struct cw_view v;
	int res;

	if (!name || !length)
		return NVML_INVALID_ARGUMENT;
	if (!cw_nvml_proc_name(pid, found, sizeof found)) {
		found[0] = 0;
		res = cw_nvml_look(&v);
		if (res)
			return res;
		for (unsigned i = 0; i < v.head->process_count; i++)
			if (v.processes[i].pid == pid)
				memcpy(found, v.processes[i].name, sizeof v.processes[i].name);
		cw_nvml_leave();
	}
	return found[0] ? cw_nvml_text(found, name, length) : NVML_NOT_FOUND;
}
