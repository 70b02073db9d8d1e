/*
 * Reads the command line. Options that change a GPU are known, so that they are refused with the
 * reason: what a GPU is set to is decided by the owner of the host. Those whose present value can
 * be read are left to settings.c.
 */
#include "options.h"
#include "status.h"
#include "words.h"

#include <stdio.h>
#include <string.h>

enum kind {
	FLAG_LIST,
	FLAG_EXCLUDED,
	FLAG_QUERY,
	FLAG_UNIT,
	FLAG_XML,
	FLAG_HELP,
	FLAG_VERSION,
	VALUE_ID,
	VALUE_FILE,
	VALUE_DISPLAY,
	VALUE_FORMAT,
	LOOP,
	LOOP_MS,
	SELECT,
	HELP_SELECT,
	CHANGE,
	CHANGE_FLAG,
	REFUSED,
};

struct option {
	const char *shortly, *name;
	enum kind kind;
};

static const struct option options[] = {
	{"-h", "--help", FLAG_HELP},
	{NULL, "--version", FLAG_VERSION},
	{"-L", "--list-gpus", FLAG_LIST},
	{"-B", "--list-excluded-gpus", FLAG_EXCLUDED},
	{"-q", "--query", FLAG_QUERY},
	{"-a", "--query", FLAG_QUERY}, /* its name of old, which NVIDIA's still takes */
	{"-u", "--unit", FLAG_UNIT},
	{"-x", "--xml-format", FLAG_XML},
	{"-i", "--id", VALUE_ID},
	{"-f", "--filename", VALUE_FILE},
	{"-d", "--display", VALUE_DISPLAY},
	{NULL, "--format", VALUE_FORMAT},
	{"-l", "--loop", LOOP},
	{"-lms", "--loop-ms", LOOP_MS},
	{NULL, "--query-gpu", SELECT},
	{NULL, "--query-compute-apps", SELECT},
	{NULL, "--query-accounted-apps", SELECT},
	{NULL, "--query-remapped-rows", SELECT},
	{NULL, "--query-retired-pages", SELECT},
	{NULL, "--query-supported-clocks", SELECT},
	{NULL, "--help-query-gpu", HELP_SELECT},
	{NULL, "--help-query-compute-apps", HELP_SELECT},
	{NULL, "--help-query-accounted-apps", HELP_SELECT},
	{NULL, "--help-query-remapped-rows", HELP_SELECT},
	{NULL, "--help-query-retired-pages", HELP_SELECT},
	{NULL, "--help-query-supported-clocks", HELP_SELECT},
	{"-pm", "--persistence-mode", CHANGE},
	{"-e", "--ecc-config", CHANGE},
	{"-p", "--reset-ecc-errors", CHANGE},
	{"-c", "--compute-mode", CHANGE},
	{NULL, "--gom", CHANGE},
	{"-r", "--gpu-reset", CHANGE_FLAG},
	{"-vm", "--virt-mode", CHANGE},
	{"-lgc", "--lock-gpu-clocks", CHANGE},
	{"-m", "--mode", CHANGE},
	{"-rgc", "--reset-gpu-clocks", CHANGE_FLAG},
	{"-lmc", "--lock-memory-clocks", CHANGE},
	{"-rmc", "--reset-memory-clocks", CHANGE_FLAG},
	{"-lmcd", "--lock-memory-clocks-deferred", CHANGE},
	{"-rmcd", "--reset-memory-clocks-deferred", CHANGE_FLAG},
	{"-ac", "--applications-clocks", CHANGE},
	{"-rac", "--reset-applications-clocks", CHANGE_FLAG},
	{"-pl", "--power-limit", CHANGE},
	{"-sc", "--scope", CHANGE},
	{"-cc", "--cuda-clocks", CHANGE},
	{"-am", "--accounting-mode", CHANGE},
	{"-caa", "--clear-accounted-apps", CHANGE_FLAG},
	{NULL, "--auto-boost-default", CHANGE},
	{NULL, "--auto-boost-permission", CHANGE},
	{"-mig", "--multi-instance-gpu", CHANGE},
	{"-gtt", "--gpu-target-temp", CHANGE},
	{"-t", "--toggle-led", CHANGE},
	{"-eow", "--error-on-warning", CHANGE_FLAG},
	{NULL, "--dtd", REFUSED},
	{NULL, "--debug", REFUSED},
};

