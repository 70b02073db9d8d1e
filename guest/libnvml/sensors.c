/* Memory, use, clocks, power, temperature, errors: numbers that the host measured. Most of them
 * have generated entries. */
#include "device.h"
#include "gen/entries.h"
#include "structs.h"

#include <string.h>

static int memory(nvmlDevice_t device, struct cw_device *d)
{
	int res = cw_nvml_device(device, d, NULL);

	if (!res && (d->memory_total == CW_UNKNOWN64 || d->memory_used == CW_UNKNOWN64 || d->memory_free == CW_UNKNOWN64))
		res = NVML_NOT_SUPPORTED;
	if (!res && d->memory_reserved == CW_UNKNOWN64)
		d->memory_reserved = 0;
	return res;
}

nvmlReturn_t cwi_nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *m)
{
	struct cw_device d;
	int res = m ? memory(device, &d) : NVML_INVALID_ARGUMENT;

	if (!res)
		*m = (struct nvmlMemory){.total = d.memory_total, .free = d.memory_free, .used = d.memory_used + d.memory_reserved};
	return res;
}

nvmlReturn_t cwi_nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *m)
{
	struct cw_device d;
	int res;

	if (!m)
		return NVML_INVALID_ARGUMENT;
	if (m->version != CW_NVML_VERSION(struct nvmlMemory_v2, 2))
		return NVML_VERSION_MISMATCH;
	res = memory(device, &d);
	if (res)
		return res;
	m->total = d.memory_total;
	m->reserved = d.memory_reserved;
	m->free = d.memory_free;
	m->used = d.memory_used;
	return NVML_SUCCESS;
}

nvmlReturn_t cwi_nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *m)
{
	struct cw_device d;
	int res = m ? cw_nvml_device(device, &d, NULL) : NVML_INVALID_ARGUMENT;

	if (res)
		return res;
	if (d.bar1_total == CW_UNKNOWN64 || d.bar1_used == CW_UNKNOWN64 || d.bar1_used > d.bar1_total)
		return NVML_NOT_SUPPORTED;
	*m = (struct nvmlBAR1Memory){.bar1Total = d.bar1_total, .bar1Free = d.bar1_total - d.bar1_used, .bar1Used = d.bar1_used};
	return NVML_SUCCESS;
}

nvmlReturn_t cwi_nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *u)
{
	struct cw_device d;
	int res = u ? cw_nvml_device(device, &d, NULL) : NVML_INVALID_ARGUMENT;

	if (res)
		return res;
	if (d.use_gpu == CW_UNKNOWN32 || d.use_memory == CW_UNKNOWN32)
		return NVML_NOT_SUPPORTED;
	*u = (struct nvmlUtilization){.gpu = d.use_gpu, .memory = d.use_memory};
	return NVML_SUCCESS;
}

static int codec(uint32_t value, unsigned *utilization, unsigned *period)
{
	enum { PERIOD_US = 167000 }; /* that of real devices */
	int res = period ? cw_nvml_known(value, utilization) : NVML_INVALID_ARGUMENT;

	if (!res)
		*period = PERIOD_US;
	return res;
}

nvmlReturn_t cwi_nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned *utilization, unsigned *period)
{
	struct cw_device d;
	int res = cw_nvml_device(device, &d, NULL);

	return res ? res : codec(d.use_encoder, utilization, period);
}

nvmlReturn_t cwi_nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned *utilization, unsigned *period)
{
	struct cw_device d;
	int res = cw_nvml_device(device, &d, NULL);

	return res ? res : codec(d.use_decoder, utilization, period);
}

nvmlReturn_t cwi_nvmlDeviceGetJpgUtilization(nvmlDevice_t device, unsigned *utilization, unsigned *period)
{
	struct cw_device d;
	int res = cw_nvml_device(device, &d, NULL);

	return res ? res : codec(d.use_jpg, utilization, period);
}

nvmlReturn_t cwi_nvmlDeviceGetOfaUtilization(nvmlDevice_t device, unsigned *utilization, unsigned *period)
{
	struct cw_device d;
	int res = cw_nvml_device(device, &d, NULL);

	return res ? res : codec(d.use_ofa, utilization, period);
}

enum { CLOCKS = 4 };

static int one_clock(const uint32_t clocks[CLOCKS], nvmlClockType_t type, unsigned *clock)
{
	return type < CLOCKS ? cw_nvml_known(clocks[type], clock) : NVML_INVALID_ARGUMENT;
}

nvmlReturn_t cwi_nvmlDeviceGetApplicationsClock(nvmlDevice_t device, nvmlClockType_t type, unsigned *clock)
{
	struct cw_device d;
	int res = cw_nvml_device(device, &d, NULL);

	return res ? res : one_clock(d.clock_app, type, clock);
}

nvmlReturn_t cwi_nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, nvmlClockType_t type, unsigned *clock)
{
	struct cw_device d;
	int res = cw_nvml_device(device, &d, NULL);

	return res ? res : one_clock(d.clock_app_default, type, clock);
}

