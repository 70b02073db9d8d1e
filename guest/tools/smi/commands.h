/* What the program shows besides queries and reports. Each prints to out; the results are exit
 * statuses. */
#ifndef CW_SMI_COMMANDS_H
#define CW_SMI_COMMANDS_H

#include "gpus.h"

#include <stdio.h>

/* The table that nvidia-smi shows without options (table.c). */
void smi_table(const struct smi_gpus *gpus, FILE *out);
/* -L and --version. */
int smi_list(FILE *out);
int smi_versions(FILE *out);
/* What is shown as the version of this program: the driver's, as the mount has both from one
 * host. */
void smi_version(char *out, size_t cap);

/* Commands with options of their own; argv[0] is the command's name. */
int smi_dmon(int argc, char **argv);
int smi_pmon(int argc, char **argv);
int smi_topo(int argc, char **argv);

int smi_help(void);

void smi_sleep_ms(unsigned ms);

#endif
