/*
 * The application's memory, made shared, alone: moving.c, whose files and whose kernel are the
 * test's own. Into how many files memory is cut, when the worker is told, what of it is the file's
 * after each failure, and that nothing is left.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "session/compat.h"
#include "session/internal.h"
#include "session/tests/check.h"

static void *f_mmap(void *p, size_t n, int prot, int flags, int fd, off_t at);
static int f_munmap(void *p, size_t n);
static void *f_mremap(void *p, size_t old, size_t n, int flags, void *to);
static ssize_t f_pwrite(int fd, const void *p, size_t n, off_t at);
static int f_close(int fd);
static int f_stat(int fd, struct stat *st);

#define mmap(p, n, prot, flags, fd, at) f_mmap(p, n, prot, flags, fd, at)
#define munmap(p, n) f_munmap(p, n)
#define mremap(p, old, n, flags, to) f_mremap(p, old, n, flags, to)
#define madvise(p, n, advice) ((void)(p))
#define pwrite(fd, p, n, at) f_pwrite(fd, p, n, at)
#define close(fd) f_close(fd)
#define cw_fstat(fd, st) f_stat(fd, st)
#include "session/moving.c"

enum { FIRST = 100, SHADOW = 1, APP = 2, PAGE = 4096 };
#define MOST ((size_t)64 << 20)

/* Addresses are numbers here: nobody touches the memory. */
static uint8_t *const shadow = (uint8_t *)((uintptr_t)SHADOW << 40), *const app = (uint8_t *)((uintptr_t)APP << 40);
static uint8_t lies[MOST / PAGE],
	/* Of which file each of the app's pages is, 0: its own; and what lies in the shadow. */
	shadowed[MOST / PAGE];
static int is_open[FIRST + 512], files, forked, step, fails_at, eintr;
static size_t size_of[FIRST + 512], written[FIRST + 512], most_written;

static int fails(void)
{
	if (++step != fails_at)
		return 0;
	errno = EDQUOT;
	return 1;
}

void cw_fork_moved(void) { forked++; }

int cw_memfd(size_t size)
{
	if (fails())
		return -EMFILE;
	int fd = FIRST + files++;
	is_open[fd] = 1;
	size_of[fd] = size;
	written[fd] = 0;
	return fd;
}

static int f_close(int fd)
{
	CHECK(is_open[fd]);
	is_open[fd] = 0;
	return 0;
}

static int f_stat(int fd, struct stat *st)
{
	CHECK(is_open[fd]);
	st->st_ino = (ino_t)(7000 + fd);
	return fails() ? -1 : 0;
}

static void *f_mmap(void *p, size_t n, int prot, int flags, int fd, off_t at)
{
	CHECK(at == 0);
	if (fails())
		return MAP_FAILED;
	if (!p) {
		CHECK(prot == PROT_NONE && flags == (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE) && fd == -1);
		memset(shadowed, 1, n / PAGE);
		return shadow;
	}
	CHECK(is_open[fd] && n == size_of[fd] && written[fd] == n && prot == (PROT_READ | PROT_WRITE) && flags == (MAP_SHARED | MAP_FIXED));
	size_t from = (size_t)((uint8_t *)p - shadow) / PAGE;
	for (size_t i = 0; i < n / PAGE; i++) {
		CHECK(shadowed[from + i] == 1);
		shadowed[from + i] = (uint8_t)(fd - FIRST + 2);
	}
	return p;
}

static void *f_mremap(void *p, size_t old, size_t n, int flags, void *to)
{
	CHECK(old == n && flags == (MREMAP_MAYMOVE | MREMAP_FIXED) && (uint8_t *)p - shadow == (uint8_t *)to - app);
	if (fails())
		return MAP_FAILED;
	size_t from = (size_t)((uint8_t *)p - shadow) / PAGE;
	for (size_t i = 0; i < n / PAGE; i++) {
		CHECK(shadowed[from + i] >= 2);
		lies[from + i] = shadowed[from + i];
		shadowed[from + i] = 0;
	}
	return to;
}

static int f_munmap(void *p, size_t n)
{
	size_t from = (size_t)((uint8_t *)p - shadow) / PAGE;
	CHECK(n > 0 && n % PAGE == 0);
	for (size_t i = 0; i < n / PAGE; i++) {
		CHECK(shadowed[from + i] >= 1);
		shadowed[from + i] = 0;
	}
	return 0;
}

static size_t part_size;
static int no_more;
static ssize_t f_pwrite(int fd, const void *p, size_t n, off_t at)
{
	size_t k = (size_t)(fd - FIRST) * part_size;
	CHECK(is_open[fd] && (size_t)at == written[fd] && (const uint8_t *)p == app + k + at && n == size_of[fd] - (size_t)at && n > 0);
	if (eintr > 0) {
		eintr--;
		errno = EINTR;
		return -1;
	}
	if (fails())
		return -1;
	if (no_more)
		return 0;
	n = n < most_written ? n : most_written;
	written[fd] += n;
	return (ssize_t)n;
}

static int told, filled_then;
static void tell(struct cw_region *r)
{
	told++;
	filled_then = (int)atomic_load(&r->moving->filled);
}

