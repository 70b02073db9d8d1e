/*
 * Duplicates of memory that the program advised to be read mostly. As all pages of this process
 * leave before the GPU works, such a table would be made anew after each kernel, and making pages
 * is what costs. So what both have moves out of sight, page tables and all, to addresses beside,
 * and when the CPU touches it, it is compared with the GPU's bytes: if they are the same it moves
 * back, else it is forgotten and comes as everything does. What is out of sight is thus never
 * believed: a kernel, a copy or another GPU may have written, and nothing has to tell of it.
 *
 * The kernel has a process that moves watched memory wait until somebody has read that it did
 * (UFFD_EVENT_REMAP; without it what moved would not be watched). The reader of faults may wait for
 * the resident lock, which whoever has something moved holds: so another thread moves, and the
 * holder of the lock reads meanwhile.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "api/callback.h"
#include "memory/mappings.h"
#include "memory/resident.h"
#include "memory/spare.h"
#include "memory/uffd.h"
#include "session/compat.h"

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4 /* Linux 5.7; of a file's pages, 5.13 */
#endif

/* A block is what one page table covers: the kernel moves it whole. Where there are fewer units
 * than WORTH, or half as many in each block, pages are made as quickly. */
enum { BLOCK = (2 << 20) / CW_UNIT, WORTH = 16, LOOK = 64 << 20, TIGHT_MS = 1000 };

static uint32_t hidden; /* units out of sight, of all areas; under the lock */
static uint64_t looked; /* up to so many bytes there was memory for them */
/* When there was none for more, 0: there was. Not asked with each launch: it takes some files to be
 * read. */
static int64_t tight_since;

struct cw_kept {
	uint64_t beside; /* of a->base; at the same place in a page table */
	void *mapped;
	uint64_t size;	/* mapped */
	uint32_t count; /* units out of sight */
	uint8_t unit[]; /* whether it is */
};

/* --- moving ----------------------------------------------------------------------------------- */

enum { IDLE, ASKED, DONE };
static struct {
	_Atomic uint32_t word; /* futex */
	int started, err;
	uint64_t from, to, size;
} mover;

/* The addresses stay mapped, and empty. */
static void *move_pages(void *arg)
{
	(void)arg;
	prctl(PR_SET_NAME, "causeway-moves");
	for (;;) {
		uint32_t word = atomic_load(&mover.word);
		if (word != ASKED) {
			cw_futex_wait(&mover.word, word, CW_FUTEX_PRIVATE, NULL);
			continue;
		}
		void *to = (void *)(uintptr_t)mover.to;
		void *p =
			mremap((void *)(uintptr_t)mover.from, mover.size, mover.size, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to);
		mover.err = p == to ? 0 : -errno;
		atomic_store(&mover.word, DONE);
	}
	return NULL;
}

/* Under the lock. 0 or -errno: then nothing has moved. */
static int move(uint64_t from, uint64_t to, uint64_t size)
{
	if (!mover.started)
		mover.started = cw_thread_start(move_pages, NULL) == 0;
	if (!mover.started)
		return -EAGAIN;
	mover.from = from;
	mover.to = to;
	mover.size = size;
	cw_uffd_moves(to);
	atomic_store(&mover.word, ASKED);
	cw_futex_wake(&mover.word, 1, CW_FUTEX_PRIVATE);
	while (atomic_load(&mover.word) != DONE) {
		cw_uffd_drain();
		sched_yield();
	}
	atomic_store(&mover.word, IDLE);
	return mover.err;
}

/* Whether what has moved there and back is there, protected from writes, and watched. */
static int still_watched(uint64_t page)
{
	const uint64_t there = 1ull << 63, protected = 1ull << 57;
	uint64_t entry = 0;
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	if (pread(fd, &entry, sizeof entry, (off_t)(page / CW_PAGE * sizeof entry)) != sizeof entry)
		entry = 0;
	close(fd);
	return (entry & there) && (entry & protected) && cw_uffd_protect(page, CW_PAGE, 1) == 0;
}

static int known; /* 1: it works, 2: it does not */

