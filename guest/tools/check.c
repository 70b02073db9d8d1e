/*
 * bin/causeway-check of the mount: what a CUDA program does first, step by step, with what went
 * wrong in words. It loads libcuda.so.1 as programs do, runs a kernel and compares its result.
 * Status 0: the GPU works.
 */
#include "loader.h"
#include "start.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef int CUresult, CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;

static void *lib;
static CUresult (*name_of)(CUresult, const char **);

static void *need(const char *name)
{
	void *p = dlsym(lib, name);
	if (!p)
		printf("FAILED  this libcuda.so.1 lacks %s: it is not Causeway's\n", name);
	return p;
}

/* False, and says so, if a call failed. */
static int done(const char *what, CUresult r)
{
	const char *text = NULL;
	if (r == 0)
		return 1;
	if (name_of)
		name_of(r, &text);
	printf("FAILED  %s: %s (%d)\n", what, text ? text : "an unknown error", r);
	return 0;
}

/* x[i] = 3 i + 1 for 64 threads, in PTX that every GPU of the last ten years takes. */
static const char kernel[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
			     ".visible .entry check(.param .u64 out) {\n"
			     " .reg .u32 %r<3>;\n .reg .u64 %rd<4>;\n"
			     " ld.param.u64 %rd1, [out];\n cvta.to.global.u64 %rd1, %rd1;\n"
			     " mov.u32 %r1, %tid.x;\n mad.lo.u32 %r2, %r1, 3, 1;\n"
			     " mul.wide.u32 %rd2, %r1, 4;\n add.u64 %rd3, %rd1, %rd2;\n"
			     " st.global.u32 [%rd3], %r2;\n ret;\n}\n";

enum { THREADS = 64 };

#define CALL(name, args) (name##_ ? done(#name, name##_ args) : 0)
#define FN(name, ...) CUresult (*name##_)(__VA_ARGS__)

static int compute(void)
{
	FN(cuModuleLoadData, CUmodule *, const void *) = need("cuModuleLoadData");
	FN(cuModuleGetFunction, CUfunction *, CUmodule, const char *) = need("cuModuleGetFunction");
	FN(cuMemAlloc, CUdeviceptr *, size_t) = need("cuMemAlloc_v2");
	FN(cuMemFree, CUdeviceptr) = need("cuMemFree_v2");
	FN(cuMemcpyDtoH, void *, CUdeviceptr, size_t) = need("cuMemcpyDtoH_v2");
	FN(cuLaunchKernel, CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **) =
		need("cuLaunchKernel");
	uint32_t got[THREADS];
	CUmodule module;
	CUfunction function;
	CUdeviceptr mem;
	void *args[] = {&mem};

	if (!CALL(cuModuleLoadData, (&module, kernel)) || !CALL(cuModuleGetFunction, (&function, module, "check")) ||
	    !CALL(cuMemAlloc, (&mem, sizeof got)) || !CALL(cuLaunchKernel, (function, 1, 1, 1, THREADS, 1, 1, 0, NULL, args, NULL)) ||
	    !CALL(cuMemcpyDtoH, (got, mem, sizeof got)) || !CALL(cuMemFree, (mem)))
		return 0;
	for (uint32_t i = 0; i < THREADS; i++)
		if (got[i] != 3 * i + 1) {
			printf("FAILED  a kernel computed %u where %u is right\n", got[i], 3 * i + 1);
			return 0;
		}
	printf("ok      a kernel ran and its result is right\n");
	return 1;
}

int main(void)
{
	int count = 0, version = 0;

	lib = dlopen("libcuda.so.1", RTLD_NOW);
	if (!lib) {
		printf("FAILED  %s\n", dlerror());
		return 1;
	}
	FN(cuInit, unsigned) = need("cuInit");
	FN(cuDriverGetVersion, int *) = need("cuDriverGetVersion");
	FN(cuDeviceGetCount, int *) = need("cuDeviceGetCount");
	FN(cuDeviceGetName, char *, int, CUdevice) = need("cuDeviceGetName");
	FN(cuDeviceTotalMem, size_t *, CUdevice) = need("cuDeviceTotalMem_v2");
	FN(cuDevicePrimaryCtxRetain, CUcontext *, CUdevice) = need("cuDevicePrimaryCtxRetain");
	FN(cuDevicePrimaryCtxRelease, CUdevice) = need("cuDevicePrimaryCtxRelease_v2");
	FN(cuCtxSetCurrent, CUcontext) = need("cuCtxSetCurrent");

	*(void **)&name_of = need("cuGetErrorName");
	if (!CALL(cuInit, (0)) || !CALL(cuDriverGetVersion, (&version)) || !CALL(cuDeviceGetCount, (&count)))
		return 1;
	for (int i = 0; i < count; i++) {
		char name[256];
		size_t bytes;

		if (!CALL(cuDeviceGetName, (name, sizeof name, i)) || !CALL(cuDeviceTotalMem, (&bytes, i)))
			return 1;
		printf("ok      device %d: %s, %.1f GiB, CUDA %d.%d\n", i, name, (double)bytes / (1 << 30), version / 1000,
		       version % 1000 / 10);
	}
	CUcontext ctx;
	if (!CALL(cuDevicePrimaryCtxRetain, (&ctx, 0)) || !CALL(cuCtxSetCurrent, (ctx)) || !compute() ||
	    !CALL(cuDevicePrimaryCtxRelease, (0)))
		return 1;
	return 0;
}
