/* cuGetProcAddress: which function answers to a name, a version and a stream mode. */
#ifndef CW_API_PROCADDRESS_H
#define CW_API_PROCADDRESS_H

#include <stddef.h>

#pragma GCC visibility push(hidden)

/* One ABI of a base name. Rows are sorted by name, then by since. */
struct cw_proc_row {
	const char *name;
	int since;	 /* CUDA version as in cuda.h: 12040; rows with 0 are never found */
	void *plain;
	void *ptds;	 /* per-thread twin, NULL if there is none */
};

enum cw_proc_status { CW_PROC_FOUND = 0, CW_PROC_NOT_FOUND = 1, CW_PROC_VERSION = 2 };

/* The newest row of a name that a caller of this version may get. per_thread: the twin, for names that have one (they have it
 * since 7.0, and there is no way back to the plain one). */
enum cw_proc_status cw_proc_find(const struct cw_proc_row *rows, size_t count, const char *name, int version, int per_thread,
				 void **out);

/* The generated table. */
extern const struct cw_proc_row cw_procs[];
extern const size_t cw_procs_count;

#pragma GCC visibility pop
#endif