static int unknown(const char *arg)
{
	printf("ERROR: Option %s is not recognized. Please run 'nvidia-smi -h'.\n\n", arg);
	return STATUS_INVALID;
}

static int misplaced(const char *arg)
{
	printf("ERROR: Option %s is not valid for this command. Please run 'nvidia-smi -h' for help.\n\n", arg);
	return STATUS_INVALID;
}

static int refuse(const char *arg)
{
	printf("Option %s is refused: this is a virtual GPU, and what its GPU is set to is decided by the owner of the host.\n", arg);
	return STATUS_UNSUPPORTED;
}

/* Another action than one that was named before is one too many. */
static int act(struct smi_options *out, enum smi_action action, const char *arg)
{
	if (out->action != SMI_SUMMARY && out->action != action)
		return misplaced(arg);
	out->action = action;
	return STATUS_OK;
}

/* An option that changes a GPU. */
static int change(struct smi_options *out, const struct option *o, const char *arg, const char *value)
{
	const struct smi_setting *setting = smi_setting_of(o->name);
	int number = setting ? smi_setting_value(setting, value) : -1;

	if (!setting)
		return refuse(arg);
	if (number < 0) {
		printf("ERROR: Option %s is invalid for %s. Please run 'nvidia-smi -h' for help.\n\n", value, arg);
		return STATUS_INVALID;
	}
	if (out->setting) {
		printf("Invalid combination of input arguments. Only one device modification may be done at a time.\n\n");
		return STATUS_INVALID;
	}
	out->setting = setting;
	out->value = (unsigned)number;
	return act(out, SMI_CHANGE, arg);
}

/* The option of an argument, "-x", "--name" or "--name=value". */
static const struct option *find(const char *arg, const char **value)
{
	size_t len = strcspn(arg, "=");

	*value = NULL;
	for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
		const struct option *o = &options[i];

		if (o->shortly && !strcmp(o->shortly, arg))
			return o;
		if (strlen(o->name) == len && !memcmp(o->name, arg, len)) {
			*value = arg[len] ? arg + len + 1 : NULL;
			return o;
		}
	}
	return NULL;
}

static int takes_value(enum kind kind) { return kind == SELECT || kind == CHANGE || (kind >= VALUE_ID && kind <= VALUE_FORMAT); }

static int may_have_value(enum kind kind) { return kind == LOOP || kind == LOOP_MS; }

/*
 * The next argument is an option's value: of those that need one whatever it is, but that no
 * property of a query begins as options do: --query-gpu --format=csv lacks its properties.
 */
static int value_of(enum kind kind, const char *next)
{
	int option = next[0] == '-';

	return (takes_value(kind) && !(kind == SELECT && option)) || (may_have_value(kind) && !option);
}

static int loop(struct smi_options *out, const char *value, unsigned unit)
{
	enum { DEFAULT = 5000, MOST = 1000 * 1000 };
	unsigned n = 0;

	if (!value) {
		out->loop_ms = DEFAULT;
		return STATUS_OK;
	}
	if (!smi_decimal(value, MOST, &n) || !n) {
		printf("Provided [-l(ms) | --loop(-ms)=] value is incorrect. Loop frequency must be greater than 0.\n\n");
		return STATUS_INVALID;
	}
	out->loop_ms = n * unit;
	return STATUS_OK;
}

