/* Modules, libraries, kernels, functions: lookup, attributes, layout, and what ends with what. */
#include <stdlib.h>
#include <unistd.h>

#include "fake_host.h"

static const char ptx[] = ".version 8.0\n.target sm_90\n";

static void modules(void)
{
	CUcontext ctx;
	CUmodule m = NULL, got;
	CUfunction f, g, list[4];
	unsigned n;
	const char *name;
	size_t off, size;
	int v;

	fake_reset();
	CHECK_RES(cuModuleLoadData(&m, ptx), 201);
	CHECK_RES(cuCtxCreate_v2(&ctx, 0, 0), 0);
	CHECK_RES(cuModuleLoadData(&m, "\x01\x02\x03"), 200);
	CHECK_RES(cuModuleLoadData(NULL, ptx), 1);
	CHECK_RES(cuModuleLoadData(&m, NULL), 1);
	fake.fail_op = CW_OP_MODULE_LOAD;
	fake.fail_result = 218;
	CHECK_RES(cuModuleLoadData(&m, ptx), 218);
	fake.fail_op = 0;
	CHECK_RES(cuModuleLoadData(&m, ptx), 0);
	CHECK_RES(cuModuleGetFunction(&f, m, "missing"), 500);
	CHECK_RES(cuModuleGetFunction(&f, m, "k"), 0);
	CHECK_RES(cuModuleGetFunction(&g, m, "k"), 0);
	CHECK(f == g && fake.count[CW_OP_MODULE_GET_FUNCTION] == 2);
	CHECK_RES(cuModuleGetFunctionCount(&n, m), 0);
	CHECK(n == 2);
	CHECK_RES(cuModuleEnumerateFunctions(list, 1, m), 0);
	CHECK(list[0] == f);
	CHECK_RES(cuModuleEnumerateFunctions(list, 4, m), 0);
	CHECK_RES(cuFuncGetName(&name, list[1]), 0);
	CHECK(!strcmp(name, "none"));
	CHECK_RES(cuFuncGetModule(&got, f), 0);
	CHECK(got == m);
	CHECK_RES(cuFuncGetAttribute(&v, 0, f), 0);
	CHECK(v == 512);
	CHECK_RES(cuFuncGetAttribute(&v, 16, f), 1);
	CHECK_RES(cuFuncGetAttribute(&v, -1, f), 1);
	/* A host stub's address. */
	CHECK_RES(cuFuncGetAttribute(&v, 0, (CUfunction)(void *)cuInit), 400);
	CHECK_RES(cuFuncSetAttribute(f, 0, 1), 1); /* read-only */
	CHECK_RES(cuFuncSetAttribute(f, 8, 100000), 0);
	CHECK_RES(cuFuncGetAttribute(&v, 8, f), 0);
	CHECK(v == 100000);
	fake.fail_op = CW_OP_FUNC_SET_ATTRIBUTE;
	fake.fail_result = 1;
	CHECK_RES(cuFuncSetAttribute(f, 8, 999999), 1);
	fake.fail_op = 0;
	CHECK_RES(cuFuncGetAttribute(&v, 8, f), 0);
	CHECK(v == 100000); /* a refused value is not cached */
	CHECK_RES(cuFuncGetParamInfo(f, 2, &off, &size), 0);
	CHECK(off == 16 && size == 12);
	CHECK_RES(cuFuncGetParamInfo(f, 3, &off, &size), 1);
	CHECK_RES(cuModuleUnload(m), 0);
	CHECK_RES(cuModuleUnload(m), 400);
	CHECK_RES(cuFuncGetAttribute(&v, 0, f), 400);
	CHECK_RES(cuModuleGetFunction(&f, m, "k"), 400);
	CHECK_RES(cuCtxDestroy_v2(ctx), 0);
}

static void files(void)
{
	char path[] = "/tmp/causeway-module-XXXXXX";
	int fd = mkstemp(path);
	CUcontext ctx;
	CUmodule m;

	fake_reset();
	CHECK_RES(cuCtxCreate_v2(&ctx, 0, 0), 0);
	CHECK(fd >= 0 && write(fd, ptx, sizeof ptx - 1) == sizeof ptx - 1 && close(fd) == 0);
	CHECK_RES(cuModuleLoad(&m, "/no/such/file"), 301);
	CHECK_RES(cuModuleLoad(&m, "/"), 301);
	CHECK_RES(cuModuleLoad(&m, path), 0);
	unlink(path);
	CHECK_RES(cuCtxDestroy_v2(ctx), 0);
}

