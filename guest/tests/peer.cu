// Two GPUs in one process: peer access, copies between them, kernels that reach over, mappings and
// pools for both. Status 77 where there is one GPU.
// needs: cuda 11.8
#include "driver.h"

#include <thread>

static const size_t N = 4 << 20, M = 2 << 20;

__global__ static void fill(uint32_t *p, size_t n, uint32_t seed)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n)
        p[i] = mix((uint32_t)i + seed);
}

__global__ static void add(uint32_t *to, const uint32_t *from, size_t n)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n)
        to[i] += from[i];
}

static void run(uint32_t *p, size_t bytes, uint32_t seed)
{
    fill<<<(unsigned)((bytes / 4 + 255) / 256), 256>>>(p, bytes / 4, seed);
    CUDA(cudaGetLastError());
    CUDA(cudaDeviceSynchronize());
}

static bool holds(const void *p, size_t bytes, uint32_t seed)
{
    uint32_t *h = (uint32_t *)malloc(bytes);
    bool ok = true;
    CUDA(cudaMemcpy(h, p, bytes, cudaMemcpyDefault));
    for (size_t i = 0; i < bytes / 4; i++)
        ok = ok && h[i] == mix((uint32_t)i + seed);
    free(h);
    return ok;
}

static void copies(uint32_t *a, uint32_t *b)
{
    CUDA(cudaSetDevice(0));
    run(a, N, 1);
    CUDA(cudaMemcpyPeer(b, 1, a, 0, N));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaSetDevice(1));
    expect(holds(b, N, 1), "cudaMemcpyPeer");
    run(b, N, 2);
    cudaStream_t s;
    CUDA(cudaStreamCreate(&s));
    CUDA(cudaMemcpyPeerAsync(a, 0, b, 1, N, s));
    CUDA(cudaStreamSynchronize(s));
    CUDA(cudaStreamDestroy(s));
    CUDA(cudaSetDevice(0));
    expect(holds(a, N, 2), "cudaMemcpyPeerAsync");
    run(a, N, 3);
    CUDA(cudaMemcpy(b, a, N, cudaMemcpyDefault));
    CUDA(cudaDeviceSynchronize());
    expect(holds(b, N, 3), "a copy that finds the devices by addresses");
    run(a, N, 4);
    cudaMemcpy3DPeerParms p = {};
    p.srcPtr = make_cudaPitchedPtr(a, 4096, 4096, N / 4096);
    p.dstPtr = make_cudaPitchedPtr(b, 4096, 4096, N / 4096);
    p.srcDevice = 0;
    p.dstDevice = 1;
    p.extent = make_cudaExtent(4096, N / 4096, 1);
    CUDA(cudaMemcpy3DPeer(&p));
    CUDA(cudaDeviceSynchronize());
    expect(holds(b, N, 4), "cudaMemcpy3DPeer");
}

static void access(uint32_t *a, uint32_t *b)
{
    int can = -1, value = -1;
    CUDA(cudaDeviceCanAccessPeer(&can, 0, 0));
    printf("a device and itself: %d\n", can);
    CUDA(cudaDeviceCanAccessPeer(&can, 0, 1));
    expect(can == 1, "the first reaches the second");
    CUDA(cudaDeviceGetP2PAttribute(&value, cudaDevP2PAttrAccessSupported, 0, 1));
    printf("access attribute: %d\n", value);
    CUDA(cudaSetDevice(0));
    printf("disable before: %s\n", cudaGetErrorName(cudaDeviceDisablePeerAccess(1)));
    CUDA(cudaDeviceEnablePeerAccess(1, 0));
    printf("enable again: %s\n", cudaGetErrorName(cudaDeviceEnablePeerAccess(1, 0)));
    printf("enable with flags: %s\n", cudaGetErrorName(cudaDeviceEnablePeerAccess(1, 1)));
    cudaGetLastError();
    CUDA(cudaSetDevice(1));
    run(b, N, 5);
    CUDA(cudaSetDevice(0));
    run(a, N, 5);
    add<<<(unsigned)(N / 4 / 256), 256>>>(a, b, N / 4);
    CUDA(cudaGetLastError());
    CUDA(cudaDeviceSynchronize());
    uint32_t *h = (uint32_t *)malloc(N);
    bool ok = true;
    CUDA(cudaMemcpy(h, a, N, cudaMemcpyDefault));
    for (size_t i = 0; i < N / 4; i++)
        ok = ok && h[i] == 2 * mix((uint32_t)i + 5);
    free(h);
    expect(ok, "a kernel of the first reads memory of the second");
    run(b, N, 6);
    expect(holds(b, N, 6), "a kernel of the first writes memory of the second");
    CUDA(cudaDeviceDisablePeerAccess(1));
    cudaPointerAttributes at;
    CUDA(cudaPointerGetAttributes(&at, b));
    expect(at.device == 1, "device of a pointer");
}

