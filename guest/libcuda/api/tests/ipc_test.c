/* Memory of other processes: how often it is open, and whose the addresses around it are. */
#include <stdlib.h>
#include <sys/mman.h>

#include "fake_host.h"
#include "memory/share.h"
#include "memory/vmm.h"

enum { PAGE = 4096, PAGES = 16, SHARED = 6 };

static CUipcMemHandle handle_of(uint8_t i)
{
	CUipcMemHandle h;
	struct cw_shared s;
	cw_share_init(&s, CW_SHARE_MEMORY);
	memset(s.token, 0, sizeof s.token);
	s.token[0] = i;
	memcpy(&h, &s, sizeof h);
	return h;
}

/* Addresses that nobody has. */
static uint64_t room(void)
{
	void *p = mmap(NULL, PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(p != MAP_FAILED && munmap(p, PAGES * PAGE) == 0);
	return (uint64_t)(uintptr_t)p;
}

static int is_free(uint64_t at)
{
	int got = cw_addresses_take(at, PAGE);
	if (got)
		cw_addresses_give(at, PAGE);
	return got;
}

static void begin(void)
{
	CUcontext ctx = NULL;
	fake_reset();
	CHECK_RES(cuCtxCreate_v2(&ctx, 0, 0), 0);
}

/* Opens and closes at random. A page is taken as long as memory in it is open, and no longer; what
 * is the program's own is never touched. */
static void by_chance(void)
{
	static const struct {
		uint32_t off, size;
	} at[SHARED] = {{0, PAGE + 100}, {PAGE + 512, PAGE},	     {3 * PAGE, 8 * PAGE},
			{5 * PAGE, 100}, {5 * PAGE + 512, 3 * PAGE}, {11 * PAGE + 256, 256}};
	int open[SHARED] = {0};
	unsigned seed = 7;
	begin();
	uint64_t base = room();
	for (int i = 0; i < SHARED; i++) {
		fake.shared[i].ptr = base + at[i].off;
		fake.shared[i].size = at[i].size;
	}
	for (int step = 0; step < 400; step++) {
		int i = (int)((seed = seed * 1103515245 + 12345) >> 16) % SHARED;
		uint64_t lo = base + at[i].off, hi = lo + at[i].size;
		int overlaps = 0;
		for (int k = 0; k < SHARED; k++)
			overlaps |= k != i && open[k] && base + at[k].off < hi && lo < base + at[k].off + at[k].size;
		if ((seed >> 28 & 1) == 0 && !overlaps) { /* the driver gives no address twice */
			CUdeviceptr p = 0;
			CHECK_RES(cuIpcOpenMemHandle_v2(&p, handle_of((uint8_t)i), 1), 0);
			CHECK(p == lo);
			open[i]++;
		} else {
			CHECK_RES(cuIpcCloseMemHandle(lo), open[i] ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
			open[i] -= open[i] > 0;
		}
		for (int k = 0; k < SHARED; k++) {
			struct cw_range r;
			CHECK((fake.open[k] > 0) == (open[k] > 0));
			CHECK(!open[k] || (cw_range_find(base + at[k].off, &r) && r.base == base + at[k].off && r.size == at[k].size));
		}
		for (int page = 0; page < PAGES; page++) {
			int taken = 0;
			for (int k = 0; k < SHARED; k++)
				taken |= open[k] && (int)(at[k].off / PAGE) <= page && page <= (int)((at[k].off + at[k].size - 1) / PAGE);
			CHECK(is_free(base + (uint64_t)page * PAGE) == !taken);
		}
	}
	for (int i = 0; i < SHARED; i++)
		for (; open[i]; open[i]--)
			CHECK_RES(cuIpcCloseMemHandle(base + at[i].off), 0);
	CHECK(cw_range_count() == 0);
}

/* Where the program has something already memory is opened elsewhere, if that can be; nothing of
 * what was there is lost, and nothing stays taken. */
static void clashes(void)
{
	CUdeviceptr p = 0, q = 0;
	begin();
	uint64_t base = room();
	fake.shared[0].ptr = base;
	fake.shared[0].size = PAGE - 512;
	fake.shared[1].ptr = base + PAGE - 512;
	fake.shared[1].size = 3 * PAGE;
	CHECK_RES(cuIpcOpenMemHandle_v2(&p, handle_of(0), 1), 0);
	char *own =
		mmap((void *)(uintptr_t)(base + 2 * PAGE), PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	CHECK(own == (char *)(uintptr_t)(base + 2 * PAGE));
	strcpy(own, "the program's");
	CHECK_RES(cuIpcOpenMemHandle_v2(&q, handle_of(1), 1), CUDA_ERROR_MAP_FAILED);
	CHECK(fake.open[1] == 0 && is_free(base + PAGE) && is_free(base + 3 * PAGE) && !strcmp(own, "the program's"));
	fake.away = 8 * PAGE;
	CHECK_RES(cuIpcOpenMemHandle_v2(&q, handle_of(1), 1), 0);
	CHECK(q == base + 9 * PAGE - 512 && fake.open[1] == 1);
	CHECK_RES(cuIpcCloseMemHandle(q), 0);
	CHECK_RES(cuIpcCloseMemHandle(p), 0);
	CHECK(!strcmp(own, "the program's") && is_free(base) && is_free(base + 8 * PAGE));
	munmap(own, PAGE);
}

int main(void)
{
	CHECK_RES(cuInit(0), 0);
	by_chance();
	clashes();
	return fake.failures != 0;
}
