#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "gpu.h"

#define GPU_DEFINE(name, args) CUresult(*name) args;
GPU_CALLS(GPU_DEFINE)

CUhandle gpu_ctx, gpu_add, gpu_forever;

static const char ptx[] = ".version 6.0\n"
			  ".target sm_50\n"
			  ".address_size 64\n"
			  ".visible .entry add(.param .u64 p)\n"
			  "{\n"
			  "  .reg .u32 %r<5>; .reg .u64 %a<4>;\n"
			  "  ld.param.u64 %a1, [p];\n"
			  "  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;\n"
			  "  mad.lo.u32 %r1, %r1, %r2, %r3;\n"
			  "  mul.wide.u32 %a2, %r1, 4; add.u64 %a3, %a1, %a2;\n"
			  "  ld.global.u32 %r4, [%a3]; add.u32 %r4, %r4, 1; st.global.u32 [%a3], %r4;\n"
			  "  ret;\n"
			  "}\n"
			  ".visible .entry forever(.param .u64 p)\n"
			  "{\n"
			  "  .reg .u32 %r<2>; .reg .u64 %a<2>; .reg .pred %q;\n"
			  "  ld.param.u64 %a1, [p];\n"
			  "again:\n"
			  "  ld.volatile.global.u32 %r1, [%a1];\n"
			  "  setp.eq.u32 %q, %r1, 0;\n"
			  "  @%q bra again;\n"
			  "  ret;\n"
			  "}\n";

void gpu_load(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);
	if (!lib) {
		fprintf(stderr, "%s\n", dlerror());
		exit(3);
	}
#define GPU_FIND(name, args) \
	if (!(*(void **)&name = dlsym(lib, #name))) { \
		fprintf(stderr, "libcuda.so.1 lacks %s\n", #name); \
		exit(3); \
	}
	GPU_CALLS(GPU_FIND)
}

CUresult gpu_open(void)
{
	CUhandle mod;
	CUresult r;
	if ((r = cuInit(0)) || (r = cuDevicePrimaryCtxRetain(&gpu_ctx, 0)) || (r = cuCtxSetCurrent(gpu_ctx)) ||
	    (r = cuModuleLoadData(&mod, ptx)) || (r = cuModuleGetFunction(&gpu_add, mod, "add")))
		return r;
	return cuModuleGetFunction(&gpu_forever, mod, "forever");
}

CUresult gpu_add_one(CUdeviceptr p, unsigned count, CUhandle stream)
{
	void *params[] = {&p};
	return cuLaunchKernel(gpu_add, count / 32, 1, 1, 32, 1, 1, 0, stream, params, NULL);
}

CUresult gpu_run_forever(CUdeviceptr p)
{
	void *params[] = {&p};
	return cuLaunchKernel(gpu_forever, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL);
}

CUresult gpu_works(void)
{
	enum { COUNT = 256 };
	uint32_t h[COUNT];
	CUdeviceptr d;
	CUresult r;
	if ((r = cuMemAlloc_v2(&d, sizeof h)) || (r = cuMemsetD32_v2(d, 40, COUNT)) || (r = gpu_add_one(d, COUNT, NULL)) ||
	    (r = gpu_add_one(d, COUNT, NULL)) || (r = cuMemcpyDtoH_v2(h, d, sizeof h)) || (r = cuMemFree_v2(d)))
		return r;
	for (int i = 0; i < COUNT; i++)
		if (h[i] != 42)
			return -1;
	return 0;
}
