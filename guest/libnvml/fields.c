/* Field values: numbers asked for by id, each answered on its own. */
#include "device.h"
#include "gen/entries.h"
#include "snapshot.h"
#include "structs.h"

#include <string.h>
#include <time.h>

enum { TYPE_UINT = 1, TYPE_ULL = 3, TYPE_INT = 5 };
enum {
	LINK_COUNT = 91,
	LINK_SPEED_COMMON = 90,
	LINK_SPEED = 164,
	LINK_STATE = 165,
	LINK_VERSION = 166,
	C2C_COUNT = 170,
	POWER_FIRST = 185,
	POWER_NOW = 186,
	POWER_LAST = 192
};

/* Fields of the device by public id. */
static const struct {
	unsigned id, type;
	size_t at;
} fields[] = {
	{1, TYPE_UINT, offsetof(struct cw_device, ecc_current)},	  {2, TYPE_UINT, offsetof(struct cw_device, ecc_pending)},
	{3, TYPE_ULL, offsetof(struct cw_device, ecc_corrected)},	  {4, TYPE_ULL, offsetof(struct cw_device, ecc_uncorrected)},
	{5, TYPE_ULL, offsetof(struct cw_device, ecc_corrected_total)},	  {6, TYPE_ULL, offsetof(struct cw_device, ecc_uncorrected_total)},
	{82, TYPE_UINT, offsetof(struct cw_device, temperature_memory)},  {83, TYPE_ULL, offsetof(struct cw_device, energy)},
	{94, TYPE_UINT, offsetof(struct cw_device, pcie_replays)},	  {185, TYPE_UINT, offsetof(struct cw_device, power)},
	{186, TYPE_UINT, offsetof(struct cw_device, power_now)},	  {187, TYPE_UINT, offsetof(struct cw_device, power_min)},
	{188, TYPE_UINT, offsetof(struct cw_device, power_max)},	  {189, TYPE_UINT, offsetof(struct cw_device, power_default)},
	{190, TYPE_UINT, offsetof(struct cw_device, power_limit)},	  {192, TYPE_UINT, offsetof(struct cw_device, power_limit)},
	{193, TYPE_INT, offsetof(struct cw_device, threshold_margin[0])}, {194, TYPE_INT, offsetof(struct cw_device, threshold_margin[1])},
	{195, TYPE_INT, offsetof(struct cw_device, threshold_margin[2])}, {196, TYPE_INT, offsetof(struct cw_device, threshold_margin[3])},
};

static int link_field(unsigned device, struct nvmlFieldValue *f)
{
	unsigned count = 0, value = CW_UNKNOWN32;
	struct cw_view v;
	int res = cw_nvml_look(&v);

	if (res)
		return res;
	for (unsigned i = 0; i < v.head->link_count; i++) {
		const struct cw_link *l = &v.links[i];

		if (l->device != device)
			continue;
		count++;
		if (f->fieldId == LINK_SPEED_COMMON || l->link == f->scopeId)
			value = f->fieldId == LINK_STATE ? l->state : f->fieldId == LINK_VERSION ? l->link_version : l->speed;
	}
	cw_nvml_leave();
	f->valueType = TYPE_UINT;
	return cw_nvml_known(f->fieldId == LINK_COUNT ? count : value, &f->value.ui);
}

/* Power has scopes: the GPU's is 0, that of the module around it 1, that of memory 2. */
static int other_scope(const struct nvmlFieldValue *f) { return f->fieldId >= POWER_FIRST && f->fieldId <= POWER_LAST && f->scopeId != 0; }

static int field(const struct cw_device *d, unsigned index, struct nvmlFieldValue *f)
{
	switch (f->fieldId) {
	case LINK_COUNT:
	case LINK_SPEED_COMMON:
	case LINK_SPEED:
	case LINK_STATE:
	case LINK_VERSION: return link_field(index, f);
	case C2C_COUNT:
		f->valueType = TYPE_UINT;
		f->value.ui = 0;
		return NVML_SUCCESS;
	}
	if ((f->fieldId == POWER_NOW && f->scopeId == 1) || (f->fieldId == POWER_FIRST && f->scopeId == 2)) {
		f->valueType = TYPE_UINT;
		return cw_nvml_known(f->scopeId == 1 ? d->power_module : d->power_memory, &f->value.ui);
	}
	for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
		uint64_t u64;
		uint32_t u32;

		if (fields[i].id != f->fieldId || other_scope(f))
			continue;
		f->valueType = fields[i].type;
		if (fields[i].type != TYPE_ULL) {
			memcpy(&u32, (const char *)d + fields[i].at, sizeof u32);
			return cw_nvml_known(u32, &f->value.ui);
		}
		memcpy(&u64, (const char *)d + fields[i].at, sizeof u64);
		if (u64 == CW_UNKNOWN64)
			return NVML_NOT_SUPPORTED;
		f->value.ull = u64;
		return NVML_SUCCESS;
	}
	return NVML_NOT_SUPPORTED;
}

nvmlReturn_t cwi_nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
	struct cw_device d;
	struct timespec t;
	unsigned index;
	int res = values && count > 0 ? cw_nvml_device(device, &d, &index) : NVML_INVALID_ARGUMENT;

	if (res)
		return res;
	clock_gettime(CLOCK_REALTIME, &t);
	for (int i = 0; i < count; i++) {
		values[i].timestamp = t.tv_sec * 1000000ll + t.tv_nsec / 1000;
		values[i].latencyUsec = 0;
		values[i].nvmlReturn = field(&d, index, &values[i]);
	}
	return NVML_SUCCESS;
}
