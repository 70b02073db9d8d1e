/* The copy pool: every piece is done once, in the caller's name, by several threads; calls from
 * many threads at once; leaving and recall. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "memory/copypool.h"
#include "session/tests/fake_worker.h"
#include "session/session.h"

enum { HANDS = 4, PIECES = 400 };

struct load {
	_Atomic uint32_t next, strangers, helpers;
	_Atomic uint8_t times[PIECES];
	uint32_t thread, ctx;
};

static void nap_us(long us)
{
	struct timespec t = {0, us * 1000};
	nanosleep(&t, NULL);
}

static void work(void *arg)
{
	struct load *l = arg;
	sigset_t mask;
	if (cw_copypool_is_helper()) {
		atomic_fetch_add(&l->helpers, 1);
		CHECK(pthread_sigmask(SIG_SETMASK, NULL, &mask) == 0);
		CHECK(sigismember(&mask, SIGINT) && sigismember(&mask, SIGPROF) && !sigismember(&mask, SIGBUS) &&
		      !sigismember(&mask, SIGSEGV));
	}
	if (cw_thread_ordinal() != l->thread || cw_current_ctx_id() != l->ctx)
		atomic_fetch_add(&l->strangers, 1);
	for (uint32_t k; (k = atomic_fetch_add(&l->next, 1)) < PIECES; nap_us(20))
		atomic_fetch_add(&l->times[k], 1);
}

static void once(uint32_t hands)
{
	struct load l = {.thread = cw_thread_ordinal(), .ctx = cw_current_ctx_id()};
	cw_copypool_run(hands, work, &l);
	CHECK(l.strangers == 0 && l.helpers < (hands < HANDS ? hands : HANDS) && (hands > 1 || l.helpers == 0));
	for (int k = 0; k < PIECES; k++)
		CHECK(l.times[k] == 1);
}

static void *caller(void *arg)
{
	cw_set_current_ctx_id((uint32_t)(uintptr_t)arg);
	for (int r = 0; r < 5; r++)
		once(1 + (uint32_t)((uintptr_t)arg + (unsigned)r) % 6);
	return NULL;
}

/* Helpers leave at first; the caller calls them back, and does not end before they come. */
static void leaving(void *arg)
{
	struct load *l = arg;
	if (cw_copypool_is_helper()) {
		atomic_fetch_add(&l->helpers, 1);
		return;
	}
	while (atomic_load(&l->helpers) < HANDS - 1)
		nap_us(100);
	nap_us(2000);
	CHECK(atomic_load(&l->helpers) == HANDS - 1);
	cw_copypool_recall(l);
	while (atomic_load(&l->helpers) < 2 * (HANDS - 1))
		nap_us(100);
}

/* Whether a copy follows another: right behind it, however late this thread goes on at times. */
static void in_row(void)
{
	int seen = cw_copypool_in_row();
	CHECK(!seen); /* there was none */
	while (!seen) {
		cw_copypool_copied();
		seen = cw_copypool_in_row();
	}
	nap_us(2000);
	CHECK(!cw_copypool_in_row());
}

int main(void)
{
	setenv("CAUSEWAY_COPY_THREADS", "4", 1);
	CHECK(cw_copypool_size() == HANDS);
	in_row();
	cw_set_current_ctx_id(77);
	once(1);
	once(HANDS);
	nap_us(5000); /* asleep by now */
	once(100);
	pthread_t t[6];
	for (uintptr_t i = 0; i < 6; i++)
		CHECK(pthread_create(&t[i], NULL, caller, (void *)(i + 1)) == 0);
	for (int i = 0; i < 6; i++)
		CHECK(pthread_join(t[i], NULL) == 0);
	struct load l = {.thread = 0};
	cw_copypool_run(HANDS, leaving, &l);
	cw_copypool_rouse(HANDS); /* for nothing */
	int st = -1;
	pid_t p = fork(); /* a child ends, with helpers that it does not have */
	if (p == 0)
		exit(0);
	CHECK(waitpid(p, &st, 0) == p && st == 0);
	puts("copypool_test ok");
	return 0;
}
