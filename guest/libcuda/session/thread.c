/* Threads of the library's own. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "session/ahead.h"
#include "session/internal.h"
#include "session/lock.h"

struct beginning {
	void *(*run)(void *);
	void *arg;
};

static void *begin(void *arg)
{
	struct beginning b = *(struct beginning *)arg;
	free(arg);
	cw_signals_none();
	cw_own_work = 1;
	return b.run(b.arg);
}

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
	struct beginning *b = malloc(sizeof *b);
	int err = b ? pthread_attr_init(&attr) : ENOMEM;
	if (err != 0) {
		free(b);
		return err;
	}
	*b = (struct beginning){run, arg};
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	if (stack != 0)
		pthread_attr_setstacksize(&attr, stack);
	sigprocmask(SIG_SETMASK, &most, &old); /* which the thread inherits */
	err = pthread_create(&t, &attr, begin, b);
	sigprocmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	if (err != 0)
		free(b);
	return err;
}
