/*
 * Pieces of managed memory that change places between the GPU's memory and this process's, under
 * the resident lock while the GPU is idle and who would give it work waits (room.c).
 *
 * Pieces here lie in a file of their group's, of which each has two places: one is filled while the
 * other may still be looked at, so that the CPU sees old bytes or new ones, never parts. What came
 * back leaves its place empty; accesses of that are seen as of any memory at the GPU.
 */
#include <string.h>
#include <sys/mman.h>

#include "memory/pieces.h"
#include "memory/uffd.h"
#include "memory/vmm.h"
#include "session/internal.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

static _Atomic uint32_t filed; /* pieces that are */

int cw_pieces_filed(uint64_t at)
{
	struct cw_area *a = atomic_load(&filed) ? cw_area_at(at) : NULL;
	return a && a->filed;
}

/* --- from the GPU to here --------------------------------------------------------------------- */

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
	/* All its pages in one call, where the kernel can. */
	madvise(l->to + k * l->piece, length(l, k), MADV_POPULATE_WRITE);
	memcpy(l->to + k * l->piece, chunk, length(l, k));
}

static CUresult fetch(const void *arg, uint64_t k, const struct cw_chunk *c)
{
	const struct leaving *l = arg;
	return cwop_MemcpyStaged(CW_FROM_DEVICE, c->region, c->offset, length(l, k), l->at + k * l->piece, l->stream, c->word, c->value);
}

static uint64_t file_at(const struct cw_area *a, int half)
{
	return (uint64_t)half * cw_group_size(a->group) + (uint64_t)a->index * a->group->piece;
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
	void *p = MAP_FAILED;
	if (cw_own_is(a->group->file, &a->group->file_own))
		p = mmap(NULL, a->size, PROT_READ | PROT_WRITE, MAP_SHARED, a->group->file, (off_t)file_at(a, half));
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
	void *p = MAP_FAILED;
	if (cw_own_is(a->group->file, &a->group->file_own))
		p = mmap(want, a->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, a->group->file, (off_t)file_at(a, half));
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

/* The worker lets go of a piece. */
void cw_piece_leave(struct cw_area *a)
{
	cw_region_drop(a->region);
	a->region = NULL;
}

static CUresult open_file(struct cw_group *g)
{
	if (g->file < 0)
		g->file = cw_own_take(cw_memfd(2 * cw_group_size(g)), CW_MARK_NONE, &g->file_own);
	return g->file < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

/* Device memory again, at its address. */
static CUresult map_again(struct cw_area *a)
{
	CUresult res = a->memory ? CUDA_SUCCESS : cw_area_create(a);
	if (res == 0)
		res = cw_addresses_again(a->base, cw_piece_span(a), &a->resv);
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

/* What had left the GPU could not settle here: it goes back. Its pages are at its address, and the
 * CPU's accesses are not seen yet. */
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
	if (cw_beyond_far())
		return cw_piece_beyond(a, 1);
	if (a->group->still || a->region)
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult res = cw_pieces_fit_here(a->size) ? open_file(a->group) : CUDA_ERROR_OUT_OF_MEMORY;
	if (res == 0)
		res = cw_area_yield(a, 0, a->units);
	cw_kept_end(a);
	if (res == 0)
		res = copy_out(a, half);
	if (res == 0 && a->group->resv) {
		res = cw_group_cut(a->group);
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

/* --- from here to the GPU --------------------------------------------------------------------- */

CUresult cw_piece_in(struct cw_area *a)
{
	if (a->beyond)
		return cw_piece_beyond(a, 0);
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
	/* Before anything is watched: a loan is renewed by the kernel's touching all of its pages,
	 * and would wait for us with the loans' lock. */
	cw_piece_leave(a);
	/* Who writes waits from now on, until the pages are gone; who reads finds them, or waits
	 * then. */
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

/* --- without having been at the GPU ----------------------------------------------------------- */

CUresult cw_piece_begin(struct cw_area *a)
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

void cw_piece_end(const struct cw_area *a)
{
	if (a->filed)
		atomic_fetch_sub(&filed, 1);
}
