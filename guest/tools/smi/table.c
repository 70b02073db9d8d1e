/* The summary: one box of three lines for each device, and one line for each process. */
#include "commands.h"
#include "reportxml.h"
#include "status.h"

#include <stdlib.h>
#include <string.h>

static const char absent[] = "N/A";

enum { NAME = 27, PROCESS = 32 };

/* A value, or "N/A". */
static const char *value(nvmlDevice_t device, struct smi_source source, char text[SMI_TEXT])
{
	if (source.get(device, &source, text))
		strcpy(text, absent);
	return text;
}

/* A number with what follows it, right-aligned, or "N/A" and one space in its place. */
static void number(nvmlDevice_t device, struct smi_source source, int width, const char *suffix, const char *otherwise, FILE *out)
{
	char text[SMI_TEXT], whole[SMI_TEXT + 8];

	if (source.get(device, &source, text)) {
		fputs(otherwise, out);
		return;
	}
	text[strcspn(text, ".")] = 0; /* watts have decimals elsewhere */
	snprintf(whole, sizeof whole, "%s%s", text, suffix);
	fprintf(out, "%*s", width, whole);
}

static const char *persistence(nvmlDevice_t device)
{
	unsigned on;

	if (nvml.nvmlDeviceGetPersistenceMode(device, &on))
		return "   N/A  ";
	return on ? "    On  " : "    Off ";
}

static const char *display(nvmlDevice_t device)
{
	unsigned on;

	if (nvml.nvmlDeviceGetDisplayActive(device, &on))
		return absent;
	return on ? "On" : "Off";
}

/* Uncorrected errors since the driver started; Off without ECC. */
static const char *ecc(nvmlDevice_t device, char text[SMI_TEXT])
{
	unsigned on, pending;
	const struct smi_source count = V_ARG(smi_ecc, SMI_UNCORRECTED | SMI_VOLATILE, NULL);

	if (!nvml.nvmlDeviceGetEccMode(device, &on, &pending) && !on)
		return "Off";
	return value(device, count, text);
}

static const char *compute_mode(nvmlDevice_t device)
{
	static const char *const names[] = {"Default", "E. Thread", "Prohibited", "E. Process"};
	unsigned mode;

	return nvml.nvmlDeviceGetComputeMode(device, &mode) || mode >= sizeof names / sizeof *names ? absent : names[mode];
}

/* A star where the next reset changes it, to what it will be. */
static const char *mig(nvmlDevice_t device)
{
	unsigned now, pending;

	if (nvml.nvmlDeviceGetMigMode(device, &now, &pending))
		return absent;
	if (now != pending)
		return pending ? "Enabled*" : "Disabled*";
	return now ? "Enabled" : "Disabled";
}

/* A name in a width, with dots in place of what has no room: its end, or its beginning. */
static void fit(const char *text, int width, int keep_end, FILE *out)
{
	size_t len = strlen(text);

	if (len <= (size_t)width)
		fprintf(out, "%-*s", width, text);
	else if (keep_end)
		fprintf(out, "...%s", text + len - (size_t)width + 3);
	else
		fprintf(out, "%.*s...", width - 3, text);
}

static void gpu(const struct smi_gpu *g, FILE *out)
{
	const struct smi_source name = V_FN(smi_text, nvmlDeviceGetName, NULL), address = V_ARG(smi_pci, SMI_ADDRESS, NULL);
	char text[SMI_TEXT];

	fprintf(out, "|%4u  ", g->index);
	fit(value(g->device, name, text), NAME, 0, out);
	fprintf(out, "%s|   %-16s %3s ", persistence(g->device), value(g->device, address, text), display(g->device));
	fprintf(out, "|%21s |\n|", ecc(g->device, text));
	number(g->device, (struct smi_source)V_FN(smi_number, nvmlDeviceGetFanSpeed, NULL), 4, "%", " N/A", out);
	fputs("  ", out);
	number(g->device, (struct smi_source)V_TYPED(nvmlDeviceGetTemperature, 0, NULL), 4, "C", " N/A", out);
	number(g->device, (struct smi_source)V_ARG(smi_pstate, 0, NULL), 6, "", "  N/A ", out);
	number(g->device, (struct smi_source)V_FN(smi_watts, nvmlDeviceGetPowerUsage, NULL), 16, "W", "             N/A", out);
	fputs(" / ", out);
	number(g->device, (struct smi_source)V_FN(smi_watts, nvmlDeviceGetEnforcedPowerLimit, NULL), 5, "W", " N/A ", out);
	fputs(" |", out);
	number(g->device, (struct smi_source)V_ARG(smi_memory, SMI_USED, NULL), 11, "MiB", "        N/A", out);
	fputs(" / ", out);
	number(g->device, (struct smi_source)V_ARG(smi_memory, SMI_TOTAL, NULL), 9, "MiB", "     N/A ", out);
	fputs(" |", out);
	number(g->device, (struct smi_source)V_ARG(smi_use, SMI_GPU, NULL), 8, "%", "     N/A", out);
	fprintf(out, " %12s |\n", compute_mode(g->device));
	fprintf(out, "|%41s|%24s|%21s |\n", "", "", mig(g->device));
	fputs("+-----------------------------------------+------------------------+----------------------+\n", out);
}