static void libraries(void)
{
	CUlibraryOption preserved = 1, table = 0;
	CUcontext a, b;
	CUlibrary l, got;
	CUkernel k, k2, list[2];
	CUfunction f, g;
	CUmodule m, n;
	unsigned count;
	const char *name;
	size_t off, size;
	int v;

	fake_reset();
	CHECK_RES(cuLibraryLoadData(&l, ptx, NULL, NULL, 0, &table, NULL, 1), 801);
	/* no context is needed; the value array may be NULL */
	CHECK_RES(cuLibraryLoadData(&l, ptx, NULL, NULL, 0, &preserved, NULL, 1), 0);
	CHECK_RES(cuLibraryGetModule(&m, l), 201);
	CHECK_RES(cuLibraryGetKernel(&k, l, "k"), 0);
	CHECK_RES(cuLibraryGetKernel(&k2, l, "k"), 0);
	CHECK(k == k2);
	CHECK_RES(cuLibraryGetKernel(&k2, l, "missing"), 500);
	CHECK_RES(cuLibraryGetKernelCount(&count, l), 0);
	CHECK(count == 2);
	CHECK_RES(cuLibraryEnumerateKernels(list, 2, l), 0);
	CHECK(list[0] == k);
	CHECK_RES(cuKernelGetName(&name, k), 0);
	CHECK(!strcmp(name, "k"));
	CHECK_RES(cuKernelGetLibrary(&got, k), 0);
	CHECK(got == l);
	CHECK_RES(cuKernelGetParamInfo(k, 1, &off, &size), 0);
	CHECK(off == 8 && size == 4);
	CHECK_RES(cuFuncGetParamInfo((CUfunction)k, 1, &off, &size), 400);
	CHECK_RES(cuKernelGetFunction(&f, k), 201);
	CHECK_RES(cuCtxCreate_v2(&a, 0, 0), 0);
	CHECK_RES(cuLibraryGetModule(&m, l), 0);
	CHECK_RES(cuLibraryGetModule(&n, l), 0);
	CHECK(m == n && fake.count[CW_OP_LIBRARY_GET_MODULE] == 1);
	CHECK_RES(cuModuleUnload(m), 800);
	CHECK_RES(cuKernelGetFunction(&f, k), 0);
	CHECK_RES(cuFuncGetModule(&n, f), 0);
	CHECK(n == m);
	CHECK_RES(cuFuncGetModule(&n, (CUfunction)k), 0);
	CHECK(n == m);
	/* A kernel where a function is accepted. */
	CHECK_RES(cuFuncGetAttribute(&v, 0, (CUfunction)k), 0);
	CHECK(v == 512);
	CHECK_RES(cuKernelSetAttribute(8, 60000, k, 0), 0);
	CHECK_RES(cuKernelSetAttribute(8, 60000, k, 9), 101);
	/* another context has a module and functions of its own, which end with it */
	CHECK_RES(cuCtxCreate_v2(&b, 0, 1), 0);
	CHECK_RES(cuLibraryGetModule(&n, l), 0);
	CHECK_RES(cuKernelGetFunction(&g, k), 0);
	CHECK(n != m && g != f);
	CHECK_RES(cuCtxDestroy_v2(b), 0);
	CHECK_RES(cuFuncGetAttribute(&v, 0, g), 400);
	CHECK_RES(cuModuleGetFunction(&g, n, "k"), 400);
	CHECK_RES(cuFuncGetAttribute(&v, 0, f), 0);
	CHECK_RES(cuLibraryUnload(l), 0);
	CHECK_RES(cuLibraryUnload(l), 400);
	CHECK_RES(cuFuncGetAttribute(&v, 0, f), 400);
	CHECK_RES(cuFuncGetAttribute(&v, 0, (CUfunction)k), 400);
	CHECK_RES(cuKernelGetName(&name, k), 400);
	CHECK_RES(cuModuleGetFunction(&g, m, "k"), 400);
	CHECK_RES(cuCtxDestroy_v2(a), 0);
}

