/* For resident_test.c, which includes resident.c before it: a model of this process's pages and of
 * the GPU's bytes, and what moves them. */
#ifndef CW_RESIDENT_MODEL_H
#define CW_RESIDENT_MODEL_H

#include <stdio.h>
#include <stdlib.h>

#include "session/tests/check.h"

/* More than one word of holders, the last unit a part of one. */
enum { UNITS = 29, PER_UNIT = CW_UNIT / CW_PAGE, PAGES = UNITS * PER_UNIT - 2, STREAM = 77 };

static struct {
	uint8_t here, wp;
	uint32_t gpu, want; /* what the GPU has, and what was written last */
} page[PAGES];
static struct cw_area *area;
static int tracks = 1, watched, missing; /* the kernel's state */
static int voices, waits;
/* By kind: how many so far, and which of them fails (1: the next). */
static int calls[6], fail_in[6];
enum { PROTECT, WATCH, DEPART, ARRIVE, SET, VOICE };
static int touched; /* how often that was */
/* A page that another thread touches first when what is missing begins to be watched. */
static int late = -1;
static int now_waits; /* a wait that fails */

struct cw_session cw_s;
struct cw_global cw_g;
_Atomic uint32_t cw_forbidden;
void cw_touch_again(void) { atomic_store(&cw_forbidden, 0); }
void cw_touch_restore(uint64_t at, uint64_t size) { CHECK(at != 0 && size != 0); }
_Atomic uint64_t cw_copies;

void cw_log(enum cw_log_level level, const char *fmt, ...) { (void)level, (void)fmt; }

static int fails(int kind)
{
	calls[kind]++;
	return fail_in[kind] > 0 && --fail_in[kind] == 0;
}

static uint32_t *word(uint32_t p) { return (uint32_t *)(uintptr_t)(area->base + (uint64_t)p * CW_PAGE); }

/* Whole pages of the area, some. */
static void span(uint64_t at, uint64_t size, uint32_t *lo, uint32_t *hi)
{
	CHECK(at % CW_PAGE == 0 && size % CW_PAGE == 0 && size > 0 && at >= area->base && at + size <= area->base + area->size);
	*lo = (uint32_t)((at - area->base) / CW_PAGE);
	*hi = *lo + (uint32_t)(size / CW_PAGE);
}

int cw_uffd_tracks(void) { return tracks; }

/* By the kernel's account. */
static uint8_t is_here(uint32_t p)
{
	uint64_t entry = 0;
	int fd = open("/proc/self/pagemap", O_RDONLY);
	CHECK(pread(fd, &entry, 8, (off_t)((uintptr_t)word(p) / CW_PAGE * 8)) == 8);
	close(fd);
	return entry >> 63 & 1;
}

int cw_uffd_protect(uint64_t at, uint64_t size, int on)
{
	uint32_t lo, hi;
	span(at, size, &lo, &hi);
	CHECK(watched);
	if (fails(PROTECT))
		return -EIO;
	for (uint32_t p = lo; p < hi; p++) {
		/* What is not there would not be protected: it has been read. */
		if (area->fresh && on)
			page[p].here = is_here(p);
		if (page[p].here)
			page[p].wp = (uint8_t)(on && tracks);
	}
	return 0;
}

int cw_uffd_watch(uint64_t at, uint64_t size, int all)
{
	uint32_t lo, hi;
	span(at, size, &lo, &hi);
	CHECK(lo == 0 && hi == PAGES);
	if (fails(WATCH))
		return -ENOMEM;
	if (all && late >= 0) {
		if (!page[late].wp) { /* else it waits */
			page[late].here = 1;
			page[late].want = *word((uint32_t)late) = 0xabcd;
			touched++;
		}
		late = -1;
	}
	watched = 1;
	missing = all;
	return 0;
}

int cw_uffd_zero(uint64_t at, uint64_t size)
{
	uint32_t lo, hi;
	span(at, size, &lo, &hi);
	CHECK(hi == lo + 1);
	if (!page[lo].here) {
		page[lo].here = 1;
		page[lo].wp = 0;
		*word(lo) = 0;
	}
	return 0;
}

