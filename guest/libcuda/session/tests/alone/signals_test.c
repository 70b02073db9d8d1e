/*
 * Signals and threads alone: signals.c and thread.c, whose masks, dispositions and threads are the
 * test's own. Which signals wait while locks are held and which never do, that they are as they
 * were afterwards, and what the library's own threads begin with.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "session/ahead.h"
#include "session/internal.h"
#include "session/lock.h"
#include "session/tests/check.h"

static int f_sigaction(int signal, struct sigaction *now);
static int f_mask(int how, const sigset_t *set, sigset_t *old);
static int f_clock(struct timespec *t);
static int f_create(pthread_attr_t *attr, void *(*run)(void *), void *arg);
static int f_attr_init(pthread_attr_t *attr);
static void *f_malloc(size_t n);
static void f_free(void *p);

#define sigaction(signal, act, now) f_sigaction(signal, now)
#define sigprocmask(how, set, old) f_mask(how, set, old)
#define pthread_create(t, attr, run, arg) ((void)(t), f_create(attr, run, arg))
#define pthread_attr_init(attr) f_attr_init(attr)
#define clock_gettime(which, t) f_clock(t)
#define malloc(n) f_malloc(n)
#define free(p) f_free(p)
#include "session/signals.c"
#include "session/thread.c"
#undef malloc
#undef free
#undef pthread_attr_init

__thread uint32_t cw_own_work __attribute__((tls_model("initial-exec")));

static sigset_t mask; /* of the calling thread */
static int masks;
static void (*disposition[65])(int);
static int unknown; /* a signal of which the kernel says nothing */

static int f_sigaction(int signal, struct sigaction *of)
{
	of->sa_handler = disposition[signal];
	return signal == unknown ? -1 : 0;
}

static long now; /* of the kernel's ticks */

static int f_clock(struct timespec *t)
{
	*t = (struct timespec){now / 1000, now % 1000 * 1000000};
	return 0;
}

static int f_mask(int how, const sigset_t *set, sigset_t *old)
{
	masks++;
	if (old)
		*old = mask;
	if (how == SIG_SETMASK) {
		mask = *set;
		return 0;
	}
	CHECK(how == SIG_BLOCK);
	for (int i = 1; i < 32; i++)
		if (sigismember(set, i))
			sigaddset(&mask, i);
	return 0;
}

static int waits(int signal) { return sigismember(&mask, signal); }

/* --- signals ---------------------------------------------------------------------------------- */

static void handler(int signal) { (void)signal; }

static void holds(void)
{
	static const int never[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS},
			 all_ending[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM};
	for (int own = 0; own < 16; own++) /* those of the four that the program has handlers for */
		for (int ignored = 0; ignored < 2; ignored++) {
			for (int i = 0; i < 4; i++)
				disposition[all_ending[i]] = own >> i & 1 ? ignored ? SIG_IGN : handler : SIG_DFL;
			sigemptyset(&mask);
			sigaddset(&mask, SIGUSR1);
			sigset_t before_ = mask;
			cw_signals_wait(1);
			masks = 0;
			cw_signals_hold();
			CHECK(cw_signals_held == 1 && masks == 1 && waits(SIGUSR1) && waits(SIGUSR2) && waits(SIGALRM) && waits(SIGCHLD));
			for (size_t i = 0; i < sizeof never / sizeof *never; i++)
				CHECK(!waits(never[i]));
			for (int i = 0; i < 4; i++)
				CHECK(waits(all_ending[i]) == (own >> i & 1));
			cw_signals_hold();
			cw_signals_let();
			CHECK(cw_signals_held == 1 && masks == 1 && waits(SIGUSR2));
			cw_signals_let();
			CHECK(cw_signals_held == 0 && masks == 2 && !memcmp(&mask, &before_, sizeof mask));
			cw_signals_let(); /* of a lock that was taken before signals waited */
			CHECK(cw_signals_held == 0 && masks == 2);
			cw_signals_wait(-1);
			CHECK(atomic_load(&cw_signals_waiting) == 0);
		}
	disposition[SIGINT] = SIG_DFL;
	unknown = SIGINT; /* then it waits as others do */
	cw_signals_wait(1);
	cw_signals_hold();
	CHECK(waits(SIGINT));
	cw_signals_let();
	cw_signals_wait(-1);
	unknown = 0;
}

