/*
 * Reply slots alone: slots.c with pauses, sleeps and a clock of the test's own. Which slot a thread
 * gets and how it waits for one, for exactly how many pauses a wait spins and how that changes, and
 * how a wait ends when the host does.
 */
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "session/internal.h"
#include "session/tests/check.h"

static void f_pause(void);
static int f_sleep(_Atomic uint32_t *word, uint32_t value, const struct timespec *t);
static void f_wake(_Atomic uint32_t *word, int n);
static void f_clock(struct timespec *t);
static int yields;

#define cw_pause() f_pause()
#define cw_futex_wait(word, value, how, t) f_sleep(word, value, t)
#define cw_futex_wake(word, n, how) f_wake(word, n)
#define sched_yield() yields++
#define clock_gettime(id, t) f_clock(t)
#include "session/slots.c"

struct cw_session cw_s;
struct cw_global cw_g;

/* --- what slots.c stands on ------------------------------------------------------------------- */

static struct cw_session *const s = &cw_s;
static _Alignas(4096) uint8_t page[CW_REGION0_SIZE];
static uint32_t preferred;
static int dead, deaths, looks, nudges, pauses, sleeps, wakes, waits;
static int answer_at; /* pauses until the host answers, 0: not while this thread spins */
static uint32_t answer_seq = 1;
static int by_gpu;
static void (*at_look)(void), (*at_sleep)(void);
static int (*at_wait)(void);
static uint64_t clock_us = 999999; /* over a second's end */

uint32_t *cw_thread_slot(void) { return &preferred; }

int cw_is_dead(struct cw_session *of)
{
	CHECK(of == s);
	looks++;
	if (at_look)
		at_look();
	return dead;
}

void cw_mark_dead(struct cw_session *of, const char *why)
{
	CHECK(of == s && why[0]);
	deaths++;
}

void cw_nudge(struct cw_session *of)
{
	CHECK(of == s);
	nudges++;
}

static void done(uint32_t slot) { *(by_gpu ? &cw_slot_at(s, slot)->gpu_done : &cw_slot_at(s, slot)->seq_done) = answer_seq; }

static void f_pause(void)
{
	if (++pauses == answer_at)
		done(3);
}

static int clock_looks;
static void (*at_clock)(void);

static void f_clock(struct timespec *t)
{
	clock_looks++;
	if (at_clock)
		at_clock();
	*t = (struct timespec){(time_t)(clock_us / 1000000), (long)(clock_us % 1000000 * 1000)};
}

static int f_sleep(_Atomic uint32_t *word, uint32_t value, const struct timespec *t)
{
	CHECK(word == &s->slot_gen && value == atomic_load(word) && t->tv_sec == 1 && t->tv_nsec == 0 &&
	      atomic_load(&s->slot_waiters) == 1);
	sleeps++;
	if (at_sleep)
		at_sleep();
	return 0;
}

static void f_wake(_Atomic uint32_t *word, int n)
{
	CHECK(word == &s->slot_gen && n == 1);
	wakes++;
}

static int c_wait(struct cw_session *of, uint32_t slot, _Atomic uint32_t *word)
{
	CHECK(of == s && slot == 3 && word == (_Atomic uint32_t *)&cw_slot_at(s, 3)->waiting && *word == 1);
	waits++;
	return at_wait();
}

static const struct cw_carrier carrier = {.name = "test", .wait_slot = c_wait};

/* --- claims ----------------------------------------------------------------------------------- */

static void free_40(void) { cw_slot_release(s, 40); }
static void free_41_late(void)
{
	if (sleeps == 2)
		cw_slot_release(s, 41);
}
static void free_all(void)
{
	cw_slot_release(s, 7);
	cw_slot_release(s, 9);
}

static void claims(void)
{
	s->slot_seq[5] = 8;
	cw_slots_init(s);
	CHECK(s->slot_seq[5] == 0);
	preferred = 5;
	CHECK(cw_slot_claim(s) == 5 && cw_slot_claim(s) == 0 && preferred == 0 && cw_slot_claim(s) == 1 && preferred == 1);
	cw_slot_release(s, 5);
	CHECK(cw_slot_claim(s) == 2 && wakes == 0); /* nobody waited */
	preferred = 63;
	for (uint32_t i = 0; i < CW_SLOT_COUNT - 3; i++) {
		uint32_t slot = cw_slot_claim(s), want = i == 0 ? 63 : i + 2;
		CHECK(slot == want);
	}
	dead = 1;
	CHECK(atomic_load(&s->slots_free) == 0 && cw_slot_claim(s) == CW_NO_SLOT && sleeps == 0);
	dead = 0;
	/* Before it says that it waits: it looks once more, and does not sleep. */
	at_look = free_40;
	CHECK(cw_slot_claim(s) == 40 && sleeps == 0 && wakes == 0 && atomic_load(&s->slot_waiters) == 0);
	at_look = NULL;
	at_sleep = free_41_late; /* a second sleep, as the first ended for nothing */
	CHECK(cw_slot_claim(s) == 41 && sleeps == 2 && wakes == 1 && atomic_load(&s->slot_gen) == 1 && atomic_load(&s->slot_waiters) == 0);
	at_sleep = free_all;
	preferred = 9;
	CHECK(cw_slot_claim(s) == 9 && wakes == 3 && cw_slot_claim(s) == 7);
}

/* --- waits ------------------------------------------------------------------------------------ */

