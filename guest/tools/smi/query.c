/* --query-*: reads the list of properties and the format, prints the values. */
#include "query.h"
#include "status.h"
#include "words.h"

#include <stdlib.h>
#include <string.h>

enum { PROPERTIES = 256 };

static const char absent[] = "[N/A]";

/* Lines of a query: one for each device, each process of it, or none of what is not told to a
 * guest. */
enum lines { DEVICES, PROCESSES, CAUSES };

struct smi_query {
	const char *option;
	const struct smi_property *properties;
	enum lines lines;
	const char *refusal; /* why it is refused; NULL: it is not */
};

/* What a process or another line has and no device does is told by the line itself (print_line). */
enum { PID = 1, PROCESS_NAME, PROCESS_MEMORY, CAUSE };

#define DEVICE_COLUMNS \
	{"timestamp", NULL, V_ARG(smi_timestamp, 0, NULL), "When the query was made: YYYY/MM/DD HH:MM:SS.msec."}, \
		{"gpu_name", NULL, V_FN(smi_text, nvmlDeviceGetName, NULL), "Product name of the GPU."}, \
		{"gpu_bus_id", NULL, V_ARG(smi_pci, SMI_ADDRESS, NULL), "Its PCI address: domain:bus:device.function, in hex."}, \
		{"gpu_serial", NULL, V_FN(smi_text, nvmlDeviceGetSerial, NULL), "Its serial number."}, \
		{"gpu_uuid", NULL, V_FN(smi_text, nvmlDeviceGetUUID, NULL), "Its identifier, unique everywhere."}
#define END {NULL, NULL, V_NONE, NULL}

static const struct smi_property process_properties[] = {
	DEVICE_COLUMNS,
	{"pid", NULL, V_ARG(NULL, PID, NULL), "Number of the process in this guest."},
	{"process_name", "name", V_ARG(NULL, PROCESS_NAME, NULL), "Name of its program."},
	{"used_gpu_memory", "used_memory", V_ARG(NULL, PROCESS_MEMORY, "MiB"), "Memory of the GPU that it holds."},
	END,
};

static const struct smi_property row_properties[] = {
	DEVICE_COLUMNS,
	{"remapped_rows.correctable", NULL, V_ARG(smi_remapped, 0, NULL), "Rows remapped after correctable errors."},
	{"remapped_rows.correctable_inactive", NULL, V_NONE, "Rows that were remapped so before."},
	{"remapped_rows.uncorrectable", NULL, V_ARG(smi_remapped, 1, NULL), "Rows remapped after uncorrectable errors."},
	{"remapped_rows.uncorrectable_inactive", NULL, V_NONE, "Rows that were remapped so before."},
	{"remapped_rows.pending", NULL, V_ARG(smi_remapped, 2, NULL), "Will rows be remapped at the next reset?"},
	{"remapped_rows.failure", NULL, V_ARG(smi_remapped, 3, NULL), "Did a remapping fail?"},
	{"remapped_rows.histogram.max", NULL, V_NONE, "Banks that can remap every spare row."},
	{"remapped_rows.histogram.high", NULL, V_NONE, "Banks that can remap many."},
	{"remapped_rows.histogram.partial", NULL, V_NONE, "Banks that can remap some."},
	{"remapped_rows.histogram.low", NULL, V_NONE, "Banks that can remap few."},
	{"remapped_rows.histogram.none", NULL, V_NONE, "Banks that can remap none."},
	END,
};

static const struct smi_property page_properties[] = {
	DEVICE_COLUMNS,
	{"retired_pages.address", NULL, V_NONE, "Address of a page of an older GPU that was given up."},
	{"retired_pages.timestamp", NULL, V_NONE, "When it was."},
	{"retired_pages.cause", NULL, V_ARG(NULL, CAUSE, NULL), "Why."},
	END,
};

static const struct smi_property clock_properties[] = {
	DEVICE_COLUMNS,
	{"memory", "mem", V_ARG(smi_unsupported, 0, "MHz"), "Clock of memory that may be asked for: none by a guest."},
	{"graphics", "gr", V_ARG(smi_unsupported, 0, "MHz"), "Clock of graphics that may be asked for: none by a guest."},
	END,
};

static const struct smi_property no_properties[] = {END};

static const struct smi_query queries[] = {
	{"query-gpu", smi_gpu_properties, DEVICES, NULL},
	{"query-compute-apps", process_properties, PROCESSES, NULL},
	{"query-remapped-rows", row_properties, DEVICES, NULL},
	{"query-retired-pages", page_properties, CAUSES, NULL},
	{"query-supported-clocks", clock_properties, DEVICES, NULL},
	{"query-accounted-apps", no_properties, DEVICES, "accounting of processes is not forwarded to guests"},
};

const struct smi_query *smi_query_of(const char *option)
{
	for (size_t i = 0; i < sizeof queries / sizeof *queries; i++)
		if (!strcmp(queries[i].option, option))
			return &queries[i];
	return NULL;
}

