/* The options that are not a command's own. */
#ifndef CW_SMI_OPTIONS_H
#define CW_SMI_OPTIONS_H

#include "query.h"
#include "settings.h"

/* What is asked for; SUMMARY without an option that says so. */
enum smi_action { SMI_SUMMARY, SMI_REPORT, SMI_QUERY, SMI_LIST, SMI_EXCLUDED, SMI_VERSIONS, SMI_HELP, SMI_HELP_QUERY, SMI_CHANGE };

struct smi_options {
	enum smi_action action;
	const struct smi_query *query;
	const struct smi_setting *setting; /* of SMI_CHANGE */
	unsigned value;
	const char *fields, *ids, *file, *sections;
	struct smi_format format;
	int xml, units;
	unsigned loop_ms; /* 0: once */
};

/* Reads the options. 0, or an exit status with what is wrong said. */
int smi_parse(int argc, char **argv, struct smi_options *out);

#endif
