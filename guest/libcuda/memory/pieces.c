/*
 * Allocations of managed memory in pieces. A piece is an area: it lies at the GPU, as resident.h
 * says, or, where the GPU's memory has no room for it, in pages of this process that the worker
 * maps and registers at the same address, as pinned memory: kernels reach it over the link, the CPU
 * at any time, and no fault is served for it. shift.c has pieces change places.
 *
 * The addresses of an allocation are one reservation of the worker's while all of it is at the GPU.
 * As host memory is registered where nothing is reserved, the first piece that leaves cuts it: each
 * piece has a reservation of its own from then on, and copies are cut where pieces meet. Where the
 * worker cannot map this process's pages, or few, they lie on its machine instead (beyond.c), in
 * the one reservation.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory/pieces.h"
#include "memory/spare.h"
#include "memory/uffd.h"
#include "memory/vmm.h"
#include "session/internal.h"

/* A piece is a 64th of the GPU's memory, at most MOST, in whole blocks (CW_PIECE_BLOCK) if the
 * program does not say otherwise. */
enum { GRAIN = 2 << 20, MOST = 128 << 20, PARTS = 64 };
/* Where nothing else of either process lies: beside the ranges of a session that may move, and the
 * regions. */
#define WISH_FROM 0x650000000000ull
#define WISH_TO 0x680000000000ull
/* Where the worker lets a driver have addresses at which a region has lain
 * (host/worker/front.go). */
#define AGAIN_FROM 0x600000000000ull
#define AGAIN_TO 0x780000000000ull

/* --- what this machine can do ----------------------------------------------------------------- */

