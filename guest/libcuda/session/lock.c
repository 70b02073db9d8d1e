#include "session/internal.h"

void cw_lock_slow(struct cw_lock *l)
{
	/* Ring holders copy at most 64 KiB: worth a few hundred spins when another CPU can be
	 * finishing it. */
	uint32_t spins = cw_s.cpus > 1 ? 200 : 0;
	for (uint32_t i = 0; i < spins; i++) {
		uint32_t seen = atomic_load_explicit(&l->word, memory_order_relaxed);
		if (seen == 0 && atomic_compare_exchange_weak_explicit(&l->word, &seen, 1, memory_order_acquire, memory_order_relaxed))
			return;
		if (seen == 2)
			break;
		cw_pause();
	}
	while (atomic_exchange_explicit(&l->word, 2, memory_order_acquire) != 0)
		cw_futex_wait(&l->word, 2, CW_FUTEX_PRIVATE, NULL);
}