/* The program has a handler when nothing has been allocated since; and none again. */
static void later(void)
{
	sigemptyset(&mask);
	disposition[SIGTERM] = SIG_DFL;
	cw_signals_wait(1);
	for (int i = 0; i < 4; i++) {
		cw_signals_hold();
		CHECK(waits(SIGTERM) == i % 2);
		disposition[SIGTERM] = i % 2 ? SIG_DFL : handler;
		cw_signals_hold(); /* what waits is as it was until all locks are let */
		CHECK(waits(SIGTERM) == i % 2);
		cw_signals_let();
		cw_signals_let();
		now++;
	}
	cw_signals_wait(-1);
}

static void nested(void)
{
	cw_signals_wait(1);
	cw_signals_wait(1);
	CHECK(atomic_load(&cw_signals_waiting) == 2);
	cw_signals_wait(-1);
	CHECK(atomic_load(&cw_signals_waiting) == 1);
	cw_signals_wait(-1);
}

/* --- threads ---------------------------------------------------------------------------------- */

static int alive, no_memory, attr_err, create_err, detached;
static size_t stack_size;
static void *(*begins)(void *);
static void *begins_with;
static sigset_t inherited;

static void *f_malloc(size_t n)
{
	if (no_memory)
		return NULL;
	alive++;
	return calloc(1, n);
}

static void f_free(void *p)
{
	alive -= p != NULL;
	free(p);
}

static int f_attr_init(pthread_attr_t *attr) { return attr_err ? attr_err : pthread_attr_init(attr); }

static int f_create(pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
	int state = -1;
	CHECK(pthread_attr_getdetachstate(attr, &state) == 0 && pthread_attr_getstacksize(attr, &stack_size) == 0);
	detached = state == PTHREAD_CREATE_DETACHED;
	inherited = mask;
	begins = run;
	begins_with = arg;
	return create_err;
}

static int worked;
static void *work(void *arg)
{
	CHECK(arg == &worked && cw_own_work == 1);
	masks = 0;
	cw_signals_hold(); /* has none anyway */
	CHECK(masks == 0 && cw_signals_held == 0);
	worked++;
	return &alive;
}

static void threads(void)
{
	pthread_attr_t plain;
	size_t usual;
	CHECK(pthread_attr_init(&plain) == 0 && pthread_attr_getstacksize(&plain, &usual) == 0);
	sigset_t own, all;
	sigemptyset(&own);
	sigaddset(&own, SIGUSR1);
	sigfillset(&all);
	for (int faults = 0; faults < 2; faults++) {
		mask = own;
		CHECK(cw_thread_begin(faults ? 1 << 20 : 0, faults, work, &worked) == 0 && detached &&
		      stack_size == (faults ? 1 << 20 : usual));
		CHECK(!memcmp(&mask, &own, sizeof mask));
		for (int i = 1; i < 32; i++)
			CHECK(sigismember(&inherited, i) == (sigismember(&all, i) && !(faults && (i == SIGBUS || i == SIGSEGV))));
		CHECK(alive == 1 && begins(begins_with) == &alive && alive == 0 && worked == faults + 1);
		cw_own_work = 0;
	}
	create_err = EAGAIN;
	mask = own;
	CHECK(cw_thread_begin(0, 0, work, &worked) == EAGAIN && alive == 0 && !memcmp(&mask, &own, sizeof mask));
	attr_err = ENOMEM;
	masks = 0;
	CHECK(cw_thread_begin(0, 0, work, &worked) == ENOMEM && alive == 0 && masks == 0);
	attr_err = 0;
	no_memory = 1;
	CHECK(cw_thread_begin(0, 0, work, &worked) == ENOMEM && alive == 0 && masks == 0);
}

int main(void)
{
	holds();
	later();
	nested();
	threads();
	puts("signals_test ok");
	return 0;
}
