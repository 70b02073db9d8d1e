/*
 * Measures what depends on where memory of the GPU comes from, through whatever libcuda.so.1 the
 * loader finds: to allocate and to free by size, kernels and copies over memory in one piece and in
 * many, launches. Prints "name value unit" lines like bench.c beside it. Values are medians.
 *
 *   memory MIB           MIB: the size of the memory that kernels and copies go over
 *   memory 0 ordered     memory in stream order alone
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "driver.h"
#include "timing.h"

#define ENTRIES(X) \
	X(cuInit, cuInit, (unsigned)) \
	X(cuDeviceGet, cuDeviceGet, (int *, int)) \
	X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (handle *, int)) \
	X(cuCtxSetCurrent, cuCtxSetCurrent, (handle)) \
	X(cuCtxSynchronize, cuCtxSynchronize, (void)) \
	X(cuModuleLoadData, cuModuleLoadData, (handle *, const void *)) \
	X(cuModuleGetFunction, cuModuleGetFunction, (handle *, handle, const char *)) \
	X(cuMemAlloc, cuMemAlloc_v2, (CUdeviceptr *, size_t)) \
	X(cuMemFree, cuMemFree_v2, (CUdeviceptr)) \
	X(cuMemAllocAsync, cuMemAllocAsync, (CUdeviceptr *, size_t, handle)) \
	X(cuMemFreeAsync, cuMemFreeAsync, (CUdeviceptr, handle)) \
	X(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, (handle *, int)) \
	X(cuMemPoolSetAttribute, cuMemPoolSetAttribute, (handle, int, void *)) \
	X(cuMemGetInfo, cuMemGetInfo_v2, (size_t *, size_t *)) \
	X(cuMemsetD32, cuMemsetD32_v2, (CUdeviceptr, unsigned, size_t)) \
	X(cuMemcpyHtoD, cuMemcpyHtoD_v2, (CUdeviceptr, const void *, size_t)) \
	X(cuMemcpyDtoD, cuMemcpyDtoD_v2, (CUdeviceptr, CUdeviceptr, size_t)) \
	X(cuLaunchKernel, cuLaunchKernel, \
	  (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **))

ENTRIES(DECLARE)

/*
 * stream(p, n): adds 1 to n words, one after the other. scatter(table, mask, times): each thread
 * adds 1 to words anywhere in blocks of 2 MiB, of which table holds the addresses, a power of two
 * of them.
 */
static const char ptx[] =
	".version 6.4\n.target sm_75\n.address_size 64\n"
	".visible .entry stream(.param .u64 p,.param .u64 n){.reg .u64 %a,%n,%i,%s,%o;.reg .u32 %x,%y,%z,%v;.reg .pred %q;"
	"ld.param.u64 %a,[p];ld.param.u64 %n,[n];mov.u32 %x,%ctaid.x;mov.u32 %y,%ntid.x;mov.u32 %z,%tid.x;"
	"mad.wide.u32 %i,%x,%y,0;cvt.u64.u32 %o,%z;add.u64 %i,%i,%o;mov.u32 %x,%nctaid.x;mul.wide.u32 %s,%x,%y;"
	"L:setp.ge.u64 %q,%i,%n;@%q bra E;shl.b64 %o,%i,2;add.u64 %o,%o,%a;ld.global.u32 %v,[%o];add.u32 %v,%v,1;"
	"st.global.u32 [%o],%v;add.u64 %i,%i,%s;bra L;E:ret;}\n"
	".visible .entry scatter(.param .u64 t,.param .u32 m,.param .u32 times){.reg .u64 %t,%o,%w;"
	".reg .u32 %x,%y,%z,%m,%n,%b,%c;.reg .pred %q;ld.param.u64 %t,[t];ld.param.u32 %m,[m];ld.param.u32 %n,[times];"
	"mov.u32 %x,%ctaid.x;mov.u32 %y,%ntid.x;mov.u32 %z,%tid.x;mad.lo.u32 %x,%x,%y,%z;mul.lo.u32 %x,%x,2654435761;"
	"L:mul.lo.u32 %x,%x,1664525;add.u32 %x,%x,1013904223;shr.u32 %b,%x,9;and.b32 %c,%b,%m;mul.wide.u32 %o,%c,8;"
	"add.u64 %o,%o,%t;ld.global.u64 %w,[%o];mul.lo.u32 %b,%x,747796405;shr.u32 %b,%b,13;shl.b32 %b,%b,2;"
	"cvt.u64.u32 %o,%b;add.u64 %o,%o,%w;red.global.add.u32 [%o],1;sub.u32 %n,%n,1;setp.ne.u32 %q,%n,0;@%q bra L;ret;}\n"
	".visible .entry empty(){ret;}\n";

