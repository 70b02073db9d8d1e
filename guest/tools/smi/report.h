/* -q: everything of a device, as indented text or XML. One table of rows makes both. */
#ifndef CW_SMI_REPORT_H
#define CW_SMI_REPORT_H

#include "gpus.h"
#include "value.h"

/* Sections that -d asks for; rows of none of them are shown only without -d. */
enum {
	SEC_MEMORY = 1 << 0,
	SEC_UTILIZATION = 1 << 1,
	SEC_ECC = 1 << 2,
	SEC_TEMPERATURE = 1 << 3,
	SEC_POWER = 1 << 4,
	SEC_CLOCK = 1 << 5,
	SEC_COMPUTE = 1 << 6,
	SEC_PIDS = 1 << 7,
	SEC_PERFORMANCE = 1 << 8,
	SEC_SUPPORTED_CLOCKS = 1 << 9,
	SEC_PAGE_RETIREMENT = 1 << 10,
	SEC_ACCOUNTING = 1 << 11,
	SEC_ENCODER_STATS = 1 << 12,
	SEC_TARGET_TEMP = 1 << 13,
	SEC_VOLTAGE = 1 << 14,
	SEC_FBC_STATS = 1 << 15,
	SEC_ROW_REMAPPER = 1 << 16,
	SEC_RESET_STATUS = 1 << 17,
	SEC_GSP = 1 << 18,
	SEC_ONLY = 1 << 30,	 /* or'ed in: shown by -d alone */
	ROW_IF_TOLD = 1 << 29,	 /* or'ed in: left out where the device does not say, */
	ROW_OTHERWISE = 1 << 28, /* and the row below it is left out where it does */
};

/*
 * A row of a report. Rows of a greater depth that follow belong to it. label is its name as text,
 * tag as XML; without one it is not part of that form. A row with rows below has no source, or one
 * that says whether they are there: if not, it says so itself.
 */
struct smi_row {
	int depth;
	unsigned sections;
	const char *label, *tag;
	struct smi_source source;
};

/* Up to a row of depth 0 (rows.c). */
extern const struct smi_row smi_rows[];

/* The sections that -d's value names. 0, and says so, if it is wrong. */
unsigned smi_parse_sections(const char *text);
/* sections 0: all rows but those of SEC_ONLY. */
void smi_report_text(const struct smi_gpus *gpus, unsigned sections, FILE *out);
void smi_report_xml(const struct smi_gpus *gpus, FILE *out);

#endif
