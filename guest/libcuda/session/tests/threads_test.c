/* Where no thread is to be had, a session that needs one is refused: nobody waits for what never
 * began. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "session/loan.h"
#include "session/tcp.h"
#include "session/tests/fake_worker.h"

/* What the next thread is to begin with. */
static int asked, faults;
static size_t stack;

/* In place of the C library's. */
int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*fn)(void *), void *arg)
{
	(void)t, (void)fn, (void)arg;
	sigset_t now;
	CHECK(sigprocmask(SIG_SETMASK, NULL, &now) == 0);
	/* The application's signals are none of the thread's, but for its memory's if it touches
	 * that. */
	for (int sig = 1; sig < 32; sig++)
		if (sig != SIGKILL && sig != SIGSTOP)
			CHECK(sigismember(&now, sig) == !(faults && (sig == SIGBUS || sig == SIGSEGV)));
	int detached;
	size_t size, usual;
	pthread_attr_t plain;
	CHECK(pthread_attr_init(&plain) == 0 && pthread_attr_getstacksize(&plain, &usual) == 0 && pthread_attr_destroy(&plain) == 0);
	CHECK(pthread_attr_getdetachstate(a, &detached) == 0 && detached == PTHREAD_CREATE_DETACHED);
	CHECK(pthread_attr_getstacksize(a, &size) == 0 && (size == (stack ? stack : usual)));
	asked++;
	return EAGAIN;
}

static void *never(void *arg) { return arg; }

static int blocked(void)
{
	sigset_t now;
	CHECK(sigprocmask(SIG_SETMASK, NULL, &now) == 0);
	return sigismember(&now, SIGUSR1);
}

int main(void)
{
	setenv("CAUSEWAY_LOG", "none", 1);
	alarm(500);
	for (faults = 0; faults < 2; faults++)
		for (stack = 0; stack <= 1 << 20; stack += 1 << 18)
			CHECK(cw_thread_begin(stack, faults, never, NULL) == EAGAIN && !blocked());
	CHECK(asked == 10);
	asked = faults = 0;
	stack = 128 << 10;
	CHECK(cw_loan_start(&cw_s) == -EAGAIN && atomic_load(&cw_loans.running) == 0 && !blocked());
	stack = 256 << 10;
	struct fake_options o = {.tcp = 1};
	pid_t worker = fake_worker_start(&o);
	CHECK(cw_session_open() != 0 && cw_check() != 0);
	CHECK(asked == 2 && atomic_load(&cw_tcp.running) == 0 && !blocked());
	CHECK(fcntl(cw_s.fd, F_GETFD) < 0 && cw_s.base == NULL);
	fake_worker_kill(worker);
	puts("threads_test ok");
	return 0;
}
