/* dmon and pmon: one line for each device or process, again and again. */
#include "commands.h"
#include "status.h"
#include "value.h"
#include "words.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { COLUMNS = 32, DMON_DELAY = 600, PMON_DELAY = 10, MS = 1000, MEGA = 1000 };

/* A column: which metric of -s it belongs to, its heading, its unit, its value. */
struct metric {
	char group;
	const char *name, *unit;
	struct smi_source source;
	unsigned divisor; /* of whole numbers: 0 is 1 */
};

static const struct metric device_metrics[] = {
	{'p', "pwr", "W", V_FN(smi_watts, nvmlDeviceGetPowerUsage, NULL), 0},
	{'p', "gtemp", "C", V_TYPED(nvmlDeviceGetTemperature, 0, NULL), 0},
	{'p', "mtemp", "C", V_ARG(smi_field, SMI_FIELD(82, 0), NULL), 0},
	{'u', "sm", "%", V_ARG(smi_use, SMI_GPU, NULL), 0},
	{'u', "mem", "%", V_ARG(smi_use, SMI_MEMORY, NULL), 0},
	{'u', "enc", "%", V_FN(smi_engine, nvmlDeviceGetEncoderUtilization, NULL), 0},
	{'u', "dec", "%", V_FN(smi_engine, nvmlDeviceGetDecoderUtilization, NULL), 0},
	{'u', "jpg", "%", V_FN(smi_engine, nvmlDeviceGetJpgUtilization, NULL), 0},
	{'u', "ofa", "%", V_FN(smi_engine, nvmlDeviceGetOfaUtilization, NULL), 0},
	{'c', "mclk", "MHz", V_TYPED(nvmlDeviceGetClockInfo, SMI_MEMORY_CLOCK, NULL), 0},
	{'c', "pclk", "MHz", V_TYPED(nvmlDeviceGetClockInfo, SMI_SM_CLOCK, NULL), 0},
	{'v', "pviol", "%", V_NONE, 0},
	{'v', "tviol", "bool", V_NONE, 0},
	{'m', "fb", "MB", V_ARG(smi_memory, SMI_USED, NULL), 0},
	{'m', "bar1", "MB", V_ARG(smi_bar1, SMI_USED, NULL), 0},
	{'m', "ccpm", "MB", V_NONE, 0},
	{'e', "sbecc", "errs", V_ARG(smi_ecc, SMI_CORRECTED | SMI_VOLATILE, NULL), 0},
	{'e', "dbecc", "errs", V_ARG(smi_ecc, SMI_UNCORRECTED | SMI_VOLATILE, NULL), 0},
	{'e', "pci", "errs", V_FN(smi_number, nvmlDeviceGetPcieReplayCounter, NULL), 0},
	{'t', "rxpci", "MB/s", V_TYPED(nvmlDeviceGetPcieThroughput, 1, NULL), MEGA},
	{'t', "txpci", "MB/s", V_TYPED(nvmlDeviceGetPcieThroughput, 0, NULL), MEGA},
};

/* What a process does of the device is not told by process; what it holds is. Of protected memory
 * it holds none: a vGPU has none. */
static const struct metric process_metrics[] = {
	{'u', "sm", "%", V_NONE, 0},
	{'u', "mem", "%", V_NONE, 0},
	{'u', "enc", "%", V_NONE, 0},
	{'u', "dec", "%", V_NONE, 0},
	{'u', "jpg", "%", V_NONE, 0},
	{'u', "ofa", "%", V_NONE, 0},
	{'m', "fb", "MB", {NULL, 0, 0, NULL}, 0},
	{'m', "ccpm", "MB", {smi_constant, 0, 0, "0"}, 0},
};

struct monitor {
	const char *name;
	const struct metric *metrics;
	size_t metric_count;
	const char *chosen, *ids, *options;
	unsigned delay, most_delay, count; /* count 0: for ever */
	int csv, noheader, nounit, processes;
	FILE *out;
};

static int usage(const struct monitor *m, int status)
{
	printf("\n    Usage: nvidia-smi %s [options]\n\n    Options include:\n", m->name);
	printf("    [-i | --id]:          Comma separated index, PCI bus ID or UUID\n"
	       "    [-d | --delay]:       Seconds between samples [default=1sec, max=%usecs]\n"
	       "    [-c | --count]:       Number of samples\n"
	       "    [-s | --select]:      One or more metrics [default=%s]:\n",
	       m->most_delay, m->processes ? "u" : "puc");
	fputs(m->processes ? "                              u - Utilization\n"
			     "                              m - Memory\n"
			   : "                              p - Power and temperature\n"
			     "                              u - Utilization\n"
			     "                              c - Clocks\n"
			     "                              v - Power and thermal violations\n"
			     "                              m - Memory and BAR1\n"
			     "                              e - ECC errors and PCIe replays\n"
			     "                              t - PCIe throughput\n",
	      stdout);
	printf("    [-o | --options]:     D - with the date, T - with the time\n"
	       "    [-f | --filename]:    Write to a file, rather than to stdout\n"
	       "    [-h | --help]:        This text\n");
	if (!m->processes)
		printf("    [N/A | --format]:     csv, nounit, noheader, separated by commas\n");
	return status;
}

