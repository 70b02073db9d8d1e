/* Which devices there are, by the names that users give them, and the processes that use them. */
#include "gpus.h"
#include "status.h"
#include "words.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* bus:device[.function] with a domain or without, in hexadecimal of any case and any number of
 * leading zeroes. */
static int address(const char *text, size_t len, unsigned *domain, unsigned *bus, unsigned *device)
{
	char copy[32];
	unsigned parts[3] = {0, 0, 0}, n = 0, digits = 0;

	if (len >= sizeof copy)
		return 0;
	memcpy(copy, text, len);
	copy[len] = 0;
	for (const char *p = copy; *p && *p != '.'; p++) {
		const char *hex = "0123456789abcdef";
		const char *at = strchr(hex, *p | 0x20);

		if (*p == ':' && digits && n < 2) {
			n++, digits = 0;
			continue;
		}
		if (!at || ++digits > 8)
			return 0;
		parts[n] = parts[n] << 4 | (unsigned)(at - hex);
	}
	if (!n || !digits)
		return 0;
	*domain = n == 2 ? parts[0] : 0;
	*bus = parts[n - 1];
	*device = parts[n];
	return 1;
}

static int is_index(const char *text, size_t len, unsigned index)
{
	unsigned value = 0;

	for (size_t i = 0; i < len; i++) {
		if (text[i] < '0' || text[i] > '9' || value > SMI_GPUS)
			return 0;
		value = value * 10 + (unsigned)(text[i] - '0');
	}
	return len && value == index;
}

static int is_named(const char *id, size_t len, nvmlDevice_t device, unsigned index)
{
	struct nvmlPciInfo pci;
	char uuid[96];
	unsigned domain, bus, dev;

	if (is_index(id, len, index))
		return 1;
	if (!nvml.nvmlDeviceGetUUID(device, uuid, sizeof uuid) && strlen(uuid) == len && !memcmp(uuid, id, len))
		return 1;
	return address(id, len, &domain, &bus, &dev) && !nvml.nvmlDeviceGetPciInfo_v3(device, &pci) && pci.domain == domain &&
	       pci.bus == bus && pci.device == dev;
}

static int is_chosen(const char *ids, nvmlDevice_t device, unsigned index)
{
	if (!ids)
		return 1;
	for (;;) {
		size_t len = strcspn(ids, ",");

		if (is_named(ids, len, device, index))
			return 1;
		if (!ids[len])
			return 0;
		ids += len + 1;
	}
}

int smi_choose(const char *ids, struct smi_gpus *out)
{
	int res = nvml.nvmlDeviceGetCount_v2(&out->all);

	out->count = 0;
	if (res) {
		printf("Unable to determine the number of GPUs: %s\n", nvml.nvmlErrorString(res));
		return STATUS_OTHER;
	}
	for (unsigned i = 0; i < out->all && i < SMI_GPUS; i++) {
		struct smi_gpu *g = &out->gpu[out->count];

		res = nvml.nvmlDeviceGetHandleByIndex_v2(i, &g->device);
		if (res) {
			printf("Unable to determine the device handle for GPU%u: %s\n", i, nvml.nvmlErrorString(res));
			return STATUS_OTHER;
		}
		g->index = i;
		out->count += (unsigned)is_chosen(ids, g->device, i);
	}
	if (out->count)
		return STATUS_OK;
	printf("No devices were found\n");
	return STATUS_NOT_FOUND;
}

typedef nvmlReturn_t (*lister)(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *);

/* Asks until the list fits: processes come and go. */
static nvmlProcessInfo_t *list(lister f, nvmlDevice_t device, unsigned *count)
{
	nvmlProcessInfo_t *infos = NULL;
	unsigned room = 16;

	for (;;) {
		nvmlProcessInfo_t *more = realloc(infos, room * sizeof *infos);
		int res;

		*count = room;
		res = more ? f(device, count, more) : NVML_MEMORY;
		infos = more ? more : infos;
		if (res == NVML_INSUFFICIENT_SIZE && *count > room) {
			room = *count + 16;
			continue;
		}
		if (!res)
			return infos;
		free(infos);
		*count = 0;
		return NULL;
	}
}

struct smi_process *smi_processes(nvmlDevice_t device, unsigned *count)
{
	static const struct {
		size_t function;
		char type;
	} kinds[] = {{FN(nvmlDeviceGetComputeRunningProcesses_v3), 'C'}, {FN(nvmlDeviceGetGraphicsRunningProcesses_v3), 'G'}};
	struct smi_process *out = NULL;

	*count = 0;
	for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
		unsigned n;
		nvmlProcessInfo_t *infos = list((lister)smi_function(kinds[k].function), device, &n);
		struct smi_process *more = n ? realloc(out, (*count + n) * sizeof *out) : NULL;

		for (unsigned i = 0; more && i < n; i++) {
			struct smi_process *p = &more[(*count)++];

			p->pid = infos[i].pid;
			p->used = infos[i].usedGpuMemory;
			p->type = kinds[k].type;
			if (nvml.nvmlSystemGetProcessName(p->pid, p->name, sizeof p->name))
				strcpy(p->name, "[Not Found]");
			smi_printable(p->name);
		}
		out = more ? more : out;
		free(infos);
	}
	return out;
}