static void check(CUresult r, const char *what)
{
	if (r != 0) {
		fprintf(stderr, "memory: %s returned %d\n", what, r);
		exit(1);
	}
}
#define CK(call) check((call), #call)

static void bind_all(void)
{
	static const char program[] = "memory";
	ENTRIES(BIND)
}

enum { BLOCK = 2 << 20, MANY = 4096, THREADS = 256, GRID = 1024, TOUCHES = 256 };

static CUdeviceptr at[MANY];
static double a[MANY], f[MANY]; /* samples */
static handle stream, scatter, empty;

/* n of a size are made and then freed: the time of each call, and of a free with the wait behind
 * all of them. */
static void allocations(size_t size, int n)
{
	for (int k = 0; k < n; k++) {
		double t = now_us();
		CK(cuMemAlloc(&at[k], size));
		a[k] = now_us() - t;
	}
	double begin = now_us();
	for (int k = 0; k < n; k++) {
		double t = now_us();
		CK(cuMemFree(at[k]));
		f[k] = now_us() - t;
	}
	CK(cuCtxSynchronize());
	double all = (now_us() - begin) / n;
	printf("alloc_%zu %.3f us\n", size, median(a, n));
	printf("free_%zu %.3f us\n", size, median(f, n));
	printf("free_mean_%zu %.3f us\n", size, all);
}

/* Allocated and freed one after the other, as programs do that have no pool. */
static void pairs(size_t size, int n)
{
	for (int k = -2; k < n; k++) {
		CUdeviceptr p;
		double t = now_us();
		CK(cuMemAlloc(&p, size));
		CK(cuMemFree(p));
		if (k >= 0)
			a[k] = now_us() - t;
	}
	printf("alloc_free_%zu %.3f us\n", size, median(a, n));
}

/* In stream order: allocated and freed, so many pieces at once and in turn, with a wait behind all
 * of them; once with the pool as it is, once with one that keeps everything. */
static void ordered(size_t size, int n, int keeps)
{
	enum { AT_ONCE = 8, ROUNDS = 60 };
	double all[ROUNDS];
	int calls = 0;
	for (int round = -3; round < ROUNDS; round++) {
		double begin = now_us();
		calls = 0;
		for (int k = 0; k < n; k += AT_ONCE) {
			for (int i = 0; i < AT_ONCE; i++, calls++)
				CK(cuMemAllocAsync(&at[i], size, NULL));
			for (int i = 0; i < AT_ONCE; i++)
				CK(cuMemFreeAsync(at[i], NULL));
		}
		CK(cuCtxSynchronize());
		if (round >= 0)
			all[round] = (now_us() - begin) / calls;
	}
	printf("ordered_%s_%zu %.3f us\n", keeps ? "kept" : "plain", size, median(all, ROUNDS));
}

static double timed(handle kernel, void **params, int runs)
{
	for (int i = -2; i < runs; i++) {
		CK(cuCtxSynchronize());
		double t = now_us();
		CK(cuLaunchKernel(kernel, GRID, 1, 1, THREADS, 1, 1, 0, NULL, params, NULL));
		CK(cuCtxSynchronize());
		if (i >= 0)
			a[i] = now_us() - t;
	}
	return median(a, runs);
}

static void touched(const char *name, CUdeviceptr *blocks, unsigned n)
{
	CUdeviceptr table;
	unsigned mask = n - 1, times = TOUCHES;
	CK(cuMemAlloc(&table, n * sizeof *blocks));
	CK(cuMemcpyHtoD(table, blocks, n * sizeof *blocks));
	void *params[] = {&table, &mask, &times};
	printf("%s %.3f us\n", name, timed(scatter, params, 9));
	CK(cuMemFree(table));
}

