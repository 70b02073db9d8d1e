/* Functions of the application that streams will call, and who waits for them: ahead.c. No lock is
 * held by callers. */
#ifndef CW_SESSION_AHEAD_H
#define CW_SESSION_AHEAD_H

#include "session/session.h"

#pragma GCC visibility push(hidden)

/* One more, on a stream; before its record is begun. Waits while they are barred, and a little
 * while others wait in vain for a moment without any. What is returned ends it with cw_host_done,
 * when it has been called or will not be; 0 is none. */
uint32_t cw_host_add(uint32_t stream);
void cw_host_done(uint32_t ticket);
extern _Atomic uint32_t cw_hosts_ahead;
static inline int cw_host_is_ahead(void) { return atomic_load_explicit(&cw_hosts_ahead, memory_order_relaxed) != 0; }
/* None is ahead, and none is added until cw_host_unbar. 0: one is, and none is barred. */
int cw_host_bar(void);
void cw_host_unbar(void);
/* How long anything waits here; tests shorten it. */
extern int64_t cw_host_longest_ms;
/* A piece of work has gone on a stream. Waits if a driver would not take many more behind a
 * function. */
void cw_host_behind(uint32_t stream);
/* The same before work of any stream, where there is managed memory, which is sent away before
 * each. */
void cw_host_let_run(void);
/* cw_begin_slot for an operation in which a driver may wait for the device (cw_op_drains): when the
 * functions that are ahead have been called. */
CUresult cw_host_begin_after(struct cw_tx *tx, uint16_t op, uint32_t fixed, uint32_t var, uint32_t slot);
/* Before a copy through staging: a worker that cannot map this process's memory makes such copies
 * one after the other and waits for each, and so for the functions that are ahead in its stream. */
void cw_host_before_copy(void);
/* A graph that may hold such functions was launched. */
void cw_host_in_graph(void);
/* Waits for the device if a graph that may hold such functions has been launched since it was last
 * seen idle (memory/ownstream.c). */
void cw_before_drain(void);

/* Not 0: the thread works for the library itself, perhaps with its locks, and waits for no function
 * of the application. */
extern __thread uint32_t cw_own_work __attribute__((tls_model("initial-exec")));

#pragma GCC visibility pop
#endif
