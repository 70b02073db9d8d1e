/*
 * nvidia-smi for guests: what NVIDIA's program of that name shows of a GPU, from libnvidia-ml.so.1
 * by its public functions alone. Names, units and layout are those of NVIDIA's documentation, for
 * people and for programs that read them. Nothing is changed by it: options that would are refused.
 */
#include "commands.h"
#include "options.h"
#include "report.h"
#include "start.h"
#include "status.h"

#include <errno.h>
#include <string.h>
#include <time.h>

void smi_sleep_ms(unsigned ms)
{
	struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};

	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

/* Once what is asked for; turn counts from 0. */
static int show(const struct smi_options *o, unsigned sections, unsigned turn, FILE *out)
{
	struct smi_gpus gpus;
	int status = smi_choose(o->ids, &gpus);

	if (status)
		return status;
	if (o->action == SMI_CHANGE)
		return smi_ask_setting(o->setting, o->value, &gpus);
	if (o->action == SMI_QUERY)
		return smi_run_query(o->query, o->fields, &o->format, &gpus, turn == 0, out);
	if (o->action == SMI_SUMMARY)
		smi_table(&gpus, out);
	else if (o->xml)
		smi_report_xml(&gpus, out);
	else
		smi_report_text(&gpus, sections, out);
	return STATUS_OK;
}

static int excluded(FILE *out)
{
	unsigned count;
	int res = nvml.nvmlGetExcludedDeviceCount(&count);

	if (res)
		printf("Unable to determine the number of excluded GPUs: %s\n", nvml.nvmlErrorString(res));
	else
		fprintf(out, count ? "%u excluded devices found.\n" : "No excluded devices found.\n", count);
	return res ? STATUS_OTHER : STATUS_OK;
}

static int act(const struct smi_options *o, FILE *out)
{
	unsigned sections = o->sections ? smi_parse_sections(o->sections) : 0;
	int status = STATUS_OK;

	if (o->sections && !sections)
		return STATUS_INVALID;
	if (o->units) {
		printf("Units of S-class systems are not shown to guests.\n");
		return STATUS_UNSUPPORTED;
	}
	switch (o->action) {
	case SMI_LIST: return smi_list(out);
	case SMI_EXCLUDED: return excluded(out);
	case SMI_VERSIONS: return smi_versions(out);
	default: break;
	}
	for (unsigned turn = 0; !status; turn++) {
		status = show(o, sections, turn, out);
		if (!o->loop_ms || status || fflush(out))
			break;
		smi_sleep_ms(o->loop_ms);
	}
	return status;
}

static int run(const struct smi_options *o)
{
	FILE *out = o->file ? fopen(o->file, "we") : stdout;
	int status, bad;

	if (!out) {
		printf("Failed to create the log file %s\n\n", o->file);
		return STATUS_OTHER;
	}
	status = act(o, out);
	bad = fflush(out) || ferror(out);
	if (o->file && fclose(out))
		bad = 1;
	if (bad)
		fprintf(stderr, "nvidia-smi: cannot write %s: %s\n", o->file ? o->file : "stdout", strerror(errno));
	return status ? status : bad ? STATUS_OTHER : STATUS_OK;
}

static const struct {
	const char *name;
	int (*run)(int argc, char **argv);
} commands[] = {{"dmon", smi_dmon}, {"pmon", smi_pmon}, {"topo", smi_topo}};

/* Commands of NVIDIA's program that this one lacks, by name. */
static const char *const lacking[] = {"daemon",	      "replay", "drain", "nvlink",	   "c2c",	   "clocks",	 "encodersessions",
				      "fbcsessions",  "vgpu",	"mig",	 "compute-policy", "boost-slider", "power-hint", "base-clocks",
				      "conf-compute", "gpm",	"pci"};

static int command(int argc, char **argv)
{
	for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
		if (!strcmp(argv[1], commands[i].name)) {
			int status = smi_load();

			return status ? status : commands[i].run(argc - 1, argv + 1);
		}
	for (size_t i = 0; i < sizeof lacking / sizeof *lacking; i++)
		if (!strcmp(argv[1], lacking[i])) {
			printf("Command %s is not supported by this nvidia-smi, which is Causeway's.\n", argv[1]);
			return STATUS_UNSUPPORTED;
		}
	return -1;
}

int main(int argc, char **argv)
{
	struct smi_options o;
	int status = argc > 1 ? command(argc, argv) : -1;

	if (status < 0)
		status = smi_parse(argc, argv, &o);
	else
		return fflush(stdout) ? STATUS_OTHER : status;
	if (status)
		return status;
	if (o.action == SMI_HELP)
		return smi_help();
	if (o.action == SMI_HELP_QUERY)
		return smi_help_query(o.query);
	status = smi_load();
	return status ? status : run(&o);
}