static unsigned processes(const struct smi_gpu *g, FILE *out)
{
	unsigned count;
	struct smi_process *list = smi_processes(g->device, &count);

	for (unsigned i = 0; i < count; i++) {
		fprintf(out, "|%5u   N/A  N/A%16u%7c   ", g->index, list[i].pid, list[i].type);
		fit(list[i].name, PROCESS, 1, out);
		if (list[i].used == ~0ull)
			fprintf(out, "%14s |\n", absent);
		else
			fprintf(out, "%11lluMiB |\n", list[i].used >> 20);
	}
	free(list);
	return count;
}

static void head(FILE *out)
{
	char when[SMI_TEXT], driver[SMI_TEXT], own[SMI_TEXT], cuda[16];
	int version;

	smi_now(when);
	smi_version(own, sizeof own);
	if (nvml.nvmlSystemGetDriverVersion(driver, sizeof driver))
		strcpy(driver, absent);
	snprintf(cuda, sizeof cuda, "%s", absent);
	if (!nvml.nvmlSystemGetCudaDriverVersion_v2(&version))
		snprintf(cuda, sizeof cuda, "%d.%d", version / 1000, version % 1000 / 10);
	fprintf(out, "%s       \n", when);
	fputs("+-----------------------------------------------------------------------------------------+\n", out);
	fprintf(out, "| NVIDIA-SMI %-22.22s Driver Version: %-14.14s CUDA Version: %-8.8s |\n", own, driver, cuda);
	fputs("+-----------------------------------------+------------------------+----------------------+\n"
	      "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n"
	      "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |\n"
	      "|                                         |                        |               MIG M. |\n"
	      "|=========================================+========================+======================|\n",
	      out);
}

void smi_table(const struct smi_gpus *gpus, FILE *out)
{
	unsigned count = 0;

	head(out);
	for (unsigned i = 0; i < gpus->count; i++)
		gpu(&gpus->gpu[i], out);
	fputs("\n+-----------------------------------------------------------------------------------------+\n"
	      "| Processes:                                                                              |\n"
	      "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |\n"
	      "|        ID   ID                                                               Usage      |\n"
	      "|=========================================================================================|\n",
	      out);
	for (unsigned i = 0; i < gpus->count; i++)
		count += processes(&gpus->gpu[i], out);
	if (!count)
		fputs("|  No running processes found                                                             |\n", out);
	fputs("+-----------------------------------------------------------------------------------------+\n", out);
}

int smi_list(FILE *out)
{
	struct smi_gpus gpus;
	int status = smi_choose(NULL, &gpus);

	for (unsigned i = 0; i < gpus.count; i++) {
		char name[SMI_TEXT], uuid[SMI_TEXT];

		value(gpus.gpu[i].device, (struct smi_source)V_FN(smi_text, nvmlDeviceGetName, NULL), name);
		value(gpus.gpu[i].device, (struct smi_source)V_FN(smi_text, nvmlDeviceGetUUID, NULL), uuid);
		fprintf(out, "GPU %u: %s (UUID: %s)\n", gpus.gpu[i].index, name, uuid);
	}
	return status;
}

void smi_version(char *out, size_t cap)
{
	if (nvml.nvmlSystemGetDriverVersion(out, (unsigned)cap))
		snprintf(out, cap, "%s", absent);
	snprintf(out + strlen(out), cap - strlen(out), " (Causeway)");
}

/* "13.580.159.04" is shown as "580.159". */
static void nvml_version(char out[SMI_TEXT])
{
	char *dot, *second;

	if (nvml.nvmlSystemGetNVMLVersion(out, SMI_TEXT)) {
		strcpy(out, absent);
		return;
	}
	dot = strchr(out, '.');
	if (!dot)
		return;
	memmove(out, dot + 1, strlen(dot));
	second = strchr(out, '.');
	if (second)
		second[1 + strcspn(second + 1, ".")] = 0;
}

int smi_versions(FILE *out)
{
	char text[SMI_TEXT];
	int cuda;

	smi_version(text, sizeof text);
	fprintf(out, "NVIDIA-SMI version  : %s\n", text);
	nvml_version(text);
	fprintf(out, "NVML version        : %s\n", text);
	fprintf(out, "DRIVER version      : %s\n", nvml.nvmlSystemGetDriverVersion(text, sizeof text) ? absent : text);
	if (!nvml.nvmlSystemGetCudaDriverVersion_v2(&cuda))
		snprintf(text, sizeof text, "%d.%d", cuda / 1000, cuda % 1000 / 10);
	else
		strcpy(text, absent);
	fprintf(out, "CUDA Version        : %s\n", text);
	return STATUS_OK;
}
