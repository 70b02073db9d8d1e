/*
 * Programs that live and die in chosen ways, for scripts/sessions.sh, which runs them in a VM.
 *
 *   life once                 opens a session, computes, checks, ends by itself
 *   life idle|loop|long       opens a session, prints "@ready", then waits, launches for ever, or waits for an endless kernel;
 *                             a byte on stdin makes it exit or crash. A failing call is reported as "@error CODE MS" and ends it
 *   life copy                 the same with large copies of pageable memory, by extents where they can be had
 *   life pinned               computes with pinned memory and checks until SIGTERM and 12 rounds more, then prints "@pinned ROUNDS WRONG PAUSE_MS"
 *   life budget               allocates 64 MiB and asks to be told when that is too much; then frees 16 MiB each time and prints
 *                             "@over BYTES LEFT_MIB"; SIGTERM ends it
 *   life hoard MIB            fills so much memory and checks all of it until SIGTERM, eight times at least, pausing now and then, then prints
 *                             "@hoard ROUNDS WRONG PAUSE_MS"
 *   life idlecpu SECONDS      prints the CPU time that an idle session takes: "@idlecpu MICROSECONDS", and stays until SIGTERM
 *   life fork                 forks with and without exec around a live session
 *   life threads N            N threads compute at once
 *   life orphan               ends itself while a forked child lives on for three seconds
 *   life cycle N              N processes open a session and end, one after the other
 *   life end HOW MODE         runs `life MODE` and ends it: exit, crash, or a signal's number; prints "@kill PID", "@gone MS STATUS"
 *   life as UID MODE          runs `life MODE` as that user
 */
#include <errno.h>
#include <grp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "gpu.h"

static volatile sig_atomic_t ended, leaving;

static void on_term(int sig)
{
	(void)sig;
	ended = 1;
}

static void nap_ms(int ms)
{
	struct timespec t = {ms / 1000, ms % 1000 * 1000000l};
	nanosleep(&t, NULL);
}

/* One write, so that lines of several processes do not mix. */
static void say(const char *format, long a, long b, long c)
{
	char line[160];
	int n = snprintf(line, sizeof line, format, a, b, c);
	if (write(1, line, (size_t)n) != n)
		_exit(4);
}

static int check(const char *what, CUresult r)
{
	if (r != 0)
		fprintf(stderr, "%s: %d\n", what, r);
	return r != 0;
}

static int once(void) { return check("open", gpu_open()) || check("compute", gpu_works()); }

/* Ends the process as a byte from stdin says: 'q' in order, any other by a crash. */
static void *ender(void *arg)
{
	char c;
	if (read(0, &c, 1) != 1)
		return NULL;
	if (c == 'q') {
		leaving = 1;
		exit(0);
	}
	*(volatile char *)arg = 1;
	return NULL;
}

/* To the device and back, every byte compared. */
static CUresult copy_for_ever(void)
{
	enum { SIZE = 16 << 20 };
	CUdeviceptr d;
	uint8_t *in = malloc(SIZE), *out = malloc(SIZE);
	CUresult r = cuMemAlloc_v2(&d, SIZE);
	if (!in || !out)
		return 2;
	for (unsigned round = 1; r == 0; round++) {
		memset(in, (int)(round * 11), SIZE);
		for (unsigned i = 0; i < SIZE; i += 4096)
			memcpy(in + i, &(unsigned){i + round}, sizeof i);
		if ((r = cuMemcpyHtoDAsync_v2(d, in, SIZE, NULL)) == 0)
			r = cuMemcpyDtoH_v2(out, d, SIZE);
		if (r == 0 && memcmp(in, out, SIZE) != 0)
			say("@wrong\n", 0, 0, 0);
	}
	return r;
}

