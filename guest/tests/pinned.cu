// Pinned host memory: allocated and registered, copied asynchronously, described by pointer
// attributes.
#include "check.h"

#include <sys/mman.h>
#include <vector>

__global__ void invert(uint32_t *p, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        p[i] = ~p[i];
}

// round_trip sends the first n words of memory through the device, inverted, and checks them.
static bool round_trip(uint32_t *memory, int n)
{
    uint32_t *d;
    cudaStream_t s;
    for (int i = 0; i < n; i++)
        memory[i] = mix(i);
    CUDA(cudaStreamCreate(&s));
    CUDA(cudaMalloc(&d, n * sizeof *d));
    CUDA(cudaMemcpyAsync(d, memory, n * sizeof *d, cudaMemcpyHostToDevice, s));
    invert<<<(n + 255) / 256, 256, 0, s>>>(d, n);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpyAsync(memory, d, n * sizeof *d, cudaMemcpyDeviceToHost, s));
    CUDA(cudaStreamSynchronize(s));
    CUDA(cudaFree(d));
    CUDA(cudaStreamDestroy(s));
    for (int i = 0; i < n; i++)
        if (memory[i] != ~mix(i))
            return false;
    return true;
}

static const char *kind(const void *p)
{
    cudaPointerAttributes a = {};
    if (cudaPointerGetAttributes(&a, p) != cudaSuccess)
        return "error";
    switch (a.type) {
    case cudaMemoryTypeUnregistered: return "unregistered";
    case cudaMemoryTypeHost: return "host";
    case cudaMemoryTypeDevice: return "device";
    case cudaMemoryTypeManaged: return "managed";
    }
    return "unknown";
}

// sets fills pinned memory by memsets: after what the stream does with it, and nothing beside what
// is named.
static bool sets(unsigned char *p)
{
    const size_t n = 1 << 20;
    void *d;
    cudaStream_t s;
    bool good = true;
    CUDA(cudaStreamCreate(&s));
    CUDA(cudaMalloc(&d, n));
    CUDA(cudaMemset(d, 0x11, n));
    CUDA(cudaMemcpyAsync(p, d, n, cudaMemcpyDeviceToHost, s));
    CUDA(cudaMemsetAsync(p + 1000, 0x22, 5001, s));
    CUDA(cudaMemset2DAsync(p + 10000, 256, 0x33, 100, 50, s));
    CUDA(cudaStreamSynchronize(s));
    CUDA(cudaMemset(p + n - 3, 0x44, 3));
    for (size_t i = 0; i < n; i++) {
        bool rows = i >= 10000 && (i - 10000) / 256 < 50 && (i - 10000) % 256 < 100;
        good = good && p[i] == (i >= n - 3 ? 0x44 : rows ? 0x33 : i >= 1000 && i < 6001 ? 0x22 : 0x11);
    }
    CUDA(cudaFree(d));
    CUDA(cudaStreamDestroy(s));
    return good;
}

int main(int argc, char **argv)
{
    const int n = (int)argument(argc, argv, 1, 1 << 20);
    const size_t bytes = n * sizeof(uint32_t);
    note_device();

    uint32_t *pinned, *device;
    double start = seconds();
    CUDA(cudaMallocHost(&pinned, bytes));
    note("allocated %zu pinned bytes in %.3f ms", bytes, (seconds() - start) * 1e3);
    expect(round_trip(pinned, n), "cudaMallocHost");
    expect(sets((unsigned char *)pinned), "memsets");
    std::vector<uint32_t> pageable(n);
    CUDA(cudaMalloc(&device, bytes));
    printf("pinned is %s, inside too: %s, device is %s, pageable is %s\n", kind(pinned), kind(pinned + n / 2),
           kind(device + 5), kind(pageable.data()));
    cudaPointerAttributes a;
    CUDA(cudaPointerGetAttributes(&a, pinned + 10));
    expect(a.hostPointer == pinned + 10, "host pointer");
    CUDA(cudaPointerGetAttributes(&a, device + 5));
    expect(a.device == 0 && a.devicePointer == device + 5, "device pointer");
    unsigned flags = 99;
    CUDA(cudaHostGetFlags(&flags, pinned));
    note("flags: %u", flags);
    expect(round_trip(pageable.data(), n), "pageable");
    CUDA(cudaFreeHost(pinned));
    printf("after free it is %s\n", kind(pinned));

    CUDA(cudaHostAlloc(&pinned, bytes, cudaHostAllocPortable | cudaHostAllocWriteCombined));
    expect(round_trip(pinned, n), "cudaHostAlloc, portable and write-combined");
    CUDA(cudaFreeHost(pinned));

    char *mapping = (char *)mmap(nullptr, bytes + 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint32_t *inner = (uint32_t *)(mapping + 4096);
    CUDA(cudaHostRegister(inner, bytes, cudaHostRegisterDefault));
    printf("registered is %s, before it %s\n", kind(inner), kind(mapping));
    expect(round_trip(inner, n), "cudaHostRegister");
    cudaError_t e = cudaHostRegister(inner, bytes, cudaHostRegisterDefault);
    printf("registered twice: %s\n", cudaGetErrorName(e));
    expect(e == cudaErrorHostMemoryAlreadyRegistered, "refused");
    CUDA(cudaHostUnregister(inner));
    e = cudaHostUnregister(inner);
    printf("unregistered twice: %s\n", cudaGetErrorName(e));
    expect(e == cudaErrorHostMemoryNotRegistered, "refused");
    (void)cudaGetLastError();
    expect(round_trip(inner, n), "the same memory, unregistered");
    CUDA(cudaFree(device));
    return finish();
}
