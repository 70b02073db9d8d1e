/* The virtiofs carrier on a FUSE file system of our own: loans, waits, and the ways a process ends.
 * Needs root and /dev/fuse; a machine without them is told and skipped. */
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "gen/ops.h"
#include "session/tests/fake_worker.h"

static char dir[64];

static int handler(struct fake_call *c)
{
	static uint64_t n[2];
	switch (c->rec->op) {
	case CW_OP_MEM_GET_INFO:
		n[0] = fake_vfs_stats.renewals;
		n[1] = fake_vfs_stats.lapses;
		c->reply = n;
		c->reply_len = sizeof n;
		return 0;
	case CW_OP_STREAM_SYNCHRONIZE: usleep(30000); return 0;
	case CW_OP_CTX_SYNCHRONIZE: /* a host that moves */ fake_vfs_return_all(c->w); return 0;
	}
	c->result = 801;
	return 0;
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int status_of(pid_t pid)
{
	int st = -1;
	CHECK(waitpid(pid, &st, 0) == pid);
	return st;
}

static void new_dir(void)
{
	strcpy(dir, "/tmp/causeway-fuse-XXXXXX");
	CHECK(mkdtemp(dir) != NULL);
}

static pid_t start(void)
{
	struct fake_options o = {.handler = handler, .caps = CW_CAP_MAP, .sleep_after_us = 50, .mount = dir};
	new_dir();
	return fake_worker_start(&o);
}

static void finish(pid_t w)
{
	CHECK(status_of(w) == 0); /* the worker saw RELEASE */
	fake_vfs_umount(dir);
}

/* Runs fn in a process of its own and returns how long that lived after fn returned. */
static double in_child(void (*fn)(void), int sig)
{
	int fds[2];
	double t = 0;
	CHECK(pipe(fds) == 0);
	pid_t p = fork();
	if (p == 0) {
		CHECK(cw_session_open() == 0 && cwop_SessionFence() == 0);
		if (fn)
			fn();
		t = now();
		CHECK(write(fds[1], &t, sizeof t) == sizeof t);
		if (sig)
			kill(getpid(), sig);
		exit(0);
	}
	int st = status_of(p);
	CHECK(sig ? WIFSIGNALED(st) : st == 0);
	CHECK(read(fds[0], &t, sizeof t) == sizeof t);
	close(fds[0]);
	close(fds[1]);
	return now() - t;
}

/* Whether a process lives for so long at most, in one of some tries: on a machine that has other
 * things to do it may have waited for its turn. */
static int lives(void (*fn)(void), int sig, double most)
{
	double least = most;
	for (int tries = 0; tries < 5 && least >= most; tries++) {
		pid_t w = start();
		double t = in_child(fn, sig);
		least = t < least ? t : least;
		finish(w);
	}
	return least < most;
}

/* Rests for two renewals and more: whether each came within its term, and took no CPU to speak
 * of. */
static int renews(void)
{
	uint64_t renewals, lapses, more, lapsed;
	struct rusage a, b;
	CHECK(cwop_MemGetInfo(&renewals, &lapses) == 0);
	getrusage(RUSAGE_SELF, &a);
	usleep(2500000);
	getrusage(RUSAGE_SELF, &b);
	CHECK(cwop_MemGetInfo(&more, &lapsed) == 0);
	double used = (double)(b.ru_utime.tv_sec + b.ru_stime.tv_sec - a.ru_utime.tv_sec - a.ru_stime.tv_sec) +
		      (double)(b.ru_utime.tv_usec + b.ru_stime.tv_usec - a.ru_utime.tv_usec - a.ru_stime.tv_usec) / 1e6;
	return more - renewals >= 2 * 7 && lapsed == lapses && used < 0.02;
}

static void work(void)
{
	struct cw_region *r, *q;
	int tries = 0;
	CHECK(cw_region_add(CW_REGION_STAGING, (5 << 20) + 4096, 0, &r) == 0 && cw_region_add(CW_REGION_PINNED, 4096, 0, &q) == 0);
	CHECK(q->dev == (uintptr_t)q->va);
	for (int i = 0; i < 5; i++) {
		CHECK(cwop_StreamSynchronize(1) == 0); /* we sleep; then the worker does */
		usleep(20000);
	}
	/* A machine that has other things to do may keep it from that for a while. */
	while (!renews())
		CHECK(++tries < 5);
	CHECK(cw_region_drop(r) == 0 && cw_region_drop(q) == 0);
	CHECK(cwop_CtxSynchronize() == 0 && cwop_SessionFence() == 0 && cwop_StreamSynchronize(1) == 0);
	pid_t c = fork(); /* a child has no session and does not end ours */
	if (c == 0)
		exit(cw_check() == CUDA_ERROR_NOT_INITIALIZED && cwop_SessionFence() == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
	CHECK(status_of(c) == 0 && cwop_SessionFence() == 0);
}

static void works(void)
{
	pid_t w = start();
	in_child(work, 0);
	finish(w);
}

static void lends(void)
{
	struct cw_region *r;
	CHECK(cw_region_add(CW_REGION_STAGING, 5 << 20, 0, &r) == 0);
}

static void clean_exit(void) { CHECK(lives(lends, 0, 0.7)); }
static void killed(void) { CHECK(lives(NULL, SIGKILL, 3.5)); }

static void *sleeper(void *arg)
{
	(void)arg;
	cwop_StreamSynchronize(1);
	return NULL;
}

static void busy(void)
{
	pthread_t t;
	for (int i = 0; i < 8; i++)
		CHECK(pthread_create(&t, NULL, sleeper, NULL) == 0);
	usleep(5000);
}

static void killed_while_waiting(void) { CHECK(lives(busy, SIGKILL, 3.5)); }
static void exits_while_waiting(void) { CHECK(lives(busy, 0, 2)); }

static void stopped_and_continued(void)
{
	int open_[2];
	char b;
	CHECK(pipe(open_) == 0);
	pid_t w = start(), p = fork();
	if (p == 0) {
		uint64_t renewals, lapses, lapsed;
		CHECK(cw_session_open() == 0 && cwop_MemGetInfo(&renewals, &lapses) == 0);
		lapsed = lapses;
		CHECK(write(open_[1], "", 1) == 1);
		for (double end = now() + 60; now() < end && lapsed == lapses;) {
			CHECK(cwop_MemGetInfo(&renewals, &lapsed) == 0);
			usleep(1000);
		}
		CHECK(lapsed > lapses && cwop_StreamSynchronize(1) == 0);
		exit(0);
	}
	CHECK(read(open_[0], &b, 1) == 1);
	kill(p, SIGSTOP);
	usleep(3500000);
	kill(p, SIGCONT);
	CHECK(status_of(p) == 0);
	finish(w);
}

static void refused(void)
{
	struct fake_options o = {.mount = dir, .refuse = 13};
	new_dir();
	pid_t w = fake_worker_start(&o);
	CHECK(cw_session_open() == CUDA_ERROR_NO_DEVICE && cw_check() == CUDA_ERROR_NOT_INITIALIZED);
	finish(w);
	CHECK(cw_session_open() == CUDA_ERROR_NO_DEVICE); /* nothing there any more */
}

static void worker_killed(void)
{
	pid_t w = start();
	CHECK(cw_session_open() == 0 && cwop_SessionFence() == 0);
	fake_worker_kill(w); /* closes /dev/fuse: every request fails */
	CHECK(cwop_SessionFence() == CUDA_ERROR_LAUNCH_FAILED && cw_check() == CUDA_ERROR_LAUNCH_FAILED);
	fake_vfs_umount(dir);
}

int main(void)
{
	static const struct {
		const char *name;
		void (*fn)(void);
	} tests[] = {{"works", works},
		     {"clean_exit", clean_exit},
		     {"killed", killed},
		     {"killed_while_waiting", killed_while_waiting},
		     {"exits_while_waiting", exits_while_waiting},
		     {"stopped_and_continued", stopped_and_continued},
		     {"refused", refused},
		     {"worker_killed", worker_killed}};
	enum { N = sizeof tests / sizeof tests[0] };
	if (!fake_vfs_possible()) {
		puts("virtiofs_test skipped: needs root and /dev/fuse");
		return 0;
	}
	setenv("CAUSEWAY_LOG", "none", 1);
	pid_t pid[N];
	int failed = 0;
	for (int i = 0; i < N; i++) {
		pid[i] = fork();
		if (pid[i] == 0) {
			tests[i].fn();
			_exit(0);
		}
	}
	for (int i = 0; i < N; i++)
		if (status_of(pid[i]) != 0) {
			fprintf(stderr, "virtiofs_test: %s failed\n", tests[i].name);
			failed = 1;
		}
	if (!failed)
		puts("virtiofs_test ok");
	return failed;
}
