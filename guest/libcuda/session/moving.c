/*
 * The application's memory, made shared (cuMemHostRegister): its pages are copied into memfds,
 * which are then mapped over it. Making a page costs more than filling it, and a file takes one
 * writer at a time, so there are several files, each filled by a thread of its own.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "session/compat.h"
#include "session/internal.h"

/* Large memory is cut into more parts than there are hands: filled in order, they let the worker
 * follow. */
enum { PART_LEAST = 512 << 10, PART_LARGE = 8 << 20, POPULATE_READ = 22 /* MADV_POPULATE_READ, Linux 5.14 */ };

static size_t length(const struct cw_region *r, uint32_t k)
{
	size_t at = k * r->moving->size;
	return r->size - at < r->moving->size ? r->size - at : r->moving->size;
}

static int make_file(struct cw_region *r, uint32_t k)
{
	struct stat st;
	size_t at = k * r->moving->size;
	int fd = cw_memfd(length(r, k));
	if (fd < 0)
		return fd;
	r->moving->file[k] = fd;
	if (cw_fstat(fd, &st) != 0)
		return -errno;
	r->print = cw_print(r->print, at, at + length(r, k), st.st_ino, 0);
	return 0;
}

int cw_moving_make(struct cw_region *r)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), want = r->size / PART_LEAST, large = r->size / PART_LARGE;
	struct cw_moving *p = calloc(1, sizeof *p);
	int err = 0;
	if (!p)
		return -ENOMEM;
	cw_fork_moved();
	want = want > r->hands->most ? r->hands->most : want;
	want = r->hands->most > 1 && large > want ? large : want;
	want = want > CW_REGION_PARTS ? CW_REGION_PARTS : want < 1 ? 1 : want;
	p->size = (r->size / want + page - 1) & ~(page - 1);
	p->count = (uint32_t)((r->size + p->size - 1) / p->size);
	for (uint32_t k = 0; k < p->count; k++)
		p->file[k] = -1;
	r->moving = p;
	r->print = 0;
	p->shadow = mmap(NULL, r->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p->shadow == MAP_FAILED)
		err = -errno;
	for (uint32_t k = 0; k < p->count && err == 0; k++)
		err = make_file(r, k);
	if (err != 0)
		cw_moving_end(r);
	return err;
}

static int write_all(int fd, const uint8_t *from, size_t size)
{
	for (size_t done = 0; done < size;) {
		ssize_t n = pwrite(fd, from + done, size - done, (off_t)done);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		done += (size_t)n;
	}
	return 0;
}

/* Copies a part and puts its file in the memory's place: whoever reads there sees the same bytes
 * throughout. */
static int fill_part(struct cw_region *r, uint32_t k)
{
	struct cw_moving *p = r->moving;
	size_t at = k * p->size, size = length(r, k);
	int err = write_all(p->file[k], r->va + at, size);
	if (err != 0)
		return err;
	if (mmap(p->shadow + at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, p->file[k], 0) == MAP_FAILED)
		return -errno;
	/* Or the application's first touch of each page does it. */
	madvise(p->shadow + at, size, POPULATE_READ);
	/* No MADV_DONTFORK here: a child has the app's memory too (fork.c). */
	if (mremap(p->shadow + at, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, r->va + at) == MAP_FAILED)
		return -errno;
	p->moved[k] = 1;
	return 0;
}

static void fill(void *arg, uint32_t k)
{
	struct cw_region *r = arg;
	struct cw_moving *p = r->moving;
	int err = fill_part(r, k);
	if (err != 0)
		atomic_store(&p->failed, err);
	if (atomic_fetch_add(&p->filled, 1) + 1 == p->due)
		p->tell(r);
}

int cw_moving_fill(struct cw_region *r, void (*tell)(struct cw_region *r))
{
	struct cw_moving *p = r->moving;
	p->tell = tell;
	p->due = p->count > r->hands->most ? (p->count + 3) / 4 : 0;
	if (p->due == 0)
		tell(r);
	r->hands->run(p->count, fill, r);
	return atomic_load(&p->failed);
}

void cw_moving_end(struct cw_region *r)
{
	struct cw_moving *p = r->moving;
	for (uint32_t k = 0; k < p->count; k++)
		if (p->file[k] >= 0)
			close(p->file[k]);
	for (uint32_t k = 0; k < p->count && p->shadow != MAP_FAILED; k++) /* what is left of it */
		if (!p->moved[k])
			munmap(p->shadow + k * p->size, length(r, k));
	free(p);
	r->moving = NULL;
}
