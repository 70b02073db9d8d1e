/* Functions of the application that are called when the host says so: at their turn in the GPU's
 * work (cuLaunchHostFunc, cuStreamAddCallback, graph host nodes), or of an event
 * (cuDeviceRegisterAsyncNotification). */
#ifndef CW_API_CALLBACK_H
#define CW_API_CALLBACK_H

#include "api/api.h"

#pragma GCC visibility push(hidden)

/* Makes fn(data) callable by id (LaunchHostFunc, graph host nodes) and starts the callback thread
 * at first use. keep: it may be called any number of times, until cw_hostfn_drop; else once. */
CUresult cw_hostfn_new(CUhostFn fn, void *data, int keep, uint64_t *id);
/* The same for a stream's callback, which is told the stream's status. */
CUresult cw_hostfn_new_stream(CUstreamCallback fn, CUstream stream, void *data, uint64_t *id);
/* Nothing calls id any more; safe while it runs. Ids that are gone are ignored. */
void cw_hostfn_drop(uint64_t id);
/* Whether there are any that are called more than once: those of graphs. */
int cw_hostfns_kept(void);
/* What stands behind an id of cw_hostfn_new: 1, or 0 if nothing does. */
int cw_hostfn_find(uint64_t id, CUhostFn *fn, void **data);

/* callback.c, for hostfunc.c: runs what stands behind an id. Returns what ends with cw_host_done
 * when all that the function did has been seen to. */
uint32_t cw_hostfn_run(uint64_t id, CUresult status);
/* notify.c: passes an event of the host on (CW_CALLBACK_EVENT and above). Waits for nobody. */
void cw_notice_post(uint32_t event, uint64_t number);
/* notify.c: the session has ended, and with it what it would pass on. */
void cw_notice_end(void);
/* callback.c: opens the way back from the host, once. */
CUresult cw_callbacks_open(void);
/* callback.c: a thread that receives no signals and is never joined. */
CUresult cw_thread_start(void *(*run)(void *), void *arg);

#pragma GCC visibility pop
#endif
