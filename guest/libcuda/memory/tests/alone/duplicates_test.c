/*
 * Duplicates out of sight, alone: duplicates.c between real pages, which it moves, and a model of
 * the GPU's bytes. What comes back has its bytes, and only if they are the GPU's; what does not is
 * forgotten; nothing is lost where the kernel refuses to move; and what is asked of the GPU is what
 * was out of sight.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

#include <unistd.h>

/* What the kernel says of a page: it is protected from writes, or not. */
static int is_protected = 1;
static ssize_t told(int fd, void *entry, size_t size, off_t at)
{
	ssize_t got = pread(fd, entry, size, at);
	*(uint64_t *)entry |= (uint64_t)is_protected << 57;
	return got;
}
#define pread told
#include "memory/duplicates.c"
#undef pread
#include "memory/mappings.c"
#include "session/internal.h"
#include "session/tests/check.h"

enum { UNITS = 5 * BLOCK + 17, PER_UNIT = CW_UNIT / CW_PAGE };

struct cw_session cw_s;
struct cw_global cw_g;
static struct cw_area *area;
static uint8_t *gpu;
static uint64_t asked;		 /* bytes of the GPU */
static int voices, woken, fails; /* fails: the next question */
static int remaps = 1, protects = 1;

void cw_log(enum cw_log_level level, const char *fmt, ...) { (void)level, (void)fmt; }
int cw_uffd_remaps(void) { return remaps; }
int cw_uffd_tracks(void) { return 1; }
static uint64_t memory = UINT64_MAX;
static int tight, looks;
uint64_t cw_memory_all(void) { return memory; }
int cw_pieces_fit_here(uint64_t size)
{
	CHECK(size == memory / 8);
	looks++;
	return !tight;
}
void cw_uffd_moves(uint64_t to) { CHECK(to != 0); }
void cw_uffd_drain(void) {}
int cw_uffd_watch(uint64_t at, uint64_t size, int missing) { return at && size && missing ? 0 : -1; }
int cw_uffd_protect(uint64_t at, uint64_t size, int on) { return at && size && on && protects ? 0 : -ENOENT; }
int cw_uffd_fill(uint64_t at, const void *from, uint64_t size, int protect)
{
	CHECK(protect);
	memcpy((void *)(uintptr_t)at, from, size);
	return 0;
}
void cw_uffd_wake(uint64_t at, uint64_t size) { woken += at && size; }
void cw_pages_whole(uint64_t at, uint64_t size) { CHECK(at % CW_PAGE == 0 && size % CW_PAGE == 0); }
void cw_pages_forget(uint64_t at, uint64_t size) { CHECK(madvise((void *)(uintptr_t)at, size, MADV_DONTNEED) == 0); }

void cw_area_hold(struct cw_area *a, uint32_t lo, uint32_t hi, enum cw_holder h)
{
	CHECK(a == area && lo < hi && hi <= a->units);
	memset(a->holder + lo, h, hi - lo);
}

CUresult cw_voice_begin(struct cw_area *a, struct cw_voice *v)
{
	CHECK(a == area && voices++ == 0);
	v->stream = 7;
	return CUDA_SUCCESS;
}
void cw_voice_end(const struct cw_voice *v) { CHECK(v->stream == 7 && voices-- == 1); }