void cw_pages_have(uint64_t at, uint64_t size)
{
	for (uint64_t p = at; p < at + size; p += CW_PAGE)
		(void)*(const volatile uint8_t *)(uintptr_t)p;
}

CUresult cw_bytes_depart(uint64_t at, uint64_t size, uint32_t stream, int stay)
{
	uint32_t lo, hi;
	span(at, size, &lo, &hi);
	CHECK(stream == STREAM && voices == 1 && stay == area->fresh);
	if (fails(DEPART))
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (uint32_t p = lo; p < hi; p++) {
		CHECK(page[p].here && (page[p].wp || !tracks)); /* nobody writes it meanwhile */
		page[p].gpu = *word(p);
		if (!stay) {
			page[p].here = page[p].wp = 0;
			*word(p) = 0xdead;
		}
	}
	return CUDA_SUCCESS;
}

CUresult cw_bytes_arrive(uint64_t at, uint64_t size, uint32_t stream, int protect)
{
	uint32_t lo, hi;
	span(at, size, &lo, &hi);
	CHECK(stream == STREAM && voices == 1 && protect == (protect && tracks));
	/* Said before it is there. */
	for (uint32_t u = lo / PER_UNIT; u <= (hi - 1) / PER_UNIT; u++)
		CHECK(area->holder[u] == (protect ? CW_AT_BOTH : CW_AT_CPU));
	if (fails(ARRIVE))
		return CUDA_ERROR_UNKNOWN;
	for (uint32_t p = lo; p < hi; p++) {
		CHECK(!page[p].here);
		page[p].here = 1;
		page[p].wp = (uint8_t)protect;
		*word(p) = page[p].gpu;
	}
	return CUDA_SUCCESS;
}

/* Duplicates have a test of their own. */
static int begun, ended, hidden;
void cw_kept_begin(struct cw_area *a) { CHECK(a == area && begun++ >= 0); }
void cw_kept_end(struct cw_area *a) { CHECK(a && ended++ >= 0); }
void cw_kept_hide(struct cw_area *a)
{
	CHECK(a == area && a->here > 0);
	hidden++;
	for (uint32_t u = 0; u < a->units; u++)
		CHECK(a->holder[u] != CW_AT_CPU);
}

static uint32_t forgotten; /* calls */
void cw_pages_forget(uint64_t at, uint64_t size)
{
	uint32_t lo, hi;
	span(at, size, &lo, &hi);
	forgotten++;
	for (uint32_t p = lo; p < hi; p++) {
		page[p].here = page[p].wp = 0;
		*word(p) = 0xdead;
	}
}

CUresult cw_touch_start(void) { return CUDA_SUCCESS; }

CUresult cw_voice_begin(struct cw_area *a, struct cw_voice *v)
{
	CHECK(a == area && voices == 0);
	if (fails(VOICE))
		return CUDA_ERROR_INVALID_CONTEXT;
	voices = 1;
	*v = (struct cw_voice){STREAM, 5};
	return CUDA_SUCCESS;
}

void cw_voice_end(const struct cw_voice *v)
{
	CHECK(voices == 1 && v->stream == STREAM && v->before == 5);
	voices = 0;
}

static struct cw_behind heir; /* of streams that end */
static int heir_known, heirs;
int cw_order_left(const struct cw_behind *from, struct cw_behind *to)
{
	CHECK(from->ctx == 3 && from->stream == 9 && from->uid == 99 && atomic_load(&cw_resident_lock.word) != 0);
	heirs++;
	*to = heir;
	return heir_known;
}

CUresult cw_own_wait(uint32_t stream)
{
	CHECK(stream == STREAM && voices == 1);
	waits++;
	return now_waits ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
}

CUresult cwop_Memset(uint64_t dst, uint64_t pitch, uint32_t value, uint32_t element, uint64_t width, uint64_t height, uint32_t stream)
{
	uint32_t lo, hi;
	CHECK(pitch == 0 && value == 0 && element == 4 && height == 1 && stream == STREAM);
	span(dst, width * 4, &lo, &hi);
	if (fails(SET))
		return CUDA_ERROR_UNKNOWN;
	for (uint32_t p = lo; p < hi; p++)
		page[p].gpu = 0;
	return CUDA_SUCCESS;
}

#endif
