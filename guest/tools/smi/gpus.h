/* The devices that a command is about. */
#ifndef CW_SMI_GPUS_H
#define CW_SMI_GPUS_H

#include "library.h"

enum { SMI_GPUS = 64 };

struct smi_gpus {
	unsigned all;	/* in the system */
	unsigned count; /* chosen, in the order of their indices */
	struct smi_gpu {
		nvmlDevice_t device;
		unsigned index;
	} gpu[SMI_GPUS];
};

/* Finds the devices that ids names (index, UUID or PCI address, separated by commas), all for NULL.
 * Says so if there is none. */
int smi_choose(const char *ids, struct smi_gpus *out);

/* The compute processes of a device. */
struct smi_process {
	unsigned pid;
	unsigned long long used; /* bytes; all bits set: not known */
	char type;		 /* C or G */
	char name[1024];	 /* printable */
};
/* A malloc'd list; NULL if there are none. */
struct smi_process *smi_processes(nvmlDevice_t device, unsigned *count);

#endif