static int endless(const char *mode)
{
	CUdeviceptr d;
	pthread_t t;
	if (!strcmp(mode, "copy"))
		setenv("CAUSEWAY_COPY", "extents", 1);
	if (check("open", gpu_open()) || check("alloc", cuMemAlloc_v2(&d, 4096)) || check("memset", cuMemsetD32_v2(d, 0, 1024)) ||
	    check("launch", gpu_add_one(d + 1024, 32, NULL)) || check("synchronise", cuCtxSynchronize()) ||
	    (!strcmp(mode, "long") && check("launch", gpu_run_forever(d))))
		return 1;
	if (pthread_create(&t, NULL, ender, NULL) != 0)
		return 1;
	say("@ready %ld\n", getpid(), 0, 0);
	int64_t good = now_ms();
	CUresult r = 0;
	if (!strcmp(mode, "idle"))
		for (;;)
			pause();
	if (!strcmp(mode, "copy"))
		r = copy_for_ever();
	if (!strcmp(mode, "long"))
		r = cuCtxSynchronize();
	for (int i = 1; r == 0; i++) {
		r = gpu_add_one(d + 1024, 32, NULL);
		if (r == 0 && i % 64 == 0)
			r = cuCtxSynchronize();
		if (r == 0 && i % 64 == 0)
			good = now_ms();
	}
	while (leaving)
		pause(); /* CUDA ends with the process, whose status is the other thread's */
	say("@error %ld %ld\n", r, now_ms() - good, 0);
	return 5;
}

static int pinned(void)
{
	enum { COUNT = 16384 };
	uint32_t *in, *out, *mapped;
	CUdeviceptr d, m;
	CUhandle stream;
	if (check("open", gpu_open()) || check("stream", cuStreamCreate(&stream, 1)) || check("alloc", cuMemAlloc_v2(&d, COUNT * 4)) ||
	    check("pin", cuMemHostAlloc((void **)&in, COUNT * 4, 2)) || check("pin", cuMemHostAlloc((void **)&out, COUNT * 4, 2)) ||
	    check("pin", cuMemHostAlloc((void **)&mapped, 4096, 2)) || check("map", cuMemHostGetDevicePointer_v2(&m, mapped, 0)))
		return 1;
	signal(SIGTERM, on_term);
	memset(mapped, 0, 4096);
	say("@ready %ld\n", getpid(), 0, 0);
	uint32_t round = 0, wrong = 0;
	int64_t last = now_ms(), pause_ms = 0;
	for (int more = 12; !ended || more-- > 0; round++) {
		/* So many after the end is asked for: whoever asks sees that it goes on. */
		for (unsigned i = 0; i < COUNT; i++)
			in[i] = round * 7 + i;
		if (check("copy", cuMemcpyHtoDAsync_v2(d, in, COUNT * 4, stream)) || check("launch", gpu_add_one(d, COUNT, stream)) ||
		    check("launch", gpu_add_one(m, 1024, stream)) || check("copy", cuMemcpyDtoHAsync_v2(out, d, COUNT * 4, stream)) ||
		    check("synchronise", cuStreamSynchronize(stream)))
			return 1;
		for (unsigned i = 0; i < COUNT; i++)
			wrong += out[i] != round * 7 + i + 1;
		for (unsigned i = 0; i < 1024; i++)
			wrong += mapped[i] != round + 1;
		int64_t now = now_ms();
		if (now - last > pause_ms)
			pause_ms = now - last;
		last = now;
		nap_ms(5);
	}
	say("@pinned %ld %ld %ld\n", round, wrong, (long)pause_ms);
	return wrong != 0;
}

/* hoard holds MIB: each round checks what the one before has left, adds one to the words of the
 * first half MiB, and fills the rest anew. */
