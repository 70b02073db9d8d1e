/* Values by the shape of the NVML function that tells them. */
#include "value.h"

#include <string.h>

enum { MILLI = 1000 };

static int put(int res, char out[SMI_TEXT], const char *format, unsigned value)
{
	if (!res)
		snprintf(out, SMI_TEXT, format, value);
	return res;
}

static int put_watts(int res, char out[SMI_TEXT], unsigned milliwatts)
{
	if (!res)
		snprintf(out, SMI_TEXT, "%.2f", milliwatts / (double)MILLI);
	return res;
}

static int put_word(int res, char out[SMI_TEXT], const char *word)
{
	if (!res)
		strcpy(out, word);
	return res;
}

static const char *enabled(unsigned value) { return value ? "Enabled" : "Disabled"; }

static int ask(nvmlDevice_t device, const struct smi_source *source, unsigned *value)
{
	nvmlReturn_t (*f)(nvmlDevice_t, unsigned *) = (nvmlReturn_t(*)(nvmlDevice_t, unsigned *))smi_function(source->function);

	return f(device, value);
}

int smi_text(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	nvmlReturn_t (*f)(nvmlDevice_t, char *, unsigned) = (nvmlReturn_t(*)(nvmlDevice_t, char *, unsigned))smi_function(source->function);

	return f(device, out, SMI_TEXT);
}

int smi_number(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	unsigned value = 0;
	int res = ask(device, source, &value);

	return put(res, out, "%u", value);
}

int smi_hex(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	unsigned value = 0;
	int res = ask(device, source, &value);

	return put(res, out, "0x%x", value);
}

int smi_width(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	unsigned value = 0;
	int res = ask(device, source, &value);

	return put(res, out, "%ux", value);
}

int smi_enabled(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	unsigned value = 0;
	int res = ask(device, source, &value);

	return put_word(res, out, enabled(value));
}

int smi_yes(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	unsigned value = 0;
	int res = ask(device, source, &value);

	return put_word(res, out, value ? "Yes" : "No");
}

int smi_watts(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	unsigned value = 0;
	int res = ask(device, source, &value);

	return put_watts(res, out, value);
}

int smi_typed(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	nvmlReturn_t (*f)(nvmlDevice_t, unsigned, unsigned *) =
		(nvmlReturn_t(*)(nvmlDevice_t, unsigned, unsigned *))smi_function(source->function);
	unsigned value = 0;
	int res = f(device, source->arg, &value);

	return put(res, out, "%u", value);
}

static int ask_pair(nvmlDevice_t device, const struct smi_source *source, unsigned *value)
{
	nvmlReturn_t (*f)(nvmlDevice_t, unsigned *, unsigned *) =
		(nvmlReturn_t(*)(nvmlDevice_t, unsigned *, unsigned *))smi_function(source->function);
	unsigned pair[2] = {0, 0};
	int res = f(device, &pair[0], &pair[1]);

	*value = pair[source->arg];
	return res;
}

int smi_engine(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	unsigned value;
	int res = ask_pair(device, source, &value);

	return put(res, out, "%u", value);
}

int smi_mode(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	unsigned value;
	int res = ask_pair(device, source, &value);

	return put_word(res, out, enabled(value));
}

int smi_limit(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	unsigned value;
	int res = ask_pair(device, source, &value);

	return put_watts(res, out, value);
}

int smi_third(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	nvmlReturn_t (*f)(nvmlDevice_t, unsigned *, unsigned *, unsigned *) =
		(nvmlReturn_t(*)(nvmlDevice_t, unsigned *, unsigned *, unsigned *))smi_function(source->function);
	unsigned three[3] = {0, 0, 0};
	int res = f(device, &three[0], &three[1], &three[2]);

	return put(res, out, "%u", three[source->arg]);
}

static int ask_field(nvmlDevice_t device, unsigned which, unsigned *value)
{
	struct nvmlFieldValue f = {.fieldId = which & 0xffff, .scopeId = which >> 16};
	int res = nvml.nvmlDeviceGetFieldValues(device, 1, &f);

	*value = f.value.ui;
	return res ? res : f.nvmlReturn;
}

int smi_field(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	unsigned value;
	int res = ask_field(device, source->arg, &value);

	return put(res, out, "%d", value);
}

int smi_field_watts(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	unsigned value;
	int res = ask_field(device, source->arg, &value);

	return put_watts(res, out, value);
}

int smi_constant(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	(void)device;
	strcpy(out, source->unit);
	return NVML_SUCCESS;
}

int smi_deprecated(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	(void)device, (void)source, (void)out;
	return NVML_DEPRECATED;
}

int smi_unsupported(nvmlDevice_t device, const struct smi_source *source, char out[SMI_TEXT])
{
	(void)device, (void)source, (void)out;
	return NVML_NOT_SUPPORTED;
}

int smi_format(nvmlDevice_t device, const struct smi_source *source, const char *absent, int units, char *out, size_t cap)
{
	char text[SMI_TEXT];
	int res = source->get(device, source, text);
	int bracket = *absent == '[';

	if (res == NVML_NOT_SUPPORTED)
		snprintf(out, cap, "%s", absent);
	else if (res)
		snprintf(out, cap, "%s%s%s", bracket ? "[" : "", nvml.nvmlErrorString(res), bracket ? "]" : "");
	else if (units && source->unit && source->get != smi_constant)
		snprintf(out, cap, "%s %s", text, source->unit);
	else
		snprintf(out, cap, "%s", text);
	return res;
}

void smi_show(nvmlDevice_t device, const struct smi_source *source, const char *absent, int units, FILE *out)
{
	char text[SMI_TEXT + 16];

	smi_format(device, source, absent, units, text, sizeof text);
	fputs(text, out);
}
