// What CUDA says of managed memory beyond taking turns, one function for each: read-mostly tables
// that somebody writes after all, advice about places, what ranges answer, attachment while kernels
// run, graphs of explicit nodes, pools, sharing with other processes. needs: cuda 13.0
#include "driver.h"

#include <atomic>
#include <thread>
#include <unistd.h>
#include <vector>

__global__ void add(uint32_t *p, size_t n, uint32_t v)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        p[i] += v;
}
__global__ void sum(const uint32_t *p, size_t n, uint32_t *out)
{
    uint32_t s = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        s += p[i];
    atomicAdd(out, s);
}

static void say(const char *what, int code) { printf("%s: %d\n", what, code); }
#define SAY(call) say(#call, (int)(call))

static CUmemLocation place(int dev) { return {dev < 0 ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE, dev < 0 ? 0 : dev}; }
static CUresult advise(const void *p, size_t n, CUmem_advise what, int dev) { return cuMemAdvise_v2((CUdeviceptr)p, n, what, place(dev)); }
static CUresult prefetch(const void *p, size_t n, int dev, cudaStream_t s) { return cuMemPrefetchAsync_v2((CUdeviceptr)p, n, place(dev), 0, s); }

static uint32_t total(const uint32_t *p, size_t n)
{
    uint32_t s = 0;
    for (size_t i = 0; i < n; i++)
        s += p[i];
    return s;
}

// Nobody is bound by the advice: who writes is seen by the other side.
static void read_mostly()
{
    const size_t n = 1 << 20;
    uint32_t *p, *out, bad = 0;
    managed(&p, n * 4);
    managed(&out, 4);
    for (size_t i = 0; i < n; i++)
        p[i] = mix((uint32_t)i);
    CU(advise(p, n * 4, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
    uint32_t want = total(p, n);
    for (uint32_t round = 0; round < 12; round++) {
        *out = 0;
        sum<<<64, 256>>>(p, n, out);
        if (round % 4 == 1) { // a kernel writes some of it
            add<<<4, 256>>>(p + 1000 * round, 5000, round);
            want += 5000 * round;
        }
        CUDA(cudaDeviceSynchronize());
        bad += round % 4 != 1 && *out != want;
        bad += total(p, n) != want;
        if (round % 4 == 2) { // the CPU does
            p[77777 * round % n] += 9;
            want += 9;
        }
        if (round >= 9) // of half of it, then of all
            CU(advise(p, n * (round == 9 ? 2 : 4), CU_MEM_ADVISE_UNSET_READ_MOSTLY, 0));
    }
    expect(bad == 0, "a read-mostly table that both sides write now and then");
    CUDA(cudaFree(p));
    CUDA(cudaFree(out));
}

static int number(const void *p, size_t n, CUmem_range_attribute a)
{
    int v = -99;
    CU(cuMemRangeGetAttribute(&v, 4, a, (CUdeviceptr)p, n));
    return v;
}

// What ranges answer is what was asked for, whatever happened to the bytes since.
static void places()
{
    const size_t n = 1 << 19;
    uint32_t *p, bad = 0, round = 0;
    managed(&p, n * 4);
    for (size_t i = 0; i < n; i++)
        p[i] = mix((uint32_t)i);
    for (int dev : {0, -1}) {
        CU(advise(p, n * 4, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, dev));
        CU(advise(p, n * 4, CU_MEM_ADVISE_SET_ACCESSED_BY, -1 - dev));
        for (int to : {0, -1}) {
            CU(prefetch(p, n * 4, to, 0));
            add<<<64, 256>>>(p, n, ++round);
            CUDA(cudaDeviceSynchronize());
            bad += p[round * 1000] != mix(round * 1000) + round * (round + 1) / 2;
            int by[2] = {-9, -9};
            CU(cuMemRangeGetAttribute(by, sizeof by, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, (CUdeviceptr)p, n * 4));
            printf("preferred %d (%d) by %d %d last %d (%d) mostly %d\n", number(p, n * 4, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION),
                   number(p, n * 4, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE), by[0], by[1],
                   number(p, n * 4, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION),
                   number(p, n * 4, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE), number(p, n * 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY));
        }
        CU(advise(p, n * 4, CU_MEM_ADVISE_UNSET_ACCESSED_BY, -1 - dev));
    }
    for (size_t i = 0; i < n; i++)
        bad += p[i] != mix((uint32_t)i) + round * (round + 1) / 2;
    expect(bad == 0, "advice about places changes no byte");
    CUDA(cudaFree(p));
}

static std::atomic<int> flag;
static void CUDART_CB hold(void *)
{
    while (flag == 0)
        usleep(100);
}

// While work of one stream waits for the CPU, memory of another stream and of the host is the
// CPU's.
static void attached()
{
    const size_t n = 1 << 16;
    uint32_t *device, *mine, *host, *later, bad = 0;
    cudaStream_t s, t;
    CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking));
    CUDA(cudaMalloc(&device, 4096));
    managed(&mine, n * 4);
    CUDA(cudaMallocManaged(&host, n * 4, cudaMemAttachHost));
    CUDA(cudaMallocManaged(&later, n * 4, cudaMemAttachHost));
    CUDA(cudaStreamAttachMemAsync(s, later, 0, cudaMemAttachSingle));
    CUDA(cudaStreamSynchronize(s));
    add<<<64, 256, 0, s>>>(later, n, 5);
    CUDA(cudaStreamSynchronize(s));
    CUDA(cudaLaunchHostFunc(t, hold, nullptr));
    add<<<1, 32, 0, t>>>(device, 100, 1);
    for (size_t i = 0; i < n; i++) // each would wait for ever, were it the whole GPU's
        host[i] = (uint32_t)i, later[i] += (uint32_t)i;
    for (size_t i = 0; i < n; i++)
        bad += host[i] != i || later[i] != i + 5;
    flag = 1;
    CUDA(cudaStreamSynchronize(t));
    CUDA(cudaStreamAttachMemAsync(s, host, 0, cudaMemAttachGlobal));
    CUDA(cudaStreamAttachMemAsync(s, later, 0, cudaMemAttachGlobal));
    CUDA(cudaStreamSynchronize(s));
    add<<<64, 256, 0, t>>>(host, n, 1);
    add<<<64, 256, 0, t>>>(later, n, 1);
    CUDA(cudaStreamSynchronize(t));
    for (size_t i = 0; i < n; i++)
        bad += host[i] != i + 1 || later[i] != i + 6;
    expect(bad == 0, "attached memory while another stream has work");
    SAY(cudaStreamAttachMemAsync(s, mine, 0, cudaMemAttachHost));
    SAY(cudaStreamAttachMemAsync(s, mine, n * 4, cudaMemAttachGlobal));
    SAY(cudaStreamAttachMemAsync(s, mine, 4, cudaMemAttachGlobal));
    SAY(cudaStreamAttachMemAsync(s, device, 0, cudaMemAttachGlobal));
    (void)cudaGetLastError();
    for (uint32_t *x : {mine, host, later})
        CUDA(cudaFree(x));
    CUDA(cudaFree(device));
    CUDA(cudaStreamDestroy(s));
    CUDA(cudaStreamDestroy(t));
}

