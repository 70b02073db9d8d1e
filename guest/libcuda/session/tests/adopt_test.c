/* The application's own memory as regions, over a socket: the worker sees what the program wrote,
 * the program what the worker did, and when a region has gone its memory holds what it held; where
 * parts of a heap were lent it is this process's alone again. */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gen/ops.h"
#include "session/internal.h"
#include "session/tests/fake_worker.h"

enum { LOOK = CW_OP_MEM_GET_INFO, PAGE = 4096 };

/* {region, size}: the sum of its bytes, each of which is one more from then on. */
static int handler(struct fake_call *c)
{
	static uint64_t sum;
	uint64_t a[2];
	memcpy(a, c->fixed, sizeof a);
	uint8_t *p = fake_region(c->w, (uint32_t)a[0], 0, a[1]);
	CHECK(p != NULL);
	sum = 0;
	for (uint64_t i = 0; i < a[1]; i++)
		sum += (i % 251 + 1) * p[i]++;
	c->reply = &sum;
	c->reply_len = sizeof sum;
	return 0;
}

static uint64_t sum_of(const uint8_t *p, uint64_t size)
{
	uint64_t sum = 0;
	for (uint64_t i = 0; i < size; i++)
		sum += (i % 251 + 1) * p[i];
	return sum;
}

static uint64_t look(const struct cw_region *r)
{
	struct cw_tx tx;
	struct cw_reply rep;
	uint64_t a[2] = {r->id, r->size}, sum;
	CHECK(cw_begin(&tx, LOOK, sizeof a, 0, 1) == 0);
	memcpy(tx.rec + sizeof(struct cw_record), a, sizeof a);
	CHECK(cw_commit_wait(&tx, &rep) == 0 && rep.result == 0 && rep.len >= sizeof sum);
	memcpy(&sum, rep.data, sizeof sum);
	cw_reply_release(&rep);
	return sum;
}

/* Whether every page is mapped, and how: 'p' or 's'; 0: neither all of the one nor all of the
 * other. */
static char mapped(const uint8_t *at, size_t size)
{
	FILE *f = fopen("/proc/self/maps", "re");
	char line[512], how = 0;
	size_t seen = 0;
	CHECK(f != NULL);
	while (fgets(line, sizeof line, f)) {
		unsigned long lo, hi;
		char perms[8];
		if (sscanf(line, "%lx-%lx %7s", &lo, &hi, perms) != 3 || hi <= (uintptr_t)at || lo >= (uintptr_t)at + size)
			continue;
		CHECK(!strncmp(perms, "rw", 2) && (how == 0 || how == perms[3]));
		how = perms[3];
		lo = lo < (uintptr_t)at ? (uintptr_t)at : lo;
		hi = hi > (uintptr_t)at + size ? (uintptr_t)at + size : hi;
		seen += hi - lo;
	}
	fclose(f);
	return seen == size ? how : 0;
}

static void one_by_one(uint32_t count, void (*part)(void *arg, uint32_t k), void *arg)
{
	for (uint32_t k = 0; k < count; k++)
		part(arg, k);
}

enum way { MOVED, PARTED, OF_FILE, WAYS };

static void one(enum way way, size_t size, uint64_t offset)
{
	static const struct cw_region_hands hands = {4, one_by_one};
	struct cw_region *r = NULL;
	int file = cw_memfd(offset + size);
	uint8_t *p = way == OF_FILE ? mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, (off_t)offset)
				    : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(file >= 0 && p != MAP_FAILED);
	for (size_t i = 0; i < size; i++)
		p[i] = (uint8_t)(i * 7 + i / PAGE);
	CUresult res = way == MOVED    ? cw_region_adopt(p, size, 0, &hands, &r)
		       : way == PARTED ? cw_region_adopt_parted(p, size, 0, &r)
				       : cw_region_adopt_file(p, size, file, offset, 0, &r);
	CHECK(res == 0 && r->size == size);
	for (int turn = 0; turn < 3; turn++) {
		uint64_t before = sum_of(p, size);
		uint8_t was = p[size - 1];
		CHECK(look(r) == before && p[size - 1] == (uint8_t)(was + 1));
		p[turn * 17] ^= 0x55;
		p[size - 1 - (size_t)turn] ^= 0x55;
	}
	CHECK(mapped(p, size) == 's');
	uint64_t sum = sum_of(p, size);
	CHECK(cw_region_drop(r) == 0);
	CHECK(sum_of(p, size) == sum && mapped(p, size) == (way == PARTED ? 'p' : 's'));
	p[0]++;
	munmap(p, size);
	close(file);
}

static int descriptors(void)
{
	int n = 0;
	for (int fd = 0; fd < 128; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

int main(void)
{
	struct fake_options o = {.handler = handler, .caps = CW_CAP_MAP, .sleep_after_us = 50};
	static const size_t sizes[] = {PAGE, 3 * PAGE, (512 << 10) - PAGE, 1 << 20, (3 << 20) + PAGE};
	setenv("CAUSEWAY_LOG", "none", 1);
	pid_t worker = fake_worker_start(&o);
	CHECK(cw_session_open() == 0);
	int before = descriptors();
	for (int way = 0; way < WAYS; way++)
		for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
			for (uint64_t offset = 0; offset <= 2 * PAGE; offset += 2 * PAGE)
				one((enum way)way, sizes[i], offset);
	CHECK(descriptors() == before);
	fake_worker_kill(worker);
	puts("adopt_test ok");
	return 0;
}
