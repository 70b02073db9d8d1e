// Managed variables: host and kernels read and write them by name. needs: cuda 12.9
#include "check.h"

struct pair {
    int a;
    double b;
};

__managed__ int counter = 5;
__managed__ float table[1000];
__managed__ unsigned char bytes[7] = {1, 2, 3, 250};
__managed__ double half = 0.5;
__managed__ pair record = {3, 1.5};
__managed__ int *pointer;
__device__ int plain = 9;

__global__ void work()
{
    int t = threadIdx.x;
    table[t] = t * 2.0f + counter;
    __syncthreads();
    if (t == 0) {
        counter += 1;
        bytes[6] = bytes[3] + 1;
        half *= 3;
        record.a += 4;
        record.b *= 2;
        plain++;
        if (pointer)
            *pointer = counter;
    }
}
__global__ void sum(int *out)
{
    int s = 0;
    for (int i = 0; i < 7; i++)
        s += bytes[i];
    *out = s + (int)table[10];
}

__managed__ uint32_t both[2048];
__global__ void count() { atomicAdd(&both[3], 1); }

// By the kernels of each GPU there is.
static void every_gpu()
{
    int devices = 1;
    CUDA(cudaGetDeviceCount(&devices));
    for (int k = 0; k < 6; k++) {
        CUDA(cudaSetDevice(k % devices));
        count<<<4, 64>>>();
        CUDA(cudaDeviceSynchronize());
        both[3]++;
    }
    CUDA(cudaSetDevice(0));
    expect(both[3] == 6 * 257, "a variable of every GPU");
}

int main()
{
    note_device();
    int can = 0;
    CUDA(cudaDeviceGetAttribute(&can, cudaDevAttrManagedMemory, 0));
    if (!can) {
        note("no managed memory here");
        return 77;
    }
    printf("first: %d %g %d %d %d %g %d %g\n", counter, table[999], bytes[0], bytes[3], bytes[6], half, record.a, record.b);
    counter += 10;
    work<<<1, 256>>>();
    CUDA(cudaDeviceSynchronize());
    printf("after a kernel: %d %g %g %d %g %d %g\n", counter, table[3], table[255], bytes[6], half, record.a, record.b);
    int *target;
    CUDA(cudaMallocManaged(&target, sizeof *target));
    pointer = target;
    counter = 100;
    for (int i = 0; i < 7; i++)
        bytes[i] = i;
    work<<<1, 32>>>();
    int *out, got = 0;
    CUDA(cudaMalloc(&out, sizeof *out));
    sum<<<1, 1>>>(out);
    CUDA(cudaMemcpy(&got, out, sizeof got, cudaMemcpyDeviceToHost));
    printf("through a pointer: %d, sum %d\n", *target, got);
    expect(*target == 101 && got == 0 + 1 + 2 + 3 + 4 + 5 + 4 + 120, "both sides see all");
    void *p;
    CUDA(cudaGetSymbolAddress(&p, counter));
    expect(p == &counter, "symbol's address");
    cudaPointerAttributes a;
    CUDA(cudaPointerGetAttributes(&a, &table[5]));
    expect(a.type == cudaMemoryTypeManaged && a.devicePointer == &table[5], "pointer attributes");
    float copy[4];
    CUDA(cudaMemcpy(copy, table, sizeof copy, cudaMemcpyDefault));
    expect(copy[3] == table[3], "copy");
    CUDA(cudaMemset(table, 0, sizeof table));
    CUDA(cudaDeviceSynchronize());
    expect(table[3] == 0 && table[999] == 0, "set");
    int value = 0;
    CUDA(cudaMemcpyFromSymbol(&value, plain, sizeof value));
    printf("a plain device variable: %d\n", value);
    CUDA(cudaFree(out));
    CUDA(cudaFree(target));
    every_gpu();
    return finish();
}
