// What the cases of faults.cu share: their kernels, what a program has before its fault, and what
// it asks afterwards.
#pragma once

#include "driver.h"

#include <cassert>
#include <csignal>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#if CUDA_VERSION >= 13000
// Exported still, no longer declared.
extern "C" CUresult cuCtxCreate_v2(CUcontext *, unsigned, CUdevice);
#endif

__global__ void nothing() {}
__global__ void store(int *p, int v) { *p = v; }
__global__ void store64(long long *p) { *p = 1; }
__global__ void load(int *p, int *out) { *out = *p; }
__global__ void trap() { asm volatile("trap;"); }
__global__ void breakpoint() { asm volatile("brkpt;"); }
__global__ void check(int v) { assert(v == 7 && "seven"); }
__global__ void shared_out(int at, int *out)
{
    extern __shared__ int s[];
    s[threadIdx.x] = at;
    __syncthreads();
    *out = s[s[0]];
}
__global__ void shared_misaligned(int at, int *out)
{
    __shared__ char s[64];
    s[threadIdx.x] = 1;
    __syncthreads();
    *out = *(volatile int *)(s + at);
}
typedef void (*function)(int *);
__global__ void jump(function f, int *p) { f(p); }
__device__ __noinline__ int deep(volatile int *p, int n)
{
    volatile int frame[256];
    frame[n & 255] = *p;
    if (*p == 0)
        return deep(p, n + 1) + frame[(n + 7) & 255];
    return frame[0];
}
__global__ void overflow(int *p) { p[1] = deep(p, 0); }
__global__ void forever(volatile int *p)
{
    while (*p == 0)
        ;
}
__global__ void __launch_bounds__(1024) many_registers(float *p) { p[threadIdx.x] *= 2; }
__global__ void spin(long long n)
{
    long long t = clock64();
    while (clock64() - t < n)
        ;
}

static void line(const char *what, int code)
{
    printf("%s: %d\n", what, code);
    fflush(stdout);
}
#define SAY(call) line(#call, (int)(call))

// what a program has before the fault
static int *d, host[64], *pinned;
static cudaStream_t other, third;
static cudaEvent_t event, fresh;

static void prepare()
{
    CUDA(cudaMalloc(&d, 4096));
    CUDA(cudaMemset(d, 0, 4096));
    CUDA(cudaMallocHost(&pinned, 4096));
    CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CUDA(cudaStreamCreate(&third));
    CUDA(cudaEventCreate(&event));
    CUDA(cudaEventCreate(&fresh));
    CUDA(cudaEventRecord(event, other));
    nothing<<<1, 1>>>();
    CUDA(cudaDeviceSynchronize());
}

static int launch()
{
    nothing<<<1, 1, 0, other>>>();
    return cudaGetLastError();
}

// after asks everything that a program may ask once its context has failed.
static void after()
{
    void *p = nullptr;
    cudaEvent_t e;
    cudaStream_t s;
    cudaFuncAttributes a;
    size_t f = 0, t = 0;
    int n = 0;
    cudaPointerAttributes pa;
    SAY(cudaDeviceSynchronize());
    SAY(cudaPeekAtLastError());
    SAY(cudaGetLastError());
    SAY(cudaGetLastError());
    SAY(launch());
    SAY(cudaMalloc(&p, 64));
    SAY(cudaFree(d));
    SAY(cudaMallocHost(&p, 64));
    SAY(cudaMallocAsync(&p, 64, other));
    SAY(cudaMemcpy(d, host, 64, cudaMemcpyHostToDevice));
    SAY(cudaMemcpy(host, d, 64, cudaMemcpyDeviceToHost));
    SAY(cudaMemcpyAsync(pinned, d, 64, cudaMemcpyDeviceToHost, other));
    SAY(cudaMemset(d, 0, 64));
    SAY(cudaEventQuery(event));
    SAY(cudaEventQuery(fresh));
    SAY(cudaEventRecord(event, other));
    SAY(cudaEventSynchronize(event));
    SAY(cudaEventCreate(&e));
    SAY(cudaEventDestroy(fresh));
    SAY(cudaStreamQuery(other));
    SAY(cudaStreamSynchronize(other));
    SAY(cudaStreamCreate(&s));
    SAY(cudaStreamDestroy(third));
    SAY(cudaStreamWaitEvent(other, event, 0));
    SAY(cudaFuncGetAttributes(&a, nothing));
    SAY(cudaPointerGetAttributes(&pa, d));
    SAY(cudaMemGetInfo(&f, &t));
    SAY(cudaGetDevice(&n));
    SAY(cudaSetDevice(0));
    SAY(cudaGetDeviceCount(&n));
    SAY(cudaDeviceGetAttribute(&n, cudaDevAttrWarpSize, 0));
    SAY(cudaDriverGetVersion(&n));
    CUcontext c;
    CUdevice dev;
    unsigned flags;
    SAY(cuCtxGetCurrent(&c));
    SAY(cuCtxGetDevice(&dev));
    SAY(cuCtxSynchronize());
    SAY(cuCtxGetFlags(&flags));
    SAY(cuDevicePrimaryCtxGetState(0, &flags, &n));
    SAY(cudaFreeHost(pinned));
    (void)cudaGetLastError();
    SAY(cudaDeviceReset());
    SAY(cudaGetLastError());
    SAY(cudaMalloc(&p, 64));
    nothing<<<1, 1>>>();
    SAY(cudaGetLastError());
    SAY(cudaDeviceSynchronize());
    SAY(cudaMemcpy(p, host, 64, cudaMemcpyHostToDevice));
    SAY(cudaFree(p));
}