static int answered_later(void)
{
	done(3);
	return 0;
}

/* One wait, which is answered after so many pauses, or, 0, while the thread sleeps: how many pauses
 * it spun. */
static int spun(int after)
{
	pauses = 0;
	answer_at = after;
	answer_seq++;
	at_wait = answered_later;
	int before = waits, looked = clock_looks;
	CHECK(cw_slot_wait(s, 3, answer_seq) == 0 && waits == before + (after == 0));
	/* An answer in time costs nothing else. */
	CHECK(cw_slot_at(s, 3)->waiting == 0 && clock_looks == looked + (after == 0 ? 2 : 0));
	return pauses;
}

static int slow(void)
{
	clock_us += 1000; /* a sleep of a millisecond teaches nothing */
	return answered_later();
}

static int long_wait(void)
{
	pauses = 0;
	answer_at = 0;
	answer_seq++;
	at_wait = slow;
	CHECK(cw_slot_wait(s, 3, answer_seq) == 0);
	return pauses;
}

static uint64_t nap_us;
static int napping(void)
{
	clock_us += nap_us;
	return answered_later();
}

static int short_sleep(uint64_t us)
{
	pauses = 0;
	answer_at = 0;
	answer_seq++;
	nap_us = us;
	at_wait = napping;
	CHECK(cw_slot_wait(s, 3, answer_seq) == 0);
	return pauses;
}

static void budgets(void)
{
	s->spin_max = 100;
	s->spin_most = 1000;
	s->cpus = 8;
	s->spins_per_us = 3;
	CHECK(spun(30) == 30); /* it begins with spin_max, and grows with each answer in time */
	CHECK(long_wait() == 200 && long_wait() == 100 && long_wait() == 50 && long_wait() == 50);
	CHECK(spun(49) == 49 && spun(99) == 99 && spun(199) == 199 && spun(399) == 399 && spun(799) == 799);
	CHECK(spun(999) == 999 && long_wait() == 1000 && long_wait() == 500 && long_wait() == 250 && long_wait() == 125 &&
	      long_wait() == 62);
	CHECK(long_wait() == 50);
	/* a short sleep: twice as long next time, but no less than there is, and no more than the
	 * most */
	CHECK(short_sleep(40) == 50 && short_sleep(5) == 240 && short_sleep(999) == 120);
	CHECK(long_wait() == 1000 && short_sleep(1000) == 500 && long_wait() == 250);
	s->spin_most = s->spin_max; /* no cores to spare */
	CHECK(short_sleep(10) == 100 && short_sleep(400) == 50 && long_wait() == 50);
	s->spin_most = 1000;
	/* others spin for long already */
	CHECK(spun(1) == 1 && spun(1) == 1 && spun(1) == 1);
	atomic_store(&s->long_spinners, 2);
	CHECK(long_wait() == 100 && atomic_load(&s->long_spinners) == 2);
	atomic_store(&s->long_spinners, 1);
	CHECK(long_wait() == 200 && atomic_load(&s->long_spinners) == 1);
	atomic_store(&s->long_spinners, 0);
	CHECK(yields == 0);
	s->spin_max = s->spin_most = 0; /* one CPU: it lets others run, and looks */
	CHECK(long_wait() == 0 && yields == 1);
	CHECK(cw_spin_limit() == 0);
	s->spin_max = 20;
	CHECK(cw_spin_limit() == 20);
	s->spin_most = 20;
	by_gpu = 1; /* the GPU's own answer counts as the worker's */
	CHECK(spun(7) == 7);
	by_gpu = 0;
}

static void just_then(void) { done(3); }

static int tries;
static int again(void)
{
	clock_us += 5000;
	answer_seq--; /* another call's answer is none */
	done(3);
	answer_seq++;
	return ++tries == 3 ? answered_later() : tries == 1 ? -EAGAIN : 0;
}
static int gone(void) { return -EPIPE; }
static int gone_with_answer(void)
{
	done(3);
	return -EPIPE;
}

static void ends(void)
{
	answer_at = 0;
	answer_seq++;
	/* Before it says that it sleeps, so that nobody wakes it: it looks once more. */
	at_clock = just_then;
	waits = 0;
	CHECK(cw_slot_wait(s, 3, answer_seq) == 0 && waits == 0 && cw_slot_at(s, 3)->waiting == 0);
	at_clock = NULL;
	answer_seq += 2;
	at_wait = again;
	nudges = 0;
	/* It may be the doorbell that was lost. */
	CHECK(cw_slot_wait(s, 3, answer_seq) == 0 && tries == 3 && nudges == 2);
	answer_seq++;
	at_wait = gone;
	CHECK(cw_slot_wait(s, 3, answer_seq) == CUDA_ERROR_LAUNCH_FAILED && deaths == 1);
	answer_seq++;
	at_wait = gone_with_answer; /* what it answered counts */
	CHECK(cw_slot_wait(s, 3, answer_seq) == 0 && deaths == 1);
	answer_seq++;
	dead = 1;
	waits = 0;
	CHECK(cw_slot_wait(s, 3, answer_seq) == CUDA_ERROR_LAUNCH_FAILED && deaths == 1 && waits == 0);
	dead = 0;
}

int main(void)
{
	s->base = page;
	s->ctl = (struct cw_control_page *)page;
	s->carrier = &carrier;
	claims();
	budgets();
	ends();
	puts("slots_test ok");
	return 0;
}
