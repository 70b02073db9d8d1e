/* fork, exec, refusal, and the end of a session, each in a process of its own. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gen/ops.h"
#include "session/tests/fake_worker.h"

static CUresult fence(void)
{
	struct cw_tx tx;
	struct cw_reply rep;
	CUresult r = cw_begin(&tx, CW_OP_SESSION_FENCE, 0, 0, 1);
	if (r != 0 || (r = cw_commit_wait(&tx, &rep)) != 0)
		return r;
	r = rep.result;
	cw_reply_release(&rep);
	return r;
}

static int status_of(pid_t pid)
{
	int st = -1;
	CHECK(waitpid(pid, &st, 0) == pid);
	return st;
}

static int descriptors(void)
{
	int n = 0;
	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

/* A child of an initialised process: every call answers 3, and the parent's session goes on. */
static void child_of_session(void)
{
	struct fake_options o = {.sleep_after_us = 50};
	int before = descriptors();
	pid_t w = fake_worker_start(&o);
	CHECK(cw_session_open() == 0 && fence() == 0);
	struct cw_region *r;
	CHECK(cw_region_add(CW_REGION_STAGING, 1 << 20, 0, &r) == 0);
	r->va[0] = 42;
	int during = descriptors();
	CHECK(during == before + 2);
	for (int i = 0; i < 3; i++) {
		pid_t c = fork();
		if (c == 0) {
			struct cw_tx tx;
			CHECK(descriptors() == before);
			CHECK(cw_check() == CUDA_ERROR_NOT_INITIALIZED && cw_session_open() == CUDA_ERROR_NOT_INITIALIZED);
			CHECK(cw_begin(&tx, CW_OP_SESSION_FENCE, 0, 0, 1) == CUDA_ERROR_NOT_INITIALIZED);
			pid_t g = fork(); /* and so do its own children */
			if (g == 0)
				_exit(cw_check() == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
			CHECK(status_of(g) == 0);
			exit(0); /* destructors run in the child too */
		}
		CHECK(status_of(c) == 0);
		CHECK(fence() == 0);
	}
	CHECK(cw_region_drop(r) == 0 && descriptors() == during);
	fake_worker_kill(w);
}

/* A child of a process that never initialised CUDA is an ordinary process. */
static void child_before_session(void)
{
	struct fake_options o = {.sleep_after_us = 50};
	pid_t w = fake_worker_start(&o);
	pid_t c = fork();
	if (c == 0) {
		CHECK(cw_session_open() == 0 && fence() == 0);
		exit(0);
	}
	CHECK(status_of(c) == 0);
	CHECK(status_of(w) == 0); /* the worker saw the end of the session */
}

/* The worker sees the parent's death although a child lives on. */
static void parent_dies(void)
{
	struct fake_options o = {.sleep_after_us = 50};
	pid_t w = fake_worker_start(&o);
	int hold[2];
	CHECK(pipe(hold) == 0);
	pid_t c = fork();
	if (c == 0) {
		CHECK(cw_session_open() == 0);
		if (fork() == 0) {
			char b;
			close(hold[1]);
			_exit((int)read(hold[0], &b, 1)); /* outlives its parent */
		}
		kill(getpid(), 9);
	}
	CHECK(WIFSIGNALED(status_of(c)));
	CHECK(status_of(w) == 0);
	close(hold[1]);
	close(hold[0]);
}

static void refused(void)
{
	struct fake_options o = {.refuse = EACCES};
	pid_t w = fake_worker_start(&o);
	int before = descriptors();
	CHECK(cw_session_open() == CUDA_ERROR_NO_DEVICE && cw_check() == CUDA_ERROR_NOT_INITIALIZED);
	CHECK(descriptors() == before);
	waitpid(w, NULL, 0);
	setenv("CAUSEWAY", "unix:/nonexistent/socket", 1);
	CHECK(cw_session_open() == CUDA_ERROR_NO_DEVICE);
	setenv("CAUSEWAY", "gopher://x", 1);
	CHECK(cw_session_open() == CUDA_ERROR_UNKNOWN);
	/* and a later attempt may succeed */
	o.refuse = 0;
	w = fake_worker_start(&o);
	CHECK(cw_session_open() == 0);
	fake_worker_kill(w);
}

static void *waits(void *arg)
{
	(void)arg;
	return (void *)(uintptr_t)fence();
}

static _Atomic int *held; /* in memory that the worker's process shares */

static int hold_all(struct fake_call *c)
{
	(void)c;
	(*held)++;
	return 1;
}

static void *waits_forever(void *arg)
{
	struct cw_tx tx;
	struct cw_reply rep;
	(void)arg;
	CHECK(cw_begin(&tx, CW_OP_STREAM_SYNCHRONIZE, 8, 0, 1) == 0);
	return (void *)(uintptr_t)cw_commit_wait(&tx, &rep);
}

/* Threads that sleep on replies, on a completion word and for ring space notice a worker that is
 * killed. */
static void killed_while_waiting(void)
{
	struct fake_options o = {.sleep_after_us = 50, .handler = hold_all};
	held = mmap(NULL, sizeof *held, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK((void *)held != MAP_FAILED);
	pid_t w = fake_worker_start(&o);
	CHECK(cw_session_open() == 0 && waits(NULL) == NULL);
	pthread_t t[8];
	for (int i = 0; i < 8; i++)
		CHECK(pthread_create(&t[i], NULL, waits_forever, NULL) == 0);
	while (*held < 8) /* all have asked */
		usleep(1000);
	usleep(20000); /* and sleep */
	fake_worker_kill(w);
	for (int i = 0; i < 8; i++) {
		void *r;
		pthread_join(t[i], &r);
		CHECK((uintptr_t)r == CUDA_ERROR_LAUNCH_FAILED);
	}
	CHECK(cw_word_wait(3, 1) == CUDA_ERROR_LAUNCH_FAILED);
}

static void killed_while_full(void)
{
	struct fake_options o = {.sleep_after_us = 50, .slow_consume = 20000};
	pid_t w = fake_worker_start(&o);
	CHECK(cw_session_open() == 0);
	pid_t killer = fork();
	if (killer == 0) {
		usleep(300000);
		kill(w, 9);
		_exit(0);
	}
	CUresult r = 0;
	for (int i = 0; r == 0 && i < 1000; i++) {
		struct cw_tx tx;
		r = cw_begin(&tx, CW_OP_MEMCPY_HTO_D, 8, 32768, 0);
		if (r == 0)
			r = cw_commit(&tx);
	}
	CHECK(r == CUDA_ERROR_LAUNCH_FAILED);
	waitpid(w, NULL, 0);
	waitpid(killer, NULL, 0);
}

static int sticky_handler(struct fake_call *c)
{
	fake_control(c->w)->sticky = 700;
	c->result = 700;
	return 0;
}

static void sticky(void)
{
	struct fake_options o = {.sleep_after_us = 50, .handler = sticky_handler};
	pid_t w = fake_worker_start(&o);
	CHECK(cw_session_open() == 0);
	struct cw_tx tx;
	struct cw_reply rep;
	CHECK(cw_begin(&tx, CW_OP_STREAM_SYNCHRONIZE, 8, 0, 1) == 0 && cw_commit_wait(&tx, &rep) == 0 && (int)rep.result == 700);
	cw_reply_release(&rep);
	CHECK((int)cw_check() == 201 && cw_check_alive() == 0); /* no context: told first */
	cw_set_current_ctx_id(17);
	CHECK((int)cw_check() == 700 && cw_check_alive() == 0);
	CHECK(cw_begin(&tx, CW_OP_EVENT_RECORD, 16, 0, 0) == 0 && (int)cw_commit(&tx) == 700);
	fake_worker_kill(w);
}

int main(void)
{
	void (*const tests[])(void) = {child_of_session,     child_before_session, parent_dies, refused,
				       killed_while_waiting, killed_while_full,	   sticky};
	setenv("CAUSEWAY_LOG", "none", 1);
	for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
		pid_t pid = fork();
		if (pid == 0) {
			alarm(600);
			tests[i]();
			_exit(0);
		}
		if (status_of(pid) != 0) {
			fprintf(stderr, "fork_test: case %zu failed\n", i);
			return 1;
		}
	}
	puts("fork_test ok");
	return 0;
}