static int hoard(long mib)
{
	enum { LOOK = 4096, COUNTED = 1 << 17 };
	static uint32_t seen[2][LOOK];
	unsigned filled = (unsigned)(mib << 18) - COUNTED, at = 0;
	CUdeviceptr d;
	if (mib < 1 || mib > 1024 || check("open", gpu_open()) || check("alloc", cuMemAlloc_v2(&d, (size_t)mib << 20)) ||
	    check("fill", cuMemsetD32_v2(d, 0, COUNTED + filled)))
		return 1;
	signal(SIGTERM, on_term);
	say("@ready %ld\n", getpid(), 0, 0);
	CUdeviceptr rest = d + 4ull * COUNTED;
	uint32_t round = 0, wrong = 0;
	int64_t pause_ms = 0;
	for (; !ended || round < 8; round++) {
		int64_t begin = now_ms();
		if (check("copy", cuMemcpyDtoH_v2(seen[0], d + 4ull * (at % (COUNTED - LOOK)), sizeof seen[0])) ||
		    check("copy", cuMemcpyDtoH_v2(seen[1], rest + 4ull * at, sizeof seen[1])))
			return 1;
		for (unsigned i = 0; i < LOOK; i++)
			wrong += (seen[0][i] != round) + (seen[1][i] != round);
		if (check("launch", gpu_add_one(d, COUNTED, NULL)) || check("fill", cuMemsetD32_v2(rest, round + 1, filled)))
			return 1;
		at = (at + 37 * LOOK) % (filled - LOOK);
		if (now_ms() - begin > pause_ms)
			pause_ms = now_ms() - begin;
		nap_ms(round % 8 == 7 ? 600 : 5); /* it is idle for a moment */
	}
	say("@hoard %ld %ld %ld\n", round, wrong, (long)pause_ms);
	return wrong != 0;
}

static struct {
	CUdeviceptr piece[4];
	int left;
} budget;

static void over_budget(void *arg, void *data, CUhandle handle)
{
	struct {
		int type;
		uint64_t over;
	} *info = arg;
	(void)handle;
	if (info->type != 1 || data != &budget || budget.left == 0 || check("context", cuCtxSetCurrent(gpu_ctx)) ||
	    check("free", cuMemFree_v2(budget.piece[--budget.left])))
		_exit(1);
	say("@over %ld %ld\n", (long)info->over, 16l * budget.left, 0);
}

static int budget_known(void)
{
	CUhandle handle;
	if (check("open", gpu_open()))
		return 1;
	for (; budget.left < 4; budget.left++)
		if (check("alloc", cuMemAlloc_v2(&budget.piece[budget.left], 16 << 20)))
			return 1;
	signal(SIGTERM, on_term);
	if (check("register", cuDeviceRegisterAsyncNotification(0, over_budget, &budget, &handle)))
		return 1;
	say("@ready %ld\n", getpid(), 0, 0);
	while (!ended)
		nap_ms(20);
	return check("unregister", cuDeviceUnregisterAsyncNotification(0, handle)) || check("afterwards", gpu_works());
}

static int idle_cpu(int seconds)
{
	struct timespec a, b;
	if (once())
		return 1;
	signal(SIGTERM, on_term);
	say("@ready %ld\n", getpid(), 0, 0);
	nap_ms(1500); /* what polls after work has gone to sleep */
	say("@idle\n", 0, 0, 0);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
	nap_ms(seconds * 1000);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
	say("@idlecpu %ld\n", (b.tv_sec - a.tv_sec) * 1000000 + (b.tv_nsec - a.tv_nsec) / 1000, 0, 0);
	for (int i = 0; i < 1200 && !ended; i++) /* the host looks at the worker */
		nap_ms(50);
	return 0;
}

