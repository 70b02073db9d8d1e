/* Selective queries: lists of properties by name, printed as comma separated values. */
#ifndef CW_SMI_QUERY_H
#define CW_SMI_QUERY_H

#include "gpus.h"
#include "value.h"

/* A property: its name and second name (or NULL), how it is told, and what it is in a sentence. */
struct smi_property {
	const char *name, *alias;
	struct smi_source source;
	const char *help;
};

/* What --query-gpu knows (fields.c), up to an empty name. */
extern const struct smi_property smi_gpu_properties[];

struct smi_format {
	int csv, noheader, nounits; /* csv is mandatory */
};

/* A kind of query: its option, its properties, and what makes the lines. */
struct smi_query;
/* The query of an option's name ("query-gpu"), or NULL. */
const struct smi_query *smi_query_of(const char *option);

/* Reads --format's value. False, and says so, if it is wrong. */
int smi_parse_format(const char *text, struct smi_format *format);
/* Prints the list of valid properties. */
int smi_help_query(const struct smi_query *query);
/* Prints one query's lines; with_header says whether this is the first time of a loop. The result
 * is an exit status. */
int smi_run_query(const struct smi_query *query, const char *fields, const struct smi_format *format, const struct smi_gpus *gpus,
		  int with_header, FILE *out);

#endif