int main(int argc, char **argv)
{
	int dev;
	handle ctx, mod;
	size_t room, total, size = (argc > 1 ? strtoull(argv[1], NULL, 10) : 1024) << 20;
	bind_all();
	CK(cuInit(0));
	CK(cuDeviceGet(&dev, 0));
	CK(cuDevicePrimaryCtxRetain(&ctx, dev));
	CK(cuCtxSetCurrent(ctx));
	CK(cuModuleLoadData(&mod, ptx));
	CK(cuModuleGetFunction(&stream, mod, "stream"));
	CK(cuModuleGetFunction(&scatter, mod, "scatter"));
	CK(cuModuleGetFunction(&empty, mod, "empty"));
	CK(cuMemGetInfo(&room, &total));

	if (argc > 2) { /* ordered */
		static const size_t sizes[] = {512, 64 << 10, 2 << 20, 20 << 20, 256 << 20};
		unsigned long long all = ~0ull;
		handle pool;
		for (int keeps = 0; keeps < 2; keeps++) {
			for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
				ordered(sizes[i], 64, keeps);
			CK(cuDeviceGetDefaultMemPool(&pool, dev));
			CK(cuMemPoolSetAttribute(pool, 4 /* CU_MEMPOOL_ATTR_RELEASE_THRESHOLD */, &all));
		}
		return 0;
	}

	static const struct {
		size_t size;
		int n;
	} rows[] = {{512, 2000},    {4 << 10, 2000}, {64 << 10, 1000}, {512 << 10, 500}, {1 << 20, 300},
		    {2 << 20, 300}, {20 << 20, 60},  {256 << 20, 12},  {1ull << 30, 9},	 {10ull << 30, 3}};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		if (rows[i].size * rows[i].n < room / 2)
			allocations(rows[i].size, rows[i].n);
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		if (rows[i].size < room / 2)
			pairs(rows[i].size, rows[i].size > 1 << 28 ? 7 : 100);

	/* One piece, and the same bytes in pieces of 2 MiB. */
	CUdeviceptr p, q;
	unsigned n = 1;
	while (n * 2 <= MANY && (size_t)n * 2 * BLOCK <= size)
		n *= 2;
	size = (size_t)n * BLOCK;
	size_t words = size / 4;
	CK(cuMemAlloc(&p, size));
	CK(cuMemsetD32(p, 0, words));
	void *params[] = {&p, &words};
	printf("kernel_stream_one_piece %.3f us\n", timed(stream, params, 15));
	for (unsigned i = 0; i < n; i++)
		at[i] = p + (size_t)i * BLOCK;
	touched("kernel_scatter_one_piece", at, n);
	CK(cuMemAlloc(&q, size / 2));
	for (int i = -2; i < 15; i++) {
		double t = now_us();
		CK(cuMemcpyDtoD(q, p, size / 2));
		CK(cuCtxSynchronize());
		if (i >= 0)
			a[i] = now_us() - t;
	}
	printf("copy_on_device %.3f us\n", median(a, 15));
	for (int i = -2; i < 15; i++) {
		double t = now_us();
		CK(cuMemsetD32(p, i, words));
		CK(cuCtxSynchronize());
		if (i >= 0)
			a[i] = now_us() - t;
	}
	printf("memset %.3f us\n", median(a, 15));
	CK(cuMemFree(q));
	CK(cuMemFree(p));
	for (unsigned i = 0; i < n; i++) {
		CK(cuMemAlloc(&at[i], BLOCK));
		CK(cuMemsetD32(at[i], 0, BLOCK / 4));
	}
	touched("kernel_scatter_pieces", at, n);
	for (unsigned i = 0; i < n; i++)
		CK(cuMemFree(at[i]));

	enum { LAUNCHES = 20000, ROUNDS = 9 };
	for (int r = -1; r < ROUNDS; r++) {
		double t = now_us();
		for (int i = 0; i < LAUNCHES; i++)
			CK(cuLaunchKernel(empty, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
		CK(cuCtxSynchronize());
		if (r >= 0)
			a[r] = (now_us() - t) / LAUNCHES;
	}
	printf("launch_through %.3f us\n", median(a, ROUNDS));
	return 0;
}
