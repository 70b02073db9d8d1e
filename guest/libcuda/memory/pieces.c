/*
 * Allocations of managed memory in pieces, and pieces that change places. A piece is an area: it lies at the GPU, as resident.h says, or, where the
 * GPU's memory has no room for it, in pages of this process that the worker maps and registers at the same address, as pinned memory: kernels
 * reach it over the link, the CPU at any time, and no fault is served for it.
 *
 * The addresses of an allocation are one reservation of the worker's while all of it is at the GPU. As host memory is registered where nothing is
 * reserved, the first piece that leaves cuts it: each piece has a reservation of its own from then on, and copies are cut where pieces meet. Pieces
 * here lie in a file of their group's, of which each has two places: one is filled while the other may still be looked at, so that the CPU sees old
 * bytes or new ones, never parts. What came back leaves its place empty; accesses of that are seen as of any memory at the GPU.
 *
 * A change of places happens under the resident lock while the GPU is idle and who would give it work waits (cw_room.c).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "api/capture.h"
#include "memory/resident.h"
#include "memory/uffd.h"
#include "memory/vmm.h"
#include "session/internal.h"

/* A piece is a 64th of the GPU's memory, at most MOST, in whole BLOCKs but of a GPU with less than MUCH memory: the driver takes host addresses for its
 * reservations in blocks of 32 MiB, and nothing else finds room in one of which it has a part (580). */
enum { GRAIN = 2 << 20, BLOCK = 32 << 20, MOST = 128 << 20, PARTS = 64 };
#define MUCH (1ull << 30)
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
/* Where nothing else of either process lies: beside the ranges of a session that may move, and the regions. */
#define WISH_FROM 0x650000000000ull
#define WISH_TO 0x680000000000ull
/* Where the worker lets a driver have addresses at which a region has lain (host/worker/front.go). */
#define AGAIN_FROM 0x600000000000ull
#define AGAIN_TO 0x780000000000ull
#define SPARE (64ull << 20) /* of this machine's memory, which is left to others */

static _Atomic uint32_t filed; /* pieces that are */

int cw_pieces_filed(uint64_t at)
{
	struct cw_area *a = atomic_load(&filed) ? cw_area_at(at) : NULL;
	return a && a->filed;
}

/* --- what this machine can do ---------------------------------------------------------------------------------------------------- */

/* MemAvailable; where it is not told, all. */
static uint64_t memory_here(void)
{
	FILE *f = fopen("/proc/meminfo", "re");
	unsigned long long kib;
	uint64_t here = UINT64_MAX;
	char line[128];
	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
			here = (uint64_t)kib << 10;
	if (f)
		fclose(f);
	return here;
}

int cw_pieces_fit_here(uint64_t size)
{
	uint64_t here = memory_here();
	return here > SPARE && size <= here - SPARE;
}

/* Whether faults of a file's pages, and writes to them, are seen: tried once. */
static int try_files(void)
{
	int fd = cw_memfd(CW_PAGE), ok = 0;
	void *p = fd < 0 ? MAP_FAILED : mmap(NULL, CW_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p != MAP_FAILED) {
		madvise(p, CW_PAGE, MADV_DONTFORK);
		*(volatile uint8_t *)p = 1;
		ok = cw_uffd_tracks() && cw_uffd_watch((uintptr_t)p, CW_PAGE, 1) == 0 && cw_uffd_protect((uintptr_t)p, CW_PAGE, 1) == 0 &&
		     madvise(p, CW_PAGE, MADV_REMOVE) == 0;
		munmap(p, CW_PAGE);
	}
	if (fd >= 0)
		close(fd);
	return ok;
}

int cw_pieces_return(void)
{
	static _Atomic int known; /* 1: yes, 2: no */
	int k = atomic_load(&known);
	if (k == 0) {
		k = try_files() ? 1 : 2;
		if (k == 2)
			cw_log(CW_LOG_INFO,
			       "managed memory does not change places: this kernel does not tell of writes to files' pages (Linux 5.19)");
		atomic_store(&known, k);
	}
	return k == 1;
}