/* Status of a child that calls f, or -1. */
static int in_child(int (*f)(void))
{
	int status = -1;
	pid_t pid = fork();
	if (pid == 0)
		exit(f()); /* with destructors: they must not end the parent's session */
	return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int leaves(void) { return 42; }

static int refused(void)
{
	CUdeviceptr d;
	return cuMemAlloc_v2(&d, 16) == 3 ? 0 : 1; /* CUDA_ERROR_NOT_INITIALIZED */
}

static int execs(void)
{
	execl("/proc/self/exe", "life", "once", (char *)NULL);
	return 99;
}

static int forks(void)
{
	if (once())
		return 1;
	int plain = in_child(leaves), uses = in_child(refused), fresh = in_child(execs);
	if (plain != 42 || uses != 0 || fresh != 0) {
		fprintf(stderr, "children: %d %d %d\n", plain, uses, fresh);
		return 1;
	}
	return check("parent afterwards", gpu_works());
}

static void *worker(void *arg)
{
	CUresult r = cuCtxSetCurrent(gpu_ctx);
	for (int i = 0; i < 10 && r == 0; i++)
		r = gpu_works();
	*(CUresult *)arg = r;
	return NULL;
}

static int threads(int n)
{
	pthread_t t[64];
	CUresult r[64];
	int bad = n < 1 || n > 64 || check("open", gpu_open());
	for (int i = 0; i < n && !bad; i++)
		bad = pthread_create(&t[i], NULL, worker, &r[i]) != 0;
	for (int i = 0; i < n && !bad; i++) {
		pthread_join(t[i], NULL);
		bad = check("thread", r[i]);
	}
	return bad;
}

static int orphan(void)
{
	if (once())
		return 1;
	pid_t pid = fork();
	if (pid == 0) {
		nap_ms(3000);
		_exit(0);
	}
	say("@kill %ld\n", getpid(), 0, 0);
	return 0;
}

static int opens(void) { return check("open", cuInit(0)) || check("context", cuDevicePrimaryCtxRetain(&gpu_ctx, 0)); }

static int cycle(int n)
{
	for (int i = 0; i < n; i++) {
		int rc = in_child(opens);
		if (rc != 0) {
			fprintf(stderr, "session %d: %d\n", i, rc);
			return 1;
		}
	}
	return 0;
}

/* Runs `life MODE` until it is ready, ends it, and measures how long its end takes. */
static int end(const char *how, const char *mode)
{
	int in[2], out[2], status;
	char line[64] = "";
	if (pipe(in) || pipe(out))
		return 1;
	pid_t pid = fork();
	if (pid == 0) {
		dup2(in[0], 0);
		dup2(out[1], 1);
		close(in[0]), close(in[1]), close(out[0]), close(out[1]);
		execl("/proc/self/exe", "life", mode, (char *)NULL);
		_exit(99);
	}
	close(in[0]), close(out[1]);
	ssize_t n = read(out[0], line, sizeof line - 1);
	if (n <= 0 || strncmp(line, "@ready", 6)) {
		fprintf(stderr, "life %s did not start\n", mode);
		return 1;
	}
	nap_ms(300);
	say("@kill %ld\n", pid, 0, 0);
	int64_t t = now_ms();
	if (!strcmp(how, "crash") || !strcmp(how, "exit")) {
		if (write(in[1], how[0] == 'c' ? "x" : "q", 1) != 1)
			return 1;
	} else if (kill(pid, atoi(how)) != 0) {
		return 1;
	}
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	say("@gone %ld %ld\n", now_ms() - t, WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status), 0);
	return 0;
}

static int as_user(int uid, char **argv)
{
	if (setgroups(0, NULL) || setgid((gid_t)uid) || setuid((uid_t)uid) || geteuid() != (uid_t)uid) {
		perror("change the user");
		return 1;
	}
	argv[0] = (char *)"life";
	execv("/proc/self/exe", argv);
	perror("exec");
	return 1;
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	int n = argc > 2 ? atoi(argv[2]) : 0;
	if (!strcmp(mode, "end") && argc == 4)
		return end(argv[2], argv[3]);
	if (!strcmp(mode, "as") && argc > 3)
		return as_user(n, argv + 2);
	gpu_load();
	if (!strcmp(mode, "once"))
		return once();
	if (!strcmp(mode, "idle") || !strcmp(mode, "loop") || !strcmp(mode, "long") || !strcmp(mode, "copy"))
		return endless(mode);
	if (!strcmp(mode, "pinned"))
		return pinned();
	if (!strcmp(mode, "budget"))
		return budget_known();
	if (!strcmp(mode, "hoard") && n > 0)
		return hoard(n);
	if (!strcmp(mode, "idlecpu") && n > 0)
		return idle_cpu(n);
	if (!strcmp(mode, "fork"))
		return forks();
	if (!strcmp(mode, "threads"))
		return threads(n);
	if (!strcmp(mode, "orphan"))
		return orphan();
	if (!strcmp(mode, "cycle"))
		return cycle(n);
	fprintf(stderr, "usage: see the head of life.c\n");
	return 2;
}
