/* Threads of the library's own. */
#include <pthread.h>
#include <signal.h>

#include "session/internal.h"

int cw_thread_begin(size_t stack, int faults, void *(*run)(void *), void *arg)
{
	sigset_t most, old;
	pthread_attr_t attr;
	pthread_t t;
	sigfillset(&most);
	if (faults) {
		sigdelset(&most, SIGBUS);
		sigdelset(&most, SIGSEGV);
	}
	int err = pthread_attr_init(&attr);
	if (err != 0)
		return err;
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	if (stack != 0)
		pthread_attr_setstacksize(&attr, stack);
	sigprocmask(SIG_SETMASK, &most, &old); /* which the thread inherits */
	err = pthread_create(&t, &attr, run, arg);
	sigprocmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	return err;
}
