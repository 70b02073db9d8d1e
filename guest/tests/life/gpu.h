/* The driver API as these programs need it: loaded at run time, one context, three kernels in
 * PTX. */
#ifndef LIFE_GPU_H
#define LIFE_GPU_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef uint64_t CUdeviceptr;
typedef void *CUhandle;

/* What libcuda.so.1 exports, by name and signature. */
#define GPU_CALLS(X) \
	X(cuInit, (unsigned flags)) \
	X(cuDeviceRegisterAsyncNotification, (int dev, void (*fn)(void *, void *, CUhandle), void *data, CUhandle *handle)) \
	X(cuDeviceUnregisterAsyncNotification, (int dev, CUhandle handle)) \
	X(cuDevicePrimaryCtxRetain, (CUhandle * ctx, int dev)) \
	X(cuCtxSetCurrent, (CUhandle ctx)) \
	X(cuCtxSynchronize, (void)) \
	X(cuModuleLoadData, (CUhandle * mod, const void *image)) \
	X(cuModuleGetFunction, (CUhandle * fn, CUhandle mod, const char *name)) \
	X(cuMemAlloc_v2, (CUdeviceptr * p, size_t size)) \
	X(cuMemFree_v2, (CUdeviceptr p)) \
	X(cuMemsetD32_v2, (CUdeviceptr p, unsigned value, size_t count)) \
	X(cuMemHostAlloc, (void **p, size_t size, unsigned flags)) \
	X(cuMemAllocManaged, (CUdeviceptr * p, size_t size, unsigned flags)) \
	X(cuMemHostGetDevicePointer_v2, (CUdeviceptr * d, void *p, unsigned flags)) \
	X(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t size)) \
	X(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t size, CUhandle stream)) \
	X(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t size, CUhandle stream)) \
	X(cuStreamCreate, (CUhandle * stream, unsigned flags)) \
	X(cuStreamSynchronize, (CUhandle stream)) \
	X(cuLaunchKernel, (CUhandle fn, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, \
			   CUhandle stream, void **params, void **extra))

#define GPU_DECLARE(name, args) extern CUresult(*name) args;
GPU_CALLS(GPU_DECLARE)

extern CUhandle gpu_ctx, gpu_add, gpu_forever;

/* Loads the library; starts nothing. Ends the program on failure, with a sentence. */
void gpu_load(void);
/* Opens the session: a current primary context, the kernels. 0, or the error of the call that
 * failed. */
CUresult gpu_open(void);
/* p[i] += 1 for count (a multiple of 32) words. */
CUresult gpu_add_one(CUdeviceptr p, unsigned count, CUhandle stream);
/* A kernel that runs until the word at p is not zero. */
CUresult gpu_run_forever(CUdeviceptr p);
/* Allocates, computes, checks and frees. 0: all right; -1: wrong result; else the error. */
CUresult gpu_works(void);

#endif
