/* Functions of the application that the GPU's order of work calls: by cuLaunchHostFunc, cuStreamAddCallback, graph host nodes. */
#ifndef CW_API_CALLBACK_H
#define CW_API_CALLBACK_H

#include "api/api.h"

#pragma GCC visibility push(hidden)

/* Makes fn(data) callable by id (LaunchHostFunc, graph host nodes) and starts the callback thread at first use. keep: it may be
 * called any number of times, until cw_hostfn_drop; else once. */
CUresult cw_hostfn_new(CUhostFn fn, void *data, int keep, uint64_t *id);
/* The same for a stream's callback, which is told the stream's status. */
CUresult cw_hostfn_new_stream(CUstreamCallback fn, CUstream stream, void *data, uint64_t *id);
/* Nothing calls id any more; safe while it runs. Ids that are gone are ignored. */
void cw_hostfn_drop(uint64_t id);
/* What stands behind an id of cw_hostfn_new: 1, or 0 if nothing does. */
int cw_hostfn_find(uint64_t id, CUhostFn *fn, void **data);

/* callback.c, for hostfunc.c: runs what stands behind an id. */
void cw_hostfn_run(uint64_t id, CUresult status);
/* callback.c: opens the way back from the host, once. */
CUresult cw_callbacks_open(void);

#pragma GCC visibility pop
#endif
