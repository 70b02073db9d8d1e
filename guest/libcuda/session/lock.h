/* A mutex of one word: spins briefly, then sleeps on a futex. Zero is unlocked. Not recursive, private to the process. */
#ifndef CW_SESSION_LOCK_H
#define CW_SESSION_LOCK_H

#include <stdatomic.h>

#include "session/compat.h"

struct cw_lock {
	_Atomic uint32_t word; /* 0 free, 1 held, 2 held and perhaps waited for */
};

void cw_lock_slow(struct cw_lock *l);

static inline void cw_lock_acquire(struct cw_lock *l)
{
	uint32_t free_ = 0;
	if (!atomic_compare_exchange_strong_explicit(&l->word, &free_, 1, memory_order_acquire, memory_order_relaxed))
		cw_lock_slow(l);
}

static inline int cw_lock_try(struct cw_lock *l)
{
	uint32_t free_ = 0;
	return atomic_compare_exchange_strong_explicit(&l->word, &free_, 1, memory_order_acquire, memory_order_relaxed);
}

/* For locks that are held for a moment by threads that must not sleep over them: a wake-up may take 200 us. */
static inline void cw_lock_spin(struct cw_lock *l)
{
	for (int i = 0; i < 4000; i++) {
		if (atomic_load_explicit(&l->word, memory_order_relaxed) == 0 && cw_lock_try(l))
			return;
		cw_pause();
	}
	cw_lock_acquire(l);
}

static inline void cw_lock_release(struct cw_lock *l)
{
	if (atomic_exchange_explicit(&l->word, 0, memory_order_release) == 2)
		cw_futex_wake(&l->word, 1, CW_FUTEX_PRIVATE);
}

#endif
