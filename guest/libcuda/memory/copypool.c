#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include "memory/copypool.h"
#include "session/lock.h"
#include "session/session.h"

enum { MOST = 32, USUAL = 6, STACK = 128 * 1024, LINGER_LEAST = 50, LINGER_ROUSED = 300, LINGER_MOST = 1000, IN_ROW = 100 /* us */ };

/* A copy under way; lives on its caller's stack. */
struct job {
	struct job *next;
	void (*work)(void *arg);
	void *arg;
	uint32_t wanted, most; /* helpers that may still join, of how many */
	uint32_t thread, ctx;
	_Atomic uint32_t active; /* helpers inside work; futex */
};

static struct {
	struct cw_lock lock;
	struct job *jobs;
	_Atomic uint32_t started;
	_Atomic uint32_t size; /* 0: not asked yet */
	_Atomic uint32_t gen;  /* futex: goes up with each job */
	_Atomic uint32_t asleep;
	/* Helpers that are still to be woken: each wakes the next, a wake-up costs the waker some
	 * 10 us. */
	_Atomic uint32_t rouse;
	_Atomic int quit;
} pool;

/* CPUs' worth of time that a container grants, rounded up (cgroup v2, cpu.max: "QUOTA PERIOD", or
 * "max PERIOD"). */
static uint32_t granted(void)
{
	FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");
	char line[64] = "", *end;
	if (f) {
		if (!fgets(line, sizeof line, f))
			line[0] = 0;
		fclose(f);
	}
	unsigned long quota = strtoul(line, &end, 10), period = strtoul(end, NULL, 10);
	return quota == 0 || period == 0 || quota / period > 1024 ? 1024 : (uint32_t)((quota + period - 1) / period);
}

uint32_t cw_copypool_size(void)
{
	uint32_t n = atomic_load_explicit(&pool.size, memory_order_relaxed);
	if (n != 0)
		return n;
	const char *e = getenv("CAUSEWAY_COPY_THREADS");
	long asked = e ? strtol(e, NULL, 10) : 0;
	cpu_set_t set;
	uint32_t cpus = sched_getaffinity(0, sizeof set, &set) == 0 ? (uint32_t)CPU_COUNT(&set) : 2;
	uint32_t quota = granted();
	cpus = cpus < quota ? cpus : quota;
	n = asked > 0 ? (asked < MOST ? (uint32_t)asked : MOST) : cpus / 2 < USUAL ? cpus / 2 : USUAL;
	n = n == 0 ? 1 : n;
	atomic_store_explicit(&pool.size, n, memory_order_relaxed);
	return n;
}

/* Under the lock: joins a job that wants hands. */
static struct job *join(void)
{
	for (struct job *j = pool.jobs; j; j = j->next)
		if (j->wanted > 0) {
			j->wanted--;
			atomic_fetch_add_explicit(&j->active, 1, memory_order_relaxed);
			return j;
		}
	return NULL;
}

static int64_t now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static _Atomic int64_t copied; /* when the last copy ended that helpers may share */

void cw_copypool_copied(void) { atomic_store_explicit(&copied, now_us(), memory_order_relaxed); }

int cw_copypool_in_row(void) { return now_us() - atomic_load_explicit(&copied, memory_order_relaxed) < IN_ROW; }

static void wake_next(void)
{
	uint32_t n = atomic_load(&pool.rouse);
	while (n > 0 && !atomic_compare_exchange_weak(&pool.rouse, &n, n - 1))
		;
	if (n > 0 && atomic_load(&pool.asleep) != 0)
		cw_futex_wake(&pool.gen, 1, CW_FUTEX_PRIVATE);
}

/* Copies often follow each other at once, and a wake-up takes as long as a core needs for a MiB:
 * looks for a while first. */
static void await_job(uint32_t gen, int64_t linger)
{
	for (int64_t end = now_us() + linger; now_us() < end;)
		for (int i = 0; i < 32; i++) {
			if (atomic_load_explicit(&pool.gen, memory_order_acquire) != gen)
				return;
			cw_pause();
		}
	atomic_fetch_add(&pool.asleep, 1);
	cw_futex_wait(&pool.gen, gen, CW_FUTEX_PRIVATE, NULL);
	atomic_fetch_sub(&pool.asleep, 1);
	wake_next();
}

static __thread int is_helper __attribute__((tls_model("initial-exec")));

