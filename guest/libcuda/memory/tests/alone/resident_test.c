/*
 * Units and who has them, alone: resident.c between a model of this process's pages (which are
 * there, which are protected, what they hold) and one of the GPU's bytes. CPU and GPU write by
 * turns, ranges are brought, changed and sent away at random, calls fail, and whatever happens
 * every page holds what was written to it last, nothing is here when the GPU works, and what is
 * asked of the kernel is the fewest calls.
 */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* What has pages is not always told. */
static int untold;
static int open_told(const char *path, int flags) { return untold ? -1 : (open)(path, flags); }
#define open(path, flags) open_told(path, flags)
#include "memory/resident.c"
#undef open
#include "session/lock.c"
#include "session/signals.c"

#include "memory/tests/alone/resident_model.h"

/* --- what must always hold -------------------------------------------------------------------- */

static uint64_t next(uint64_t below)
{
	static uint64_t x = 0x2545f4914f6cdd1dull;
	x ^= x << 13, x ^= x >> 7, x ^= x << 17;
	return (x >> 11) % below;
}

static void consistent(void)
{
	uint32_t here = 0;
	for (uint32_t u = 0; u < UNITS; u++) {
		here += area->holder[u] != CW_AT_GPU;
		for (uint32_t p = u * PER_UNIT; p < (u + 1) * PER_UNIT && p < PAGES; p++) {
			CHECK(page[p].here == (area->holder[u] != CW_AT_GPU));
			CHECK(area->holder[u] != CW_AT_BOTH || (page[p].wp && page[p].gpu == page[p].want));
			CHECK((page[p].here ? *word(p) : page[p].gpu) == page[p].want);
		}
	}
	CHECK(area->here == here && voices == 0 && atomic_load(&cw_resident_lock.word) == 0 && cw_signals_held == 0);
	CHECK(atomic_load(&cw_copies) == CW_COPIES_POSSIBLE + (uint64_t)CW_COPY * (here + area->fresh));
}

static void write_pages(uint32_t lo, uint32_t hi)
{
	for (uint32_t p = lo; p < hi; p++) {
		uint32_t u = p / PER_UNIT;
		if (!page[p].here)
			CHECK(cw_area_bring(area, u, u + 1, 1) == 0);
		else if (page[p].wp)
			CHECK(area->holder[u] == (tracks ? CW_AT_BOTH : CW_AT_CPU) && cw_area_change(area, u, u + 1) == 0);
		CHECK(page[p].here && !page[p].wp && area->holder[u] == CW_AT_CPU);
		page[p].want = *word(p) = (uint32_t)next(1u << 31);
	}
}

static struct cw_area *make(void)
{
	size_t bytes = UNITS * (size_t)CW_UNIT;
	struct cw_area *a = calloc(1, sizeof *a + UNITS);
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(a && p != MAP_FAILED && madvise(p, bytes, MADV_NOHUGEPAGE) == 0);
	a->base = (uintptr_t)p;
	a->size = (uint64_t)PAGES * CW_PAGE;
	a->units = UNITS;
	a->fresh = 1;
	memset(page, 0, sizeof page);
	for (uint32_t i = 0; i < PAGES; i++)
		page[i].gpu = 0x5eed; /* what somebody else left there */
	watched = missing = 0;
	area = a;
	uint32_t before = atomic_load(&cw_signals_waiting);
	cw_area_list(a);
	CHECK(cw_areas == a && atomic_load(&cw_signals_waiting) == before + 1);
	CHECK(atomic_load(&cw_copies) == CW_COPIES_POSSIBLE + CW_COPY);
	return a;
}

static void end(void)
{
	uint32_t before = atomic_load(&cw_signals_waiting);
	cw_area_unlist(area);
	CHECK(cw_areas == NULL && atomic_load(&cw_copies) == 0 && atomic_load(&cw_signals_waiting) == before - 1);
	munmap((void *)(uintptr_t)area->base, UNITS * (size_t)CW_UNIT);
	free(area);
}

/* The program writes some of a new area. */
static void first(uint32_t step)
{
	for (uint32_t p = step / 2; p < PAGES; p += step) {
		page[p].here = 1;
		page[p].want = *word(p) = p + 1;
	}
}

/* --- the first time --------------------------------------------------------------------------- */

