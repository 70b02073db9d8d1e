/*
 * A mutex of one word: spins briefly, then sleeps on a futex. Zero is unlocked. Not recursive,
 * private to the process.
 *
 * In a process with managed memory at the GPU the application's signals wait while one of its
 * threads holds such a lock (cw_signals_wait): a handler that touched that memory would wait for
 * bytes whose way needs the lock. Faults' own signals do not wait, nor those that only end the
 * process.
 */
#ifndef CW_SESSION_LOCK_H
#define CW_SESSION_LOCK_H

#include <stdatomic.h>

#include "session/compat.h"

#pragma GCC visibility push(hidden)

struct cw_lock {
	_Atomic uint32_t word; /* 0 free, 1 held, 2 held and perhaps waited for */
};

void cw_lock_slow(struct cw_lock *l);

/* From now on (1), or no longer (-1): counted. */
void cw_signals_wait(int more);
extern _Atomic uint32_t cw_signals_waiting;
/* How many locks this thread has taken since its signals wait. */
extern __thread uint32_t cw_signals_held __attribute__((tls_model("initial-exec")));
void cw_signals_hold(void);
void cw_signals_let(void);
/* The calling thread is the library's own: it has no signals of the application's anyway. */
void cw_signals_none(void);

static inline int cw_lock_take(struct cw_lock *l)
{
	uint32_t free_ = 0;
	return atomic_compare_exchange_strong_explicit(&l->word, &free_, 1, memory_order_acquire, memory_order_relaxed);
}

static inline void cw_signals_before(void)
{
	if (__builtin_expect(atomic_load_explicit(&cw_signals_waiting, memory_order_relaxed) != 0, 0))
		cw_signals_hold();
}

static inline void cw_signals_after(void)
{
	if (__builtin_expect(cw_signals_held != 0, 0))
		cw_signals_let();
}

static inline void cw_lock_acquire(struct cw_lock *l)
{
	cw_signals_before();
	if (!cw_lock_take(l))
		cw_lock_slow(l);
}

static inline int cw_lock_try(struct cw_lock *l)
{
	cw_signals_before();
	int taken = cw_lock_take(l);
	if (!taken)
		cw_signals_after();
	return taken;
}

/* For locks that are held for a moment by threads that must not sleep over them: a wake-up may take
 * 200 us. */
static inline void cw_lock_spin(struct cw_lock *l)
{
	cw_signals_before();
	for (int i = 0; i < 4000; i++) {
		if (atomic_load_explicit(&l->word, memory_order_relaxed) == 0 && cw_lock_take(l))
			return;
		cw_pause();
	}
	if (!cw_lock_take(l))
		cw_lock_slow(l);
}

static inline void cw_lock_release(struct cw_lock *l)
{
	if (atomic_exchange_explicit(&l->word, 0, memory_order_release) == 2)
		cw_futex_wake(&l->word, 1, CW_FUTEX_PRIVATE);
	cw_signals_after();
}

/* The same, and a full fence: others see what was stored before it before anything is loaded behind
 * it. On x86 the exchange is one, and another would cost as much again. */
static inline void cw_lock_release_fenced(struct cw_lock *l)
{
	cw_lock_release(l);
#ifdef __x86_64__
	atomic_signal_fence(memory_order_seq_cst);
#else
	atomic_thread_fence(memory_order_seq_cst);
#endif
}

#pragma GCC visibility pop
#endif
