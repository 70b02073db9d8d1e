/* Where no thread is to be had, a session that needs one is refused: nobody waits for what never began. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "session/lease.h"
#include "session/tcp.h"
#include "session/tests/fake_worker.h"

static int asked;

/* In place of the C library's. */
int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*fn)(void *), void *arg)
{
	(void)t, (void)a, (void)fn, (void)arg;
	sigset_t now;
	CHECK(sigprocmask(SIG_SETMASK, NULL, &now) == 0 && sigismember(&now, SIGUSR1) == 1); /* the application's signals are none of the thread's */
	asked++;
	return EAGAIN;
}

static int blocked(void)
{
	sigset_t now;
	CHECK(sigprocmask(SIG_SETMASK, NULL, &now) == 0);
	return sigismember(&now, SIGUSR1);
}

int main(void)
{
	setenv("CAUSEWAY_LOG", "none", 1);
	alarm(60);
	CHECK(cw_lease_start(&cw_s) == -EAGAIN && atomic_load(&cw_leases.running) == 0 && !blocked());
	struct fake_options o = {.tcp = 1};
	pid_t worker = fake_worker_start(&o);
	CHECK(cw_session_open() != 0 && cw_check() != 0);
	CHECK(asked == 2 && atomic_load(&cw_tcp.running) == 0 && !blocked());
	CHECK(fcntl(cw_s.fd, F_GETFD) < 0 && cw_s.base == NULL);
	fake_worker_kill(worker);
	puts("threads_test ok");
	return 0;
}
