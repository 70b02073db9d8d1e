/* The application's signals, which wait while its threads hold locks. See lock.h. */
#include <signal.h>

#include "session/lock.h"

_Atomic uint32_t cw_signals_waiting;
__thread uint32_t cw_signals_held __attribute__((tls_model("initial-exec")));
static __thread sigset_t before;
static __thread int none;

/* Those of HUP, INT, QUIT and TERM that would end the process, when it was asked last: somebody who
 * wants it to end does not wait for the GPU. */
static _Atomic uint32_t ends;
static const int ending[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM};
enum { ENDING = sizeof ending / sizeof ending[0] };
static _Atomic int64_t ends_asked; /* at which tick of the kernel's */

static int64_t kernel_tick(void)
{
	struct timespec t = {0};
	clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void ask_handlers(void)
{
	uint32_t set = 0;
	atomic_store(&ends_asked, kernel_tick());
	for (uint32_t i = 0; i < ENDING; i++) {
		struct sigaction now;
		if (sigaction(ending[i], NULL, &now) == 0 && now.sa_handler == SIG_DFL)
			set |= 1u << i;
	}
	atomic_store(&ends, set);
}

void cw_signals_wait(int more)
{
	ask_handlers();
	atomic_fetch_add(&cw_signals_waiting, (uint32_t)more);
}

void cw_signals_none(void) { none = 1; }

void cw_signals_hold(void)
{
	static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
	if (none)
		return;
	if (cw_signals_held == 0) {
		sigset_t most;
		/* A handler may have come. To ask takes longer than all the rest: once a tick (1 to
		 * 10 ms). */
		if (atomic_load_explicit(&ends_asked, memory_order_relaxed) != kernel_tick())
			ask_handlers();
		uint32_t set = atomic_load_explicit(&ends, memory_order_relaxed);
		sigfillset(&most);
		for (uint32_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
			sigdelset(&most, faults[i]);
		for (uint32_t i = 0; set && i < ENDING; i++)
			if (set >> i & 1)
				sigdelset(&most, ending[i]);
		sigprocmask(SIG_BLOCK, &most, &before);
	}
	cw_signals_held++;
}

void cw_signals_let(void)
{
	if (cw_signals_held == 0)
		return;
	if (cw_signals_held > 1) {
		cw_signals_held--;
		return;
	}
	sigset_t mask = before; /* from here on a handler may hold and let */
	cw_signals_held = 0;
	sigprocmask(SIG_SETMASK, &mask, NULL);
}
