/* What is recorded about managed memory, against one record a page. */
#include <string.h>

#include "memory/managed.h"
#include "session/tests/fake_worker.h"

enum { PAGE = 4096, PAGES = 64, ROUNDS = 30000 };
#define BASE 0x700000000000ull

static struct {
	int mostly, preferred, last, device, host;
} model[PAGES];

static uint64_t next(void)
{
	static uint64_t x = 0x2545f4914f6cdd1dull;
	x ^= x << 13, x ^= x >> 7, x ^= x << 17;
	return x >> 11;
}

static CUmemLocation place(int dev) { return (CUmemLocation){dev < 0 ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE, 0}; }

static void change(uint64_t at, uint64_t n)
{
	int what = (int)(next() % 7), dev = next() % 2 ? -1 : 0;
	uint64_t lo = at / PAGE, hi = (at + n + PAGE - 1) / PAGE;
	CUresult res = what == 0 ? cwi_cuMemPrefetchAsync_v2(0, BASE + at, n, place(dev), 0, NULL)
				 : cwi_cuMemAdvise_v2(BASE + at, n, (CUmem_advise)what, place(dev));
	CHECK(res == 0);
	for (uint64_t i = lo; i < hi; i++) {
		int *by = dev < 0 ? &model[i].host : &model[i].device;
		if (what == 0)
			model[i].last = dev;
		else if (what <= 2)
			model[i].mostly = what == 1;
		else if (what <= 4)
			model[i].preferred = what == 3 ? dev : -2;
		else
			*by = what == 5;
	}
}

static void ask(uint64_t at, uint64_t n)
{
	uint64_t lo = at / PAGE, hi = (at + n + PAGE - 1) / PAGE;
	int mostly = 1, preferred = model[lo].preferred, last = model[lo].last, device = 1, host = 1, got[3], by[3];
	for (uint64_t i = lo; i < hi; i++) {
		mostly &= model[i].mostly;
		preferred = preferred == model[i].preferred ? preferred : -2;
		last = last == model[i].last ? last : -2;
		device &= model[i].device;
		host &= model[i].host;
	}
	void *data[] = {&got[0], &got[1], &got[2], by};
	size_t sizes[] = {4, 4, 4, sizeof by};
	CUmem_range_attribute which[] = {(CUmem_range_attribute)1, (CUmem_range_attribute)2, (CUmem_range_attribute)4,
					 (CUmem_range_attribute)3};
	CHECK(cwi_cuMemRangeGetAttributes(data, sizes, which, 4, BASE + at, n) == 0);
	CHECK(got[0] == mostly && got[1] == preferred && got[2] == last);
	CHECK(by[0] == (device ? 0 : host ? -1 : -2) && by[1] == (device && host ? -1 : -2) && by[2] == -2);
}

/* A node of the host's memory is preferred or not; who accesses is a processor. */
static void nodes(void)
{
	CUmemLocation node[] = {{CU_MEM_LOCATION_TYPE_HOST_NUMA, 0}, {CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0}};
	for (int i = 0; i < 2; i++) {
		CHECK(cwi_cuMemAdvise_v2(BASE, PAGE, (CUmem_advise)3, node[i]) == 0);
		CHECK(cwi_cuMemAdvise_v2(BASE, PAGE, (CUmem_advise)5, node[i]) == CUDA_ERROR_INVALID_VALUE);
		CHECK(cwi_cuMemAdvise_v2(BASE, PAGE, (CUmem_advise)6, node[i]) == CUDA_ERROR_INVALID_VALUE);
	}
}

int main(void)
{
	struct fake_options o = {0};
	pid_t w = fake_worker_start(&o);
	struct cw_range r = {.base = BASE, .size = PAGES * PAGE - 100, .kind = CW_RANGE_MANAGED};
	int v;
	CHECK(cw_session_open() == 0);
	cw_set_current_ctx_id(5);
	r.managed = cw_managed_new(r.size);
	CHECK(r.managed && cw_range_add(&r) == 0);
	for (int i = 0; i < PAGES; i++)
		model[i].preferred = model[i].last = -2;
	for (int i = 0; i < ROUNDS; i++) {
		uint64_t at = next() % r.size, n = 1 + next() % (r.size - at);
		if (next() % 3)
			n = n % (4 * PAGE) + 1 > r.size - at ? 1 : n % (4 * PAGE) + 1;
		(next() % 2 ? change : ask)(at, n);
	}
	CHECK(r.managed->count <= PAGES);
	CHECK(cwi_cuMemAdvise_v2(BASE - 1, 2, (CUmem_advise)1, place(0)) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cwi_cuMemAdvise_v2(BASE, (PAGES + 1) * PAGE, (CUmem_advise)1, place(0)) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cwi_cuMemAdvise_v2(BASE, UINT64_MAX, (CUmem_advise)1, place(0)) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cwi_cuMemRangeGetAttribute(&v, 4, (CUmem_range_attribute)1, BASE + 5, UINT64_MAX) == CUDA_ERROR_INVALID_VALUE);
	nodes();
	CHECK(cw_range_take(BASE, 1u << CW_RANGE_MANAGED, &r));
	cw_managed_free(r.managed);
	CHECK(cwi_cuMemAdvise_v2(BASE, 1, (CUmem_advise)1, place(0)) == CUDA_ERROR_INVALID_VALUE);
	fake_worker_kill(w);
	printf("hints_test ok\n");
	return 0;
}