/* --- addresses ------------------------------------------------------------------------------------------------------------------- */

static uint64_t whole(const struct cw_group *g)
{
	const struct cw_area *last = g->all[g->count - 1];
	return (uint64_t)last->index * g->piece + last->backed;
}

static CUresult take_addresses(struct cw_group *g)
{
	static _Atomic uint64_t next = WISH_FROM;
	uint64_t size = whole(g), wish = atomic_fetch_add(&next, (size + MUCH) & ~(MUCH - 1));
	CUresult res = cw_addresses_reserve(size, wish < WISH_TO && size < WISH_TO - wish ? wish : 0, &g->resv);
	for (uint32_t i = 0; i < g->count && res == 0; i++)
		g->all[i]->base = g->resv->base + i * g->piece;
	g->base = res == 0 ? g->resv->base : 0;
	g->still = g->base < AGAIN_FROM || g->base + size > AGAIN_TO;
	return res;
}

/* A reservation for each piece that has device memory, in place of one for all. */
static CUresult cut(struct cw_group *g)
{
	CUresult res = CUDA_SUCCESS;
	for (uint32_t i = 0; i < g->count; i++)
		if (g->all[i]->mapping)
			cw_area_unmap(g->all[i]);
	res = cw_addresses_leave(g->resv);
	if (res == 0)
		g->resv = NULL;
	for (uint32_t i = 0; i < g->count && res == 0; i++) {
		struct cw_area *a = g->all[i];
		if (!a->memory)
			continue;
		res = cw_addresses_again(a->base, a->backed, &a->resv);
		if (res == 0)
			res = cw_area_map(a, a->resv);
	}
	if (res != 0)
		cw_log(CW_LOG_ERROR, "managed memory at %#llx loses its addresses at the GPU (%d)", (unsigned long long)g->base, (int)res);
	return res;
}

/* --- from the GPU to here ---------------------------------------------------------------------------------------------------------- */

struct leaving {
	uint64_t at, size, piece;
	uint8_t *to;
	uint32_t stream;
};

static uint64_t length(const struct leaving *l, uint64_t k)
{
	uint64_t rest = l->size - k * l->piece;
	return rest < l->piece ? rest : l->piece;
}

static void put(const void *arg, uint64_t k, uint8_t *chunk)
{
	const struct leaving *l = arg;
	madvise(l->to + k * l->piece, length(l, k), MADV_POPULATE_WRITE); /* all its pages in one call, where the kernel can */
	memcpy(l->to + k * l->piece, chunk, length(l, k));
}

static CUresult fetch(const void *arg, uint64_t k, const struct cw_chunk *c)
{
	const struct leaving *l = arg;
	return cwop_MemcpyStaged(CW_FROM_DEVICE, c->region, c->offset, length(l, k), l->at + k * l->piece, l->stream, c->word, c->value);
}

static uint64_t file_at(const struct cw_area *a, int half)
{
	return (uint64_t)half * whole(a->group) + (uint64_t)a->index * a->group->piece;
}

/* The bytes at the GPU, which has done with them, into the file. */
static CUresult copy_out(struct cw_area *a, int half)
{
	struct leaving l = {.at = a->base, .size = a->size, .piece = a->size < CW_CHUNK_SIZE ? a->size : CW_CHUNK_SIZE};
	struct cw_voice v;
	CUresult res = cw_voice_begin(a, &v);
	if (res != 0)
		return res;
	l.stream = v.stream;
	void *p = mmap(NULL, a->size, PROT_READ | PROT_WRITE, MAP_SHARED, a->group->file, (off_t)file_at(a, half));
	if (p == MAP_FAILED) {
		res = CUDA_ERROR_OUT_OF_MEMORY;
	} else {
		madvise(p, a->size, MADV_DONTFORK);
		l.to = p;
		struct cw_transfer t = {
			.pieces = (a->size + l.piece - 1) / l.piece, .stream = v.stream, .move = put, .send = fetch, .arg = &l, .fresh = 1};
		res = cw_transfer_from_device(&t);
		if (res != 0)
			madvise(p, a->size, MADV_REMOVE);
		munmap(p, a->size);
	}
	cw_voice_end(&v);
	return res;
}

