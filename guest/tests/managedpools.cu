// Pools of managed memory: memory in stream order that processor and kernels use in turns, given
// out again in its stream and in others, statistics, what is refused.
// needs: cuda 13.0
#include "driver.h"

#include <algorithm>
#include <cstring>
#include <vector>

static CUmemLocation device_at(int id) { return {CU_MEM_LOCATION_TYPE_DEVICE, id}; }
static CUmemPoolProps props(CUmemLocation at)
{
    CUmemPoolProps p = {};
    p.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED;
    p.location = at;
    return p;
}
static CUmemoryPool create(CUmemLocation at)
{
    CUmemPoolProps p = props(at);
    CUmemoryPool pool;
    CUresult r = cuMemPoolCreate(&pool, &p);
    if (r == CUDA_ERROR_NOT_SUPPORTED) {
        printf("skipped: no pools of managed memory\n");
        fflush(stdout);
        _Exit(77);
    }
    CU(r);
    return pool;
}
static uint32_t *get(CUmemoryPool pool, size_t bytes, CUstream s)
{
    CUdeviceptr p;
    CU(cuMemAllocFromPoolAsync(&p, bytes, pool, s));
    return (uint32_t *)p;
}
static unsigned long long count(CUmemoryPool pool, CUmemPool_attribute a)
{
    cuuint64_t v = 99;
    CU(cuMemPoolGetAttribute(pool, a, &v));
    return v;
}

__global__ void fill(uint32_t *p, size_t n, uint32_t seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        p[i] = (uint32_t)i + seed;
}
static cudaDeviceProp of;

// Takes its time before it looks.
__global__ void check(const uint32_t *p, size_t n, uint32_t seed, int turns, uint32_t *bad)
{
    uint32_t x = threadIdx.x;
    for (int i = 0; i < turns; i++)
        x = x * 1664525 + 1013904223;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        if (p[i] != (uint32_t)i + seed || x == 12345)
            atomicAdd(bad, 1);
}

static void creation()
{
    CUmemPoolProps p = props(device_at(0));
    CUmemoryPool pool;
    struct {
        const char *what;
        CUmemLocation at;
    } places[] = {{"nowhere", {CU_MEM_LOCATION_TYPE_NONE, 0}}, {"a device", device_at(0)}, {"the host", {CU_MEM_LOCATION_TYPE_HOST, 0}}};
    for (auto &x : places) {
        p.location = x.at;
        CUresult r = cuMemPoolCreate(&pool, &p);
        printf("preferred at %s: %s\n", x.what, name_of(r));
        if (r == CUDA_SUCCESS)
            CU(cuMemPoolDestroy(pool));
    }
    p.location = device_at(99);
    expect(cuMemPoolCreate(&pool, &p) != CUDA_SUCCESS, "no pool at a device that is not there");
    p = props(device_at(0));
    p.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUresult r = cuMemPoolCreate(&pool, &p);
    note("shareable: %s", name_of(r));
    expect(r != CUDA_SUCCESS, "no pool to be shared");
    p = props(device_at(0));
    p.maxSize = 1 << 30;
    r = cuMemPoolCreate(&pool, &p);
    note("of limited size: %s", name_of(r));
    expect(r != CUDA_SUCCESS, "none of limited size");
}