CUresult cw_thread_start(void *(*run)(void *), void *arg)
{
	pthread_t t;
	return pthread_create(&t, NULL, run, arg) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

static uint64_t from; /* what the last piece is of */
CUresult cwop_MemcpyStaged(uint32_t direction, uint32_t region, uint64_t offset, uint64_t size, uint64_t device, uint32_t stream,
			   uint32_t word, uint32_t value)
{
	(void)region, (void)offset, (void)word, (void)value;
	CHECK(direction == CW_FROM_DEVICE && stream == 7 && device >= area->base && device + size <= area->base + area->size);
	asked += size;
	from = device - area->base;
	return fails ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
}

CUresult cw_transfer_from_device(const struct cw_transfer *t)
{
	struct cw_chunk c = {0};
	CUresult res = CUDA_SUCCESS;
	for (uint64_t k = 0; k < t->pieces && res == 0; k++) {
		res = t->send(t->arg, k, &c);
		if (res == 0)
			t->move(t->arg, k, gpu + from);
	}
	return res;
}

/* --- the test --------------------------------------------------------------------------------- */

static uint8_t *unit(uint32_t u) { return (uint8_t *)(uintptr_t)cw_unit_at(area, u); }

/* By the kernel's account. */
static int is_here(uint32_t u)
{
	uint64_t entry = 0;
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	CHECK(pread(fd, &entry, 8, (off_t)((uintptr_t)unit(u) / CW_PAGE * 8)) == 8);
	close(fd);
	return entry >> 63 & 1;
}

static void fill(uint32_t lo, uint32_t hi)
{
	memcpy(unit(lo), gpu + (uint64_t)lo * CW_UNIT, cw_units_bytes(area, lo, hi));
	memset(area->holder + lo, CW_AT_BOTH, hi - lo);
}

/* An area that begins in the middle of a block of addresses, and ends in the middle of a unit. */
static void make(void)
{
	uint8_t *p = mmap(NULL, (UNITS + 3 * BLOCK) * (size_t)CW_UNIT, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uint64_t base = ((uintptr_t)p + BLOCK * CW_UNIT - 1) / ((uint64_t)BLOCK * CW_UNIT) * ((uint64_t)BLOCK * CW_UNIT) + 5 * CW_UNIT;
	area = calloc(1, sizeof *area + UNITS);
	CHECK(p != MAP_FAILED && area);
	area->base = base;
	area->units = UNITS;
	area->size = (uint64_t)UNITS * CW_UNIT - CW_PAGE;
	CHECK(mmap(unit(0), area->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == unit(0));
	madvise(unit(0), area->size, MADV_NOHUGEPAGE);
	gpu = malloc(area->size);
	for (uint64_t i = 0; i < area->size; i++)
		gpu[i] = (uint8_t)(i * 7 + i / CW_UNIT);
	cw_kept_begin(area);
	CHECK(area->kept && area->kept->count == 0);
	asked = 0;
}

static void end(void)
{
	cw_kept_end(area);
	CHECK(!area->kept);
	cw_kept_end(area);
	munmap(unit(0), area->size);
	free(gpu);
	free(area);
}

/* Units [lo, hi) are here with the GPU's bytes, by both accounts. */
static void here(uint32_t lo, uint32_t hi)
{
	for (uint32_t u = lo; u < hi; u++)
		CHECK(area->holder[u] == CW_AT_BOTH && is_here(u));
	CHECK(memcmp(unit(lo), gpu + (uint64_t)lo * CW_UNIT, cw_units_bytes(area, lo, hi)) == 0);
}

static void gone(uint32_t lo, uint32_t hi)
{
	for (uint32_t u = lo; u < hi; u++)
		CHECK(area->holder[u] == CW_AT_GPU && !is_here(u));
}

static void there_and_back(void)
{
	make();
	fill(0, UNITS);
	cw_kept_hide(area);
	gone(0, UNITS);
	CHECK(area->kept->count == UNITS && asked == 0 && woken == 0);
	cw_kept_show(area, 300, 301); /* its block, no more */
	uint32_t lo = block_begin(area, 300), hi = block_end(area, 300);
	CHECK(hi - lo == BLOCK && lo % BLOCK == BLOCK - 5 && asked == (uint64_t)BLOCK * CW_UNIT && woken == 1);
	here(lo, hi);
	gone(0, lo);
	gone(hi, UNITS);
	cw_kept_show(area, 0, UNITS);
	here(0, UNITS);
	CHECK(area->kept->count == 0 && asked == area->size); /* each byte once */
	cw_kept_show(area, 0, UNITS);
	CHECK(asked == area->size);
	end();
}

/* A byte that the GPU has otherwise, wherever it is. */
static void written(void)
{
	make();
	uint32_t lo = block_begin(area, 200), hi = block_end(area, 200);
	const uint64_t at[] = {(uint64_t)lo * CW_UNIT, (uint64_t)hi * CW_UNIT - 1, (uint64_t)(lo + 31) * CW_UNIT + 12345};
	for (int k = 0; k < 3; k++) {
		fill(0, UNITS);
		cw_kept_hide(area);
		gpu[at[k]] ^= 1;
		cw_kept_show(area, 200, 201);
		gone(0, UNITS);
		CHECK(area->kept->count == UNITS - BLOCK);
		fill(lo, hi); /* it is brought, while the others are out of sight */
		cw_kept_show(area, hi, hi + 1);
		here(lo, block_end(area, hi));
		cw_kept_show(area, 0, UNITS);
		here(0, UNITS);
	}
	cw_kept_hide(area);
	fails = 1; /* nobody knows what the GPU has */
	cw_kept_show(area, 0, UNITS);
	fails = 0;
	gone(0, UNITS);
	CHECK(area->kept->count == 0 && voices == 0);
	end();
}

static void holes(void)
{
	make();
	for (uint32_t u = 0; u < UNITS; u += 3)
		fill(u, u + 1);
	cw_kept_hide(area);
	gone(0, UNITS);
	cw_kept_show(area, 7, UNITS - 7);
	for (uint32_t u = 0; u < UNITS; u++)
		u % 3 ? gone(u, u + 1) : here(u, u + 1);
	CHECK(asked <= (uint64_t)(UNITS / 3 + 1) * CW_UNIT);
	/* Too few to be worth it; and written. */
	cw_pages_forget(area->base, area->size);
	memset(area->holder, CW_AT_GPU, UNITS);
	fill(400, 400 + WORTH - 1);
	cw_kept_hide(area);
	here(400, 400 + WORTH - 1);
	for (uint32_t u = 0; u < UNITS; u += BLOCK / 4) /* or too far from each other */
		fill(u, u + 1);
	cw_kept_hide(area);
	here(400, 400 + WORTH - 1);
	CHECK(area->kept->count == 0);
	fill(0, UNITS);
	area->holder[3] = CW_AT_CPU;
	cw_kept_hide(area);
	CHECK(area->kept->count == 0 && is_here(3) && is_here(UNITS - 1));
	area->holder[3] = CW_AT_BOTH;
	/* What came another way is what counts, and what is out of sight of its block goes. */
	cw_kept_hide(area);
	fill(BLOCK, BLOCK + 1);
	*unit(BLOCK) = gpu[(uint64_t)BLOCK * CW_UNIT] = 99;
	cw_kept_show(area, 0, UNITS);
	here(BLOCK, BLOCK + 1);
	CHECK(area->kept->count == 0 && area->holder[block_begin(area, BLOCK)] == CW_AT_GPU && area->holder[UNITS - 1] == CW_AT_BOTH);
	/* Gone once more, it is only what was in sight. */
	fill(0, UNITS);
	cw_kept_hide(area);
	uint32_t lo = block_begin(area, BLOCK), hi = block_end(area, BLOCK);
	fill(BLOCK, BLOCK + WORTH);
	cw_kept_hide(area);
	CHECK(area->kept->count == UNITS - (hi - lo) + WORTH);
	cw_kept_show(area, BLOCK, BLOCK + 1);
	here(BLOCK, BLOCK + WORTH);
	gone(lo, BLOCK);
	CHECK(area->kept->count == UNITS - (hi - lo));
	end();
}

/* Mappings that meet: older kernels move none that is of two. */
static void refused(void)
{
	make();
	fill(0, UNITS);
	CHECK(mprotect(unit(100), CW_UNIT, PROT_READ) == 0);
	cw_kept_hide(area);
	for (uint32_t u = 0; u < UNITS; u++)
		CHECK((area->holder[u] == CW_AT_BOTH) == is_here(u));
	int moved = area->kept->count != 0;
	cw_kept_show(area, 0, UNITS);
	if (moved) /* newer ones have moved it, and it is not put over what is protected */
		gone(0, UNITS);
	else
		here(0, UNITS);
	CHECK(mprotect(unit(100), CW_UNIT, PROT_READ | PROT_WRITE) == 0);
	fill(0, UNITS);
	/* What cannot move back is brought: its place is of two mappings. */
	cw_kept_hide(area);
	if (area->kept->count > 0) {
		CHECK(mprotect((void *)(uintptr_t)beside(area, 3), CW_UNIT, PROT_READ) == 0);
		cw_kept_show(area, 0, UNITS);
		for (uint32_t u = 0; u < UNITS; u++)
			CHECK((area->holder[u] == CW_AT_BOTH) == is_here(u));
		CHECK(area->kept->count == 0);
	}
	end();
}

/* The trial: a kernel that does not do its part, and areas that have none. */
static void possible(void)
{
	static uint64_t blocks;
	make();
	struct cw_area *a = area;
	struct cw_kept *k = a->kept;
	cw_kept_begin(a);
	CHECK(k && a->kept == k);
	cw_kept_end(a);
	a->blocks = (struct cw_blocks *)&blocks;
	cw_kept_begin(a);
	a->blocks = NULL;
	a->filed = 1;
	cw_kept_begin(a);
	a->filed = 0;
	CHECK(!a->kept);
	int *no[] = {&remaps, &protects, &is_protected};
	for (int i = 0; i < 3; i++) {
		known = *no[i] = 0;
		cw_kept_begin(a);
		CHECK(!a->kept && known == 2);
		*no[i] = 1;
		cw_kept_begin(a);
		CHECK(!a->kept); /* tried once */
	}
	known = 0;
	cw_kept_begin(a);
	CHECK(a->kept && known == 1);
	end();
}

/* What the program has protected meanwhile does not come back over it. */
static void guarded(void)
{
	make();
	const uint64_t block = (uint64_t)BLOCK * CW_UNIT;
	for (int part = 0; part < 3; part++) {
		uint64_t at = cw_unit_at(area, BLOCK + 3), size = part == 0 ? CW_PAGE : part == 1 ? block / 2 : 2 * block;
		fill(0, UNITS);
		cw_kept_hide(area);
		CHECK(area->kept->count > 0 && cw_mapped_plainly(area->base, area->size) && look(area->base, area->base + area->size));
		CHECK(mprotect((void *)(uintptr_t)at, size, part == 1 ? PROT_NONE : PROT_READ) == 0);
		CHECK(!cw_mapped_plainly(area->base, area->size) && !look(area->base, area->base + area->size));
		CHECK(ask(at + size, at + size + block) != 0 && look(at + size, at + size + block));
		cw_kept_show(area, 0, UNITS);
		CHECK(area->kept->count == 0 && held(area, 0, UNITS, CW_AT_BOTH) == 0 && !cw_mapped_plainly(at, size));
		CHECK(mprotect((void *)(uintptr_t)at, size, PROT_READ | PROT_WRITE) == 0);
	}
	CHECK(!look(0, CW_PAGE) && !cw_mapped_plainly(0, CW_PAGE));
	end();
}

/* No more stays in memory than the process can afford. */
static void afforded(void)
{
	make();
	CHECK(hidden == 0);
	memory = 4ull * 2 * BLOCK * CW_UNIT; /* of which a quarter are two blocks */
	fill(0, UNITS);
	cw_kept_hide(area);
	CHECK(area->kept->count == 0 && hidden == 0);
	here(0, UNITS);
	cw_pages_forget(cw_unit_at(area, 0), area->size);
	memset(area->holder, CW_AT_GPU, UNITS);
	fill(0, BLOCK);
	cw_kept_hide(area);
	CHECK(area->kept->count == BLOCK && hidden == BLOCK);
	int before = looks;
	cw_kept_show(area, 0, BLOCK);
	CHECK(hidden == 0);
	here(0, BLOCK);
	cw_kept_hide(area);
	CHECK(hidden == BLOCK && looks == before); /* not each time */
	cw_kept_show(area, 0, BLOCK);
	tight = 1;
	memory = UINT64_MAX;
	cw_kept_hide(area);
	CHECK(hidden > 0); /* as it was found before */
	cw_kept_show(area, 0, BLOCK);
	looked = 0;
	before = looks;
	cw_kept_hide(area);
	CHECK(hidden == 0 && looks == before + 1);
	here(0, BLOCK);
	tight_since = cw_now_ms() + 1000000; /* a moment ago, however long this takes */
	cw_kept_hide(area);
	CHECK(hidden == 0 && looks == before + 1); /* nor is that asked each time */
	here(0, BLOCK);
	tight_since = 1;
	cw_kept_hide(area);
	CHECK(hidden == 0 && looks == before + 2);
	tight_since = 0;
	here(0, BLOCK);
	cw_kept_end(area);
	CHECK(hidden == 0);
	cw_kept_begin(area);
	tight = 0;
	end();
}

int main(void)
{
	alarm(600);
	there_and_back();
	written();
	holes();
	refused();
	guarded();
	afforded();
	possible();
	puts("duplicates_test ok");
	return 0;
}
