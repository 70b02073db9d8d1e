/* Bytes of managed memory on their way: pages of this process to the GPU, and from there. See
 * resident.h. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "memory/copypool.h"
#include "memory/mappings.h"
#include "memory/resident.h"
#include "memory/uffd.h"

/* --- to the GPU ------------------------------------------------------------------------------- */

enum { FORGET_LARGE = 4 << 20, FORGET_PIECE = 2 << 20 };

/* A program that locks what it maps (mlockall) has its pages kept by the kernel, which must not be.
 * Where they stay all the same, as the program may not have them thrown away (seccomp, mseal),
 * nobody is to see what they hold. */
static void forget(uint64_t at, uint64_t size)
{
	static _Atomic int said;
	void *p = (void *)(uintptr_t)at;
	int how = cw_pieces_filed(at) ? MADV_REMOVE : MADV_DONTNEED;
	/* Of what the program has unmapped there is none. */
	if (madvise(p, size, how) == 0 || errno == ENOMEM)
		return;
	if (errno == EINVAL && munlock(p, size) == 0 && madvise(p, size, how) == 0)
		return;
	if (!atomic_exchange(&said, 1))
		cw_log(CW_LOG_ERROR, "managed memory at %p cannot leave this process, accesses end with SIGSEGV: %s", p, strerror(errno));
	mprotect(p, size, PROT_NONE);
}

/* Giving many pages back takes as long as copying them: by several threads. */
struct forgotten {
	uint64_t at, size;
	_Atomic uint64_t next;
};

static void forget_some(void *arg)
{
	struct forgotten *f = arg;
	for (uint64_t off; (off = atomic_fetch_add(&f->next, FORGET_PIECE)) < f->size;)
		forget(f->at + off, f->size - off < FORGET_PIECE ? f->size - off : FORGET_PIECE);
}

void cw_pages_forget(uint64_t at, uint64_t size)
{
	struct forgotten f = {.at = at, .size = size};
	cw_copypool_run(size < FORGET_LARGE ? 1 : (uint32_t)(size / FORGET_PIECE), forget_some, &f);
}

struct departure {
	uint64_t at, size, piece;
	uint32_t stream;
	int stay; /* the pages do */
};

static uint64_t going(const struct departure *d, uint64_t k)
{
	uint64_t rest = d->size - k * d->piece;
	return rest < d->piece ? rest : d->piece;
}

void cw_pages_whole(uint64_t at, uint64_t size)
{
	enum { AT_ONCE = 256 };
	unsigned char there[AT_ONCE];
	for (uint64_t off = 0, n; off < size; off += n) {
		n = size - off < AT_ONCE * CW_PAGE ? size - off : AT_ONCE * CW_PAGE;
		if (mincore((void *)(uintptr_t)(at + off), n, there) != 0)
			return;
		for (uint64_t i = 0; i < n / CW_PAGE; i++)
			if (!(there[i] & 1))
				cw_uffd_zero(at + off + i * CW_PAGE, CW_PAGE);
	}
}

/* --- what the program has no access to: a kernel has, all the same ---------------------------- */

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14 */
#endif

/* Whether Linux lets this process read a byte: where it does not say (seccomp), it does. */
static int readable(uint64_t at)
{
	uint8_t b;
	struct iovec to = {&b, 1}, from = {(void *)(uintptr_t)at, 1};
	return syscall(SYS_process_vm_readv, getpid(), &to, 1UL, &from, 1UL, 0UL) == 1 || errno != EFAULT;
}

/* As readable_to, before Linux 6.11: half of it, and half again, until that is of one mapping,
 * whose first byte tells for all. To have the kernel look at each page (MADV_POPULATE_READ) takes
 * as long as to copy the page. */
static uint64_t readable_halves_to(uint64_t from, uint64_t end)
{
	while (end - from > CW_PAGE && !cw_uffd_is_one(from, end - from))
		end = from + (end - from) / 2 / CW_PAGE * CW_PAGE;
	return readable(from) ? end : from;
}

/* Up to where what begins at from may be read, or a part of that; from: it may not. */
static uint64_t readable_to(uint64_t from, uint64_t end)
{
	int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
	uint64_t at = from;
	while (at < end) {
		struct cw_mapping_query q = {.flags = CW_VMA_READABLE, .addr = at};
		int failed = maps < 0 || cw_mapping_ask(maps, &q) != 0;
		if (failed && maps >= 0 && errno == ENOENT)
			break;
		if (failed) {
			at = readable_halves_to(at, end);
			break;
		}
		at = q.hi > end ? end : q.hi;
	}
	if (maps >= 0)
		close(maps);
	return at;
}