static void both_use(CUstream s)
{
    CUmemoryPool pool = create(device_at(0)), of = nullptr;
    const size_t n = 300000;
    uint32_t *p = get(pool, n * 4, s), *bad = get(pool, 4, s);
    CU(cuStreamSynchronize(s));
    for (size_t i = 0; i < n; i++)
        p[i] = (uint32_t)i + 5;
    *bad = 0;
    check<<<8, 128, 0, s>>>(p, n, 5, 1, bad);
    fill<<<8, 128, 0, s>>>(p, n, 9);
    CU(cuStreamSynchronize(s));
    size_t wrong = *bad;
    for (size_t i = 0; i < n; i++)
        wrong += p[i] != (uint32_t)i + 9;
    expect(!wrong, "processor and kernels use it in turns");
    unsigned managed = 0, type = 0;
    CUdeviceptr dev = 0;
    void *host = nullptr;
    CU(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, (CUdeviceptr)p));
    CU(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)p));
    CU(cuPointerGetAttribute(&dev, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, (CUdeviceptr)p));
    CU(cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, (CUdeviceptr)p));
    CU(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, (CUdeviceptr)p));
    printf("managed %u, addresses the same: %d, of the pool: %d\n", managed, dev == (CUdeviceptr)p && host == p, of == pool);
    note("memory type %u", type);
    printf("advised: %s\n", name_of(cuMemAdvise((CUdeviceptr)p, n * 4, CU_MEM_ADVISE_SET_READ_MOSTLY, device_at(0))));
    CU(cuMemPrefetchAsync((CUdeviceptr)p, n * 4, device_at(0), 0, s));
    fill<<<8, 128, 0, s>>>(p, n, 1);
    CU(cuMemPrefetchAsync((CUdeviceptr)p, n * 4, {CU_MEM_LOCATION_TYPE_HOST, 0}, 0, s));
    CU(cuStreamSynchronize(s));
    std::vector<uint32_t> copy(n);
    CU(cuMemcpy((CUdeviceptr)copy.data(), (CUdeviceptr)p, n * 4));
    for (size_t i = 0; i < n; i++)
        wrong += p[i] != (uint32_t)i + 1 || copy[i] != p[i];
    expect(!wrong, "prefetched, copied");
    CUipcMemHandle h;
    expect(cuIpcGetMemHandle(&h, (CUdeviceptr)p) != CUDA_SUCCESS, "no handle of it for other processes");
    int fd;
    expect(cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != CUDA_SUCCESS, "nor of its pool");
    CU(cuMemFree((CUdeviceptr)bad)); // not in stream order
    CU(cuMemPoolDestroy(pool));	     // with memory of it in use
    fill<<<8, 128, 0, s>>>(p, n, 3);
    CU(cuStreamSynchronize(s));
    expect(p[n - 1] == (uint32_t)n - 1 + 3, "what is in use outlives its pool");
    CU(cuMemFreeAsync((CUdeviceptr)p, s));
    printf("freed twice: %s\n", name_of(cuMemFreeAsync((CUdeviceptr)p, s)));
    CU(cuStreamSynchronize(s));
}

