/*
 * Reply slots: claiming, waiting, releasing. A thread keeps to the slot it used last, so a slot's
 * cache lines stay with it. Waiting spins for as long as replies of late have come while spinning,
 * then sleeps in the carrier.
 */
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "session/internal.h"

void cw_slots_init(struct cw_session *s)
{
	_Static_assert(CW_SLOT_COUNT == 64, "one bit a slot");
	atomic_store(&s->slots_free, UINT64_MAX);
	memset(s->slot_seq, 0, sizeof s->slot_seq);
}

uint32_t cw_slot_claim(struct cw_session *s)
{
	uint32_t *preferred = cw_thread_slot();
	uint64_t free_ = atomic_load_explicit(&s->slots_free, memory_order_relaxed);
	for (;;) {
		while (free_ != 0) {
			uint32_t slot = *preferred;
			if (!(free_ >> slot & 1))
				slot = (uint32_t)__builtin_ctzll(free_);
			if (atomic_compare_exchange_weak_explicit(&s->slots_free, &free_, free_ & ~(1ull << slot), memory_order_acquire,
								  memory_order_relaxed)) {
				*preferred = slot;
				return slot;
			}
		}
		if (cw_is_dead(s))
			return CW_NO_SLOT;
		struct timespec second = {1, 0};
		uint32_t gen = atomic_load(&s->slot_gen);
		atomic_fetch_add(&s->slot_waiters, 1);
		free_ = atomic_load(&s->slots_free);
		if (free_ == 0)
			cw_futex_wait(&s->slot_gen, gen, CW_FUTEX_PRIVATE, &second);
		atomic_fetch_sub(&s->slot_waiters, 1);
		free_ = atomic_load_explicit(&s->slots_free, memory_order_relaxed);
	}
}

void cw_slot_release(struct cw_session *s, uint32_t slot)
{
	atomic_fetch_or(&s->slots_free, 1ull << slot);
	if (cw_unlikely(atomic_load(&s->slot_waiters) != 0)) {
		atomic_fetch_add(&s->slot_gen, 1);
		cw_futex_wake(&s->slot_gen, 1, CW_FUTEX_PRIVATE);
	}
}

uint32_t cw_spin_limit(void) { return cw_s.spin_max; }

static int answered(struct cw_slot *slot, uint32_t seq)
{
	return __atomic_load_n(&slot->seq_done, __ATOMIC_ACQUIRE) == seq || __atomic_load_n(&slot->gpu_done, __ATOMIC_ACQUIRE) == seq;
}

/* How long this thread spins for its next reply, in pauses. */
static __thread uint32_t budget __attribute__((tls_model("initial-exec")));

static int spin_for(struct cw_slot *slot, uint32_t seq, uint32_t spins)
{
	for (uint32_t i = 0; i < spins; i++) {
		if (answered(slot, seq))
			return 1;
		cw_pause();
	}
	return 0;
}

/* Spins for spins, by what a short wait deserves, and on if few others do: one that waits for long
 * costs the worker's threads, which make the calls of all, the other half of a core. */
static int spin_on(struct cw_session *s, struct cw_slot *slot, uint32_t seq, uint32_t spins)
{
	uint32_t brief = spins < s->spin_max ? spins : s->spin_max;
	if (spin_for(slot, seq, brief))
		return 1;
	if (spins == brief)
		return 0;
	int hit = 0;
	if (atomic_fetch_add_explicit(&s->long_spinners, 1, memory_order_relaxed) < s->cpus / 4)
		hit = spin_for(slot, seq, spins - brief);
	atomic_fetch_sub_explicit(&s->long_spinners, 1, memory_order_relaxed);
	return hit;
}

/* Spins for at most the thread's current budget. A reply in time lets the budget grow again, a
 * sleep halves it. */
static int spin(struct cw_session *s, struct cw_slot *slot, uint32_t seq)
{
	/* a GPU answers an empty kernel in about 10 us: less than that would sleep through every
	 * short wait */
	uint32_t least = s->spin_max / 2;
	if (cw_unlikely(budget < least || budget > s->spin_most))
		budget = s->spin_max;
	if (spin_on(s, slot, seq, budget)) {
		budget = budget * 2 > s->spin_most ? s->spin_most : budget * 2;
		return 1;
	}
	if (s->spin_max == 0)
		sched_yield();
	budget = budget / 2 < least ? least : budget / 2;
	return answered(slot, seq);
}

static uint64_t now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* A sleep that turned out shorter than a millisecond: the next wait spins for twice as long, where
 * cores are plenty. */
static void slept(const struct cw_session *s, uint64_t us)
{
	if (us < 1000 && s->spin_most > s->spin_max) {
		uint64_t want = 2 * us * s->spins_per_us;
		budget = want > s->spin_most ? s->spin_most : want > budget ? (uint32_t)want : budget;
	}
}

CUresult cw_slot_wait(struct cw_session *s, uint32_t index, uint32_t seq)
{
	struct cw_slot *slot = cw_slot_at(s, index);
	if (cw_likely(spin(s, slot, seq)))
		return 0;
	_Atomic uint32_t *waiting = (_Atomic uint32_t *)&slot->waiting;
	uint64_t began = now_us();
	for (;;) {
		atomic_store(waiting, 1);
		if (answered(slot, seq))
			break;
		if (cw_is_dead(s))
			return CUDA_ERROR_LAUNCH_FAILED;
		int r = s->carrier->wait_slot(s, index, waiting);
		if (answered(slot, seq))
			break;
		if (r == -EPIPE) {
			cw_mark_dead(s, "the host ended the session");
			return CUDA_ERROR_LAUNCH_FAILED;
		}
		cw_nudge(s);
	}
	atomic_store_explicit(waiting, 0, memory_order_relaxed);
	slept(s, now_us() - began);
	return 0;
}

CUresult cw_word_wait(uint32_t word, uint32_t value)
{
	struct cw_session *s = &cw_s;
	_Atomic uint32_t *w = cw_word(word);
	for (uint32_t i = 0; i < s->spin_max; i++) {
		if (atomic_load_explicit(w, memory_order_acquire) == value)
			return 0;
		cw_pause();
	}
	/* Completion words wake nobody: poll, with pauses that grow from 2 us to 200 us. */
	struct timespec nap = {0, 2000};
	for (uint32_t turn = 0; atomic_load_explicit(w, memory_order_acquire) != value; turn++) {
		if (cw_is_dead(s))
			return CUDA_ERROR_LAUNCH_FAILED;
		if (turn % 1024 == 1023 && s->carrier->alive(s) == -EPIPE)
			cw_mark_dead(s, "the host ended the session");
		nanosleep(&nap, NULL);
		if (nap.tv_nsec < 200000)
			nap.tv_nsec += nap.tv_nsec / 4 + 1;
	}
	return 0;
}