static uint32_t ran;
static void hands_run(uint32_t count, void (*work)(void *arg, uint32_t k), void *arg)
{
	ran = count;
	for (uint32_t k = 0; k < count; k++)
		work(arg, k);
}

static struct cw_region_hands hands = {1, hands_run};
static struct cw_region region(size_t size, uint32_t most, int at)
{
	memset(lies, 0, sizeof lies);
	memset(shadowed, 0, sizeof shadowed);
	files = forked = step = eintr = told = no_more = 0;
	filled_then = -1;
	most_written = MOST;
	fails_at = at;
	hands.most = most;
	return (struct cw_region){.va = app, .size = size, .hands = &hands, .print = 99 /* of an earlier try */};
}

static int left(void)
{
	int n = 0;
	for (int i = 0; i < FIRST + 512; i++)
		n += is_open[i];
	for (size_t i = 0; i < MOST / PAGE; i++)
		n += shadowed[i] != 0;
	return n;
}

/* Files of half a MiB at least, no more than there are hands, or for much memory pieces of 8 MiB,
 * and never more than a message has room for. */
static void cuts(void)
{
	const size_t k = 1 << 10, m = 1 << 20;
	const struct {
		size_t size;
		uint32_t most, count;
		size_t part;
	} all[] = {
		{4 * k, 4, 1, 4 * k},
		{512 * k, 4, 1, 512 * k},
		{m - 4 * k, 4, 1, m - 4 * k},
		{m, 4, 2, m / 2},
		{m + 4 * k, 4, 2, m / 2 + 4 * k},
		{2 * m, 4, 4, m / 2},
		{64 * m, 1, 1, 64 * m},
		{32 * m, 4, 4, 8 * m},
		{40 * m, 4, 5, 8 * m},
		{64 * m, 2, 8, 8 * m},
		{16 * m, 2, 2, 8 * m},
		{3 * m, 5, 5, 616 * k},
	};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		struct cw_region r = region(all[i].size, all[i].most, 0);
		CHECK(cw_moving_make(&r) == 0 && forked == 1 && r.moving->size == all[i].part && r.moving->count == all[i].count &&
		      files == (int)all[i].count);
		uint64_t print = 0;
		size_t sum = 0;
		for (int f = 0; f < files; f++) {
			print = cw_print(print, sum, sum + size_of[FIRST + f], (uint64_t)(7000 + FIRST + f), 0);
			sum += size_of[FIRST + f];
		}
		CHECK(sum == r.size && r.print == print);
		part_size = r.moving->size;
		CHECK(cw_moving_fill(&r, tell) == 0 && told == 1 && ran == all[i].count);
		CHECK(filled_then == (all[i].count > all[i].most ? (int)(all[i].count + 3) / 4 : 0));
		for (size_t p = 0; p < r.size / PAGE; p++)
			CHECK(lies[p] == p * PAGE / part_size + 2);
		cw_moving_end(&r);
		CHECK(!r.moving && left() == 0);
	}
	struct cw_region r = region(MOST, 1000, 0);
	CHECK(cw_moving_make(&r) == 0 && r.moving->count == (MOST / PART_LEAST < CW_REGION_PARTS ? MOST / PART_LEAST : CW_REGION_PARTS));
	cw_moving_end(&r);
	CHECK(left() == 0);
}

/* Whatever fails, once: memory that did not get its file is the app's own, what has it stays as it
 * is, and the worker is told all the same, as it waits for that. */
static void failures(void)
{
	const size_t size = 2 << 20;
	struct cw_region r = region(size, 4, 0);
	CHECK(cw_moving_make(&r) == 0);
	int makes = step;
	part_size = r.moving->size;
	CHECK(cw_moving_fill(&r, tell) == 0);
	int most = step;
	cw_moving_end(&r);
	CHECK(makes == 9 && most == makes + 12);
	for (int at = 1; at <= most; at++) {
		r = region(size, 4, at);
		int err = cw_moving_make(&r);
		CHECK(at <= makes ? err < 0 && !r.moving && left() == 0 : err == 0);
		if (at <= makes)
			continue;
		CHECK(cw_moving_fill(&r, tell) == -EDQUOT && told == 1);
		int bad = (at - makes - 1) / 3;
		for (size_t p = 0; p < size / PAGE; p++) {
			int part = (int)(p * PAGE / part_size);
			CHECK(lies[p] == (part == bad ? 0 : part + 2));
		}
		cw_moving_end(&r);
		CHECK(left() == 0);
	}
}

static void slow_files(void)
{
	struct cw_region r = region(1 << 20, 4, 0);
	CHECK(cw_moving_make(&r) == 0);
	part_size = r.moving->size;
	most_written = 60000;
	eintr = 3;
	CHECK(cw_moving_fill(&r, tell) == 0 && eintr == 0 && lies[0] == 2 && lies[255] == 3);
	cw_moving_end(&r);
	r = region(1 << 20, 4, 0);
	CHECK(cw_moving_make(&r) == 0);
	no_more = 1;
	CHECK(cw_moving_fill(&r, tell) == -EIO && lies[0] == 0);
	cw_moving_end(&r);
	CHECK(left() == 0);
}

int main(void)
{
	cuts();
	failures();
	slow_files();
	puts("moving_test ok");
	return 0;
}