/* What an attribute is already, nobody is asked to make it: but for the first time, which ends that
 * a function follows its kernel. */
static void set_again(void)
{
	CUcontext ctx;
	CUlibrary l;
	CUkernel k;
	CUfunction f;
	const unsigned *set = &fake.count[CW_OP_FUNC_SET_ATTRIBUTE], *get = &fake.count[CW_OP_FUNC_GET_ATTRIBUTE];
	int v;

	fake_reset();
	CHECK_RES(cuCtxCreate_v2(&ctx, 0, 0), 0);
	CHECK_RES(cuLibraryLoadData(&l, ptx, NULL, NULL, 0, NULL, NULL, 0), 0);
	CHECK_RES(cuLibraryGetKernel(&k, l, "k"), 0);
	CHECK_RES(cuKernelGetFunction(&f, k), 0);
	CHECK_RES(cuKernelSetAttribute(8, 60000, k, 0), 0);
	CHECK(*set == 1 && *get == 1);
	CHECK_RES(cuKernelSetAttribute(8, 60000, k, 0), 0);
	CHECK(*set == 1 && *get == 1);
	CHECK_RES(cuKernelSetAttribute(9, 60000, k, 0), 0); /* another one */
	CHECK_RES(cuKernelSetAttribute(8, 50000, k, 0), 0);
	CHECK(*set == 3 && *get == 3);
	CHECK_RES(cuFuncGetAttribute(&v, 8, f), 0);
	CHECK_RES(cuFuncSetAttribute(f, 8, v), 0); /* what it follows */
	CHECK(*set == 4);
	CHECK_RES(cuFuncSetAttribute(f, 8, v), 0);
	CHECK(*set == 4);
	fake.fail_op = CW_OP_FUNC_SET_ATTRIBUTE;
	fake.fail_result = 1;
	CHECK_RES(cuFuncSetAttribute(f, 8, v + 1), 1);
	CHECK_RES(cuFuncSetAttribute(f, 8, v + 1), 1); /* refused is not set */
	CHECK(*set == 6);
	fake.fail_op = 0;
	CHECK_RES(cuFuncSetAttribute(f, 0, 512), 1); /* read-only, and what it is */
	CHECK_RES(cuKernelSetAttribute(0, 512, k, 0), 1);
	CHECK_RES(cuLibraryUnload(l), 0);
	CHECK_RES(cuCtxDestroy_v2(ctx), 0);
}

/* A limit is asked for once, until it is set, its context ends or a kernel needs more stack than
 * that. */
