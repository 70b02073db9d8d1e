/* Values of a device that are neither one number nor one text of NVML. */
#include "value.h"

#include <string.h>
#include <time.h>

static const int MIB_SHIFT = 20;

int smi_driver(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	(void)device, (void)source;
	return nvml.nvmlSystemGetDriverVersion(out, SMI_TEXT);
}

int smi_count(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	unsigned count;
	int res = nvml.nvmlDeviceGetCount_v2(&count);

	(void)device, (void)source;
	if (!res)
		snprintf(out, SMI_TEXT, "%u", count);
	return res;
}

int smi_timestamp(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	struct timespec now;
	struct tm tm;
	size_t n;

	(void)device, (void)source;
	clock_gettime(CLOCK_REALTIME, &now);
	localtime_r(&now.tv_sec, &tm);
	n = strftime(out, SMI_TEXT, "%Y/%m/%d %H:%M:%S", &tm);
	snprintf(out + n, SMI_TEXT - n, ".%03ld", now.tv_nsec / 1000000);
	return NVML_SUCCESS;
}

int smi_capability(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	int major, minor;
	int res = nvml.nvmlDeviceGetCudaComputeCapability(device, &major, &minor);

	(void)source;
	if (!res)
		snprintf(out, SMI_TEXT, "%d.%d", major, minor);
	return res;
}

/* The name of a number, or "Unknown" for one that has none. */
static int named(int res, unsigned value, const char *const *names, size_t count, char out[SMI_TEXT])
{
	if (!res)
		snprintf(out, SMI_TEXT, "%s", value < count && names[value] ? names[value] : "Unknown");
	return res;
}

#define NAMED(res, value, names, out) named(res, value, names, sizeof(names) / sizeof *(names), out)

int smi_brand(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	static const char *const names[] = {"Unknown",
					    "Quadro",
					    "Tesla",
					    "NVS",
					    "GRID",
					    "GeForce",
					    "Titan",
					    "NVIDIA Virtual Applications",
					    "NVIDIA Virtual PC",
					    "NVIDIA Virtual Compute Server",
					    "NVIDIA RTX Virtual Workstation",
					    "NVIDIA Cloud Gaming",
					    "Quadro RTX",
					    "NVIDIA RTX",
					    "NVIDIA",
					    "GeForce RTX",
					    "Titan RTX"};
	unsigned value = 0;
	int res = nvml.nvmlDeviceGetBrand(device, &value);

	(void)source;
	return NAMED(res == NVML_NOT_SUPPORTED ? NVML_SUCCESS : res, value, names, out);
}

int smi_architecture(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	static const char *const names[] = {NULL,     NULL,	"Kepler",	"Maxwell", "Pascal",   "Volta",
					    "Turing", "Ampere", "Ada Lovelace", "Hopper",  "Blackwell"};
	unsigned value = 0;
	int res = nvml.nvmlDeviceGetArchitecture(device, &value);

	(void)source;
	return NAMED(res, value, names, out);
}

int smi_virtualization(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	static const char *const names[] = {"None", "Pass-Through", "VGPU", "Host VGPU", "Host VSGA"};
	unsigned value = 0;
	int res = nvml.nvmlDeviceGetVirtualizationMode(device, &value);

	(void)source;
	return NAMED(res, value, names, out);
}

int smi_compute_mode(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	static const char *const names[] = {"Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process"};
	unsigned value = 0;
	int res = nvml.nvmlDeviceGetComputeMode(device, &value);

	(void)source;
	return NAMED(res, value, names, out);
}

int smi_pstate(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	enum { UNKNOWN = 32 };
	unsigned value = UNKNOWN;
	int res = nvml.nvmlDeviceGetPerformanceState(device, &value);

	(void)source;
	if (!res && value == UNKNOWN)
		return NVML_NOT_SUPPORTED;
	if (!res)
		snprintf(out, SMI_TEXT, "P%u", value);
	return res;
}

static int mebibytes(int res, unsigned long long bytes, char out[SMI_TEXT])
{
	if (!res)
		snprintf(out, SMI_TEXT, "%llu", bytes >> MIB_SHIFT);
	return res;
}

int smi_memory(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	struct nvmlMemory_v2 m = {.version = CW_NVML_VERSION(struct nvmlMemory_v2, 2)};
	int res = nvml.nvmlDeviceGetMemoryInfo_v2(device, &m);
	const unsigned long long parts[] = {[SMI_TOTAL] = m.total, [SMI_RESERVED] = m.reserved, [SMI_USED] = m.used, [SMI_FREE] = m.free};

	/* Rounded up, as NVIDIA's program does here alone. */
	return mebibytes(res, parts[source->arg] + ((1ull << MIB_SHIFT) - 1), out);
}

int smi_bar1(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	struct nvmlBAR1Memory m = {0, 0, 0};
	int res = nvml.nvmlDeviceGetBAR1MemoryInfo(device, &m);
	const unsigned long long parts[] = {[SMI_TOTAL] = m.bar1Total, [SMI_USED] = m.bar1Used, [SMI_FREE] = m.bar1Free};

	return mebibytes(res, parts[source->arg], out);
}

int smi_use(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	struct nvmlUtilization u = {0, 0};
	int res = nvml.nvmlDeviceGetUtilizationRates(device, &u);

	if (!res)
		snprintf(out, SMI_TEXT, "%u", source->arg == SMI_GPU ? u.gpu : u.memory);
	return res;
}

/* Clock event reasons: the mask of all of a kind, or whether one is active. */
int smi_reasons(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	nvmlReturn_t (*f)(nvmlDevice_t, unsigned long long *) =
		(nvmlReturn_t(*)(nvmlDevice_t, unsigned long long *))smi_function(source->function);
	unsigned long long mask = 0;
	int res = f(device, &mask);

	if (!res)
		snprintf(out, SMI_TEXT, "0x%016llX", mask);
	return res;
}

int smi_reason(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	unsigned long long mask = 0;
	int res = nvml.nvmlDeviceGetCurrentClocksEventReasons(device, &mask);

	if (!res)
		strcpy(out, mask & source->arg ? "Active" : "Not Active");
	return res;
}

int smi_margin(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	struct nvmlMarginTemperature t = {.version = CW_NVML_VERSION(struct nvmlMarginTemperature, 1)};
	int res = nvml.nvmlDeviceGetMarginTemperature(device, &t);

	(void)source;
	if (!res)
		snprintf(out, SMI_TEXT, "%d", t.marginTemperature);
	return res;
}
