/* Control files: pending READs as loans on pages. */
#define _GNU_SOURCE
#include "guest.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static aio_context_t ctx;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

char *region(size_t size)
{
	char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	madvise(p, size, MADV_DONTFORK);
	memset(p, 0, size);
	return p;
}

void release_region(char *p, size_t size)
{
	munmap(p, size);
}

void setup_aio(void)
{
	check(syscall(SYS_io_setup, MANY, &ctx) == 0, "io_setup", "");
}

int session(void)
{
	return open(SESSION, O_RDWR | O_DIRECT | O_CLOEXEC);
}

/* Submits a READ of size bytes at buf and returns what io_submit did. */
long submit(int fd, int sc, char *buf, size_t size)
{
	struct iocb cb, *list[1] = {&cb};

	memset(&cb, 0, sizeof(cb));
	cb.aio_lio_opcode = IOCB_CMD_PREAD;
	cb.aio_fildes = (uint32_t)fd;
	cb.aio_buf = (uint64_t)(uintptr_t)buf;
	cb.aio_nbytes = size;
	cb.aio_offset = OFFSET(sc);
	return syscall(SYS_io_submit, ctx, 1, list);
}

/* Waits for up to n completions and returns how many came; their results are summed. */
long complete(long n, double seconds, long long *sum)
{
	struct io_event ev[MANY];
	struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
	long got = syscall(SYS_io_getevents, ctx, n, (long)MANY, ev, &t);

	for (long i = 0; sum && i < got; i++)
		*sum += ev[i].res;
	return got;
}

static volatile uint32_t *mark(char *p, int page, int word)
{
	return (volatile uint32_t *)(p + page * PAGE) + word;
}

static int await(volatile uint32_t *w, uint32_t v)
{
	for (double end = now() + 20; *w != v;)
		if (now() > end)
			return 0;
	return 1;
}

/* The host writes 1000+page to word 0 of each page while the READ is pending; the guest answers in
 * word 1. */
static void test_shared(int fd)
{
	char *p = region(REGION);
	double t = now();
	long r = submit(fd, SC_SHARED, p, REGION);
	int bad = -1;
	long long sum = 0;

	t = now() - t;
	check(r == 1, "io_submit of 1 MiB", "%ld", r);
	printf("info io_submit %.6f s\n", t);
	check(complete(0, 0, NULL) == 0, "stays pending", "");
	for (int i = 0; i < REGION / PAGE && bad < 0; i++) {
		if (!await(mark(p, i, 0), 1000 + (uint32_t)i))
			bad = i;
		*mark(p, i, 1) = 2000 + (uint32_t)i;
	}
	check(bad < 0, "host's writes are live", "page %d", bad);
	check(complete(1, 20, &sum) == 1 && sum == 0, "renewal", "result %lld", sum);
	bad = 0;
	for (int i = 0; i < REGION / PAGE; i++)
		bad += *mark(p, i, 0) != 1000 + (uint32_t)i || *mark(p, i, 1) != 2000 + (uint32_t)i;
	check(bad == 0, "renewal leaves pages alone", "%d pages changed", bad);
	release_region(p, REGION);
}

static void test_ping(int fd)
{
	char *p = region(PAGE);
	int ok = 1;

	check(submit(fd, SC_PING, p, PAGE) == 1, "ping submit", "");
	double t = now();
	for (uint32_t i = 1; i <= PINGS && ok; i++) {
		*mark(p, 0, 0) = i;
		ok = await(mark(p, 0, 1), i);
	}
	t = now() - t;
	check(ok, "ping", "");
	printf("info ring round trip %.2f us\n", t / PINGS * 1e6);
	check(complete(1, 20, NULL) == 1, "ping end", "");
	munmap(p, PAGE);
}

static void test_later(int fd)
{
	char *p = region(PAGE);
	double t = now();
	ssize_t n = pread(fd, p, PAGE, OFFSET(SC_LATER));

	t = now() - t;
	check(n == 4 && !memcmp(p, "done", 4) && t > 0.2, "late completion", "%zd bytes after %.3f s", n, t);
	memcpy(p, "ping", 4);
	t = now();
	n = pwrite(fd, p, 4, 0);
	t = now() - t;
	check(n == 4, "write", "%zd", n);
	printf("info FUSE round trip %.0f us\n", t * 1e6);
	munmap(p, PAGE);
}

static void test_many(int fd)
{
	char *p = region((size_t)MANY * REGION / 8);
	long long sum = 0;
	long got = 0;
	int ok = 1;

	for (int i = 0; i < MANY; i++)
		ok &= submit(fd, SC_MANY, p + (size_t)i * REGION / 8, REGION / 8) == 1;
	check(ok, "many submits", "");
	for (long k; got < MANY && (k = complete(1, 20, &sum)) > 0;)
		got += k;
	check(got == MANY && sum == MANY, "many pending", "%ld completions, sum %lld", got, sum);
	munmap(p, (size_t)MANY * REGION / 8);
}

/* One READ into pages that lie apart. */
static void test_scattered(int fd)
{
	struct iovec v[100];
	char *p = region(200 * PAGE);
	ssize_t n;

	for (int i = 0; i < 100; i++)
		v[i] = (struct iovec){p + (199 - 2 * i) * PAGE, PAGE};
	n = preadv(fd, v, 100, OFFSET(SC_LATER));
	check(n == 4 && !memcmp(p + 199 * PAGE, "done", 4), "preadv", "%zd", n);
	munmap(p, 200 * PAGE);
}

/* A child that holds a pending READ. It tells through the pipe that the READ is submitted. */
static pid_t holder(int sc)
{
	int fds[2];
	char c = 0;

	if (pipe(fds) < 0)
		return -1;
	pid_t pid = fork();
	if (pid == 0) {
		ctx = 0;
		int fd = session();
		if (fd < 0 || syscall(SYS_io_setup, 16, &ctx) < 0 || submit(fd, sc, region(REGION), REGION) != 1)
			_exit(1);
		if (write(fds[1], "x", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	close(fds[1]);
	if (read(fds[0], &c, 1) != 1)
		pid = -1;
	close(fds[0]);
	return pid;
}

static void test_kill(void)
{
	pid_t pid = holder(SC_KILL);
	int st = 0;
	double t = now();

	check(pid > 0, "holder", "");
	kill(pid, SIGKILL);
	check(waitpid(pid, &st, 0) == pid && WIFSIGNALED(st), "killed with a pending READ", "status %x", st);
	printf("info death took %.3f s\n", now() - t);
}

void test_loans(void)
{
	int fd = session();

	check(fd >= 0, "open session", "");
	setup_aio();
	test_shared(fd);
	test_ping(fd);
	test_later(fd);
	test_many(fd);
	test_scattered(fd);
	close(fd);
	test_kill();
}

int start_staying_read(void)
{
	return holder(SC_STAY) > 0;
}