static void limits(void)
{
	CUcontext a, b;
	CUmodule m;
	CUfunction f;
	const unsigned *asked = &fake.count[CW_OP_CTX_GET_LIMIT];
	size_t v;

	fake_reset();
	fake.limit = 1024;
	CHECK_RES(cuCtxGetLimit(&v, 0), 201);
	CHECK_RES(cuCtxCreate_v2(&a, 0, 0), 0);
	CHECK_RES(cuCtxGetLimit(NULL, 0), 1);
	CHECK_RES(cuCtxGetLimit(&v, 0), 0);
	CHECK_RES(cuCtxGetLimit(&v, 2), 0);
	CHECK(*asked == 2);
	CHECK_RES(cuCtxGetLimit(&v, 0), 0);
	CHECK_RES(cuCtxGetLimit(&v, 2), 0);
	CHECK(*asked == 2 && v == 1024);
	CHECK_RES(cuCtxSetLimit(0, 4096), 0);
	fake.limit = 4096;
	CHECK_RES(cuCtxGetLimit(&v, 0), 0);
	CHECK(*asked == 3 && v == 4096);
	CHECK_RES(cuCtxCreate_v2(&b, 0, 0), 0); /* another's is its own */
	fake.limit = 512;
	CHECK_RES(cuCtxGetLimit(&v, 0), 0);
	CHECK(*asked == 4 && v == 512);
	CHECK_RES(cuCtxDestroy_v2(b), 0);
	CHECK_RES(cuCtxGetLimit(&v, 0), 0);
	CHECK_RES(cuCtxGetLimit(&v, 0), 0);
	CHECK(*asked == 5);
	CHECK_RES(cuCtxGetLimit(&v, 77), 0); /* the driver's to judge, each time */
	CHECK_RES(cuCtxGetLimit(&v, 77), 0);
	CHECK(*asked == 7);
	fake.fail_op = CW_OP_CTX_GET_LIMIT;
	fake.fail_result = 801;
	CHECK_RES(cuCtxGetLimit(&v, 3), 801);
	CHECK_RES(cuCtxGetLimit(&v, 3), 801);
	CHECK(*asked == 9);
	fake.fail_op = 0;
	CHECK_RES(cuModuleLoadData(&m, ptx), 0);
	fake.local = 512; /* as much as there is */
	CHECK_RES(cuModuleGetFunction(&f, m, "none"), 0);
	CHECK_RES(cuCtxGetLimit(&v, 0), 0);
	CHECK(*asked == 9);
	fake.local = 513;
	CHECK_RES(cuModuleGetFunction(&f, m, "k"), 0);
	CHECK_RES(cuCtxGetLimit(&v, 0), 0);
	CHECK_RES(cuCtxGetLimit(&v, 0), 0); /* a launch may change it at any time */
	CHECK(*asked == 11);
	fake.limit = 1024; /* as one has done */
	CHECK_RES(cuCtxGetLimit(&v, 0), 0);
	CHECK_RES(cuCtxGetLimit(&v, 0), 0);
	CHECK(*asked == 12 && v == 1024);
	fake.local = 0;
	CHECK_RES(cuCtxDestroy_v2(a), 0);
}

static size_t shared_of(int block) { return (size_t)block * 400; }

static void occupancy(void)
{
	CUcontext ctx;
	CUmodule m;
	CUfunction f, none;
	int blocks, grid, block;

	fake_reset();
	CHECK_RES(cuCtxCreate_v2(&ctx, 0, 0), 0);
	CHECK_RES(cuModuleLoadData(&m, ptx), 0);
	CHECK_RES(cuModuleGetFunction(&f, m, "k"), 0);
	CHECK_RES(cuModuleGetFunction(&none, m, "none"), 0);
	CHECK_RES(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 256, 0), 0);
	CHECK(blocks == 8);
	CHECK_RES(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 256, 0), 0);
	CHECK(blocks == 8 && fake.count[CW_OP_OCCUPANCY_MAX_ACTIVE_BLOCKS] == 1); /* cached */
	CHECK_RES(cuFuncSetAttribute(f, 8, 65536), 0);
	CHECK_RES(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 256, 0), 0);
	CHECK(fake.count[CW_OP_OCCUPANCY_MAX_ACTIVE_BLOCKS] == 2); /* until an attribute changes */
	CHECK_RES(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 0, 0), 1);
	CHECK_RES(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, f, 32, 0, 2), 1);
	CHECK_RES(cuOccupancyMaxPotentialBlockSize(&grid, &block, none, NULL, 0, 0), 0);
	CHECK(block == 1024 && grid == 2 * 132);
	CHECK_RES(cuOccupancyMaxPotentialBlockSize(&grid, &block, f, NULL, 0, 0), 0);
	CHECK(block == 512 && grid == 4 * 132);
	CHECK_RES(cuOccupancyMaxPotentialBlockSize(&grid, &block, f, NULL, 0, 100), 0);
	CHECK(block == 64 && grid == 32 * 132); /* 100 threads would be 1600 in all, 96 2016 */
	/* 400 bytes a thread: 256 threads fill the shared memory whatever the size, so the largest
	 * that does wins */
	CHECK_RES(cuOccupancyMaxPotentialBlockSize(&grid, &block, f, shared_of, 0, 0), 0);
	CHECK(block == 256 && grid == 132);
	CHECK_RES(cuCtxDestroy_v2(ctx), 0);
}

int main(void)
{
	CHECK_RES(cuInit(0), 0);
	modules();
	files();
	libraries();
	set_again();
	limits();
	occupancy();
	return fake.failures != 0;
}
