/* Allocation and copies of every shape, held against memory of our own, with and without CapMap. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "memory/memory.h"
#include "gen/entries.h"
#include "session/tests/fake_worker.h"

static uint64_t rnd = 88172645463325252ull;

static uint64_t next(void)
{
	rnd ^= rnd << 13, rnd ^= rnd >> 7, rnd ^= rnd << 17;
	return rnd;
}

static void pattern(uint8_t *p, size_t n)
{
	for (size_t i = 0; i + 8 <= n; i += 8) {
		uint64_t v = next();
		memcpy(p + i, &v, 8);
	}
	for (size_t i = n & ~(size_t)7; i < n; i++)
		p[i] = (uint8_t)next();
}

static CUdeviceptr alloc(size_t n)
{
	CUdeviceptr d = 0;
	CHECK(cwi_cuMemAlloc_v2(&d, n) == 0 && d != 0);
	return d;
}

static void there_and_back(void *(*get)(size_t), void (*put)(void *), int async)
{
	static const size_t sizes[] = {
		1, 4, 4000, 4032, 4096, 32768, 32769, 100000, 262144, 262145, 1 << 20, (8 << 20) + 1, (18 << 20) + 12345};
	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		size_t n = sizes[i];
		uint8_t *a = get(n + 7), *b = get(n + 7);
		CUdeviceptr d = alloc(n + 16), e = alloc(n + 16);
		pattern(a, n);
		memset(b, 0, n);
		if (async) {
			CHECK(cwi_cuMemcpyHtoDAsync_v2(0, d + 3, a, n, NULL) == 0);
			CHECK(cwi_cuMemcpyDtoDAsync_v2(0, e + 5, d + 3, n, (CUstream)1) == 0);
			CHECK(cwi_cuMemcpyDtoHAsync_v2(1, b, e + 5, n, (CUstream)2) == 0);
			CHECK(cwop_StreamSynchronize(1) == 0);
		} else {
			CHECK(cwi_cuMemcpyHtoD_v2(0, d + 3, a, n) == 0);
			CHECK(cwi_cuMemcpyDtoD_v2(0, e + 5, d + 3, n) == 0);
			CHECK(cwi_cuMemcpyDtoH_v2(1, b, e + 5, n) == 0);
		}
		CHECK(memcmp(a, b, n) == 0);
		memset(b, 0, n);
		CHECK(cwi_cuMemcpy(0, (uintptr_t)b, e + 5, n) == 0 && memcmp(a, b, n) == 0);
		memset(b, 0, n);
		CHECK(cwi_cuMemcpyAsync(0, (uintptr_t)b, (uintptr_t)a, n, NULL) == 0);
		CHECK(cwop_StreamSynchronize(1) == 0 && memcmp(a, b, n) == 0);
		CHECK(cwi_cuMemFree_v2(d) == 0 && cwi_cuMemFree_v2(e) == 0);
		put(a);
		put(b);
	}
}

static void *get_pinned(size_t n)
{
	void *p = NULL;
	CHECK(cwi_cuMemHostAlloc(&p, n, 0) == 0);
	return p;
}

static void put_pinned(void *p) { CHECK(cwi_cuMemFreeHost(p) == 0); }

static void refusals(void)
{
	uint8_t buf[64];
	CUdeviceptr d = alloc(64), x;
	size_t n;
	CHECK(cwi_cuMemAlloc_v2(&x, 0) == CUDA_ERROR_INVALID_VALUE && cwi_cuMemAlloc_v2(NULL, 4) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cwi_cuMemAlloc_v2(&x, 1ull << 40) == CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(cwi_cuMemcpyHtoD_v2(0, d, buf, 65) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cwi_cuMemcpyHtoD_v2(0, d + 60, buf, 5) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cwi_cuMemcpyHtoD_v2(0, 0x1234, buf, 4) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cwi_cuMemcpyHtoD_v2(0, d, NULL, 4) == CUDA_ERROR_INVALID_VALUE && cwi_cuMemcpyHtoD_v2(0, 0, NULL, 0) == 0);
	CHECK(cwi_cuMemcpyDtoH_v2(0, buf, d + 64, 1) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cwi_cuMemcpyDtoD_v2(0, d, d, UINT64_MAX) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cwi_cuMemcpyDtoHAsync_v2(0, buf, d, 4, (CUstream)buf) == CUDA_ERROR_INVALID_HANDLE);
	CHECK(cwi_cuMemsetD32_v2(0, d + 2, 1, 1) == CUDA_ERROR_INVALID_VALUE && cwi_cuMemsetD8_v2(0, d, 1, 65) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cwi_cuMemsetD32_v2(0, d, 1, UINT64_MAX / 2) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cwi_cuMemsetD2D8_v2(0, d, 4, 1, 8, 2) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cwi_cuMemAllocPitch_v2(&x, &n, 100, 10, 3) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cwi_cuMemGetAddressRange_v2(&x, &n, d + 10) == 0 && x == d && n == 64);
	CHECK(cwi_cuMemGetAddressRange_v2(&x, NULL, 77) == CUDA_ERROR_NOT_FOUND);
	CHECK(cwi_cuMemFree_v2(d + 1) == CUDA_ERROR_INVALID_VALUE && cwi_cuMemFree_v2(0) == 0);
	CHECK(cwi_cuMemFree_v2(d) == 0 && cwi_cuMemFree_v2(d) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cwi_cuMemcpyHtoD_v2(0, d, buf, 4) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cwi_cuMemFreeHost(buf) == CUDA_ERROR_INVALID_VALUE && cwi_cuMemHostUnregister(buf) == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
	cw_set_current_ctx_id(0);
	CHECK(cwi_cuMemAlloc_v2(&x, 4) == CUDA_ERROR_INVALID_CONTEXT && cwi_cuMemcpyHtoD_v2(0, d, buf, 4) == CUDA_ERROR_INVALID_CONTEXT);
	cw_set_current_ctx_id(5);
	/* memory that only the worker knows: a module's global */
	CUdeviceptr global = 0x7e0000000000ull;
	memset(buf, 7, sizeof buf);
	CHECK(cwi_cuMemcpyHtoD_v2(0, global + 8, buf, 8) == 0 && cwi_cuMemcpyDtoH_v2(0, buf + 8, global + 8, 8) == 0);
	CHECK(cwi_cuMemGetAddressRange_v2(&x, &n, global + 8) == 0 && x == global && n == 4096);
}

