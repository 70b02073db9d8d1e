/*
 * A program that does with managed memory what it is told, a word at a time, so that a test can
 * count what each step moves (host/worker, TestManagedOneSided).
 *
 *   turns BYTES        says "ready" once it has so much, or what became of it
 *   fill | launch | check | touch | copy     each says "done" when the memory, or what came of it, is as it has to be
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/cuda_abi.h"

CUresult cuInit(unsigned int flags);
CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev);
CUresult cuCtxSetCurrent(CUcontext ctx);
CUresult cuCtxSynchronize(void);
CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuModuleGetFunction(CUfunction *f, CUmodule module, const char *name);
CUresult cuMemAllocManaged(CUdeviceptr *p, size_t bytes, unsigned int flags);
CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t bytes);
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes);
CUresult cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz,
			unsigned int shared, CUstream stream, void **params, void **extra);

/* A kernel changes a word in each so many bytes: it needs all of the memory, and the software GPU
 * has little to do. */
enum { EACH = 4096, THREADS = 64, BY_KERNEL = 1000, TOUCHED = 1 << 20, COPIED = 1 << 20 };

static const char add[] = ".version 8.0\n.target sm_75\n.address_size 64\n"
			  ".visible .entry add(.param .u64 at, .param .u32 count, .param .u32 inc)\n{\n"
			  "	.reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %d<4>;\n"
			  "	ld.param.u64 %d1, [at]; ld.param.u32 %r1, [count]; ld.param.u32 %r2, [inc];\n"
			  "	mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x;\n"
			  "	mad.lo.u32 %r6, %r3, %r4, %r5; setp.ge.u32 %p1, %r6, %r1; @%p1 bra over;\n"
			  "	mad.wide.u32 %d2, %r6, 4096, %d1;\n"
			  "	ld.global.u32 %r7, [%d2]; add.u32 %r7, %r7, %r2; st.global.u32 [%d2], %r7;\n"
			  "over:\n	ret;\n}\n";

static uint32_t *words, turns, added; /* turns: fills; added: by kernels since the last */
static size_t size;
static CUfunction kernel;

static int failed(const char *what, CUresult res)
{
	if (res != 0)
		printf("%s: %d\n", what, (int)res);
	return res != 0;
}
#define FAILED(call) failed(#call, call)

static uint32_t expected(size_t i) { return (uint32_t)i * 2654435761u + turns + (i % (EACH / 4) == 0 ? added : 0); }

static int fill(void)
{
	turns++;
	added = 0;
	for (size_t i = 0; i < size / 4; i++)
		words[i] = expected(i);
	return 0;
}

static int launch(void)
{
	uint32_t count = (uint32_t)(size / EACH), inc = BY_KERNEL;
	void *params[] = {&words, &count, &inc};
	added += inc;
	return FAILED(cuLaunchKernel(kernel, (count + THREADS - 1) / THREADS, 1, 1, THREADS, 1, 1, 0, NULL, params, NULL)) ||
	       FAILED(cuCtxSynchronize());
}

static int check(size_t step)
{
	size_t wrong = 0;
	for (size_t i = 0; i < size / 4; i += step)
		wrong += words[i] != expected(i);
	if (wrong != 0)
		printf("%zu words are wrong\n", wrong);
	return wrong != 0;
}

/* An ordinary copy. */
static int copy(void)
{
	static CUdeviceptr to;
	static char from[COPIED];
	return (to == 0 && FAILED(cuMemAlloc_v2(&to, COPIED))) || FAILED(cuMemcpyHtoD_v2(to, from, COPIED)) || FAILED(cuCtxSynchronize());
}

static int begin(void)
{
	CUcontext ctx;
	CUmodule module;
	CUdeviceptr p;
	if (FAILED(cuInit(0)) || FAILED(cuDevicePrimaryCtxRetain(&ctx, 0)) || FAILED(cuCtxSetCurrent(ctx)) ||
	    FAILED(cuModuleLoadData(&module, add)) || FAILED(cuModuleGetFunction(&kernel, module, "add")) ||
	    failed("cuMemAllocManaged", cuMemAllocManaged(&p, size, CU_MEM_ATTACH_GLOBAL)))
		return 1;
	words = (uint32_t *)(uintptr_t)p;
	return 0;
}

static int told(const char *word)
{
	if (!strcmp(word, "fill"))
		return fill();
	if (!strcmp(word, "launch"))
		return launch();
	if (!strcmp(word, "check"))
		return check(1);
	if (!strcmp(word, "touch"))
		return check(TOUCHED / 4);
	if (!strcmp(word, "copy"))
		return copy();
	printf("no such word: %s\n", word);
	return 1;
}

int main(int argc, char **argv)
{
	char word[16];
	setvbuf(stdout, NULL, _IOLBF, 0);
	size = argc > 1 ? strtoull(argv[1], NULL, 0) : 0;
	if (size == 0 || size % EACH != 0 || begin())
		return 1;
	for (puts("ready"); scanf("%15s", word) == 1; puts("done"))
		if (told(word))
			return 1;
	return 0;
}