/* What is no longer mapped reads as zero. */
static void copy_forbidden(uint8_t *to, uint64_t from)
{
	void *p = (void *)(uintptr_t)from;
	int fd = open("/proc/self/mem", O_RDONLY | O_CLOEXEC), got = fd >= 0 && pread(fd, to, CW_PAGE, (off_t)from) == CW_PAGE;
	if (fd >= 0)
		close(fd);
	if (got)
		return;
	/* Where there is no other way it loses its protection, not its bytes. */
	if (mprotect(p, CW_PAGE, PROT_READ | PROT_WRITE) == 0)
		memcpy(to, p, CW_PAGE);
	else
		memset(to, 0, CW_PAGE);
}

static void copy_pages(uint8_t *to, uint64_t from, uint64_t size)
{
	for (uint64_t end = from + size, at; from < end; to += at - from, from = at) {
		at = readable_to(from, end);
		if (at > from) {
			cw_chunk_fill(to, (void *)(uintptr_t)from, at - from);
		} else {
			copy_forbidden(to, from);
			at = from + CW_PAGE;
		}
	}
}

void cw_pages_have(uint64_t at, uint64_t size)
{
	if (madvise((void *)(uintptr_t)at, size, MADV_POPULATE_READ) == 0)
		return;
	for (uint64_t end = at + size, to; at < end; at = to) {
		to = readable_to(at, end);
		for (uint64_t p = at; p < to; p += CW_PAGE)
			(void)*(const volatile uint8_t *)(uintptr_t)p;
		if (to == at)
			to = at + CW_PAGE;
	}
}

static void pack(const void *arg, uint64_t k, uint8_t *chunk)
{
	const struct departure *d = arg;
	uint64_t from = d->at + k * d->piece;
	cw_pages_whole(from, going(d, k));
	copy_pages(chunk, from, going(d, k));
	if (!d->stay)
		forget(from, going(d, k));
}

static CUresult send_off(const void *arg, uint64_t k, const struct cw_chunk *c)
{
	const struct departure *d = arg;
	return cwop_MemcpyStaged(CW_TO_DEVICE, c->region, c->offset, going(d, k), d->at + k * d->piece, d->stream, c->word, c->value);
}

CUresult cw_bytes_depart(uint64_t at, uint64_t size, uint32_t stream, int stay)
{
	struct departure d = {.at = at, .size = size, .stream = stream, .stay = stay};
	d.piece = size < CW_CHUNK_SIZE / 4 ? size : size < 16 * CW_CHUNK_SIZE ? CW_CHUNK_SIZE / 4 : CW_CHUNK_SIZE;
	struct cw_transfer t = {.pieces = (size + d.piece - 1) / d.piece, .stream = stream, .move = pack, .send = send_off, .arg = &d};
	return cw_transfer_to_device(&t);
}

/* --- from it ---------------------------------------------------------------------------------- */

enum { PIECE = 512 << 10, PART = 128 << 10 };

struct arrival {
	uint64_t at, size, piece;
	uint32_t stream;
	int protect;
	_Atomic int err;
};

static uint64_t length(const struct arrival *f, uint64_t k)
{
	uint64_t rest = f->size - k * f->piece;
	return rest < f->piece ? rest : f->piece;
}

static uint32_t parts(const void *arg, uint64_t k) { return (uint32_t)((length(arg, k) + PART - 1) / PART); }

static void move_part(const void *arg, uint64_t k, uint32_t part, uint8_t *chunk)
{
	struct arrival *f = (struct arrival *)(uintptr_t)arg;
	uint64_t off = (uint64_t)part * PART, rest = length(f, k) - off;
	int err = cw_uffd_fill(f->at + k * f->piece + off, chunk + off, rest < PART ? rest : PART, f->protect);
	if (err != 0)
		atomic_store(&f->err, err);
}

static CUresult send(const void *arg, uint64_t k, const struct cw_chunk *c)
{
	const struct arrival *f = arg;
	return cwop_MemcpyStaged(CW_FROM_DEVICE, c->region, c->offset, length(f, k), f->at + k * f->piece, f->stream, c->word, c->value);
}

CUresult cw_bytes_arrive(uint64_t at, uint64_t size, uint32_t stream, int protect)
{
	struct arrival f = {.at = at, .size = size, .piece = size < PIECE ? size : PIECE, .stream = stream, .protect = protect};
	struct cw_transfer t = {.pieces = (size + f.piece - 1) / f.piece, .stream = stream, .send = send, .arg = &f, .fresh = 1};
	t.parts = parts;
	t.move_part = move_part;
	CUresult res = cw_transfer_from_device(&t);
	return res != 0 ? res : cw_pages_failed("its pages cannot be made", atomic_load(&f.err));
}