static int has(const char *set, char c) { return strchr(set, c) != NULL; }

static void stamp(const struct monitor *m, FILE *out)
{
	time_t now = time(NULL);
	char text[32];
	struct tm tm;

	localtime_r(&now, &tm);
	strftime(text, sizeof text, "%Y%m%d", &tm);
	if (has(m->options, 'D'))
		fprintf(out, m->csv ? "%s, " : "%-8s    ", text);
	strftime(text, sizeof text, "%H:%M:%S", &tm);
	if (has(m->options, 'T'))
		fprintf(out, m->csv ? "%s, " : "%-8s    ", text);
}

static int shown(const struct monitor *m, size_t i) { return has(m->chosen, m->metrics[i].group); }

/* One of the two heading lines: names or units. */
static void heading(const struct monitor *m, int units)
{
	fputc('#', m->out);
	if (has(m->options, 'D'))
		fprintf(m->out, m->csv ? "%s, " : "%-8s    ", units ? "YYYYMMDD" : "Date");
	if (has(m->options, 'T'))
		fprintf(m->out, m->csv ? "%s, " : "%-8s    ", units ? "HH:MM:SS" : "Time");
	fprintf(m->out, m->csv ? "%s" : "%4s", units ? "Idx" : "gpu");
	if (m->processes)
		fprintf(m->out, "%12s%7s", units ? "#" : "pid", units ? "C/G" : "type");
	for (size_t i = 0; i < m->metric_count; i++)
		if (shown(m, i))
			fprintf(m->out, m->csv ? ", %s" : "%7s", units ? m->metrics[i].unit : m->metrics[i].name);
	fputs(m->processes ? (units ? "    name " : "    command ") : m->csv ? "" : " ", m->out);
	fputc('\n', m->out);
}

static void number(const struct monitor *m, const struct metric *metric, nvmlDevice_t device)
{
	char text[SMI_TEXT];

	if (metric->source.get(device, &metric->source, text))
		strcpy(text, "-");
	text[strcspn(text, ".")] = 0;
	if (metric->divisor && *text != '-') {
		unsigned value = 0;

		smi_decimal(text, ~0u, &value);
		snprintf(text, sizeof text, "%u", value / metric->divisor);
	}
	fprintf(m->out, m->csv ? ", %s" : "%7s", text);
}

static void begin(const struct monitor *m, unsigned index)
{
	fputc(' ', m->out);
	stamp(m, m->out);
	fprintf(m->out, m->csv ? "%u" : "%4u", index);
}

static void device_line(const struct monitor *m, const struct smi_gpu *g)
{
	begin(m, g->index);
	for (size_t i = 0; i < m->metric_count; i++)
		if (shown(m, i))
			number(m, &m->metrics[i], g->device);
	fputs(m->csv ? "\n" : " \n", m->out);
}

/* The program's name without its folder and arguments. */
static const char *base(char *name)
{
	char *slash = strrchr(name, '/');

	return slash ? slash + 1 : name;
}

static void process_line(const struct monitor *m, const struct smi_gpu *g, struct smi_process *p)
{
	char pid[16] = "-", type[2] = "-";

	if (p) {
		snprintf(pid, sizeof pid, "%u", p->pid);
		type[0] = p->type;
	}
	begin(m, g->index);
	fprintf(m->out, "%11s%6s", pid, type);
	for (size_t i = 0; i < m->metric_count; i++) {
		const struct smi_source *source = &m->metrics[i].source;

		if (!shown(m, i))
			continue;
		if (p && !source->get && p->used != ~0ull)
			fprintf(m->out, "%7llu", p->used >> 20);
		else
			fprintf(m->out, "%7s", p && source->get == smi_constant ? source->unit : "-");
	}
	fprintf(m->out, "    %-15.15s\n", p ? base(p->name) : "-");
}

static void sample(const struct monitor *m, const struct smi_gpus *gpus)
{
	for (unsigned i = 0; i < gpus->count; i++) {
		unsigned count;
		struct smi_process *list;

		if (!m->processes) {
			device_line(m, &gpus->gpu[i]);
			continue;
		}
		list = smi_processes(gpus->gpu[i].device, &count);
		for (unsigned k = 0; k < count; k++)
			process_line(m, &gpus->gpu[i], &list[k]);
		if (!count)
			process_line(m, &gpus->gpu[i], NULL);
		free(list);
	}
}