int smi_parse_format(const char *text, struct smi_format *format)
{
	static const char *const names[] = {"csv", "noheader", "nounits"};
	unsigned flags;

	if (!smi_flags(text, names, sizeof names / sizeof *names, &flags)) {
		printf("Format modifier is not recognized.\n");
		return 0;
	}
	*format = (struct smi_format){.csv = flags & 1, .noheader = flags & 2, .nounits = flags & 4};
	if (!format->csv)
		printf("Format modifier --format=csv is mandatory.\n");
	return format->csv;
}

int smi_help_query(const struct smi_query *query)
{
	if (query->refusal) {
		printf("--%s is not supported: %s.\n", query->option, query->refusal);
		return STATUS_UNSUPPORTED;
	}
	printf("List of valid properties to query for the switch \"--%s\":\n\n", query->option);
	for (const struct smi_property *p = query->properties; p->name; p++) {
		printf("\"%s\"", p->name);
		if (p->alias)
			printf(" or \"%s\"", p->alias);
		printf("\n%s\n\n", p->help);
	}
	return STATUS_OK;
}

static int is_name(const char *name, const char *text, size_t len) { return name && strlen(name) == len && !memcmp(name, text, len); }

static int parse(const struct smi_query *query, const char *fields, const struct smi_property **columns, unsigned *count)
{
	*count = 0;
	for (;;) {
		size_t len = strcspn(fields, ",");
		const struct smi_property *p = query->properties;

		while (p->name && !is_name(p->name, fields, len) && !is_name(p->alias, fields, len))
			p++;
		if (len && (!p->name || *count == PROPERTIES)) {
			printf("Field \"%.*s\" is not a valid field to query.\n\n", (int)len, fields);
			return STATUS_INVALID;
		}
		if (len)
			columns[(*count)++] = p;
		if (!fields[len])
			return STATUS_OK;
		fields += len + 1;
	}
}

/* The part of a line that is not the device's. */
struct line {
	const struct smi_process *process;
	const char *cause;
};

static void print_line(const struct line *line, const struct smi_source *source, int units, FILE *out)
{
	switch (source->arg) {
	case PID: fprintf(out, "%u", line->process->pid); break;
	case PROCESS_NAME: fputs(line->process->name, out); break;
	case PROCESS_MEMORY:
		if (line->process->used == ~0ull)
			fputs(absent, out);
		else
			fprintf(out, "%llu%s", line->process->used >> 20, units ? " MiB" : "");
		break;
	case CAUSE: fputs(line->cause, out); break;
	}
}

static void tell(const struct smi_property *const *columns, unsigned count, nvmlDevice_t device, const struct line *line, int units,
		 FILE *out)
{
	for (unsigned i = 0; i < count; i++) {
		const struct smi_source *source = &columns[i]->source;

		fputs(i ? ", " : "", out);
		if (source->get)
			smi_show(device, source, absent, units, out);
		else
			print_line(line, source, units, out);
	}
	fputc('\n', out);
}

static void print_processes(const struct smi_property *const *columns, unsigned count, nvmlDevice_t device, int units, FILE *out)
{
	unsigned n;
	struct smi_process *list = smi_processes(device, &n);

	for (unsigned i = 0; i < n; i++)
		if (list[i].type == 'C')
			tell(columns, count, device, &(struct line){&list[i], NULL}, units, out);
	free(list);
}

static void print_device(const struct smi_query *query, const struct smi_property *const *columns, unsigned count, nvmlDevice_t device,
			 int units, FILE *out)
{
	static const char *const causes[] = {"Single Bit ECC", "Double Bit ECC"};

	switch (query->lines) {
	case DEVICES: tell(columns, count, device, NULL, units, out); break;
	case PROCESSES: print_processes(columns, count, device, units, out); break;
	case CAUSES:
		for (int i = 0; i < 2; i++)
			tell(columns, count, device, &(struct line){NULL, causes[i]}, units, out);
	}
}

static void header(const struct smi_property *const *columns, unsigned count, FILE *out)
{
	for (unsigned i = 0; i < count; i++) {
		fprintf(out, "%s%s", i ? ", " : "", columns[i]->name);
		if (columns[i]->source.unit)
			fprintf(out, " [%s]", columns[i]->source.unit);
	}
	fputc('\n', out);
}

int smi_run_query(const struct smi_query *query, const char *fields, const struct smi_format *format, const struct smi_gpus *gpus,
		  int with_header, FILE *out)
{
	const struct smi_property *columns[PROPERTIES];
	unsigned count;
	int status;

	if (query->refusal) {
		printf("--%s is not supported: %s.\n", query->option, query->refusal);
		return STATUS_UNSUPPORTED;
	}
	status = parse(query, fields, columns, &count);
	if (status)
		return status;
	if (with_header && !format->noheader)
		header(columns, count, out);
	for (unsigned i = 0; i < gpus->count; i++)
		print_device(query, columns, count, gpus->gpu[i].device, !format->nounits, out);
	return STATUS_OK;
}