// A stream that ends lets go of what is attached to it, when its work is done.
static void detached()
{
    const size_t n = 1 << 20;
    uint32_t *work, *host, *device, early;
    int both = 0;
    cudaStream_t s, t, u;
    CUDA(cudaDeviceGetAttribute(&both, cudaDevAttrConcurrentManagedAccess, 0));
    for (cudaStream_t *x : {&s, &t, &u})
        CUDA(cudaStreamCreateWithFlags(x, cudaStreamNonBlocking));
    CUDA(cudaMalloc(&device, 4096));
    managed(&work, n * 4);
    CUDA(cudaMallocManaged(&host, n * 4, cudaMemAttachHost));
    CUDA(cudaStreamAttachMemAsync(s, work, 0, cudaMemAttachSingle));
    CUDA(cudaStreamAttachMemAsync(u, host, 0, cudaMemAttachSingle));
    CUDA(cudaStreamSynchronize(s));
    for (size_t i = 0; i < n; i++)
        work[i] = 5;
    add<<<64, 256, 0, u>>>(host, n, 9);
    flag = 0;
    CUDA(cudaLaunchHostFunc(s, hold, nullptr));
    add<<<64, 256, 0, s>>>(work, n, 2);
    CUDA(cudaStreamDestroy(s)); // with work to do
    std::thread later([] { usleep(20000), flag = 1; });
    // Where both may use it at once this is of now, else of when the work is done.
    early = work[n - 1];
    later.join();
    CUDA(cudaStreamSynchronize(u));
    CUDA(cudaDeviceSynchronize());
    expect(both || early == 7, "what was attached to a destroyed stream waits for its work");
    expect(work[0] == 7 && work[n - 1] == 7, "and has its bytes");
    CUDA(cudaStreamDestroy(u));
    flag = 0;
    CUDA(cudaLaunchHostFunc(t, hold, nullptr));
    add<<<1, 32, 0, t>>>(device, 100, 1);
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++) // would wait for ever, were it not the CPU's again
        bad += host[i] != 9;
    flag = 1;
    CUDA(cudaStreamSynchronize(t));
    expect(bad == 0, "the host's is the host's again");
    CUDA(cudaStreamDestroy(t));
    for (uint32_t *x : {work, host, device})
        CUDA(cudaFree(x));
}

