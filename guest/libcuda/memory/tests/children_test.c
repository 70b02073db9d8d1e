/* Forked children and registered memory: a child has it as it was at the fork, its writes are its
 * own, and so are the parent's later ones, whatever becomes of the registration. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "memory/memory.h"
#include "gen/entries.h"
#include "session/tests/fake_worker.h"

static void fill(uint8_t *p, size_t n, unsigned seed)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)(i * 7 + i / 4096 * 31 + seed);
}

static int filled(const uint8_t *p, size_t n, unsigned seed)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] != (uint8_t)(i * 7 + i / 4096 * 31 + seed))
			return 0;
	return 1;
}

/* Forks; then the parent changes the memory, the child looks and changes it too, and the parent
 * looks. */
static int apart(uint8_t *p, size_t n)
{
	int go[2], st = -1;
	fill(p, n, 1);
	CHECK(pipe(go) == 0);
	pid_t c = fork();
	if (c == 0) {
		char b;
		close(go[1]);
		if (read(go[0], &b, 1) != 1 || !filled(p, n, 1))
			_exit(1);
		fill(p, n, 3);
		pid_t g = fork(); /* nor are its own children's */
		if (g == 0) {
			memset(p, 4, n);
			_exit(0);
		}
		_exit(waitpid(g, &st, 0) == g && st == 0 && filled(p, n, 3) ? 0 : 2);
	}
	close(go[0]);
	fill(p, n, 2);
	CHECK(write(go[1], "", 1) == 1);
	close(go[1]);
	CHECK(waitpid(c, &st, 0) == c);
	return st == 0 && filled(p, n, 2);
}

static int descriptors(void)
{
	int n = 0;
	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static void states(void)
{
	static const struct {
		size_t skip, size; /* of the registration, in pages of 4096 bytes that are mapped */
	} ranges[] = {{0, 4096}, {0, 1 << 20}, {0, 9 << 20}, {100, 300 << 10}, {4096 - 8, (2 << 20) + 77}};
	for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
		size_t n = ((ranges[i].skip + ranges[i].size + 4095) & ~(size_t)4095) + 4096;
		uint8_t *m = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *p = m + ranges[i].skip;
		CUdeviceptr d;
		CHECK(apart(m, n));
		CHECK(cwi_cuMemHostRegister_v2(p, ranges[i].size, 0) == 0);
		CHECK(cwi_cuMemHostGetDevicePointer_v2(&d, p, 0) == 0 && d == (uintptr_t)p);
		int open_ = descriptors();
		CHECK(apart(m, n));
		/* Still the device's. */
		CHECK(cwi_cuMemsetD8_v2(0, d + 5, 0x11, 1) == 0 && cwop_StreamSynchronize(1) == 0 && p[5] == 0x11);
		CHECK(cwi_cuMemHostUnregister(p) == 0 && apart(m, n));
		CHECK(cwi_cuMemHostRegister_v2(p, ranges[i].size, 0) == 0 && apart(m, n));
		CHECK(descriptors() == open_);
		CHECK(cwi_cuMemHostUnregister(p) == 0);
		munmap(m, n);
	}
}

static int writes(uint8_t *p)
{
	int st = -1;
	pid_t c = fork();
	if (c == 0) {
		signal(SIGSEGV, SIG_DFL);
		*(volatile uint8_t *)p = 1;
		_exit(0);
	}
	CHECK(waitpid(c, &st, 0) == c && (st == 0 || (WIFSIGNALED(st) && WTERMSIG(st) == SIGSEGV)));
	return st == 0;
}

/* In a child memory is protected as it is in its parent, and what it could not be given for its own
 * it can read, and write no more. */
static void protection(void)
{
	enum { HALF = 1 << 20 };
	uint8_t *p = mmap(NULL, 2 * HALF, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int st = -1;
	fill(p, 2 * HALF, 9);
	CHECK(cwi_cuMemHostRegister_v2(p, 2 * HALF, 0) == 0);
	CHECK(mprotect(p, HALF, PROT_READ) == 0);
	pid_t c = fork();
	if (c == 0)
		_exit(filled(p, 2 * HALF, 9) && !writes(p) && !writes(p + HALF - 1) && writes(p + HALF) ? 0 : 1);
	CHECK(waitpid(c, &st, 0) == c && st == 0);
	CHECK(mprotect(p, HALF, PROT_READ | PROT_WRITE) == 0);
	struct rlimit old, none;
	CHECK(getrlimit(RLIMIT_AS, &old) == 0);
	none = old;
	none.rlim_cur = 1 << 20; /* what is there stays, and no mapping comes */
	CHECK(setrlimit(RLIMIT_AS, &none) == 0);
	c = fork();
	if (c == 0)
		_exit(filled(p, 2 * HALF, 9) && !writes(p) && !writes(p + 2 * HALF - 1) ? 0 : 1);
	CHECK(setrlimit(RLIMIT_AS, &old) == 0);
	CHECK(c > 0 && waitpid(c, &st, 0) == c && st == 0);
	fill(p, 2 * HALF, 10);
	CHECK(cwi_cuMemHostUnregister(p) == 0 && filled(p, 2 * HALF, 10));
}

/* While another thread registers memory and lets it go, children come and go: as many times as the
 * fake worker has regions for. */
static _Atomic int over;
enum { RAGGED = (3 << 20) + 123, SKIP = 1000 };

static void *registers(void *arg)
{
	uint8_t *p = arg;
	cw_set_current_ctx_id(5);
	for (int i = 0; i < 60; i++) {
		/* in turn a part that ends within pages, and whole pages, in place and in several
		 * files */
		uint8_t *at = i % 2 ? (uint8_t *)(((uintptr_t)p + 4095) & ~(uintptr_t)4095) : p + SKIP;
		size_t size = i % 2 ? 2 << 20 : RAGGED - 2 * SKIP;
		CHECK(cwi_cuMemHostRegister_v2(at, size, 0) == 0);
		CHECK(cwi_cuMemHostUnregister(at) == 0);
	}
	atomic_store(&over, 1);
	return NULL;
}

static void meanwhile(void)
{
	uint8_t *p = mmap(NULL, RAGGED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_t t;
	int st = -1;
	fill(p, RAGGED, 5);
	CHECK(pthread_create(&t, NULL, registers, p) == 0);
	for (int i = 0; !atomic_load(&over); i++) {
		pid_t c = fork();
		if (c == 0) {
			if (!filled(p, RAGGED, 5))
				_exit(1);
			memset(p, i, RAGGED);
			_exit(0);
		}
		CHECK(waitpid(c, &st, 0) == c && st == 0 && filled(p, RAGGED, 5));
	}
	CHECK(pthread_join(t, NULL) == 0 && filled(p, RAGGED, 5));
}

int main(void)
{
	void (*const tests[])(void) = {states, protection, meanwhile};
	setenv("CAUSEWAY_LOG", "none", 1);
	setenv("CAUSEWAY_COPY_THREADS", "4", 1);
	for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
		int st = -1;
		pid_t p = fork();
		if (p == 0) {
			struct fake_options o = {.handler = fake_device, .caps = CW_CAP_MAP, .sleep_after_us = 50};
			pid_t w = fake_worker_start(&o);
			CHECK(cw_session_open() == 0);
			cw_set_current_ctx_id(5);
			tests[i]();
			fake_worker_kill(w);
			_exit(0);
		}
		if (waitpid(p, &st, 0) != p || st != 0) {
			fprintf(stderr, "children_test: case %zu failed\n", i);
			return 1;
		}
	}
	puts("children_test ok");
	return 0;
}
