/* Options that change a GPU. A guest changes none, but what is set already may be asked for, as
 * scripts do. */
#ifndef CW_SMI_SETTINGS_H
#define CW_SMI_SETTINGS_H

#include "gpus.h"

struct smi_setting;
/* The setting that an option ("--persistence-mode") asks for, or NULL: it is refused whatever its
 * value is. */
const struct smi_setting *smi_setting_of(const char *option);
/* The value's number: a digit or a name. Negative: it is none. */
int smi_setting_value(const struct smi_setting *setting, const char *value);
/* Says for each device that it is so, or that it is refused. The result is an exit status. */
int smi_ask_setting(const struct smi_setting *setting, unsigned wanted, const struct smi_gpus *gpus);

#endif