static void CUDART_CB bump(void *arg)
{
    uint32_t *p = (uint32_t *)arg;
    for (int i = 0; i < 100; i++)
        p[i * 100] += 3;
}

// Nodes that were made one by one: fill, copy, kernel, function of the program, copy to ordinary
// device memory.
static void graphs()
{
    const size_t n = 100000;
    uint32_t *a, *b, *d, bad = 0;
    managed(&a, n * 4);
    managed(&b, n * 4);
    CUDA(cudaMalloc(&d, n * 4));
    cudaGraph_t g;
    cudaGraphExec_t e;
    cudaGraphNode_t node[5];
    CUDA(cudaGraphCreate(&g, 0));
    cudaMemsetParams fill = {};
    fill.dst = b, fill.value = 0x01010101, fill.elementSize = 4, fill.width = n / 2, fill.height = 1;
    CUDA(cudaGraphAddMemsetNode(&node[0], g, nullptr, 0, &fill));
    CUDA(cudaGraphAddMemcpyNode1D(&node[1], g, &node[0], 1, b + n / 2, a + n / 2, (n - n / 2) * 4, cudaMemcpyDefault));
    size_t count = n;
    uint32_t v = 11;
    void *args[] = {&b, &count, &v};
    cudaKernelNodeParams k = {};
    k.func = (void *)add, k.gridDim = dim3(16), k.blockDim = dim3(256), k.kernelParams = args;
    CUDA(cudaGraphAddKernelNode(&node[2], g, &node[1], 1, &k));
    cudaHostNodeParams h = {bump, b};
    CUDA(cudaGraphAddHostNode(&node[3], g, &node[2], 1, &h));
    CUDA(cudaGraphAddMemcpyNode1D(&node[4], g, &node[3], 1, d, b, n * 4, cudaMemcpyDefault));
    CUDA(cudaGraphInstantiate(&e, g, 0));
    std::vector<uint32_t> got(n);
    for (uint32_t round = 1; round <= 4; round++) {
        for (size_t i = 0; i < n; i++)
            a[i] = mix((uint32_t)i + round), b[i] = round;
        CUDA(cudaGraphLaunch(e, 0));
        CUDA(cudaDeviceSynchronize());
        CUDA(cudaMemcpy(got.data(), d, n * 4, cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < n; i++) {
            uint32_t want = (i < n / 2 ? 0x01010101 : mix((uint32_t)i + round)) + 11 + (i < 10000 && i % 100 == 0 ? 3 : 0);
            bad += b[i] != want || got[i] != want;
        }
    }
    expect(bad == 0, "graphs of explicit nodes");
    CUDA(cudaGraphExecDestroy(e));
    CUDA(cudaGraphDestroy(g));
    for (uint32_t *x : {a, b, d})
        CUDA(cudaFree(x));
}

static void others()
{
    uint32_t *p;
    managed(&p, 4 << 20);
    CUipcMemHandle h;
    SAY(cuIpcGetMemHandle(&h, (CUdeviceptr)p));
    CUmemGenericAllocationHandle m;
    SAY(cuMemRetainAllocationHandle(&m, p));
    CUdeviceptr base;
    size_t size;
    SAY(cuMemGetAddressRange(&base, &size, (CUdeviceptr)p + 100));
    SAY(cuMemHostRegister(p, 4096, 0));
    SAY(cuMemFree((CUdeviceptr)p));
#if CUDART_VERSION >= 13000
    CUmemPoolProps props = {};
    CUmemoryPool pool;
    props.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED;
    props.location = place(0);
    CUresult r = cuMemPoolCreate(&pool, &props);
    note("a pool of managed memory: %s", name_of(r));
    if (r == CUDA_SUCCESS) {
        CUdeviceptr q;
        CU(cuMemAllocFromPoolAsync(&q, 1 << 20, pool, 0));
        CU(cuStreamSynchronize(0));
        *(uint32_t *)q = 5;
        add<<<1, 256>>>((uint32_t *)q, 1000, 2);
        CUDA(cudaDeviceSynchronize());
        note("memory of a managed pool: %u", *(uint32_t *)q);
        failures += *(uint32_t *)q != 7;
        CU(cuMemFreeAsync(q, 0));
        CU(cuStreamSynchronize(0));
        CU(cuMemPoolDestroy(pool));
    }
#endif
}

int main()
{
    // Where the device promises that both may use it at once too.
    setenv("CAUSEWAY_MANAGED", "gpu", 0);
    note_device();
    CUDA(cudaFree(0));
    read_mostly();
    places();
    attached();
    detached();
    graphs();
    others();
    return finish();
}