static void memsets(void)
{
	CUdeviceptr d, e = alloc(4096);
	size_t pitch;
	uint32_t got[1024];
	CHECK(cwi_cuMemsetD32_v2(0, e, 0xdeadbeef, 1024) == 0 && cwi_cuMemsetD16Async(0, e + 4, 0x1234, 1, NULL) == 0);
	CHECK(cwi_cuMemsetD8Async(1, e + 8, 0xff, 3, NULL) == 0 && cwi_cuMemcpyDtoH_v2(0, got, e, 4096) == 0);
	CHECK(got[0] == 0xdeadbeef && got[1] == 0xdead1234 && got[2] == 0xdeffffff && got[3] == 0xdeadbeef && got[1023] == 0xdeadbeef);
	CHECK(cwi_cuMemAllocPitch_v2(&d, &pitch, 100, 20, 4) == 0 && pitch >= 100);
	CHECK(cwi_cuMemsetD2D8_v2(0, d, pitch, 0, pitch, 20) == 0 && cwi_cuMemsetD2D32_v2(0, d, pitch, 0x01020304, 25, 20) == 0);
	for (int y = 0; y < 20; y++) {
		CHECK(cwi_cuMemcpyDtoH_v2(0, got, d + (uint64_t)y * pitch, 104) == 0);
		CHECK(got[0] == 0x01020304 && got[24] == 0x01020304 && got[25] == 0);
	}
	CHECK(cwi_cuMemFree_v2(d) == 0 && cwi_cuMemFree_v2(e) == 0);
}