/* The file's place becomes what is at the piece's address, in both processes. */
static CUresult settle_here(struct cw_area *a, int half)
{
	void *want = (void *)(uintptr_t)a->base;
	struct cw_voice v;
	CUresult res = cw_voice_begin(a, &v);
	if (res != 0)
		return res;
	void *p = mmap(want, a->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, a->group->file, (off_t)file_at(a, half));
	if (p != want)
		res = CUDA_ERROR_OUT_OF_MEMORY;
	if (res == 0) {
		madvise(p, a->size, MADV_DONTFORK);
		if (!a->filed)
			atomic_fetch_add(&filed, 1);
		a->filed = 1;
		a->half = (uint8_t)half;
		res = cw_region_adopt_file(p, a->size, a->group->file, file_at(a, half), 0, &a->region);
	}
	cw_voice_end(&v);
	return res;
}

/* The worker lets go of a piece. Other work of the program's may go on, which some drivers wait for, for a while. */
static void leave_region(struct cw_area *a)
{
	struct cw_tx told = {0};
	while (cwop_RegionDrop(a->region->id) == CUDA_ERROR_NOT_READY && cw_check_alive() == 0)
		;
	cw_region_end(a->region, &told);
	a->region = NULL;
}

static CUresult open_file(struct cw_group *g)
{
	if (g->file < 0)
		g->file = cw_memfd(2 * whole(g));
	return g->file < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

/* Device memory again, at its address. */
static CUresult map_again(struct cw_area *a)
{
	CUresult res = a->memory ? CUDA_SUCCESS : cw_area_create(a);
	if (res == 0)
		res = cw_addresses_again(a->base, a->backed, &a->resv);
	if (res == 0)
		res = cw_area_map(a, a->resv);
	if (res == 0)
		return res;
	if (a->resv)
		cw_addresses_leave(a->resv);
	a->resv = NULL;
	cw_area_unback(a);
	return res;
}

static CUresult send_in(struct cw_area *a)
{
	struct cw_voice v;
	CUresult res = cw_voice_begin(a, &v);
	if (res != 0)
		return res;
	res = cw_bytes_depart(a->base, a->size, v.stream, 1);
	if (res == 0)
		res = cw_own_wait(v.stream);
	cw_voice_end(&v);
	return res;
}

/* What had left the GPU could not settle here: it goes back. Its pages are at its address, and the CPU's accesses are not seen yet. */
static void go_back(struct cw_area *a)
{
	a->group->still = 1;
	CUresult res = map_again(a);
	if (res == 0 && cw_uffd_watch(a->base, a->size, 1) == 0 && cw_uffd_protect(a->base, a->size, 1) == 0)
		res = send_in(a);
	if (res == 0)
		madvise((void *)(uintptr_t)a->base, a->size, MADV_REMOVE);
	else
		cw_log(CW_LOG_ERROR, "managed memory at %#llx is lost to the GPU (%d)", (unsigned long long)a->base, (int)res);
}

CUresult cw_piece_out(struct cw_area *a)
{
	int half = a->filed ? !a->half : 0;
	if (a->group->still || a->region)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult res = cw_pieces_fit_here(a->size) ? open_file(a->group) : CUDA_ERROR_OUT_OF_MEMORY;
	if (res == 0)
		res = cw_area_yield(a, 0, a->units);
	if (res == 0)
		res = copy_out(a, half);
	if (res == 0 && a->group->resv) {
		res = cut(a->group);
		a->group->still |= res != 0;
	}
	if (res != 0)
		return res;
	cw_area_unback(a);
	cw_addresses_leave(a->resv);
	a->resv = NULL;
	res = settle_here(a, half);
	if (res != 0)
		go_back(a);
	cw_uffd_wake(a->base, a->size);
	return res;
}

/* --- from here to the GPU ------------------------------------------------------------------------------------------------------------ */

CUresult cw_piece_in(struct cw_area *a)
{
	if (a->group->still || !a->region || !cw_pieces_return())
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult res = cw_area_create(a); /* first: it may have no room */
	if (res != 0)
		return res;
	res = cw_touch_start();
	if (res != 0) {
		cw_area_unback(a);
		return res;
	}
	/* Before anything is watched: a lease is renewed by the kernel's touching all of its pages, and would wait for us with the leases' lock. */
	leave_region(a);
	/* Who writes waits from now on, until the pages are gone; who reads finds them, or waits then. */
	res = cw_pages_failed("its pages cannot be watched", cw_uffd_watch(a->base, a->size, 1));
	if (res == 0)
		res = cw_pages_failed("its pages cannot be protected", cw_uffd_protect(a->base, a->size, 1));
	if (res == 0)
		res = map_again(a);
	if (res == 0)
		res = send_in(a);
	if (res == 0) {
		cw_pages_forget(a->base, a->size);
	} else {
		a->group->still = 1;
		cw_area_unback(a);
		if (a->resv)
			cw_addresses_leave(a->resv);
		a->resv = NULL;
		if (settle_here(a, a->half) != 0) /* the same pages, which nobody watches then */
			cw_log(CW_LOG_ERROR, "managed memory at %#llx is lost to the GPU", (unsigned long long)a->base);
	}
	cw_uffd_wake(a->base, a->size);
	return res;
}

/* --- allocations --------------------------------------------------------------------------------------------------------------------- */

static void free_group(struct cw_group *g)
{
	for (uint32_t i = 0; i < g->count; i++) {
		if (g->all[i] && g->all[i]->filed)
			atomic_fetch_sub(&filed, 1);
		free(g->all[i]);
	}
	if (g->file >= 0)
		close(g->file);
	free(g);
}

/* What is not in the list (any more). */
static void end_group(struct cw_group *g)
{
	for (uint32_t i = 0; i < g->count; i++) {
		struct cw_area *a = g->all[i];
		if (a->region)
			leave_region(a);
		if (a->filed)
			madvise((void *)(uintptr_t)a->base, a->size, MADV_REMOVE); /* a child may have the file */
		cw_area_unback(a);
		if (a->resv)
			cw_addresses_leave(a->resv);
	}
	/* Who waits there tries again, and finds nothing. */
	if (g->base)
		cw_addresses_give(g->base, whole(g));
	if (g->resv)
		cw_addresses_leave(g->resv);
	free_group(g);
}

/* CAUSEWAY_MANAGED_PIECE, in MiB; else by the GPU's memory. */
static uint64_t piece_size(uint64_t total)
{
	const char *e = getenv("CAUSEWAY_MANAGED_PIECE");
	uint64_t asked = e ? strtoul(e, NULL, 10) : 0, size = asked && asked <= 1024 ? asked << 20 : total / PARTS;
	uint64_t grain = !asked && total >= MUCH ? BLOCK : GRAIN;
	if (!asked && size > MOST)
		size = MOST;
	size = (size + grain - 1) & ~(grain - 1);
	return size < grain ? grain : size;
}

static struct cw_group *new_group(const struct cw_range *r, uint64_t total)
{
	uint64_t piece = piece_size(total);
	uint64_t count = (r->size + piece - 1) / piece;
	struct cw_group *g = count <= UINT32_MAX ? calloc(1, sizeof *g + count * sizeof g->all[0]) : NULL;
	if (!g)
		return NULL;
	g->piece = piece;
	g->count = (uint32_t)count;
	g->file = -1;
	for (uint32_t i = 0; i < g->count; i++) {
		uint64_t at = i * piece;
		struct cw_area *a = g->all[i] = cw_area_new(r->size - at < piece ? r->size - at : piece, r->device, r->ctx);
		if (!a) {
			free_group(g);
			return NULL;
		}
		a->group = g;
		a->index = i;
		if (i > 0)
			g->all[i - 1]->beside = a;
	}
	return g;
}

/* Device memory for as many pieces as it has room for. */
static CUresult fill_group(struct cw_group *g, uint32_t *there)
{
	CUresult res = CUDA_SUCCESS;
	uint32_t n = 0;
	while (n < g->count && (res = cw_area_create(g->all[n])) == 0)
		n++;
	*there = n;
	if (res != 0 && (res != CUDA_ERROR_OUT_OF_MEMORY || !cw_pieces_fit_here(whole(g) - n * g->piece)))
		return res;
	if (n < g->count)
		return cut(g);
	res = CUDA_SUCCESS;
	for (uint32_t i = 0; i < n && res == 0; i++)
		res = cw_area_map(g->all[i], g->resv);
	return res;
}

/* Nobody knows it yet. Under the lock. */
static CUresult begin_here(struct cw_area *a)
{
	CUresult res = open_file(a->group);
	if (res == 0)
		res = settle_here(a, 0);
	if (res == 0) {
		a->fresh = 0;
		atomic_fetch_sub(&cw_copies, (uint64_t)CW_COPY);
		cw_room_short();
	}
	return res;
}

CUresult cw_pieces_alloc(struct cw_range *r)
{
	uint64_t free_ = 0, total = 0;
	uint32_t there = 0;
	CUresult res = cwop_MemGetInfo(&free_, &total);
	if (res == 0 && r->size > free_ && !cw_pieces_fit_here(r->size - free_))
		res = CUDA_ERROR_OUT_OF_MEMORY;
	if (res != 0)
		return res;
	struct cw_group *g = new_group(r, total);
	if (!g)
		return CUDA_ERROR_OUT_OF_MEMORY;
	res = take_addresses(g);
	if (res == 0)
		res = fill_group(g, &there);
	for (uint32_t i = 0; i < there && res == 0; i++)
		res = cw_area_open(g->all[i]);
	if (res != 0) {
		end_group(g);
		return res;
	}
	cw_lock_acquire(&cw_resident_lock);
	for (uint32_t i = g->count; i-- > 0;)
		cw_area_list(g->all[i]);
	for (uint32_t i = there; i < g->count && res == 0; i++)
		res = begin_here(g->all[i]);
	if (there < g->count)
		cw_room_tell();
	cw_lock_release(&cw_resident_lock);
	if (res != 0) {
		cw_pieces_free(g);
		return CUDA_ERROR_OUT_OF_MEMORY; /* of the kind that can be had elsewhere */
	}
	r->area = g->all[0];
	r->base = r->dev = g->base;
	return CUDA_SUCCESS;
}

void cw_pieces_free(struct cw_group *g)
{
	cw_lock_acquire(&cw_resident_lock);
	for (uint32_t i = 0; i < g->count; i++) {
		cw_area_unlist(g->all[i]);
		if (g->all[i]->region)
			atomic_fetch_sub(&cw_short, 1);
	}
	cw_lock_release(&cw_resident_lock);
	end_group(g);
	cw_room_freed();
}

/* --- copies -------------------------------------------------------------------------------------------------------------------------- */

uint64_t cw_side_reach(const struct cw_side *side, uint64_t addr)
{
	const struct cw_group *g = side->area ? side->area->group : NULL;
	return !g || g->resv || g->count == 1 ? UINT64_MAX : g->piece - (addr - g->base) % g->piece;
}

void cw_side_still(const struct cw_side *side)
{
	if (!side->area || !side->area->group)
		return;
	cw_lock_acquire(&cw_resident_lock);
	side->area->group->still = 1;
	cw_lock_release(&cw_resident_lock);
}
