/* cuGetProcAddress: which function answers to a name, a version and a stream mode. */
#ifndef CW_API_PROCADDRESS_H
#define CW_API_PROCADDRESS_H

#include <stddef.h>

#include "gen/entries.h"

#pragma GCC visibility push(hidden)

enum cw_proc_status { CW_PROC_FOUND = 0, CW_PROC_NOT_FOUND = 1, CW_PROC_VERSION = 2 };

/* The newest row of a name that a caller of this version may get. Rows are sorted by name, then by
 * since; since 0 is never found. per_thread: the twin, for names that have one (they have it since
 * 7.0, and there is no way back to the plain one). */
enum cw_proc_status cw_proc_find(const struct cw_proc *rows, size_t count, const char *name, int version, int per_thread, void **out);

#pragma GCC visibility pop
#endif