/* A random box between any two kinds of memory, compared with the obvious loops. */
static void boxes(int rounds, int can_map)
{
	enum { SIZE = 6 << 20 };
	uint8_t *mine[2], *host[4];
	CUdeviceptr dev[2];
	for (int i = 0; i < 2; i++) {
		dev[i] = alloc(SIZE);
		mine[i] = malloc(SIZE);
		host[i] = malloc(SIZE);
		host[2 + i] = get_pinned(SIZE);
	}
	for (int r = 0; r < rounds; r++) {
		CUDA_MEMCPY3D p = {0};
		int big = r % 8 == 0, kind = (int)(next() % 9);
		p.WidthInBytes = 1 + next() % (big ? 3000 : 90);
		p.Height = 1 + next() % (big ? 900 : 20);
		p.Depth = big ? 1 + next() % 2 : 1 + next() % 20;
		p.srcXInBytes = next() % 30, p.srcY = next() % 5, p.srcZ = next() % 3;
		p.dstXInBytes = next() % 30, p.dstY = next() % 5, p.dstZ = next() % 3;
		p.srcPitch = p.WidthInBytes + p.srcXInBytes + next() % 50, p.srcHeight = p.Height + p.srcY + next() % 4;
		p.dstPitch = p.WidthInBytes + p.dstXInBytes + next() % 50, p.dstHeight = p.Height + p.dstY + next() % 4;
		if (next() % 4 == 0)
			p.srcXInBytes = p.dstXInBytes = p.srcY = p.dstY = 0, p.srcPitch = p.dstPitch = p.WidthInBytes,
			p.srcHeight = p.dstHeight = p.Height;
		uint64_t s_end = p.srcPitch * p.srcHeight * (p.Depth + p.srcZ), d_end = p.dstPitch * p.dstHeight * (p.Depth + p.dstZ);
		if (s_end > SIZE || d_end > SIZE)
			continue;
		/* fill both sides, and our copies of them */
		uint8_t *from = kind % 3 == 0 ? host[0] : kind % 3 == 1 ? host[2] : mine[0];
		uint8_t *to = kind / 3 == 0 ? host[1] : kind / 3 == 1 ? host[3] : mine[1];
		pattern(from, s_end);
		pattern(to, d_end);
		uint8_t *want = malloc(d_end), *got = malloc(d_end);
		memcpy(want, to, d_end);
		for (uint64_t z = 0; z < p.Depth; z++)
			for (uint64_t y = 0; y < p.Height; y++)
				memcpy(want + ((p.dstZ + z) * p.dstHeight + p.dstY + y) * p.dstPitch + p.dstXInBytes,
				       from + ((p.srcZ + z) * p.srcHeight + p.srcY + y) * p.srcPitch + p.srcXInBytes, p.WidthInBytes);
		int unified = next() % 2;
		p.srcMemoryType = unified ? CU_MEMORYTYPE_UNIFIED : from == mine[0] ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
		p.dstMemoryType = unified ? CU_MEMORYTYPE_UNIFIED : to == mine[1] ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
		p.srcHost = from, p.dstHost = to;
		p.srcDevice = from == mine[0] ? dev[0] : (uintptr_t)from;
		p.dstDevice = to == mine[1] ? dev[1] : (uintptr_t)to;
		if (from == mine[0])
			CHECK(cwi_cuMemcpyHtoD_v2(0, dev[0], from, s_end) == 0);
		if (to == mine[1])
			CHECK(cwi_cuMemcpyHtoD_v2(0, dev[1], to, d_end) == 0);
		CHECK((r & 1 ? cwi_cuMemcpy3DAsync_v2(0, &p, NULL) : cwi_cuMemcpy3D_v2(0, &p)) == 0);
		CHECK(cwop_StreamSynchronize(1) == 0);
		if (to == mine[1])
			CHECK(cwi_cuMemcpyDtoH_v2(0, got, dev[1], d_end) == 0);
		else
			memcpy(got, to, d_end);
		CHECK(memcmp(want, got, d_end) == 0);
		free(want);
		free(got);
	}
	/* rows longer than a chunk, and what is refused */
	CUDA_MEMCPY2D q = {.srcMemoryType = CU_MEMORYTYPE_HOST,
			   .srcHost = host[0],
			   .srcPitch = 2000000,
			   .dstMemoryType = CU_MEMORYTYPE_DEVICE,
			   .dstDevice = dev[0],
			   .dstPitch = 1900000,
			   .WidthInBytes = 1800000,
			   .Height = 3};
	pattern(host[0], SIZE);
	CHECK(cwi_cuMemcpy2D_v2(0, &q) == 0);
	for (uint64_t y = 0; y < 3; y++) {
		CHECK(cwi_cuMemcpyDtoH_v2(0, mine[0], dev[0] + y * 1900000, 1800000) == 0);
		CHECK(memcmp(mine[0], host[0] + y * 2000000, 1800000) == 0);
	}
	q.Height = 4;
	CHECK(cwi_cuMemcpy2D_v2(0, &q) == CUDA_ERROR_INVALID_VALUE);
	q.Height = 3, q.dstPitch = 1000000;
	CHECK(cwi_cuMemcpy2D_v2(0, &q) == CUDA_ERROR_INVALID_VALUE);
	q.dstPitch = 1900000, q.dstMemoryType = CU_MEMORYTYPE_ARRAY;
	CHECK(cwi_cuMemcpy2D_v2(0, &q) != CUDA_SUCCESS); /* there is no array */
	q.dstMemoryType = CU_MEMORYTYPE_DEVICE, q.srcHost = NULL;
	CHECK(cwi_cuMemcpy2D_v2(0, &q) == CUDA_ERROR_INVALID_VALUE && cwi_cuMemcpy3D_v2(0, NULL) == CUDA_ERROR_INVALID_VALUE);
	q.Height = 0;
	CHECK(cwi_cuMemcpy2DUnaligned_v2(0, &q) == 0);
	(void)can_map;
	for (int i = 0; i < 2; i++) {
		CHECK(cwi_cuMemFree_v2(dev[i]) == 0);
		free(mine[i]);
		free(host[i]);
		put_pinned(host[2 + i]);
	}
}

