/* Settings that can be read: what is so already is no change. */
#include "settings.h"
#include "status.h"
#include "value.h"

#include <string.h>

struct smi_setting {
	const char *option;
	const char *what, *is; /* of the sentences that NVIDIA's program says */
	size_t function;       /* tells the present value, and if pair is set another after it */
	int pair;
	const char *names[4]; /* as options have them; said are those of said */
	const char *said[4];
};

static const struct smi_setting settings[] = {
	{"--persistence-mode",
	 "persistence mode",
	 "Persistence mode is already",
	 FN(nvmlDeviceGetPersistenceMode),
	 0,
	 {"DISABLED", "ENABLED"},
	 {"Disabled", "Enabled"}},
	{"--ecc-config",
	 "ECC config",
	 "ECC support is already",
	 FN(nvmlDeviceGetEccMode),
	 1,
	 {"DISABLED", "ENABLED"},
	 {"Disabled", "Enabled"}},
	{"--compute-mode",
	 "the compute mode",
	 "Compute mode is already set to",
	 FN(nvmlDeviceGetComputeMode),
	 0,
	 {"DEFAULT", "EXCLUSIVE_THREAD", "PROHIBITED", "EXCLUSIVE_PROCESS"},
	 {"DEFAULT", "EXCLUSIVE_THREAD", "PROHIBITED", "EXCLUSIVE_PROCESS"}},
	{"--multi-instance-gpu",
	 "MIG Mode",
	 "MIG Mode is already",
	 FN(nvmlDeviceGetMigMode),
	 1,
	 {"DISABLED", "ENABLED"},
	 {"Disabled", "Enabled"}},
};

const struct smi_setting *smi_setting_of(const char *option)
{
	for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
		if (!strcmp(settings[i].option, option))
			return &settings[i];
	return NULL;
}

int smi_setting_value(const struct smi_setting *setting, const char *value)
{
	for (int i = 0; i < 4 && setting->names[i]; i++)
		if (!strcmp(setting->names[i], value) || (value[0] == '0' + i && !value[1]))
			return i;
	return -1;
}

static int present(const struct smi_setting *s, nvmlDevice_t device, unsigned *value)
{
	void *f = smi_function(s->function);
	unsigned pending;

	if (s->pair)
		return ((nvmlReturn_t(*)(nvmlDevice_t, unsigned *, unsigned *))f)(device, value, &pending);
	return ((nvmlReturn_t(*)(nvmlDevice_t, unsigned *))f)(device, value);
}

int smi_ask_setting(const struct smi_setting *setting, unsigned wanted, const struct smi_gpus *gpus)
{
	static const struct smi_source address = V_ARG(smi_pci, SMI_ADDRESS, NULL);
	int status = STATUS_OK;

	for (unsigned i = 0; i < gpus->count; i++) {
		char gpu[SMI_TEXT + 16];
		unsigned now;

		smi_format(gpus->gpu[i].device, &address, "N/A", 0, gpu, sizeof gpu);
		if (!present(setting, gpus->gpu[i].device, &now) && now == wanted) {
			printf("%s %s for GPU %s.\n", setting->is, setting->said[wanted], gpu);
			continue;
		}
		printf("Unable to set %s for GPU %s: a virtual GPU's settings are decided by the owner of the host.\n", setting->what, gpu);
		status = STATUS_UNSUPPORTED;
	}
	if (!status)
		printf("All done.\n");
	return status;
}
