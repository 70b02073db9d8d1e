/* A host that answers on a socket, for tests: CAUSEWAY is set to it. */
#ifndef CW_NVML_FAKE_HOST_H
#define CW_NVML_FAKE_HOST_H

#include "gen/snapshot.h"

#include <stdio.h>
#include <stdlib.h>

#define CHECK(c) \
	do { \
		if (!(c)) { \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #c); \
			exit(1); \
		} \
	} while (0)

/* Two devices, two processes on device 0 and one on device 1, all pairs, one link. A malloc'd
 * answer. */
void *fake_answer(size_t *len);
/* Serves fake_answer's bytes, or what fake_serve was given last. len 0: empty answers. */
void fake_start(void);
void fake_serve(const void *answer, size_t len);
/* Connections so far. */
int fake_asked(void);

#endif
