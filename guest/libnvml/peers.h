/* What the table of nvidia-smi asks of peers.c. */
#ifndef CW_NVML_PEERS_H
#define CW_NVML_PEERS_H

#include "gen/nvml_abi.h"

/* How many NVLinks join two devices, directly or by switches. */
unsigned cw_nvml_links_between(nvmlDevice_t a, nvmlDevice_t b);

#endif