int cw_copypool_is_helper(void) { return is_helper; }

static void *helper(void *unused)
{
	(void)unused;
	is_helper = 1;
	int64_t linger = LINGER_LEAST;
	prctl(PR_SET_NAME, "causeway-copy");
	while (!atomic_load(&pool.quit)) {
		uint32_t gen = atomic_load_explicit(&pool.gen, memory_order_acquire);
		cw_lock_spin(&pool.lock);
		struct job *j = join();
		int full = pool.jobs != NULL;
		cw_lock_release(&pool.lock);
		if (!j) {
			/* Small copies in a row want few: the others sleep. */
			await_job(gen, full ? LINGER_LEAST : linger);
			linger = LINGER_ROUSED; /* the job may be a DMA away */
			continue;
		}
		cw_thread_as(j->thread, j->ctx);
		int64_t began = now_us();
		j->work(j->arg);
		linger = now_us() - began;
		linger = linger < LINGER_LEAST ? LINGER_LEAST : linger > LINGER_MOST ? LINGER_MOST : linger;
		/* The caller may return, and the job be gone, as soon as it reads 0: the wake-up
		 * may then be one for nobody. */
		_Atomic uint32_t *active = &j->active;
		if (atomic_fetch_sub_explicit(active, 1, memory_order_acq_rel) == 1)
			cw_futex_wake(active, 1, CW_FUTEX_PRIVATE);
	}
	return NULL;
}

/* Under the lock. An application's fault while its memory is read or written stays the
 * application's: its handler runs, or the process ends by that signal. */
static void start_helpers(uint32_t n)
{
	while (pool.started < n && cw_thread_begin(STACK, 1, helper, NULL) == 0)
		pool.started++;
}

void cw_copypool_recall(const void *arg)
{
	uint32_t missed = 0;
	cw_lock_spin(&pool.lock);
	for (struct job *j = pool.jobs; j; j = j->next) {
		uint32_t active = atomic_load(&j->active);
		if (j->arg == arg && active + j->wanted < j->most) {
			j->wanted = j->most - active;
			missed = j->wanted;
		}
	}
	cw_lock_release(&pool.lock);
	cw_copypool_rouse(missed + 1);
}

void cw_copypool_rouse(uint32_t hands)
{
	if (hands <= 1)
		return;
	uint32_t asleep = atomic_load(&pool.asleep), started = atomic_load(&pool.started);
	uint32_t awake = started > asleep ? started - asleep : 0;
	atomic_store(&pool.rouse, hands - 1 > awake ? hands - 1 - awake : 0);
	atomic_fetch_add(&pool.gen, 1);
	wake_next();
}

void cw_copypool_run(uint32_t hands, void (*work)(void *arg), void *arg)
{
	uint32_t size = cw_copypool_size();
	hands = hands < size ? hands : size;
	if (hands <= 1) {
		work(arg);
		return;
	}
	struct job j = {NULL, work, arg, hands - 1, hands - 1, cw_thread_ordinal(), cw_current_ctx_id(), 0};
	cw_lock_spin(&pool.lock);
	start_helpers(size - 1);
	struct job **at = &pool.jobs; /* at the end: who came first gets helpers first */
	while (*at)
		at = &(*at)->next;
	*at = &j;
	cw_lock_release(&pool.lock);
	cw_copypool_rouse(hands);

	work(arg);

	cw_lock_spin(&pool.lock);
	for (at = &pool.jobs; *at != &j; at = &(*at)->next)
		;
	*at = j.next;
	cw_lock_release(&pool.lock);
	for (int i = 0;; i++) {
		uint32_t n = atomic_load_explicit(&j.active, memory_order_acquire);
		if (n == 0)
			return;
		if (i < 2000)
			cw_pause();
		else
			cw_futex_wait(&j.active, n, CW_FUTEX_PRIVATE, NULL);
	}
}

/* The library stays mapped until the process ends (-z nodelete), so helpers need not be waited
 * for. */
__attribute__((destructor)) static void dismiss(void)
{
	atomic_store(&pool.quit, 1);
	if (atomic_load(&cw_g.state) == CW_FORKED || pool.started == 0)
		return;
	atomic_fetch_add(&pool.gen, 1);
	cw_futex_wake(&pool.gen, MOST, CW_FUTEX_PRIVATE);
}
