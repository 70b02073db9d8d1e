/* What the two forms of a report share. */
#ifndef CW_SMI_REPORTXML_H
#define CW_SMI_REPORTXML_H

#include "report.h"

/* Are there rows below a row? The first that is not. */
int smi_row_below(const struct smi_row *row);
const struct smi_row *smi_row_next(const struct smi_row *row);
/* Is a row left out for what the device says? */
int smi_row_hidden(const struct smi_row *row, nvmlDevice_t device);
/* The time, as reports and the table begin. */
void smi_now(char out[SMI_TEXT]);

#endif