static int run(struct monitor *m, const char *file)
{
	struct smi_gpus gpus;
	int status = smi_choose(m->ids, &gpus), bad;

	if (status)
		return status;
	m->out = file ? fopen(file, "we") : stdout;
	if (!m->out) {
		printf("Failed to create the log file %s\n\n", file);
		return STATUS_OTHER;
	}
	for (unsigned n = 0; !m->count || n < m->count; n++) {
		if (n)
			smi_sleep_ms(m->delay * MS);
		if (n == 0 && !m->noheader)
			heading(m, 0);
		if (n == 0 && !m->nounit)
			heading(m, 1);
		sample(m, &gpus);
		if (fflush(m->out))
			break;
	}
	bad = ferror(m->out);
	if (file && fclose(m->out))
		bad = 1;
	return bad ? STATUS_OTHER : STATUS_OK;
}

static int bad_value(const struct monitor *m, const char *what)
{
	printf("%s\n", what);
	return usage(m, STATUS_INVALID);
}

/* --format of dmon. */
static int format(struct monitor *m, const char *text)
{
	static const char *const names[] = {"csv", "nounit", "noheader"};
	unsigned flags;

	if (!smi_flags(text, names, sizeof names / sizeof *names, &flags))
		return 0;
	m->csv = flags & 1;
	m->nounit = flags & 2;
	m->noheader = flags & 4;
	return 1;
}

static int chosen(const struct monitor *m)
{
	for (const char *p = m->chosen; *p; p++) {
		size_t i = 0;

		while (i < m->metric_count && m->metrics[i].group != *p)
			i++;
		if (i == m->metric_count)
			return 0;
	}
	return *m->chosen != 0;
}

/* One option with its value. -1: go on, else an exit status. */
static int option(struct monitor *m, const char *name, const char *value, const char **file)
{
	static const char *const names[][2] = {{"-i", "--id"},	    {"-d", "--delay"},	  {"-c", "--count"},	   {"-s", "--select"},
					       {"-o", "--options"}, {"-f", "--filename"}, {"--format", "--format"}};
	char text[96];
	size_t i = 0;

	while (i < sizeof names / sizeof *names && strcmp(name, names[i][0]) && strcmp(name, names[i][1]))
		i++;
	if (i == sizeof names / sizeof *names || (i == 6 && m->processes)) {
		printf("Option \"%s\" is not recognized.\n", name);
		return usage(m, STATUS_INVALID);
	}
	if (!value) {
		printf("Option \"%s\" is missing its value.\n", name);
		return usage(m, STATUS_INVALID);
	}
	switch (i) {
	case 0: m->ids = value; break;
	case 1:
		if (!smi_decimal(value, m->most_delay, &m->delay) || !m->delay) {
			snprintf(text, sizeof text, "Collection delay/interval should be between 1 second and %u seconds", m->most_delay);
			return bad_value(m, text);
		}
		break;
	case 2:
		if (!smi_decimal(value, ~0u, &m->count) || !m->count)
			return bad_value(m, "Invalid value for number of samples to be displayed");
		break;
	case 3:
		m->chosen = value;
		if (!chosen(m)) {
			printf("Failed to find any metric to display\nFailed to process command line \n\n");
			return STATUS_INVALID;
		}
		break;
	case 4:
		m->options = value;
		if (strspn(value, "DT") != strlen(value))
			return bad_value(m, "Invalid value for options: D and T are valid");
		break;
	case 5: *file = value; break;
	case 6:
		if (!format(m, value))
			return bad_value(m, "Invalid value for format: csv, nounit and noheader are valid");
	}
	return -1;
}

static int monitor(struct monitor *m, int argc, char **argv)
{
	const char *file = NULL;

	for (int i = 1; i < argc; i++) {
		int status;

		if (!strcmp(argv[i], "-h") || !strcmp(argv[i], "--help"))
			return usage(m, STATUS_OK);
		status = option(m, argv[i], i + 1 < argc ? argv[i + 1] : NULL, &file);
		if (status >= 0)
			return status;
		i++;
	}
	return run(m, file);
}

int smi_dmon(int argc, char **argv)
{
	struct monitor m = {.name = "dmon",
			    .metrics = device_metrics,
			    .metric_count = sizeof device_metrics / sizeof *device_metrics,
			    .chosen = "puc",
			    .options = "",
			    .delay = 1,
			    .most_delay = DMON_DELAY};

	return monitor(&m, argc, argv);
}

int smi_pmon(int argc, char **argv)
{
	struct monitor m = {.name = "pmon",
			    .metrics = process_metrics,
			    .metric_count = sizeof process_metrics / sizeof *process_metrics,
			    .chosen = "u",
			    .options = "",
			    .delay = 1,
			    .most_delay = PMON_DELAY,
			    .processes = 1};

	return monitor(&m, argc, argv);
}