static int set(struct smi_options *out, const struct option *o, const char *arg, const char *value)
{
	enum { SECOND = 1000 };

	switch (o->kind) {
	case FLAG_LIST: return act(out, SMI_LIST, arg);
	case FLAG_EXCLUDED: return act(out, SMI_EXCLUDED, arg);
	case FLAG_QUERY: return act(out, SMI_REPORT, arg);
	case FLAG_HELP: return act(out, SMI_HELP, arg);
	case FLAG_VERSION: return act(out, SMI_VERSIONS, arg);
	case FLAG_XML: out->xml = 1; break;
	case FLAG_UNIT: out->units = 1; break;
	case VALUE_ID: out->ids = value; break;
	case VALUE_FILE: out->file = value; break;
	case VALUE_DISPLAY: out->sections = value; break;
	case VALUE_FORMAT: return smi_parse_format(value, &out->format) ? STATUS_OK : STATUS_INVALID;
	case LOOP: return loop(out, value, SECOND);
	case LOOP_MS: return loop(out, value, 1);
	case SELECT:
		if (out->query && out->query != smi_query_of(o->name + 2)) {
			printf("Only one --query-* switch can be used at a time.\n");
			return STATUS_INVALID;
		}
		out->query = smi_query_of(o->name + 2);
		out->fields = value;
		return act(out, SMI_QUERY, arg);
	case HELP_SELECT: out->query = smi_query_of(o->name + strlen("--help-")); return act(out, SMI_HELP_QUERY, arg);
	case CHANGE: return change(out, o, arg, value);
	case CHANGE_FLAG: return refuse(arg);
	case REFUSED: printf("Option %s is not supported by this nvidia-smi, which is Causeway's.\n", arg); return STATUS_UNSUPPORTED;
	}
	return STATUS_OK;
}

/* What does not belong together. */
static int check(const struct smi_options *o, const char *arg_of_id)
{
	int lone = o->action == SMI_LIST || o->action == SMI_EXCLUDED || o->action == SMI_VERSIONS || o->action == SMI_HELP ||
		   o->action == SMI_HELP_QUERY;

	if (lone && o->ids)
		return misplaced(arg_of_id);
	if ((lone || o->action == SMI_CHANGE) && (o->xml || o->sections || o->units || o->loop_ms || o->format.csv))
		return misplaced(o->xml ? "-x" : o->sections ? "-d" : o->units ? "-u" : o->loop_ms ? "-l" : "--format");
	if (o->action != SMI_QUERY && o->format.csv)
		return unknown("--format=csv");
	if (o->action == SMI_QUERY && !o->format.csv) {
		printf("\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.\n\n");
		return STATUS_INVALID;
	}
	if (o->action != SMI_REPORT && (o->xml || o->sections || o->units)) {
		const char *what = o->xml	 ? "-x/--xml-format to run an XML"
				   : o->sections ? "-d/--display to run a filtered"
						 : "-u/--unit to run a unit";

		printf("Invalid combination of input arguments. Specify -q/--query and %s query.  Please run 'nvidia-smi -h' for help.\n\n",
		       what);
		return STATUS_INVALID;
	}
	if (o->xml && o->sections) {
		printf("Invalid combination of input arguments: --display/-d flags can not be combined with -x/--xml-format flags.\n");
		return STATUS_INVALID;
	}
	return STATUS_OK;
}

int smi_parse(int argc, char **argv, struct smi_options *out)
{
	const char *arg_of_id = "-i";

	*out = (struct smi_options){.action = SMI_SUMMARY};
	for (int i = 1; i < argc; i++) {
		const char *value, *arg = argv[i];
		const struct option *o = find(arg, &value);
		int status, wants;

		if (!o)
			return unknown(arg);
		wants = takes_value(o->kind);
		if (value && !wants && !may_have_value(o->kind))
			return unknown(arg);
		if (!value && i + 1 < argc && value_of(o->kind, argv[i + 1]))
			value = argv[++i];
		if (!value && wants) {
			printf("ERROR: Option %s is missing its value. Please run 'nvidia-smi -h' for help.\n\n", arg);
			return STATUS_INVALID;
		}
		if (o->kind == VALUE_ID)
			arg_of_id = arg;
		status = set(out, o, arg, value);
		if (status)
			return status;
	}
	return check(out, arg_of_id);
}