static void statistics(CUstream s)
{
    CUmemoryPool pool = create({CU_MEM_LOCATION_TYPE_NONE, 0});
    cuuint64_t keep = UINT64_MAX, zero = 0, five = 5;
    printf("release threshold: %llu, used %llu\n", count(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), count(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
    CU(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
    uint32_t *p = get(pool, 4 << 20, s), *q = get(pool, 2 << 20, s);
    note("used: %llu, reserved %llu", count(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), count(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
    unsigned long long both = count(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    expect(both >= 6 << 20 && count(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= both, "used and reserved");
    CU(cuMemFreeAsync((CUdeviceptr)q, s));
    CU(cuStreamSynchronize(s));
    expect(count(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) < both && count(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == both, "less and most used");
    expect(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &five) != CUDA_SUCCESS, "the most used is not five");
    CU(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
    expect(count(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == count(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), "the most used begins anew");
    CU(cuMemFreeAsync((CUdeviceptr)p, s));
    CU(cuStreamSynchronize(s));
    expect(count(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) > 0, "kept, as the threshold says");
    CU(cuMemPoolTrimTo(pool, 0));
    printf("after trimming: used %llu, reserved %llu\n", count(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), count(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
    CU(cuMemPoolDestroy(pool));
}

static void current()
{
    CUmemLocation at = device_at(0);
    CUmemoryPool standard, now, own = create(at), pinned;
    CUresult r = cuMemGetDefaultMemPool(&standard, &at, CU_MEM_ALLOCATION_TYPE_MANAGED);
    printf("the device's own pool: %s\n", name_of(r));
    CU(cuMemGetMemPool(&now, &at, CU_MEM_ALLOCATION_TYPE_MANAGED));
    expect(now == standard, "it is used at first");
    CU(cuMemSetMemPool(&at, CU_MEM_ALLOCATION_TYPE_MANAGED, own));
    CU(cuMemGetMemPool(&now, &at, CU_MEM_ALLOCATION_TYPE_MANAGED));
    expect(now == own, "then another");
    CU(cuDeviceGetMemPool(&pinned, 0));
    expect(pinned != own && pinned != standard, "device memory's is another matter");
    CUmemLocation elsewhere = {CU_MEM_LOCATION_TYPE_HOST, 0};
    printf("set for another place: %s\n", name_of(cuMemSetMemPool(&elsewhere, CU_MEM_ALLOCATION_TYPE_MANAGED, own)));
    CU(cuMemPoolDestroy(own));
    CU(cuMemGetMemPool(&now, &at, CU_MEM_ALLOCATION_TYPE_MANAGED));
    // 580: another, against its header
    note("destroyed, it is followed by %s", now == standard ? "the device's own" : "another");
    expect(cuMemPoolDestroy(standard) != CUDA_SUCCESS, "which nobody destroys");
}

// Memory that is freed while kernels use it, and given out at once, in the same stream and in
// others.
static void ordered()
{
    enum { STREAMS = 3, ROUNDS = 60 };
    CUmemoryPool pool = create({CU_MEM_LOCATION_TYPE_NONE, 0});
    cuuint64_t keep = UINT64_MAX;
    CU(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
    CUstream s[STREAMS];
    for (auto &x : s)
        CU(cuStreamCreate(&x, CU_STREAM_NON_BLOCKING));
    uint32_t *bad;
    CUDA(cudaMalloc(&bad, 4));
    CUDA(cudaMemset(bad, 0, 4));
    CUDA(cudaDeviceSynchronize());
    uint32_t seed = 1, wrong = 0;
    unsigned long long most = 0;
    for (int i = 0; i < ROUNDS; i++) {
        CUstream x = s[mix(i) % STREAMS];
        size_t n[3];
        uint32_t *p[3];
        for (int k = 0; k < 3; k++) {
            n[k] = 1 + mix(i * 3 + k) % (k == 0 ? 100 : 20000);
            p[k] = get(pool, n[k] * 4, x);
            fill<<<2, 64, 0, x>>>(p[k], n[k], seed + k);
        }
        for (int k = 0; k < 3; k++) {
            check<<<2, 64, 0, x>>>(p[k], n[k], seed + k, 100, bad);
            CU(cuMemFreeAsync((CUdeviceptr)p[k], x));
        }
        seed += 1000003;
        if (i % 10 == 9) { // by the processor, too
            CUDA(cudaDeviceSynchronize());
            uint32_t *q = get(pool, 40000, x);
            CU(cuStreamSynchronize(x));
            for (int k = 0; k < 10000; k++)
                q[k] = k + seed;
            check<<<2, 64, 0, x>>>(q, 10000, seed, 1, bad);
            CU(cuMemFreeAsync((CUdeviceptr)q, x));
        }
        most = std::max(most, count(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
    }
    CUDA(cudaMemcpy(&wrong, bad, 4, cudaMemcpyDeviceToHost));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(&wrong, bad, 4, cudaMemcpyDeviceToHost));
    expect(wrong == 0, "given out again in stream order");
    note("%llu KiB reserved at most", most >> 10);
    expect(most <= 64 << 20, "little memory serves many allocations");
    CU(cuMemPoolTrimTo(pool, 0));
    printf("reserved in the end: %llu\n", count(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
    for (auto &x : s)
        CU(cuStreamDestroy(x));
    CU(cuMemPoolDestroy(pool));
    CUDA(cudaFree(bad));
}

// Streams of a moment, whose work is not done when they are destroyed, leave their memory to
// others.
static void destroyed()
{
    enum { ROUNDS = 30, SIZE = 3 << 20 };
    CUmemoryPool pool = create(device_at(0));
    uint32_t *bad, wrong = 0;
    unsigned long long most = 0;
    CUDA(cudaMalloc(&bad, 4));
    CUDA(cudaMemset(bad, 0, 4));
    CUDA(cudaDeviceSynchronize());
    for (int i = 0; i < ROUNDS; i++) {
        CUstream s;
        CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
        uint32_t *p = get(pool, SIZE, s);
        fill<<<2, 64, 0, s>>>(p, 10000, 77 * i);
        check<<<2, 64, 0, s>>>(p, 10000, 77 * i, 20000, bad);
        CU(cuMemFreeAsync((CUdeviceptr)p, s));
        if (i % 3 == 0)
            CU(cuStreamSynchronize(s));
        CU(cuStreamDestroy(s));
        most = std::max(most, count(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
    }
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(&wrong, bad, 4, cudaMemcpyDeviceToHost));
    expect(wrong == 0, "what a destroyed stream freed is given out behind its work");
    note("%llu KiB reserved at most", most >> 10);
    CUDA(cudaGetDeviceProperties(&of, 0));
    // A driver may think otherwise.
    expect(most <= 4 * SIZE || !strstr(of.name, "Software"), "and not kept for it");
    CU(cuMemPoolTrimTo(pool, 0));
    expect(count(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0, "all of it goes back");
    CU(cuMemPoolDestroy(pool));
    CUDA(cudaFree(bad));
}

int main()
{
    note_device();
    CUDA(cudaFree(0));
    CUstream s;
    CU(cuMemPoolDestroy(create(device_at(0))));
    CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    creation();
    both_use(s);
    statistics(s);
    current();
    ordered();
    destroyed();
    CU(cuStreamDestroy(s));
    return finish();
}
