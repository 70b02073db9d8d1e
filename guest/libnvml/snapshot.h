/*
 * The host's last answer. It is fetched again when it is older than CW_NVML_FRESH_MS, so a loop
 * over many entries costs one request. Where the host has no such answer (sessions over TCP),
 * libcuda tells who the devices are, and nothing else.
 */
#ifndef CW_NVML_SNAPSHOT_H
#define CW_NVML_SNAPSHOT_H

#include "gen/snapshot.h"

enum { CW_NVML_FRESH_MS = 100 };

/* Checked: counts fit the answer, texts end, indices are devices of the answer. */
struct cw_view {
	const struct cw_snapshot *head;
	const struct cw_device *devices;
	const struct cw_pair *pairs;
	const struct cw_link *links;
	const struct cw_process *processes;
};

/* Takes the lock and gives the answer; on NVML_SUCCESS cw_nvml_leave must follow soon. */
int cw_nvml_look(struct cw_view *v);
void cw_nvml_leave(void);

/* Checks an answer of len bytes, 8-byte aligned, and finds its parts. Texts that do not end are
 * cut. False: not an answer. */
int cw_nvml_parse(void *answer, size_t len, struct cw_view *v);

/* Where answers come from (source.c). */
int cw_nvml_source_present(void);
/* A malloc'd answer; NVML_FUNCTION_NOT_FOUND: this host gives none. */
int cw_nvml_fetch(void **answer, size_t *len);
/* Devices by libcuda (identity.c), as a malloc'd answer. */
int cw_nvml_identity(void **answer, size_t *len);

#endif