/* Under the lock. Tried once. */
static int works(void)
{
	static const uint8_t bytes[CW_PAGE] = {1};
	if (known)
		return known == 1;
	known = 2;
	if (!cw_uffd_remaps() || !cw_uffd_tracks())
		return 0;
	void *p = mmap(NULL, 2ul * CW_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uint64_t at = (uintptr_t)p, beside = at + CW_PAGE;
	if (p == MAP_FAILED)
		return 0;
	madvise(p, 2ul * CW_PAGE, MADV_DONTFORK);
	if (cw_uffd_watch(at, CW_PAGE, 1) == 0 && cw_uffd_fill(at, bytes, CW_PAGE, 1) == 0 && move(at, beside, CW_PAGE) == 0 &&
	    move(beside, at, CW_PAGE) == 0 && still_watched(at) && *(const volatile uint8_t *)p == 1)
		known = 1;
	munmap(p, 2ul * CW_PAGE);
	return known == 1;
}

/* --- which areas have some -------------------------------------------------------------------- */

void cw_kept_end(struct cw_area *a)
{
	if (!a->kept)
		return;
	hidden -= a->kept->count;
	munmap(a->kept->mapped, a->kept->size);
	free(a->kept);
	a->kept = NULL;
}

void cw_kept_begin(struct cw_area *a)
{
	const uint64_t large = (uint64_t)BLOCK * CW_UNIT;
	if (a->kept || a->blocks || a->filed || a->size < (uint64_t)WORTH * CW_UNIT || !works())
		return;
	struct cw_kept *k = calloc(1, sizeof *k + a->units);
	if (!k)
		return;
	k->size = a->size + 2 * large;
	k->mapped = mmap(NULL, k->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (k->mapped == MAP_FAILED) {
		free(k);
		return;
	}
	madvise(k->mapped, k->size, MADV_DONTFORK);
	k->beside = (((uint64_t)(uintptr_t)k->mapped + large - 1) & ~(large - 1)) + (a->base & (large - 1));
	a->kept = k;
}

/* Blocks are of addresses, areas begin anywhere in one. */
static uint32_t block_end(const struct cw_area *a, uint32_t u)
{
	uint32_t first = (uint32_t)(a->base / CW_UNIT % BLOCK), end = (u + first) / BLOCK * BLOCK + BLOCK - first;
	return end < a->units ? end : a->units;
}

static uint32_t block_begin(const struct cw_area *a, uint32_t u)
{
	uint32_t first = (uint32_t)(a->base / CW_UNIT % BLOCK), begin = (u + first) / BLOCK * BLOCK;
	return begin > first ? begin - first : 0;
}

static uint64_t beside(const struct cw_area *a, uint32_t u) { return a->kept->beside + (uint64_t)u * CW_UNIT; }

static uint32_t held(const struct cw_area *a, uint32_t lo, uint32_t hi, enum cw_holder h)
{
	uint32_t n = 0;
	for (uint32_t u = lo; u < hi; u++) {
		uint64_t eight = 1;
		if (hi - u >= 8)
			memcpy(&eight, a->holder + u, 8);
		if (eight == 0) { /* most of a large area: the GPU's */
			n += h == CW_AT_GPU ? 8 : 0;
			u += 7;
		} else {
			n += a->holder[u] == h;
		}
	}
	return n;
}

static uint32_t kept(const struct cw_area *a, uint32_t lo, uint32_t hi)
{
	uint32_t n = 0;
	for (uint32_t u = lo; u < hi; u++)
		n += a->kept->unit[u];
	return n;
}

static void unmark(struct cw_area *a, uint32_t lo, uint32_t hi)
{
	uint32_t n = kept(a, lo, hi);
	a->kept->count -= n;
	hidden -= n;
	memset(a->kept->unit + lo, 0, hi - lo);
}

static void forget(struct cw_area *a, uint32_t lo, uint32_t hi)
{
	cw_pages_forget(beside(a, lo), cw_units_bytes(a, lo, hi));
	unmark(a, lo, hi);
}

/* --- out of sight ----------------------------------------------------------------------------- */

/* Whether so many units more may stay in memory, which would be given back else: a quarter of what
 * the process may have, at most, and an eighth is left to others. */
static int affordable(uint32_t units)
{
	uint64_t want = ((uint64_t)hidden + units) * CW_UNIT, all = cw_memory_all();
	if (want > all / 4)
		return 0;
	if (want <= looked)
		return 1;
	int64_t now = cw_now_ms();
	if (tight_since != 0 && now - tight_since < TIGHT_MS)
		return 0;
	tight_since = cw_pieces_fit_here(all / 8) ? 0 : now;
	if (tight_since == 0)
		looked = want + LOOK;
	return tight_since == 0;
}

/* Blocks [lo, hi). Pages are gone before it is said that they are (hold). */
static void hide(struct cw_area *a, uint32_t lo, uint32_t hi)
{
	uint32_t n = held(a, lo, hi, CW_AT_BOTH), blocks = (hi - lo + BLOCK - 1) / BLOCK;
	uint64_t at = cw_unit_at(a, lo), size = cw_units_bytes(a, lo, hi);
	if (n < WORTH || n < WORTH / 2 * blocks || !affordable(n))
		return;
	/* What is protected moves with its protection, and would come back with it. */
	if (!cw_mapped_plainly(at, size) || move(at, beside(a, lo), size) != 0)
		return;
	unmark(a, lo, hi); /* what was there before is gone */
	for (uint32_t u = lo; u < hi; u++)
		a->kept->unit[u] = a->holder[u] == CW_AT_BOTH;
	n = kept(a, lo, hi);
	a->kept->count += n;
	hidden += n;
	cw_area_hold(a, lo, hi, CW_AT_GPU);
}

void cw_kept_hide(struct cw_area *a)
{
	uint32_t from = 0, end;
	if (a->filed || held(a, 0, a->units, CW_AT_CPU) > 0)
		return;
	for (uint32_t u = 0; u < a->units; u = end) {
		end = block_end(a, u);
		if (held(a, u, end, CW_AT_BOTH) > 0)
			continue;
		if (from < u)
			hide(a, from, u);
		from = end;
	}
	if (from < a->units)
		hide(a, from, a->units);
}

/* --- and back --------------------------------------------------------------------------------- */

struct comparison {
	uint64_t beside, at, size, piece;
	uint32_t stream;
	_Atomic int differ;
};

static uint64_t length(const struct comparison *c, uint64_t k)
{
	uint64_t rest = c->size - k * c->piece;
	return rest < c->piece ? rest : c->piece;
}

static void compare(const void *arg, uint64_t k, uint8_t *chunk)
{
	struct comparison *c = (struct comparison *)(uintptr_t)arg;
	uint64_t at = c->beside + k * c->piece;
	if (atomic_load(&c->differ))
		return;
	cw_pages_whole(at, length(c, k));
	if (memcmp(chunk, (const void *)(uintptr_t)at, length(c, k)) != 0)
		atomic_store(&c->differ, 1);
}

static CUresult fetch(const void *arg, uint64_t k, const struct cw_chunk *to)
{
	const struct comparison *c = arg;
	return cwop_MemcpyStaged(CW_FROM_DEVICE, to->region, to->offset, length(c, k), c->at + k * c->piece, c->stream, to->word,
				 to->value);
}

/* Whether the GPU's bytes of the units out of sight in [lo, hi) are theirs. */
static int same(struct cw_area *a, uint32_t lo, uint32_t hi)
{
	enum { PIECE = 256 << 10 };
	struct cw_voice v;
	int alike = cw_voice_begin(a, &v) == 0;
	if (!alike)
		return 0;
	for (uint32_t u = lo, end; u < hi && alike; u = end) {
		for (end = u; end < hi && a->kept->unit[end];)
			end++;
		if (end == u) {
			end++;
			continue;
		}
		struct comparison c = {
			.beside = beside(a, u), .at = cw_unit_at(a, u), .size = cw_units_bytes(a, u, end), .stream = v.stream};
		c.piece = c.size < PIECE ? c.size : PIECE;
		struct cw_transfer t = {
			.pieces = (c.size + c.piece - 1) / c.piece, .stream = v.stream, .move = compare, .send = fetch, .arg = &c};
		alike = cw_transfer_from_device(&t) == 0 && !atomic_load(&c.differ);
	}
	cw_voice_end(&v);
	return alike;
}

/* Blocks [lo, hi), of which nothing is in sight. What is there is said before it is: who goes on
 * may give work at once. */
static void show(struct cw_area *a, uint32_t lo, uint32_t hi)
{
	/* What moves back takes the place of a mapping that the program may have protected
	 * meanwhile. */
	if (!cw_mapped_plainly(cw_unit_at(a, lo), cw_units_bytes(a, lo, hi)) || !same(a, lo, hi)) {
		forget(a, lo, hi);
		return;
	}
	for (uint32_t u = lo; u < hi; u++)
		if (a->kept->unit[u])
			cw_area_hold(a, u, u + 1, CW_AT_BOTH);
	if (move(beside(a, lo), cw_unit_at(a, lo), cw_units_bytes(a, lo, hi)) == 0) {
		unmark(a, lo, hi);
	} else {
		cw_area_hold(a, lo, hi, CW_AT_GPU);
		forget(a, lo, hi);
	}
	cw_uffd_wake(cw_unit_at(a, lo), cw_units_bytes(a, lo, hi));
}

void cw_kept_show(struct cw_area *a, uint32_t lo, uint32_t hi)
{
	uint32_t from = block_begin(a, lo), end;
	if (a->kept->count == 0 || a->filed)
		return;
	for (uint32_t u = from; u < hi; u = end) {
		end = block_end(a, u);
		int some = kept(a, u, end) > 0, seen = end - u > held(a, u, end, CW_AT_GPU);
		if (some && seen) /* the others came another way */
			forget(a, u, end);
		if (some && !seen)
			continue;
		if (from < u)
			show(a, from, u);
		from = end;
	}
	uint32_t last = block_end(a, hi - 1);
	if (from < last)
		show(a, from, last);
}
