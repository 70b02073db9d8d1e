// Mapped pinned memory: kernels read and write the program's own pages.
#include "check.h"

#include <sys/mman.h>

__global__ void increment(int *p, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        p[i] += i;
}

static void check(const char *what, int *host, int n)
{
    int *device = nullptr;
    for (int i = 0; i < n; i++)
        host[i] = 1000;
    CUDA(cudaHostGetDevicePointer((void **)&device, host, 0));
    increment<<<(n + 255) / 256, 256>>>(device, n);
    CUDA(cudaGetLastError());
    CUDA(cudaDeviceSynchronize());
    int wrong = 0;
    for (int i = 0; i < n; i++)
        wrong += host[i] != 1000 + i;
    // What the host writes now, the next kernel sees.
    for (int i = 0; i < n; i++)
        host[i] = -i;
    increment<<<(n + 255) / 256, 256>>>(device, n);
    CUDA(cudaDeviceSynchronize());
    for (int i = 0; i < n; i++)
        wrong += host[i] != 0;
    expect(wrong == 0, what);
}

int main(int argc, char **argv)
{
    const int n = (int)argument(argc, argv, 1, 1 << 16);
    note_device();
    int *p;
    CUDA(cudaHostAlloc(&p, n * sizeof *p, cudaHostAllocMapped));
    cudaPointerAttributes a = {};
    CUDA(cudaPointerGetAttributes(&a, p + 10));
    int *device = nullptr;
    cudaError_t e = cudaHostGetDevicePointer((void **)&device, p, 0);
    if (e == cudaErrorNotSupported) {
        printf("skipped: kernels cannot reach this machine's memory from where they run\n");
        return 77; // a GPU on another machine; run-tests.sh knows where this is allowed
    }
    expect(e == cudaSuccess && device == p && a.devicePointer == p + 10, "one address for host and device");
    check("allocated and mapped", p, n);
    CUDA(cudaFreeHost(p));
    p = (int *)mmap(nullptr, n * sizeof *p, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CUDA(cudaHostRegister(p, n * sizeof *p, cudaHostRegisterMapped));
    check("registered and mapped", p, n);
    CUDA(cudaHostUnregister(p));
    return finish();
}