// mapped: memory of the second device that both may touch, by cuMemSetAccess alone.
static void mapped()
{
    CUdeviceptr va;
    CUmemGenericAllocationHandle h;
    CUmemAllocationProp p = {};
    CUmemAccessDesc d[2] = {};
    unsigned long long f = 99;
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.location.id = 1;
    for (int i = 0; i < 2; i++) {
        d[i].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        d[i].location.id = i;
        d[i].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    }
    CU(cuMemAddressReserve(&va, M, 0, 0, 0));
    CU(cuMemCreate(&h, M, &p, 0));
    CU(cuMemMap(va, M, 0, h, 0));
    CU(cuMemSetAccess(va, M, &d[1], 1));
    CU(cuMemGetAccess(&f, &d[0].location, va));
    printf("access of the first before: %llu\n", f);
    CU(cuMemSetAccess(va, M, d, 2));
    CU(cuMemGetAccess(&f, &d[0].location, va));
    printf("access of the first: %llu\n", f);
    for (int dev = 0; dev < 2; dev++) {
        CUDA(cudaSetDevice(dev));
        run((uint32_t *)va, M, 7 + dev);
        expect(holds((void *)va, M, 7 + dev), dev ? "mapped memory from the second" : "mapped memory from the first");
    }
    CU(cuMemUnmap(va, M));
    CU(cuMemRelease(h));
    CU(cuMemAddressFree(va, M));
}

static void pooled()
{
    cudaMemPool_t pool;
    cudaMemAccessDesc d = {};
    uint32_t *p;
    cudaMemAccessFlags f = cudaMemAccessFlagsProtNone;
    CUDA(cudaDeviceGetDefaultMemPool(&pool, 1));
    d.location.type = cudaMemLocationTypeDevice;
    d.location.id = 0;
    CUDA(cudaMemPoolGetAccess(&f, pool, &d.location));
    printf("pool access of the first before: %d\n", (int)f);
    d.flags = cudaMemAccessFlagsProtReadWrite;
    CUDA(cudaMemPoolSetAccess(pool, &d, 1));
    CUDA(cudaMemPoolGetAccess(&f, pool, &d.location));
    printf("pool access of the first: %d\n", (int)f);
    CUDA(cudaSetDevice(1));
    CUDA(cudaMallocAsync(&p, N, 0));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaSetDevice(0));
    run(p, N, 9);
    expect(holds(p, N, 9), "pool memory of the second from the first");
    CUDA(cudaSetDevice(1));
    CUDA(cudaFreeAsync(p, 0));
    CUDA(cudaDeviceSynchronize());
}

// threads: one for each device, both busy at once.
static void threads()
{
    bool ok[2] = {};
    std::thread t[2];
    for (int dev = 0; dev < 2; dev++)
        t[dev] = std::thread([dev, &ok] {
            uint32_t *p;
            bool good = true;
            CUDA(cudaSetDevice(dev));
            CUDA(cudaMalloc(&p, N));
            for (int i = 0; i < 8; i++) {
                run(p, N, dev * 100 + i);
                good = good && holds(p, N, dev * 100 + i);
            }
            CUDA(cudaFree(p));
            ok[dev] = good;
        });
    for (int dev = 0; dev < 2; dev++)
        t[dev].join();
    expect(ok[0] && ok[1], "a thread for each device");
}

// order: work on one device waits for an event of the other.
static void order(uint32_t *a, uint32_t *b)
{
    cudaStream_t s[2];
    cudaEvent_t e;
    CUDA(cudaSetDevice(0));
    CUDA(cudaStreamCreate(&s[0]));
    CUDA(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    CUDA(cudaSetDevice(1));
    CUDA(cudaStreamCreate(&s[1]));
    CUDA(cudaSetDevice(0));
    fill<<<(unsigned)(N / 4 / 256), 256, 0, s[0]>>>(a, N / 4, 30);
    CUDA(cudaGetLastError());
    CUDA(cudaEventRecord(e, s[0]));
    CUDA(cudaSetDevice(1));
    CUDA(cudaStreamWaitEvent(s[1], e, 0));
    CUDA(cudaMemcpyPeerAsync(b, 1, a, 0, N, s[1]));
    CUDA(cudaStreamSynchronize(s[1]));
    expect(holds(b, N, 30), "a stream waits for an event of the other device");
    CUDA(cudaStreamDestroy(s[1]));
    CUDA(cudaSetDevice(0));
    CUDA(cudaStreamDestroy(s[0]));
    CUDA(cudaEventDestroy(e));
}

int main()
{
    int n = 0;
    uint32_t *a, *b;
    CUDA(cudaGetDeviceCount(&n));
    if (n < 2) {
        printf("skipped: one GPU\n");
        return 77;
    }
    CUDA(cudaSetDevice(1));
    CUDA(cudaMalloc(&b, N));
    CUDA(cudaSetDevice(0));
    CUDA(cudaMalloc(&a, N));
    copies(a, b);
    order(a, b);
    access(a, b);
    mapped();
    pooled();
    threads();
    CUDA(cudaSetDevice(1));
    CUDA(cudaFree(b));
    CUDA(cudaSetDevice(0));
    CUDA(cudaFree(a));
    return finish();
}