nvmlReturn_t cwi_nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t type, nvmlClockId_t id, unsigned *clock)
{
	enum { NOW, APPLICATION, APPLICATION_DEFAULT, CUSTOMER_BOOST };
	struct cw_device d;
	int res = cw_nvml_device(device, &d, NULL);

	if (res)
		return res;
	switch (id) {
	case NOW: return one_clock(d.clock, type, clock);
	case APPLICATION: return one_clock(d.clock_app, type, clock);
	case APPLICATION_DEFAULT: return one_clock(d.clock_app_default, type, clock);
	case CUSTOMER_BOOST: return NVML_NOT_SUPPORTED;
	}
	return NVML_INVALID_ARGUMENT;
}

nvmlReturn_t cwi_nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned *clock)
{
	struct cw_device d;
	int res = cw_nvml_device(device, &d, NULL);

	return res ? res : one_clock(d.clock, type, clock);
}

nvmlReturn_t cwi_nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned *clock)
{
	struct cw_device d;
	int res = cw_nvml_device(device, &d, NULL);

	return res ? res : one_clock(d.clock_max, type, clock);
}

nvmlReturn_t cwi_nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned *temperature)
{
	struct cw_device d;
	int res = cw_nvml_device(device, &d, NULL);

	if (res)
		return res;
	return sensor == 0 ? cw_nvml_known(d.temperature, temperature) : NVML_INVALID_ARGUMENT;
}

nvmlReturn_t cwi_nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature)
{
	unsigned value;
	int res;

	if (!temperature)
		return NVML_INVALID_ARGUMENT;
	if (temperature->version != CW_NVML_VERSION(struct nvmlTemperature, 1))
		return NVML_VERSION_MISMATCH;
	res = cwi_nvmlDeviceGetTemperature(device, temperature->sensorType, &value);
	if (!res)
		temperature->temperature = (int)value;
	return res;
}

nvmlReturn_t cwi_nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t *margin)
{
	struct cw_device d;
	int res;

	if (!margin)
		return NVML_INVALID_ARGUMENT;
	if (margin->version != CW_NVML_VERSION(struct nvmlMarginTemperature, 1))
		return NVML_VERSION_MISMATCH;
	res = cw_nvml_device(device, &d, NULL);
	if (res)
		return res;
	if (d.margin == CW_UNKNOWN32)
		return NVML_NOT_SUPPORTED;
	margin->marginTemperature = (int)d.margin;
	return NVML_SUCCESS;
}

nvmlReturn_t cwi_nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t type, unsigned *temperature)
{
	struct cw_device d;
	int res = cw_nvml_device(device, &d, NULL);

	if (res)
		return res;
	return type < sizeof d.threshold / sizeof *d.threshold ? cw_nvml_known(d.threshold[type], temperature) : NVML_NOT_SUPPORTED;
}

nvmlReturn_t cwi_nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *least, unsigned *most)
{
	struct cw_device d;
	int res = cw_nvml_device(device, &d, NULL);

	if (!res)
		res = cw_nvml_known(d.power_min, least);
	return res ? res : cw_nvml_known(d.power_max, most);
}

nvmlReturn_t cwi_nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current, nvmlEnableState_t *pending)
{
	struct cw_device d;
	int res = cw_nvml_device(device, &d, NULL);

	if (!res)
		res = cw_nvml_known(d.ecc_current, current);
	return res ? res : cw_nvml_known(d.ecc_pending, pending);
}

nvmlReturn_t cwi_nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter,
					     unsigned long long *count)
{
	static const size_t at[2][2] = {
		/* by type: corrected or not; by counter: since the driver started or ever */
		{offsetof(struct cw_device, ecc_corrected), offsetof(struct cw_device, ecc_corrected_total)},
		{offsetof(struct cw_device, ecc_uncorrected), offsetof(struct cw_device, ecc_uncorrected_total)},
	};

	return type < 2 && counter < 2 ? cw_nvml_u64(device, count, at[type][counter]) : NVML_INVALID_ARGUMENT;
}

nvmlReturn_t cwi_nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
					   unsigned *failed)
{
	struct cw_device d;
	int res = corrected && uncorrected && pending && failed ? cw_nvml_device(device, &d, NULL) : NVML_INVALID_ARGUMENT;

	if (!res)
		res = cw_nvml_known(d.remapped[0], corrected);
	if (res)
		return res;
	*uncorrected = d.remapped[1];
	*pending = d.remapped[2];
	*failed = d.remapped[3];
	return NVML_SUCCESS;
}

nvmlReturn_t cwi_nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
	struct cw_device d;
	int res = cw_nvml_device(device, &d, NULL);

	if (!res)
		res = cw_nvml_known(d.mig_current, current);
	return res ? res : cw_nvml_known(d.mig_pending, pending);
}

nvmlReturn_t cwi_nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, unsigned fan, unsigned *speed)
{
	struct cw_device d;
	int res = cw_nvml_device(device, &d, NULL);

	if (res)
		return res;
	if (d.fans != CW_UNKNOWN32 && d.fans && fan >= d.fans)
		return NVML_INVALID_ARGUMENT;
	return cw_nvml_known(d.fan, speed);
}

nvmlReturn_t cwi_nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter, unsigned *value)
{
	struct cw_device d;
	int res = cw_nvml_device(device, &d, NULL);

	if (res)
		return res;
	return counter < 2 ? cw_nvml_known(counter ? d.pcie_rx : d.pcie_tx, value) : NVML_INVALID_ARGUMENT;
}