int cw_pieces_fit_here(uint64_t size)
{
	uint64_t here = cw_memory_spare();
	return here > CW_SPARE && size <= here - CW_SPARE;
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
	if (cw_beyond_far())
		return cw_beyond_room();
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

/* --- addresses -------------------------------------------------------------------------------- */

static CUresult take_addresses(struct cw_group *g)
{
	static _Atomic uint64_t next;
	uint64_t size = cw_group_span(g), room = WISH_TO - WISH_FROM;
	/* From the beginning again after the end: where something lies still, other addresses come
	 * out. */
	uint64_t at = atomic_fetch_add(&next, size + CW_PIECE_BLOCK) % room;
	CUresult res = cw_addresses_reserve(size, size <= room - at ? WISH_FROM + at : 0, &g->resv);
	for (uint32_t i = 0; i < g->count && res == 0; i++)
		g->all[i]->base = g->resv->base + i * g->piece;
	g->base = res == 0 ? g->resv->base : 0;
	g->still = !cw_beyond_far() && (g->base < AGAIN_FROM || g->base + size > AGAIN_TO);
	return res;
}

static _Atomic uint32_t cut; /* allocations whose pieces have a reservation each */

/* A reservation for each piece that has device memory, in place of one for all. */
CUresult cw_group_cut(struct cw_group *g)
{
	CUresult res = CUDA_SUCCESS;
	for (uint32_t i = 0; i < g->count; i++)
		if (g->all[i]->mapping)
			cw_area_unmap(g->all[i]);
	res = cw_addresses_leave(g->resv);
	if (res == 0) {
		g->resv = NULL;
		atomic_fetch_add(&cut, 1);
	}
	for (uint32_t i = 0; i < g->count && res == 0; i++) {
		struct cw_area *a = g->all[i];
		if (!a->memory)
			continue;
		res = cw_addresses_again(a->base, cw_piece_span(a), &a->resv);
		if (res == 0)
			res = cw_area_map(a, a->resv);
	}
	if (res != 0)
		cw_log(CW_LOG_ERROR, "managed memory at %#llx loses its addresses at the GPU (%d)", (unsigned long long)g->base, (int)res);
	return res;
}

/* --- allocations ------------------------------------------------------------------------------ */

static void free_group(struct cw_group *g)
{
	for (uint32_t i = 0; i < g->count; i++) {
		if (g->all[i])
			cw_piece_end(g->all[i]);
		free(g->all[i]);
	}
	cw_own_close(g->file, &g->file_own);
	free(g);
}

/* What is not in the list (any more). */
static void end_group(struct cw_group *g)
{
	for (uint32_t i = 0; i < g->count; i++) {
		struct cw_area *a = g->all[i];
		if (a->region)
			cw_piece_leave(a);
		if (a->filed)
			/* A child may have the file. */
			madvise((void *)(uintptr_t)a->base, a->size, MADV_REMOVE);
		cw_area_unback(a);
		if (a->resv)
			cw_addresses_leave(a->resv);
	}
	/* Who waits there tries again, and finds nothing. */
	if (g->base)
		cw_addresses_give(g->base, cw_group_span(g));
	if (g->resv)
		cw_addresses_leave(g->resv);
	else if (g->base)
		atomic_fetch_sub(&cut, 1);
	if (g->beside)
		cw_addresses_unreserve(g->beside);
	free_group(g);
}

/* CAUSEWAY_MANAGED_PIECE, in MiB; else by the GPU's memory. */
static uint64_t piece_size(uint64_t total)
{
	const char *e = getenv("CAUSEWAY_MANAGED_PIECE");
	uint64_t asked = e ? strtoul(e, NULL, 10) : 0, size = asked && asked <= 1024 ? asked << 20 : total / PARTS;
	uint64_t grain = asked ? GRAIN : CW_PIECE_BLOCK;
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
		struct cw_area *a = g->all[i] = cw_area_new(r->size - at < piece ? r->size - at : piece, r);
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

/* Device memory for as many pieces as it has room for, or for all. */
static CUresult fill_group(struct cw_group *g, uint32_t *there)
{
	CUresult res = CUDA_SUCCESS;
	uint32_t n = 0;
	while (n < g->count && (res = cw_area_create(g->all[n])) == 0)
		n++;
	if (res == CUDA_ERROR_OUT_OF_MEMORY && cw_beyond_far())
		while (n < g->count && (res = cw_beyond_create(g->all[n])) == 0)
			n++;
	*there = n;
	if (res != 0 && (res != CUDA_ERROR_OUT_OF_MEMORY || cw_beyond_far() || !cw_pieces_fit_here(cw_group_size(g) - n * g->piece)))
		return res;
	if (n < g->count)
		return cw_group_cut(g);
	res = CUDA_SUCCESS;
	for (uint32_t i = 0; i < n && res == 0; i++)
		res = cw_area_map(g->all[i], g->resv);
	return res;
}

/* Whether so much might find room that the GPU has not: here, or on the machine of a worker beyond
 * a network, which says itself how much it has. */
static int may_fit(uint64_t size, uint64_t total) { return cw_pieces_fit_here(size) || (!cw_can_map() && size <= total); }

CUresult cw_pieces_alloc(struct cw_range *r)
{
	uint64_t free_ = 0, total = 0;
	uint32_t there = 0;
	CUresult res = cwop_MemGetInfo(&free_, &total);
	if (res == 0 && r->size > free_ && !may_fit(r->size - free_, total)) {
		cw_log(CW_LOG_INFO, "%llu MiB of managed memory more than the GPU has room for are more than this machine has to spare",
		       (unsigned long long)(r->size - free_) >> 20);
		res = CUDA_ERROR_OUT_OF_MEMORY;
	}
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
		res = cw_piece_begin(g->all[i]);
	for (uint32_t i = 0; i < there; i++)
		if (g->all[i]->beyond)
			cw_room_short();
	if (cw_piece_away(g->all[g->count - 1]))
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
	uint32_t away = 0;
	cw_lock_acquire(&cw_resident_lock);
	for (uint32_t i = 0; i < g->count; i++) {
		cw_area_unlist(g->all[i]);
		away += (uint32_t)cw_piece_away(g->all[i]);
	}
	atomic_fetch_sub(&cw_short, away);
	if (away > 0)
		cw_room_tell();
	cw_lock_release(&cw_resident_lock);
	end_group(g);
	cw_room_freed();
}

/* --- copies ----------------------------------------------------------------------------------- */

uint64_t cw_operand_reach(const struct cw_operand *side, uint64_t addr)
{
	uint64_t reach = UINT64_MAX;
	if (!side->area || atomic_load(&cut) == 0)
		return reach;
	cw_lock_acquire(&cw_resident_lock);
	const struct cw_area *a = cw_area_at(addr);
	const struct cw_group *g = a ? a->group : NULL;
	if (g && !g->resv && g->count > 1)
		reach = g->piece - (addr - g->base) % g->piece;
	cw_lock_release(&cw_resident_lock);
	return reach;
}

void cw_operand_still(const struct cw_operand *side)
{
	if (!side->area)
		return;
	cw_lock_acquire(&cw_resident_lock);
	struct cw_area *a = cw_area_at(side->addr);
	if (a && a->group)
		a->group->still = 1;
	cw_lock_release(&cw_resident_lock);
}
