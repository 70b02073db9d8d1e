/* Reports: how rows are laid out as text, which -d chooses. */
#include "report.h"
#include "reportxml.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum { LABEL = 55, PROCESS_LABEL = 42, STEP = 4 };

static const char absent[] = "N/A";

unsigned smi_parse_sections(const char *text)
{
	static const struct {
		const char *name;
		unsigned section;
	} names[] = {
		{"MEMORY", SEC_MEMORY},
		{"UTILIZATION", SEC_UTILIZATION},
		{"ECC", SEC_ECC},
		{"TEMPERATURE", SEC_TEMPERATURE},
		{"POWER", SEC_POWER},
		{"CLOCK", SEC_CLOCK},
		{"COMPUTE", SEC_COMPUTE},
		{"PIDS", SEC_PIDS},
		{"PERFORMANCE", SEC_PERFORMANCE},
		{"SUPPORTED_CLOCKS", SEC_SUPPORTED_CLOCKS},
		{"PAGE_RETIREMENT", SEC_PAGE_RETIREMENT},
		{"ACCOUNTING", SEC_ACCOUNTING},
		{"ENCODER_STATS", SEC_ENCODER_STATS},
		{"SUPPORTED_GPU_TARGET_TEMP", SEC_TARGET_TEMP},
		{"VOLTAGE", SEC_VOLTAGE},
		{"FBC_STATS", SEC_FBC_STATS},
		{"ROW_REMAPPER", SEC_ROW_REMAPPER},
		{"RESET_STATUS", SEC_RESET_STATUS},
		{"GSP_FIRMWARE_VERSION", SEC_GSP},
	};
	unsigned found = 0;

	for (;;) {
		size_t len = strcspn(text, ","), i = 0;

		while (i < sizeof names / sizeof *names && (strlen(names[i].name) != len || strncasecmp(names[i].name, text, len)))
			i++;
		if (i == sizeof names / sizeof *names) {
			printf("Failed to parse --display/-d flags\n");
			return 0;
		}
		found |= names[i].section;
		if (!text[len])
			return found;
		text += len + 1;
	}
}

int smi_row_below(const struct smi_row *row) { return row[1].depth > row->depth; }

const struct smi_row *smi_row_next(const struct smi_row *row)
{
	int depth = row->depth;

	for (row++; row->depth > depth; row++)
		;
	return row;
}

int smi_row_hidden(const struct smi_row *row, nvmlDevice_t device)
{
	const struct smi_row *asked = row->sections & ROW_OTHERWISE ? row - 1 : row;
	char text[SMI_TEXT];

	if (!(asked->sections & ROW_IF_TOLD))
		return 0;
	return !asked->source.get(device, &asked->source, text) == (asked != row);
}

static void label_in(int width, int depth, const char *text, FILE *out)
{
	fprintf(out, "%*s%-*s: ", depth * STEP, "", width - depth * STEP, text);
}

static void label(int depth, const char *text, FILE *out) { label_in(LABEL, depth, text, out); }

/* Labels of processes are narrower in NVIDIA's reports. */
static void process_label(int depth, const char *text, FILE *out) { label_in(PROCESS_LABEL, depth, text, out); }

static void heading(int depth, const char *text, FILE *out) { fprintf(out, "%*s%s\n", depth * STEP, "", text); }

static void processes(nvmlDevice_t device, FILE *out)
{
	unsigned count;
	struct smi_process *list = smi_processes(device, &count);

	if (!count) {
		label(1, "Processes", out);
		fputs("None\n", out);
		return;
	}
	heading(1, "Processes", out);
	for (unsigned i = 0; i < count; i++) {
		process_label(2, "GPU instance ID", out), fprintf(out, "%s\n", absent);
		process_label(2, "Compute instance ID", out), fprintf(out, "%s\n", absent);
		process_label(2, "Process ID", out), fprintf(out, "%u\n", list[i].pid);
		process_label(3, "Type", out), fprintf(out, "%c\n", list[i].type);
		process_label(3, "Name", out), fprintf(out, "%s\n", list[i].name);
		process_label(3, "Used GPU Memory", out);
		if (list[i].used == ~0ull)
			fprintf(out, "%s\n", absent);
		else
			fprintf(out, "%llu MiB\n", list[i].used >> 20);
	}
	free(list);
}

/* Is the row asked for? A row's sections hold for those below. */
static int wanted(const struct smi_row *row, unsigned sections)
{
	return sections ? (row->sections & sections) != 0 : !(row->sections & SEC_ONLY);
}

/* Prints a row and those below; the result is the row after them. */
static const struct smi_row *text_row(const struct smi_row *row, nvmlDevice_t device, FILE *out)
{
	const struct smi_row *end = smi_row_next(row);
	char text[SMI_TEXT + 16];
	int res = 0;

	if (!row->label)
		return end;
	if (row->source.get)
		res = smi_format(device, &row->source, absent, 1, text, sizeof text);
	if (!smi_row_below(row) || res) {
		label(row->depth, row->label, out);
		fprintf(out, "%s\n", text);
		return end;
	}
	heading(row->depth, row->label, out);
	for (const struct smi_row *r = row + 1; r < end;)
		r = smi_row_hidden(r, device) ? smi_row_next(r) : text_row(r, device, out);
	return end;
}

static void head(const struct smi_gpus *gpus, FILE *out)
{
	char text[SMI_TEXT], when[SMI_TEXT];
	int cuda = 0;

	smi_now(when);
	if (nvml.nvmlSystemGetDriverVersion(text, sizeof text))
		strcpy(text, absent);
	fputs("\n==============NVSMI LOG==============\n\n", out);
	label(0, "Timestamp", out), fprintf(out, "%s\n", when);
	label(0, "Driver Version", out), fprintf(out, "%s\n", text);
	label(0, "CUDA Version", out);
	if (nvml.nvmlSystemGetCudaDriverVersion_v2(&cuda))
		fprintf(out, "%s\n\n", absent);
	else
		fprintf(out, "%d.%d\n\n", cuda / 1000, cuda % 1000 / 10);
	label(0, "Attached GPUs", out), fprintf(out, "%u\n", gpus->all);
}

void smi_report_text(const struct smi_gpus *gpus, unsigned sections, FILE *out)
{
	static const struct smi_source address = V_ARG(smi_pci, SMI_ADDRESS, NULL);

	head(gpus, out);
	for (unsigned i = 0; i < gpus->count; i++) {
		nvmlDevice_t device = gpus->gpu[i].device;

		fputs("GPU ", out);
		smi_show(device, &address, absent, 0, out);
		fputc('\n', out);
		for (const struct smi_row *r = smi_rows; r->depth;)
			r = wanted(r, sections) ? text_row(r, device, out) : smi_row_next(r);
		if (!sections || sections & SEC_PIDS)
			processes(device, out);
		if (sections & SEC_ACCOUNTING)
			label(1, "Accounted Processes", out), fprintf(out, "%s\n", absent);
		if (!sections) {
			heading(1, "Capabilities", out);
			label(2, "EGM", out), fprintf(out, "%s\n", absent);
		}
		fputc('\n', out);
	}
}

void smi_now(char out[SMI_TEXT])
{
	time_t now = time(NULL);
	struct tm tm;

	localtime_r(&now, &tm);
	strftime(out, SMI_TEXT, "%a %b %e %H:%M:%S %Y", &tm);
}
