/* The runtime library's question whether the driver is a genuine one: see integrity.c. */
#ifndef CW_API_INTEGRITY_H
#define CW_API_INTEGRITY_H

#include <stdint.h>

/* What identifies one device in the answer; 28 bytes, little-endian, no padding. */
struct cw_integrity_device {
	uint8_t uuid[16];
	uint32_t pci_domain;
	uint32_t pci_bus;
	uint32_t pci_device;
};

/* What identifies the process and the driver; 48 bytes, little-endian, no padding. */
struct cw_integrity_process {
	uint32_t driver_version; /* what cuDriverGetVersion returns in this process */
	uint32_t version;	 /* argument of the call */
	uint32_t pid;
	uint32_t thread; /* low half of pthread_self() */
	uint64_t cudart_table;
	uint64_t integrity_table;
	uint64_t function; /* content of slot 1 of the integrity table */
	uint64_t seconds;  /* argument of the call */
};

/* cw_integrity_digest computes the two words for p and the count devices of dev. Pure; any number
 * of devices. */
void cw_integrity_digest(const struct cw_integrity_process *p, const struct cw_integrity_device *dev, uint32_t count, uint64_t out[2]);

#endif
