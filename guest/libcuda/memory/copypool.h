/*
 * The copy pool: threads that copy beside the application's own. A large copy of ordinary memory is
 * bound by what one core can move, some 10 GB/s, while the GPU's link takes 55.
 *
 * Helpers start with the first copy that wants them, run with all signals but those of a memory
 * fault blocked, sleep on a futex between copies, after looking for the next one for about as long
 * as the last took, and end with the process. A forked child has no session and so needs none. The
 * pool's lock is a leaf.
 */
#ifndef CW_MEMORY_COPYPOOL_H
#define CW_MEMORY_COPYPOOL_H

#include <stdint.h>

#pragma GCC visibility push(hidden)

/* How many threads, the caller included, may copy at once: CAUSEWAY_COPY_THREADS, or by the CPUs
 * that the process may use. */
uint32_t cw_copypool_size(void);

/*
 * Runs work(arg) on the calling thread and on up to hands-1 helpers, which speak to the worker in
 * the caller's name; returns when all of them have returned. work shares out its pieces itself: a
 * helper may come late, when none is left, or not at all.
 */
void cw_copypool_run(uint32_t hands, void (*work)(void *arg), void *arg);

/* Calls helpers to the run with arg once more: those that left it, because there was nothing to do
 * for them, are missed. */
void cw_copypool_recall(const void *arg);
/* Whether the calling thread is a helper. */
int cw_copypool_is_helper(void);
/* A copy that helpers may share has ended; and whether one has so lately that helpers which another
 * wants are awake, or will be for the one behind it. */
void cw_copypool_copied(void);
int cw_copypool_in_row(void);
/* Wakes a helper or more, if a copy that wants hands follows in some microseconds. */
void cw_copypool_rouse(uint32_t hands);

#pragma GCC visibility pop
#endif
