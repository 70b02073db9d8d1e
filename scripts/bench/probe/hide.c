/*
 * What it costs to take pages out of sight and to show them again, and whether userfaultfd goes
 * along: for duplicates of read-mostly managed memory.
 *
 *   hide [MIB [PAGES]]       of MIB (256) of memory PAGES (1280) pages are there, as many as the benchmark's table has at the processor
 *
 * given: pages are given back (MADV_DONTNEED) and made anew from a copy (UFFDIO_COPY, protected),
 * as the library does between kernels. moved: they are moved beside (mremap, MREMAP_DONTUNMAP) and
 * back over the same addresses, with the userfaultfd told of it (UFFD_FEATURE_EVENT_REMAP): the
 * kernel moves whole page tables of 2 MiB. It checks that what is out of sight faults, that what
 * comes back has its bytes without a fault, is protected from writes as before, and that what was
 * not there is not. Needs Linux 5.7 and the leave to use userfaultfd. Build: gcc -O2 -pthread
 * hide.c
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define LARGE (2ul << 20)

static int fd;
static volatile int missing, written, moved;
static char filler[PAGE];

static void need(int ok, const char *what)
{
	if (ok)
		return;
	printf("%s: %s\n", what, strerror(errno));
	exit(1);
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* Serves faults, and reads of moves, which wait for that. */
static void *serve(void *arg)
{
	struct uffd_msg m;
	(void)arg;
	while (read(fd, &m, sizeof m) == sizeof m) {
		if (m.event == UFFD_EVENT_REMAP)
			moved++;
		if (m.event != UFFD_EVENT_PAGEFAULT)
			continue;
		uint64_t at = m.arg.pagefault.address & ~(PAGE - 1);
		if (m.arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WP) {
			struct uffdio_writeprotect w = {.range = {at, PAGE}};
			written++;
			while (ioctl(fd, UFFDIO_WRITEPROTECT, &w) != 0 && errno == EAGAIN)
				;
		} else {
			struct uffdio_copy c = {.dst = at, .src = (uintptr_t)filler, .len = PAGE, .mode = UFFDIO_COPY_MODE_WP};
			missing++;
			while (ioctl(fd, UFFDIO_COPY, &c) != 0 && errno == EAGAIN)
				;
		}
	}
	return NULL;
}

static char *aligned(size_t size)
{
	char *p = mmap(NULL, size + LARGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	need(p != MAP_FAILED, "addresses");
	return (char *)(((uintptr_t)p + LARGE - 1) & ~(LARGE - 1));
}

static int by_size(const void *a, const void *b) { return *(const double *)a < *(const double *)b ? -1 : 1; }

int main(int argc, char **argv)
{
	enum { ROUNDS = 21 };
	size_t size = (argc > 1 ? strtoul(argv[1], NULL, 10) : 256) << 20, pages = argc > 2 ? strtoul(argv[2], NULL, 10) : 1280;
	char *at = aligned(size), *beside = aligned(size), *copy = malloc(pages * PAGE);
	need(mmap(at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == at, "memory");
	need(madvise(at, size, MADV_NOHUGEPAGE) == 0 && copy, "memory");
	fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_EVENT_REMAP};
	need(fd >= 0 && ioctl(fd, UFFDIO_API, &api) == 0, "userfaultfd");
	struct uffdio_register r = {.range = {(uintptr_t)at, size}, .mode = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP};
	need(ioctl(fd, UFFDIO_REGISTER, &r) == 0, "registering");
	pthread_t t;
	pthread_create(&t, NULL, serve, NULL);
	for (size_t i = 0; i < pages * PAGE; i++)
		copy[i] = (char)(i / PAGE + i);
	double give[ROUNDS], make[ROUNDS], hide[ROUNDS], show[ROUNDS];
	for (int k = 0; k < ROUNDS; k++) {
		double begin = now();
		madvise(at, pages * PAGE, MADV_DONTNEED);
		give[k] = now() - begin;
		begin = now();
		for (size_t done = 0; done < pages * PAGE; done += LARGE / 4) {
			size_t n = pages * PAGE - done < LARGE / 4 ? pages * PAGE - done : LARGE / 4;
			struct uffdio_copy c = {
				.dst = (uintptr_t)at + done, .src = (uintptr_t)copy + done, .len = n, .mode = UFFDIO_COPY_MODE_WP};
			need(ioctl(fd, UFFDIO_COPY, &c) == 0, "a fill");
		}
		make[k] = now() - begin;
	}
	int wrong = 0;
	for (int k = 0; k < ROUNDS; k++) {
		double begin = now();
		need(mremap(at, size, size, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, beside) == beside, "hiding");
		hide[k] = now() - begin;
		int before = missing;
		if (k == 0) {
			/* What is out of sight, or never was here, is asked for. */
			wrong += at[(pages + 5) * PAGE] != filler[0];
			wrong += missing != before + 1;
			madvise(at, size, MADV_DONTNEED);
		}
		begin = now();
		need(mremap(beside, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, at) == at, "showing");
		show[k] = now() - begin;
		before = missing;
		int writes = written;
		wrong += memcmp(at, copy, pages * PAGE) != 0 || missing != before;
		((volatile char *)at)[7 * PAGE] = copy[7 * PAGE];
		wrong += written != writes + 1;
		struct uffdio_writeprotect w = {.range = {(uintptr_t)at, pages * PAGE}, .mode = UFFDIO_WRITEPROTECT_MODE_WP};
		need(ioctl(fd, UFFDIO_WRITEPROTECT, &w) == 0, "protecting");
		wrong += at[(pages + 100 + (size_t)k) * PAGE] != filler[0] || missing != before + 1;
		madvise(at + pages * PAGE, size - pages * PAGE, MADV_DONTNEED);
	}
	for (double *all = give, *end[] = {give, make, hide, show}, **e = end; e < end + 4; e++, all = *e)
		qsort(*e, ROUNDS, sizeof **e, by_size), (void)all;
	printf("%zu MiB, %zu pages: given back %.0f us, made anew %.0f; moved out of sight %.0f, back %.0f; %d moves told of; %s\n",
	       size >> 20, pages, give[ROUNDS / 2], make[ROUNDS / 2], hide[ROUNDS / 2], show[ROUNDS / 2], moved, wrong ? "WRONG" : "right");
	return wrong != 0;
}