static void fresh(void)
{
	for (uint32_t step = 1; step < 40; step = step * 2 + 1)
		for (int touch = 0; touch < 9; touch++)
			for (int how = 0; how < 3; how++) {
				make();
				first(step);
				late = touch && tracks ? (int)next(PAGES) : -1;
				if (late >= 0 && page[late].here)
					late = -1;
				int old = waits;
				CHECK((how == 0	  ? cw_before_work()
				       : how == 1 ? cw_resident_settle(area)
						  : cw_resident_yield(area->base + 5, 1)) == 0);
				CHECK(!area->fresh && watched && missing && late < 0 && waits == old + 1);
				consistent();
				for (uint32_t p = 0; p < PAGES; p++)
					CHECK(!page[p].here);
				CHECK(cw_resident_settle(area) == 0 && waits == old + 1);
				end();
			}
	CHECK(touched > 10 || !tracks);
	make();
	first(50);
	untold = 1; /* then all of it may have been written */
	CHECK(cw_before_work() == 0 && !area->fresh);
	consistent();
	untold = 0;
	end();
	make(); /* freed without any work */
	first(3);
	end();
}

/* Whatever fails the first time, the bytes are here, writers wait for nobody, and the next try does
 * it. */
static void fresh_fails(void)
{
	static const int kinds[] = {PROTECT, WATCH, DEPART, SET, VOICE};
	for (uint32_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
		for (int nth = 1; nth <= 3; nth++) {
			make();
			first(9);
			fail_in[kinds[k]] = nth;
			CUresult res = cw_before_work();
			int did = fail_in[kinds[k]] == 0;
			fail_in[kinds[k]] = 0;
			CHECK((res != 0) == did && (res == 0) == !area->fresh);
			if (res != 0) {
				CHECK(area->here == 0 && voices == 0 && !missing &&
				      atomic_load(&cw_copies) == CW_COPIES_POSSIBLE + CW_COPY);
				for (uint32_t p = 0; p < PAGES; p++)
					CHECK(!page[p].wp && (!page[p].here || *word(p) == page[p].want));
				CHECK(cw_before_work() == 0);
			}
			consistent();
			end();
		}
	CHECK(cw_pages_failed("", 0) == 0 && cw_pages_failed("", -ENOMEM) == CUDA_ERROR_OUT_OF_MEMORY &&
	      cw_pages_failed("", -EIO) == CUDA_ERROR_OPERATING_SYSTEM);
}

/* --- turns ------------------------------------------------------------------------------------ */

/* Runs of units in [lo, hi) of one of the holders in the set. */
static int runs(uint32_t lo, uint32_t hi, uint32_t set)
{
	int n = 0, in = 0;
	for (uint32_t u = lo; u < hi; u++) {
		int now = set >> area->holder[u] & 1;
		n += now && !in;
		in = now;
	}
	return n;
}

static void yield(uint32_t lo, uint32_t hi)
{
	int written = runs(lo, hi, 1 << CW_AT_CPU), held = runs(lo, hi, 1 << CW_AT_CPU | 1 << CW_AT_BOTH);
	int departs = calls[DEPART], protects = calls[PROTECT], spoken = calls[VOICE], old = waits;
	uint32_t gone = forgotten;
	int reads = runs(lo, hi, 1 << CW_AT_BOTH); /* what was written leaves with its bytes */
	uint64_t at = area->base + (uint64_t)lo * CW_UNIT, size = cw_units_bytes(area, lo, hi);
	int ends = (int)next(2); /* not at the boundaries of units */
	CHECK(cw_resident_yield(at + (ends ? 3 : 0), size - (ends ? 5 : 0)) == 0);
	for (uint32_t u = lo; u < hi; u++)
		CHECK(area->holder[u] == CW_AT_GPU);
	CHECK(calls[DEPART] == departs + written && calls[PROTECT] == protects + written);
	CHECK(calls[VOICE] == spoken + (written > 0) && waits == old + (written > 0));
	CHECK(forgotten == gone + (uint32_t)reads && held >= 0);
}

static void gpu_works(void)
{
	CHECK(cw_before_work() == 0);
	CHECK(atomic_load(&cw_copies) < CW_COPY && area->here == 0);
	for (int k = (int)next(20); k > 0; k--) {
		uint32_t p = (uint32_t)next(PAGES);
		CHECK(!page[p].here);
		page[p].gpu = page[p].want = (uint32_t)next(1u << 31);
	}
}

static void turns(int rounds)
{
	make();
	first(7);
	CHECK(cw_before_work() == 0);
	for (int r = 0; r < rounds; r++) {
		uint32_t lo = (uint32_t)next(UNITS), hi = lo + 1 + (uint32_t)next(UNITS - lo);
		switch (next(6)) {
		case 0: {
			int absent = runs(lo, hi, 1 << CW_AT_GPU), came = calls[ARRIVE];
			uint8_t was[UNITS];
			int write = (int)next(2);
			memcpy(was, area->holder, UNITS);
			CHECK(cw_area_bring(area, lo, hi, write) == 0 && calls[ARRIVE] == came + absent);
			for (uint32_t u = 0; u < UNITS; u++)
				CHECK(area->holder[u] ==
				      (u >= lo && u < hi && was[u] == CW_AT_GPU ? (write || !tracks ? CW_AT_CPU : CW_AT_BOTH) : was[u]));
			break;
		}
		case 1: {
			int both = runs(lo, hi, 1 << CW_AT_BOTH), asked = calls[PROTECT];
			uint8_t was[UNITS];
			memcpy(was, area->holder, UNITS);
			CHECK(cw_area_change(area, lo, hi) == 0 && calls[PROTECT] == asked + both);
			for (uint32_t u = 0; u < UNITS; u++)
				CHECK(area->holder[u] == (u >= lo && u < hi && was[u] == CW_AT_BOTH ? CW_AT_CPU : was[u]));
			break;
		}
		case 2:
		case 3: {
			uint32_t p = (uint32_t)next(PAGES), n = 1 + (uint32_t)next(next(4) ? 3 : PAGES);
			write_pages(p, p + n < PAGES ? p + n : PAGES);
			break;
		}
		case 4: yield(lo, hi); break;
		default: gpu_works();
		}
		consistent();
	}
	end();
}

/* A call that fails loses nothing, and the next one does it. */
static void fails_in_turn(void)
{
	static const int kinds[] = {PROTECT, DEPART, ARRIVE, VOICE};
	make();
	CHECK(cw_before_work() == 0);
	for (int r = 0; r < 3000; r++) {
		int kind = kinds[next(4)];
		write_pages((uint32_t)next(PAGES), PAGES);
		CHECK(cw_area_bring(area, 0, 1 + (uint32_t)next(UNITS), 0) == 0);
		int brings = kind == ARRIVE || next(2);
		if (brings)
			yield(2, 2 + (uint32_t)next(9) + 1);
		fail_in[kind] = 1 + (int)next(3);
		CUresult res = brings ? cw_area_bring(area, 0, UNITS, (int)next(2)) : cw_resident_yield(area->base, area->size);
		CHECK((res != 0) == (fail_in[kind] == 0));
		fail_in[kind] = 0;
		for (uint32_t p = 0; p < PAGES; p++) {
			/* Writers may be let go on by whoever serves them. */
			if (page[p].here && page[p].wp && area->holder[p / PER_UNIT] == CW_AT_CPU)
				page[p].wp = 0;
			CHECK(page[p].here == (area->holder[p / PER_UNIT] != CW_AT_GPU));
			CHECK((page[p].here ? *word(p) : page[p].gpu) == page[p].want);
		}
		CHECK(cw_before_work() == 0 && area->here == 0);
		consistent();
	}
	write_pages(3, 4);
	now_waits = 1; /* the copy is not known to have been made */
	CHECK(cw_before_work() == CUDA_ERROR_LAUNCH_FAILED && voices == 0);
	now_waits = 0;
	end();
}

static const struct cw_stream nine = {.o.id = 9, .o.ctx = 3, .uid = 99};

/* What is attached to a stream that ends waits for another in its place, or for nothing, or is
 * found when it is touched. */
static void stream_ends(void)
{
	make();
	struct cw_area *a = area;
	a->first = CU_MEM_ATTACH_HOST;
	cw_resident_left(&nine);
	CHECK(heirs == 0);
	for (int known = 0; known < 3; known++) {
		CHECK(cw_resident_attach(a->base, CU_MEM_ATTACH_SINGLE, &nine) == 0);
		a->uid = 98; /* another's of the same id */
		cw_resident_left(&nine);
		CHECK(heirs == known && a->stream == 9 && !a->lapsed);
		a->uid = 99;
		heir_known = known > 0;
		heir = known == 1 ? (struct cw_behind){3, 44, 444, 0} : (struct cw_behind){0};
		cw_resident_left(&nine);
		CHECK(heirs == known + 1 && a->lapsed == (known == 1) && a->stream == (known == 0 ? 9 : known == 1 ? 44 : 0));
		CHECK(a->attach == (known == 2 ? CU_MEM_ATTACH_HOST : CU_MEM_ATTACH_SINGLE) && a->uid == (known == 0   ? 99
													  : known == 1 ? 444
														       : 0));
	}
	CHECK(cw_resident_attach(a->base, CU_MEM_ATTACH_GLOBAL, NULL) == 0 && !a->lapsed);
	end();
}

static void small_things(void)
{
	make();
	struct cw_area *a = area;
	CHECK(cw_area_at(a->base) == a && cw_area_at(a->base + a->size - 1) == a && !cw_area_at(a->base + a->size) &&
	      !cw_area_at(a->base - 1));
	CHECK(cw_units_bytes(a, 0, 1) == CW_UNIT && cw_units_bytes(a, UNITS - 1, UNITS) == 2 * CW_PAGE &&
	      cw_unit_of(a, a->base + CW_UNIT) == 1);
	CHECK(cw_resident_yield(a->base, 0) == 0 && a->fresh); /* nothing is asked for */
	CHECK(cw_resident_attach(a->base, CU_MEM_ATTACH_GLOBAL, NULL) == 0 && a->fresh && a->attach == CU_MEM_ATTACH_GLOBAL);
	CHECK(cw_resident_attach(a->base, CU_MEM_ATTACH_SINGLE, &nine) == 0 && !a->fresh && a->attach == CU_MEM_ATTACH_SINGLE &&
	      a->stream == 9 && a->uid == 99);
	CHECK(cw_resident_attach(a->base, CU_MEM_ATTACH_HOST, NULL) == 0 && a->attach == CU_MEM_ATTACH_HOST && a->stream == 0);
	a->blocks = (struct cw_blocks *)a; /* shared with others: nobody's own */
	CHECK(cw_resident_attach(a->base, CU_MEM_ATTACH_GLOBAL, &nine) == 0 && a->attach == CU_MEM_ATTACH_HOST && a->stream == 0);
	a->blocks = NULL;
	cw_resident_wish(a->base + CW_UNIT - 1, 2);
	CHECK(a->wish_lo == 0 && a->wish_hi == 2);
	cw_resident_wish(a->base + 2 * CW_UNIT, CW_UNIT);
	CHECK(a->wish_lo == 2 && a->wish_hi == 3);
	for (a->ahead = 0; a->wish_hi; a->ahead = 3) {
		/* A wish lasts until it was met and the GPU has work again. */
		CHECK(a->wish_hi == 3 && a->wish_lo == 2);
		cw_lock_acquire(&cw_resident_lock);
		CHECK(cw_area_yield(a, 0, a->units) == 0);
		cw_lock_release(&cw_resident_lock);
	}
	CHECK(a->wish_lo == 0 && a->ahead == 3);
	a->ahead = 0;
	consistent();
	/* Duplicates: of all of it, when nothing is written; the end of an area is theirs. */
	static uint64_t something;
	cw_resident_mostly(a->base + 5, 1, 1);
	cw_resident_mostly(a->base + a->size, 1, 1); /* elsewhere */
	cw_resident_mostly(a->base, a->size, 0);
	CHECK(begun == 1 && ended == 1);
	a->kept = (struct cw_kept *)&something;
	CHECK(cw_area_bring(a, 0, a->units, 0) == 0 && cw_resident_yield(a->base, a->size - CW_UNIT) == 0 && hidden == 0);
	write_pages(9, 10);
	CHECK(cw_before_work() == 0 && hidden == 1 && a->here == 0 && cw_before_work() == 0 && hidden == 1);
	a->kept = NULL;
	consistent();
	int ends = ended;
	/* Two areas, of which the one that was listed first goes. */
	struct cw_area b = {.base = 1ull << 40, .size = CW_PAGE, .fresh = 1};
	cw_area_list(&b);
	CHECK(cw_area_at(1ull << 40) == &b && cw_area_at(a->base) == a);
	CHECK(atomic_load(&cw_copies) == 2 * CW_COPIES_POSSIBLE + CW_COPY);
	cw_area_unlist(a);
	CHECK(cw_areas == &b && b.next == NULL && ended == ends + 1);
	cw_area_list(a);
	a->fresh = 0;
	atomic_fetch_sub(&cw_copies, (uint64_t)CW_COPY);
	cw_area_unlist(&b);
	CHECK(cw_areas == a && a->next == NULL && atomic_load(&cw_copies) == CW_COPIES_POSSIBLE);
	end();
}

int main(void)
{
	alarm(600);
	int lowest = dup(0);
	close(lowest);
	small_things();
	stream_ends();
	fresh();
	CHECK(dup(0) == lowest); /* nothing stays open */
	fresh_fails();
	turns(20000);
	fails_in_turn();
	tracks = 0; /* a kernel that tells no writes: what is here counts as written */
	fresh();
	turns(3000);
	puts("resident_test ok");
	return 0;
}
