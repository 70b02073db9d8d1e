/* The report as XML, as nvidia-smi -q -x lays it out. */
#include "reportxml.h"

#include <stdlib.h>
#include <string.h>

static const char absent[] = "N/A";

static void indent(int depth, FILE *out)
{
	while (depth-- > 0)
		fputc('\t', out);
}

/* Text that is printable already. */
static void escaped(const char *text, FILE *out)
{
	for (; *text; text++)
		switch (*text) {
		case '&': fputs("&amp;", out); break;
		case '<': fputs("&lt;", out); break;
		case '>': fputs("&gt;", out); break;
		default: fputc(*text, out);
		}
}

static void element(int depth, const char *tag, const char *text, FILE *out)
{
	indent(depth, out);
	fprintf(out, "<%s>", tag);
	escaped(text, out);
	fprintf(out, "</%s>\n", tag);
}

static const struct smi_row *xml_row(const struct smi_row *row, nvmlDevice_t device, FILE *out)
{
	const struct smi_row *end = smi_row_next(row);
	char text[SMI_TEXT + 16];
	int res = 0;

	if (!row->tag)
		return end;
	if (row->source.get)
		res = smi_format(device, &row->source, absent, 1, text, sizeof text);
	if (row->source.get == smi_constant) { /* nothing below it, in a line of its own */
		indent(row->depth + 1, out), fprintf(out, "<%s>\n", row->tag);
		indent(row->depth + 2, out), fprintf(out, "%s\n", text);
		indent(row->depth + 1, out), fprintf(out, "</%s>\n", row->tag);
		return end;
	}
	if (!smi_row_below(row) || res) {
		element(row->depth + 1, row->tag, text, out);
		return end;
	}
	indent(row->depth + 1, out), fprintf(out, "<%s>\n", row->tag);
	for (const struct smi_row *r = row + 1; r < end;)
		r = smi_row_hidden(r, device) ? smi_row_next(r) : xml_row(r, device, out);
	indent(row->depth + 1, out), fprintf(out, "</%s>\n", row->tag);
	return end;
}

static void process(const struct smi_process *p, FILE *out)
{
	char text[SMI_TEXT], type[2] = {p->type, 0};

	indent(3, out), fputs("<process_info>\n", out);
	element(4, "gpu_instance_id", absent, out);
	element(4, "compute_instance_id", absent, out);
	snprintf(text, sizeof text, "%u", p->pid);
	element(4, "pid", text, out);
	element(4, "type", type, out);
	element(4, "process_name", p->name, out);
	snprintf(text, sizeof text, "%llu MiB", p->used >> 20);
	element(4, "used_memory", p->used == ~0ull ? absent : text, out);
	indent(3, out), fputs("</process_info>\n", out);
}

static void processes(nvmlDevice_t device, FILE *out)
{
	unsigned count;
	struct smi_process *list = smi_processes(device, &count);

	indent(2, out), fputs("<processes>\n", out);
	for (unsigned i = 0; i < count; i++)
		process(&list[i], out);
	indent(2, out), fputs("</processes>\n", out);
	free(list);
}

static void head(const struct smi_gpus *gpus, FILE *out)
{
	char text[SMI_TEXT];
	int cuda = 0;

	fputs("<?xml version=\"1.0\" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v13.dtd\">\n<nvidia_smi_log>\n", out);
	smi_now(text);
	element(1, "timestamp", text, out);
	element(1, "driver_version", nvml.nvmlSystemGetDriverVersion(text, sizeof text) ? absent : text, out);
	if (!nvml.nvmlSystemGetCudaDriverVersion_v2(&cuda))
		snprintf(text, sizeof text, "%d.%d", cuda / 1000, cuda % 1000 / 10);
	element(1, "cuda_version", cuda ? text : absent, out);
	snprintf(text, sizeof text, "%u", gpus->all);
	element(1, "attached_gpus", text, out);
}

void smi_report_xml(const struct smi_gpus *gpus, FILE *out)
{
	static const struct smi_source address = V_ARG(smi_pci, SMI_ADDRESS, NULL);

	head(gpus, out);
	for (unsigned i = 0; i < gpus->count; i++) {
		nvmlDevice_t device = gpus->gpu[i].device;

		fputs("\t<gpu id=\"", out);
		smi_show(device, &address, absent, 0, out);
		fputs("\">\n", out);
		for (const struct smi_row *r = smi_rows; r->depth;)
			r = r->sections & SEC_ONLY ? smi_row_next(r) : xml_row(r, device, out);
		processes(device, out);
		element(2, "accounted_processes", absent, out);
		indent(2, out), fputs("<capabilities>\n", out);
		element(3, "egm", absent, out);
		indent(2, out), fputs("</capabilities>\n", out);
		fputs("\t</gpu>\n\n", out);
	}
	fputs("</nvidia_smi_log>\n", out);
}
