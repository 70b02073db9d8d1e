/* Copies by extents, against a host that refuses some of them and does others by half. Needs root
 * and /dev/fuse. */
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gen/entries.h"
#include "memory/memory.h"
#include "session/extent.h"
#include "session/tests/fake_worker.h"

enum { MIB = 1 << 20, MOST = 24 * MIB };

static int handler(struct fake_call *c)
{
	static uint64_t n[2];
	if (c->rec->op != CW_OP_MEM_GET_INFO)
		return fake_device(c);
	n[0] = fake_vfs_stats.extents;
	c->reply = n;
	c->reply_len = sizeof n;
	return 0;
}

static uint64_t extents(void)
{
	uint64_t n, other;
	CHECK(cwop_MemGetInfo(&n, &other) == 0);
	return n;
}

static void fill(uint8_t *p, size_t n, uint64_t seed)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)((i + seed) * 0x9e3779b97f4a7c15u >> 56);
}

static void there_and_back(uint8_t *a, uint8_t *b, size_t n, uint64_t seed)
{
	CUdeviceptr d = 0;
	CHECK(cwi_cuMemAlloc_v2(&d, n + 9) == 0);
	fill(a, n, seed);
	CHECK(cwi_cuMemcpyHtoD_v2(0, d + 3, a, n) == 0);
	memset(b, 0, n);
	CHECK(cwi_cuMemcpyDtoH_v2(0, b, d + 3, n) == 0 && memcmp(a, b, n) == 0);
	CHECK(cwi_cuMemFree_v2(d) == 0);
}

/* Another thread copies at the same time: by staging while the extents are the first one's. */
static void *other(void *arg)
{
	uint8_t *a = malloc(MOST), *b = malloc(MOST);
	(void)arg;
	cw_set_current_ctx_id(5);
	for (int i = 0; i < 4; i++)
		there_and_back(a, b, 6 * MIB + 77, 1000 + (uint64_t)i);
	free(a);
	free(b);
	return NULL;
}

static void work(void)
{
	static const size_t sizes[] = {4 * MIB, 4 * MIB + 1, 9 * MIB - 5, 16 * MIB + 4096, 23 * MIB + 12345};
	uint8_t *a = mmap(NULL, MOST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint8_t *b = mmap(NULL, MOST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_t t;
	CHECK(a != MAP_FAILED && b != MAP_FAILED);
	there_and_back(a, b, 2 * MIB, 1);
	CHECK(extents() == 0); /* not for so few bytes */
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		uint64_t before = extents(), pieces = sizes[i] / MIB;
		there_and_back(a + i * 13, b + i * 1001, sizes[i], i);
		CHECK(extents() - before >= pieces * (cw_extent_pins() ? 2 : 1));
	}
	CHECK(pthread_create(&t, NULL, other, NULL) == 0);
	for (int i = 0; i < 4; i++)
		there_and_back(a, b, 20 * MIB + 1, 50 + (uint64_t)i);
	pthread_join(t, NULL);

	/* A child that is born meanwhile has its own pages; ours stay ours. */
	pid_t c = fork();
	if (c == 0)
		_exit(0);
	there_and_back(a, b, 8 * MIB, 99);
	CHECK(waitpid(c, NULL, 0) == c);

	CUdeviceptr d = 0;
	CHECK(cwi_cuMemAlloc_v2(&d, 8 * MIB) == 0);
	fill(a, 8 * MIB, 5);
	CHECK(mprotect(a, MOST, PROT_READ) == 0 && cwi_cuMemcpyHtoD_v2(0, d, a, 8 * MIB) == 0);
	CHECK(cwi_cuMemcpyDtoH_v2(0, b, d, 8 * MIB) == 0 && memcmp(a, b, 8 * MIB) == 0);
	uint64_t before = extents();
	CHECK(cwi_cuMemcpyHtoD_v2(0, d + 1, a, 8 * MIB) == CUDA_ERROR_INVALID_VALUE && extents() == before);
}

int main(void)
{
	char dir[] = "/tmp/causeway-fuse-XXXXXX";
	setenv("CAUSEWAY_LOG", "none", 1);
	setenv("CAUSEWAY_COPY", "extents", 1);
	if (!fake_vfs_possible()) {
		puts("extent_test: skipped, it needs root and /dev/fuse");
		return 0;
	}
	CHECK(mkdtemp(dir) != NULL);
	struct fake_options o = {.handler = handler, .caps = CW_CAP_MAP, .sleep_after_us = 50, .mount = dir};
	pid_t w = fake_worker_start(&o), p = fork();
	if (p == 0) {
		CHECK(cw_session_open() == 0);
		cw_set_current_ctx_id(5);
		work();
		exit(0);
	}
	int st = -1;
	CHECK(waitpid(p, &st, 0) == p && st == 0);
	CHECK(waitpid(w, &st, 0) == w && st == 0); /* it saw RELEASE */
	fake_vfs_umount(dir);
	puts("extent_test ok");
	return 0;
}