static void pinned(int can_map, int can_adopt)
{
	uint8_t *p = get_pinned(10000), *stack = (uint8_t *)&p;
	CUdeviceptr d = 0;
	unsigned flags = 99;
	CHECK(cwi_cuMemHostGetDevicePointer_v2(&d, p + 100, 0) == (can_map ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED));
	CHECK(!can_map || d == (uintptr_t)p + 100);
	CHECK(cwi_cuMemHostGetDevicePointer_v2(&d, stack, 0) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cwi_cuMemHostGetFlags(&flags, p) == 0 && flags == (can_map ? 2 : 0));
	if (can_map) { /* the device writes, we see it in place */
		CHECK(cwi_cuMemsetD8_v2(0, (uintptr_t)p, 0x5a, 10000) == 0);
		CHECK(p[0] == 0x5a && p[9999] == 0x5a);
	}
	put_pinned(p);
	CHECK(cwi_cuMemHostAlloc((void **)&p, 0, 0) == CUDA_ERROR_INVALID_VALUE &&
	      cwi_cuMemHostAlloc((void **)&p, 4, 8) == CUDA_ERROR_INVALID_VALUE);

	/* whole pages: shared in place where the carrier can; parts of pages: carried */
	size_t n = 64 << 10;
	uint8_t *m = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pattern(m, n);
	uint8_t *before = malloc(n);
	memcpy(before, m, n);
	CHECK(cwi_cuMemHostRegister_v2(m, n, 2) == 0 && memcmp(m, before, n) == 0);
	CHECK(cwi_cuMemHostRegister_v2(m + 4096, 4096, 0) == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	CHECK(cwi_cuMemHostGetDevicePointer_v2(&d, m, 0) == (can_adopt ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED));
	if (can_adopt) {
		CHECK(cwi_cuMemsetD8_v2(0, d + 5, 0x11, 1) == 0 && cwop_StreamSynchronize(1) == 0 && m[5] == 0x11);
		CHECK(m[4] == before[4] && m[6] == before[6]);
	}
	CHECK(cwi_cuMemHostUnregister(m) == 0 && m[6] == before[6]);
	CHECK(cwi_cuMemHostRegister_v2(m, n, 0) == 0 && cwi_cuMemHostUnregister(m) == 0); /* again */
	CHECK(cwi_cuMemHostRegister_v2(m + 8, 5000, 0) == 0);
	CHECK(cwi_cuMemHostGetDevicePointer_v2(&d, m + 8, 0) == (can_adopt ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED));
	if (can_adopt) { /* its neighbours stay. The fake host of virtiofs goes by addresses */
		CHECK(d == (uintptr_t)m + 8);
		m[7] = m[9] = 0x21;
		CHECK(cwi_cuMemsetD8_v2(0, d, 0x33, 1) == 0 && cwop_StreamSynchronize(1) == 0);
		CHECK(m[7] == 0x21 && m[8] == 0x33 && m[9] == 0x21);
		CHECK(cwi_cuMemsetD8_v2(0, (uintptr_t)m + 5007, 0x44, 1) == 0 && cwop_StreamSynchronize(1) == 0);
		CHECK(m[5007] == 0x44 && m[5008] == before[5008]);
	}
	CUdeviceptr e = alloc(5000);
	CHECK(cwi_cuMemcpyHtoDAsync_v2(0, e, m + 8, 5000, NULL) == 0);
	CHECK(cwi_cuMemcpyDtoH_v2(0, before, e, 5000) == 0 && memcmp(before, m + 8, 5000) == 0);
	CHECK(cwi_cuMemHostUnregister(m + 8) == 0 && cwi_cuMemFree_v2(e) == 0);
	munmap(m, n);
	CHECK(cwi_cuMemHostRegister_v2(m, n, 0) == CUDA_ERROR_INVALID_VALUE);
	free(before);
}

/* Registers m, has the device write into it where it can, and lets it go. */
static void visit(uint8_t *m, size_t n, const uint8_t *want, int can_adopt)
{
	CUdeviceptr d;
	CHECK(cwi_cuMemHostRegister_v2(m, n, 0) == 0 && memcmp(m, want, n) == 0);
	if (can_adopt) {
		CHECK(cwi_cuMemHostGetDevicePointer_v2(&d, m, 0) == 0 && d == (uintptr_t)m);
		CHECK(cwi_cuMemsetD8_v2(0, d + n - 1, (uint8_t)~want[n - 1], 1) == 0 && cwop_StreamSynchronize(1) == 0);
		CHECK((m[n - 1] ^ want[n - 1]) == 0xff);
		m[n - 1] = want[n - 1];
	}
	CHECK(cwi_cuMemHostUnregister(m) == 0 && memcmp(m, want, n) == 0);
}

/* Memory that is registered again: the same, a part, other memory there, and more than is kept. */
static void registered_again(int can_adopt)
{
	enum { N = 96 << 10, MANY = 40 };
	uint8_t *want = malloc(N), *m = mmap(NULL, N, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pattern(want, N);
	memcpy(m, want, N);
	for (int i = 0; i < 3; i++)
		visit(m, N, want, can_adopt);
	visit(m + 8192, 16384, want + 8192, can_adopt);
	visit(m, N, want, can_adopt);
	CHECK(mprotect(m, 4096, PROT_NONE) == 0 && mprotect(m, 4096, PROT_READ | PROT_WRITE) == 0);
	visit(m, N, want, can_adopt);
	CHECK(mmap(m + 16384, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == m + 16384);
	memcpy(m + 16384, want + 16384, 4096);
	visit(m, N, want, can_adopt);
	CHECK(munmap(m, N) == 0 && mmap(m, N, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == m);
	want[5] ^= 1;
	memcpy(m, want, N);
	visit(m, N, want, can_adopt);
	uint8_t *all[MANY];
	for (int round = 0; round < 2; round++)
		for (int i = 0; i < MANY; i++) {
			if (round == 0) {
				all[i] = mmap(NULL, N, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
				memcpy(all[i], want, N);
			}
			visit(all[i], N, want, can_adopt);
			if (round == 1)
				munmap(all[i], N);
		}
	munmap(m, N);
	free(want);

	size_t large = (5u << 20) + 4096; /* in several files */
	want = malloc(large);
	pattern(want, large);
	m = mmap(NULL, large, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memcpy(m, want, large);
	for (int i = 0; i < 3; i++)
		visit(m, large, want, can_adopt);
	visit(m + 4096, large - 8192, want + 4096, can_adopt); /* of parts of them */
	visit(m, large, want, can_adopt);
	munmap(m, large);
	free(want);
}

/* Many small pinned buffers: distinct, reusable, and few regions for all. */
static void small_pinned(int can_map)
{
	enum { N = 3000 };
	static uint8_t *p[N];
	for (int i = 0; i < N; i++) {
		p[i] = get_pinned(1 + (size_t)i % 5000);
		memset(p[i], i, 1 + (size_t)i % 5000);
	}
	for (int i = 0; i < N; i++) {
		CHECK(p[i][0] == (uint8_t)i && p[i][(size_t)i % 5000] == (uint8_t)i && (uintptr_t)p[i] % 512 == 0);
		CUdeviceptr d;
		CHECK(!can_map || (cwi_cuMemHostGetDevicePointer_v2(&d, p[i], 0) == 0 && d == (uintptr_t)p[i]));
		if (i % 2)
			put_pinned(p[i]);
	}
	for (int i = 1; i < N; i += 2)
		p[i] = get_pinned(20000 + (size_t)i);
	for (int i = 0; i < N; i++)
		put_pinned(p[i]);
}

static void pointers(int can_map)
{
	uint8_t *p = get_pinned(4096);
	CUdeviceptr d = alloc(1000);
	CUpointer_attribute what[] = {CU_POINTER_ATTRIBUTE_CONTEXT,	   CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
				      CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_HOST_POINTER,
				      CU_POINTER_ATTRIBUTE_IS_MANAGED,	   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
	uint64_t v[6];
	void *at[6];
	for (int i = 0; i < 6; i++)
		at[i] = &v[i];
	memset(v, 0xee, sizeof v);
	CHECK(cwi_cuPointerGetAttributes(6, what, at, d + 10) == 0);
	CHECK((uint32_t)v[1] == CU_MEMORYTYPE_DEVICE && v[2] == d + 10 && v[3] == 0 && (uint32_t)v[4] == 0 && (uint32_t)v[5] == 0);
	CHECK(v[1] >> 32 == 0xeeeeeeee && v[4] >> 32 == 0xeeeeeeee); /* 4-byte outputs */
	CHECK(cwi_cuPointerGetAttributes(6, what, at, (uintptr_t)p + 1) == 0);
	CHECK((uint32_t)v[1] == CU_MEMORYTYPE_HOST && v[2] == (can_map ? (uintptr_t)p + 1 : 0) && v[3] == (uintptr_t)p + 1);
	CHECK(cwi_cuPointerGetAttributes(6, what, at, (uintptr_t)what) == 0 && (uint32_t)v[1] == 0 && v[2] == 0);
	CHECK(cwi_cuPointerGetAttribute(v, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (uintptr_t)what) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cwi_cuPointerGetAttribute(v, (CUpointer_attribute)99, d) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cwi_cuPointerGetAttribute(v, CU_POINTER_ATTRIBUTE_RANGE_SIZE, d + 999) == 0 && v[0] == 1000);
	uint64_t a, b;
	CUdeviceptr e = alloc(8);
	CHECK(cwi_cuPointerGetAttribute(&a, CU_POINTER_ATTRIBUTE_BUFFER_ID, d) == 0 &&
	      cwi_cuPointerGetAttribute(&b, CU_POINTER_ATTRIBUTE_BUFFER_ID, e) == 0);
	CHECK(a != b);
	int on = 1, got = 0;
	CHECK(cwi_cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, d) == 0);
	CHECK(cwi_cuPointerGetAttribute(&got, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, d) == 0 && got == 1);
	CHECK(cwi_cuMemFree_v2(d) == 0 && cwi_cuMemFree_v2(e) == 0);
	put_pinned(p);
}

static void *hammer(void *arg)
{
	uint64_t seed = (uintptr_t)arg * 77777;
	enum { N = 3 << 20 };
	cw_set_current_ctx_id(5);
	uint8_t *a = malloc(N), *b = malloc(N);
	for (int r = 0; r < 6; r++) {
		for (size_t i = 0; i < N; i++)
			a[i] = (uint8_t)(seed = seed * 6364136223846793005ull + 1, seed >> 56);
		CUdeviceptr d = alloc(N);
		CHECK(cwi_cuMemcpyHtoDAsync_v2(0, d, a, N, NULL) == 0);
		CHECK(cwi_cuMemcpyDtoH_v2(0, b, d, N) == 0 && memcmp(a, b, N) == 0);
		CHECK(cwi_cuMemFree_v2(d) == 0);
	}
	free(a);
	free(b);
	return NULL;
}

enum carrier { UNIX, UNIX_NO_MAP, TCP, VIRTIOFS, CARRIERS };

static void all(enum carrier carrier)
{
	int can_map = carrier == UNIX || carrier == VIRTIOFS;
	char dir[] = "/tmp/causeway-fuse-XXXXXX";
	struct fake_options o = {.handler = fake_device,
				 .caps = can_map ? CW_CAP_MAP : 0,
				 .sleep_after_us = 50,
				 .tcp = carrier == TCP,
				 .mount = carrier == VIRTIOFS ? dir : NULL};
	CHECK(carrier != VIRTIOFS || mkdtemp(dir) != NULL);
	pid_t w = fake_worker_start(&o);
	CHECK(cw_session_open() == 0);
	cw_set_current_ctx_id(5);
	refusals();
	memsets();
	for (int async = 0; async < 2; async++) {
		there_and_back(malloc, free, async);
		there_and_back(get_pinned, put_pinned, async);
	}
	pinned(can_map, carrier == UNIX);
	registered_again(carrier == UNIX);
	small_pinned(can_map);
	pointers(can_map);
	boxes(carrier == TCP ? 16 : 64, can_map);
	pthread_t t[6];
	for (int i = 0; i < 6; i++)
		CHECK(pthread_create(&t[i], NULL, hammer, (void *)(uintptr_t)(i + 1)) == 0);
	for (int i = 0; i < 6; i++)
		pthread_join(t[i], NULL);
	size_t f, live;
	CHECK(cwi_cuMemGetInfo_v2(&f, &live) == 0 && live == 0);
	CHECK(cw_range_count() == 1); /* the module's global */
	fake_worker_kill(w);
	if (carrier == VIRTIOFS)
		fake_vfs_umount(dir);
}

/* A file shorter than its mapping: a copy ends the program as a read would, by any thread. */
static void shrunk_file(void)
{
	enum { N = 32 << 20 };
	struct fake_options o = {.handler = fake_device, .caps = CW_CAP_MAP, .sleep_after_us = 50};
	fake_worker_start(&o);
	CHECK(cw_session_open() == 0);
	cw_set_current_ctx_id(5);
	char path[] = "/tmp/causeway-copy-XXXXXX";
	int fd = mkstemp(path);
	CHECK(fd >= 0 && unlink(path) == 0 && ftruncate(fd, N) == 0);
	uint8_t *p = mmap(NULL, N, PROT_READ, MAP_PRIVATE, fd, 0);
	CUdeviceptr d = alloc(N);
	CHECK(cwi_cuMemcpyHtoD_v2(0, d, p, N) == 0 && ftruncate(fd, N / 2) == 0);
	cwi_cuMemcpyHtoD_v2(0, d, p, N);
}

int main(void)
{
	setenv("CAUSEWAY_LOG", "none", 1);
	setenv("CAUSEWAY_COPY_THREADS", "4", 1);
	for (int c = 0; c < CARRIERS; c++) {
		int st = -1;
		if (c == VIRTIOFS && !fake_vfs_possible()) {
			puts("copy_test: without virtiofs, which needs root and /dev/fuse");
			continue;
		}
		pid_t p = fork();
		if (p == 0) {
			all((enum carrier)c);
			_exit(0);
		}
		CHECK(waitpid(p, &st, 0) == p && st == 0);
	}
	int st = 0;
	pid_t p = fork();
	if (p == 0) {
		struct rlimit none = {0, 0};
		setrlimit(RLIMIT_CORE, &none);
		CHECK(freopen("/dev/null", "w", stderr));
		shrunk_file();
		_exit(0);
	}
	/* a sanitizer reports the signal and exits */
	CHECK(waitpid(p, &st, 0) == p && (WIFSIGNALED(st) ? WTERMSIG(st) == SIGBUS : WEXITSTATUS(st) != 0));
	puts("copy_test ok");
	return 0;
}
