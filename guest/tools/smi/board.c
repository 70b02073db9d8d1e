/* Values of the board: its address, its firmware, its errors, its fabric. */
#include "value.h"

#include <string.h>

static int address(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	struct nvmlPciInfo p = {.domain = 0};
	int res = nvml.nvmlDeviceGetPciInfo_v3(device, &p);
	const char *prefix = source->arg & SMI_BARE ? "" : "0x";
	int digits = source->arg & SMI_SHORT ? 4 : 8;

	if (res)
		return res;
	switch (source->arg & ~(unsigned)(SMI_BARE | SMI_SHORT)) {
	case SMI_DOMAIN: snprintf(out, SMI_TEXT, "%s%04X", prefix, p.domain); break;
	case SMI_BUS: snprintf(out, SMI_TEXT, "%s%02X", prefix, p.bus); break;
	case SMI_DEVICE: snprintf(out, SMI_TEXT, "%s%02X", prefix, p.device); break;
	case SMI_ID: snprintf(out, SMI_TEXT, "%s%0*X", prefix, digits, p.pciDeviceId); break;
	case SMI_SUBSYSTEM: snprintf(out, SMI_TEXT, "%s%0*X", prefix, digits, p.pciSubSystemId); break;
	default: snprintf(out, SMI_TEXT, "%.*s", (int)sizeof p.busId - 1, p.busId);
	}
	return NVML_SUCCESS;
}

int smi_pci(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	struct nvmlPciInfoExt p = {.version = CW_NVML_VERSION(struct nvmlPciInfoExt, 1)};
	unsigned part = source->arg & ~(unsigned)(SMI_BARE | SMI_SHORT);
	int res;

	if (part != SMI_CLASS && part != SMI_SUBCLASS)
		return address(device, source, out);
	res = nvml.nvmlDeviceGetPciInfoExt(device, &p);
	if (!res)
		snprintf(out, SMI_TEXT, "%s%X", source->arg & SMI_BARE ? "" : "0x", part == SMI_CLASS ? p.baseClass : p.subClass);
	return res;
}

static int counted(int res, unsigned long long count, char out[SMI_TEXT])
{
	if (!res && count == ~0ull)
		return NVML_NOT_SUPPORTED;
	if (!res)
		snprintf(out, SMI_TEXT, "%llu", count);
	return res;
}

int smi_ecc(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	unsigned long long count = 0;
	int res = nvml.nvmlDeviceGetTotalEccErrors(device, source->arg & 0xf, source->arg >> 4 & 0xf, &count);

	return counted(res, count, out);
}

int smi_ecc_at(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	unsigned long long count = 0;
	int res = nvml.nvmlDeviceGetMemoryErrorCounter(device, source->arg & 0xf, source->arg >> 4 & 0xf, source->arg >> 8, &count);

	return counted(res, count, out);
}

/* arg: 0 and 1 are counts, 2 and 3 whether. */
int smi_remapped(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	enum { COUNTS = 2 };
	unsigned rows[4] = {0, 0, 0, 0};
	int res = nvml.nvmlDeviceGetRemappedRows(device, &rows[0], &rows[1], &rows[2], &rows[3]);
	unsigned value = rows[source->arg];

	if (res)
		return res;
	if (source->arg < COUNTS)
		snprintf(out, SMI_TEXT, "%u", value);
	else
		strcpy(out, value ? "Yes" : "No");
	return NVML_SUCCESS;
}

int smi_inforom(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	return nvml.nvmlDeviceGetInforomVersion(device, source->arg, out, SMI_TEXT);
}

/* arg: 0 the version, 1 whether it is enabled, 2 whether it is by default. */
int smi_gsp(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	unsigned mode[2] = {0, 0};
	int res;

	if (source->arg == 0)
		return nvml.nvmlDeviceGetGspFirmwareVersion(device, out);
	res = nvml.nvmlDeviceGetGspFirmwareMode(device, &mode[0], &mode[1]);
	if (!res)
		strcpy(out, mode[source->arg - 1] ? "Enabled" : "Disabled");
	return res;
}

static void uuid(const unsigned char *u, char out[SMI_TEXT])
{
	snprintf(out, SMI_TEXT, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2], u[3], u[4], u[5],
		 u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

/* A part of the fabric's state, NULL if it is not told. Numbers are written to out. */
static const char *fabric(const struct nvmlGpuFabricInfoV *f, unsigned part, char out[SMI_TEXT])
{
	static const char *const states[] = {NULL, "Not Started", "In Progress", "Completed"};
	static const char *const bandwidths[] = {NULL, "Degraded", "Full", NULL};
	static const char *const summaries[] = {NULL, "Healthy", "Unhealthy", "Limited Capacity"};
	enum { COMPLETED = 3, MASK = 3 };

	if (part == SMI_STATE)
		return f->state <= COMPLETED ? states[f->state] : NULL;
	if (f->state != COMPLETED)
		return NULL;
	switch (part) {
	case SMI_FABRIC_STATUS: return nvml.nvmlErrorString(f->status);
	case SMI_CLIQUE: snprintf(out, SMI_TEXT, "%u", f->cliqueId); return out;
	case SMI_CLUSTER: uuid(f->clusterUuid, out); return out;
	case SMI_BANDWIDTH: return bandwidths[f->healthMask & MASK];
	case SMI_HEALTH: return f->healthSummary <= 3 ? summaries[f->healthSummary] : NULL;
	}
	return NULL;
}

/* What is not told is N/A without brackets here, as NVIDIA's program has it. */
int smi_fabric(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	struct nvmlGpuFabricInfoV f = {.version = CW_NVML_VERSION(struct nvmlGpuFabricInfoV, 3)};
	const char *text = NULL;

	if (!nvml.nvmlDeviceGetGpuFabricInfoV(device, &f))
		text = fabric(&f, source->arg, out);
	if (text != out)
		snprintf(out, SMI_TEXT, "%s", text ? text : "N/A");
	return NVML_SUCCESS;
}
