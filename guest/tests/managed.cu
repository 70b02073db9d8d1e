// Managed memory: one pointer for both processors, what is asked about it, hints, and mistakes.
// needs: cuda 12.9
#include "driver.h"

#if CUDART_VERSION >= 13000
static cudaMemLocation place(cudaMemLocationType type, int id) { return cudaMemLocation{type, id}; }
static cudaError_t prefetch(const void *p, size_t n, int dev, cudaStream_t s)
{
    return cudaMemPrefetchAsync(p, n, dev < 0 ? place(cudaMemLocationTypeHost, 0) : place(cudaMemLocationTypeDevice, dev), 0, s);
}
static cudaError_t advise(const void *p, size_t n, cudaMemoryAdvise a, int dev)
{
    return cudaMemAdvise(p, n, a, dev < 0 ? place(cudaMemLocationTypeHost, 0) : place(cudaMemLocationTypeDevice, dev));
}
#else
static cudaError_t prefetch(const void *p, size_t n, int dev, cudaStream_t s) { return cudaMemPrefetchAsync(p, n, dev, s); }
static cudaError_t advise(const void *p, size_t n, cudaMemoryAdvise a, int dev) { return cudaMemAdvise(p, n, a, dev); }
#endif

__global__ void add(int *p, int n, int v)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        p[i] += v;
}
struct node {
    node *next;
    int value;
};
__global__ void walk(node *n, int *sum)
{
    *sum = 0;
    for (; n; n = n->next) {
        *sum += n->value;
        n->value = -n->value;
    }
}

static void say(const char *what, int code) { printf("%s: %d\n", what, code); }
#define SAY(call) say(#call, (int)(call))

static void both_sides()
{
    const int n = 100000;
    int *p, wrong = 0;
    CUDA(cudaMallocManaged(&p, n * sizeof *p));
    for (int i = 0; i < n; i++)
        wrong += p[i] != 0;
    note("%d words were not zero at first", wrong);
    for (int i = 0; i < n; i++)
        p[i] = (int)mix(i);
    for (int round = 1; round <= 3; round++) {
        add<<<(n + 255) / 256, 256>>>(p, n, round);
        CUDA(cudaDeviceSynchronize());
        for (int i = 0; i < n; i++)
            p[i] += 1000;
    }
    wrong = 0;
    for (int i = 0; i < n; i++)
        wrong += p[i] != (int)mix(i) + 6 + 3000;
    expect(wrong == 0, "host and device take turns");
    int *d, h[4];
    CUDA(cudaMalloc(&d, 4096));
    CUDA(cudaMemcpy(d, p, 4096, cudaMemcpyDefault));
    CUDA(cudaMemcpy(h, d, sizeof h, cudaMemcpyDefault));
    expect(h[3] == p[3], "copy from managed to device");
    CUDA(cudaMemset(p, 0x11, 4096));
    CUDA(cudaDeviceSynchronize());
    expect(p[5] == 0x11111111 && p[1024] != 0x11111111, "set");
    CUDA(cudaMemcpy(p + 7, h, sizeof h, cudaMemcpyHostToDevice));
    CUDA(cudaDeviceSynchronize());
    expect(p[7] == h[0], "copy from host to managed");
    CUDA(cudaMemcpy(h, p, sizeof h, cudaMemcpyDeviceToHost));
    expect(h[0] == 0x11111111, "copy from managed to host");
    CUDA(cudaFree(d));
    CUDA(cudaFree(p));
}

// A list built by the host, walked by the device.
static void list()
{
    node *head = nullptr;
    int *sum;
    CUDA(cudaMallocManaged(&sum, sizeof *sum));
    for (int i = 1; i <= 50; i++) {
        node *n;
        CUDA(cudaMallocManaged(&n, sizeof *n));
        n->value = i;
        n->next = head;
        head = n;
    }
    walk<<<1, 1>>>(head, sum);
    CUDA(cudaDeviceSynchronize());
    printf("list: %d, first now %d\n", *sum, head->value);
    expect(*sum == 1275 && head->value == -50, "pointers mean the same on both sides");
    while (head) {
        node *next = head->next;
        CUDA(cudaFree(head));
        head = next;
    }
    CUDA(cudaFree(sum));
}

static void attributes()
{
    char *p;
    CUDA(cudaMallocManaged(&p, 3 << 20));
    cudaPointerAttributes a;
    CUDA(cudaPointerGetAttributes(&a, p + 100));
    printf("type %d device %d, device pointer %s, host pointer %s\n", (int)a.type, a.device,
           a.devicePointer == p + 100 ? "same" : "other", a.hostPointer == p + 100 ? "same" : "other");
    CUdeviceptr u = (CUdeviceptr)p + 100, base;
    size_t size;
    int type = -7, managed = -7, ordinal = -7, mapped = -7, flags = -7, sync = -7;
    CUcontext ctx = nullptr, now;
    void *hp = nullptr;
    CUdeviceptr dp = 0, start = 0;
    CU(cuCtxGetCurrent(&now));
    SAY(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, u));
    SAY(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, u));
    SAY(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, u));
    SAY(cuPointerGetAttribute(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, u));
    SAY(cuPointerGetAttribute(&flags, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, u));
    SAY(cuPointerGetAttribute(&sync, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, u));
    SAY(cuPointerGetAttribute(&ctx, CU_POINTER_ATTRIBUTE_CONTEXT, u));
    SAY(cuPointerGetAttribute(&hp, CU_POINTER_ATTRIBUTE_HOST_POINTER, u));
    SAY(cuPointerGetAttribute(&dp, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, u));
    SAY(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, u));
    SAY(cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, u));
    printf("type %d managed %d ordinal %d mapped %d flags %d sync %d context %s host %s device %s start %s size %zu\n", type,
           managed, ordinal, mapped, flags, sync, ctx == now ? "current" : ctx ? "other" : "none",
           hp == p + 100 ? "same" : "other", dp == u ? "same" : "other", start == (CUdeviceptr)p ? "right" : "wrong", size);
    SAY(cuMemGetAddressRange(&base, &size, u));
    printf("range %s %zu\n", base == (CUdeviceptr)p ? "right" : "wrong", size);
    CUdeviceptr got = 0;
    SAY(cuMemHostGetDevicePointer(&got, p, 0));
    unsigned hf = 0;
    SAY(cuMemHostGetFlags(&hf, p));
    for (int x : {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
                  CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
                  CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED}) {
        int v = -1;
        CU(cuDeviceGetAttribute(&v, (CUdevice_attribute)x, 0));
        note("device attribute %d: %d", x, v);
    }
    SAY(cudaFree(p + 100));
    SAY(cudaFreeHost(p));
    SAY(cudaFree(p));
    SAY(cudaFree(p));
    (void)cudaGetLastError();
}

// range prints what is recorded about bytes [at, at+n).
static void range(const char *what, const char *p, size_t at, size_t n)
{
    int mostly = -7, preferred = -7, last = -7, by[3] = {-7, -7, -7};
    CUdeviceptr u = (CUdeviceptr)p + at;
    int r[4] = {(int)cuMemRangeGetAttribute(&mostly, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, u, n),
                (int)cuMemRangeGetAttribute(&preferred, 4, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, u, n),
                (int)cuMemRangeGetAttribute(by, sizeof by, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, u, n),
                (int)cuMemRangeGetAttribute(&last, 4, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, u, n)};
    printf("%s: %d %d %d %d, mostly %d preferred %d by %d %d %d last %d\n", what, r[0], r[1], r[2], r[3], mostly, preferred, by[0],
           by[1], by[2], last);
}

static void hints()
{
    const size_t n = 4 << 20;
    char *p;
    cudaStream_t s;
    CUDA(cudaMallocManaged((void **)&p, n));
    CUDA(cudaStreamCreate(&s));
    memset(p, 1, n);
    range("fresh", p, 0, n);
    SAY(advise(p, n, cudaMemAdviseSetReadMostly, 0));
    range("read mostly", p, 0, n);
    SAY(advise(p, n / 2, cudaMemAdviseUnsetReadMostly, 0));
    range("half of it", p, 0, n);
    range("second half", p, n / 2, n / 2);
    SAY(advise(p, n, cudaMemAdviseUnsetReadMostly, 0));
    SAY(advise(p, n, cudaMemAdviseSetPreferredLocation, 0));
    range("preferred device", p, 0, n);
    SAY(advise(p, n / 4, cudaMemAdviseSetPreferredLocation, -1));
    range("partly host", p, 0, n);
    range("host quarter", p, 0, n / 4);
    range("one byte", p, 5, 1);
    SAY(advise(p, n, cudaMemAdviseUnsetPreferredLocation, 0));
    SAY(advise(p, n, cudaMemAdviseSetAccessedBy, 0));
    range("accessed by device", p, 0, n);
    SAY(advise(p, n, cudaMemAdviseSetAccessedBy, -1));
    range("and by host", p, 0, n);
    SAY(advise(p, n, cudaMemAdviseUnsetAccessedBy, 0));
    range("by host only", p, 0, n);
    SAY(advise(p, n, cudaMemAdviseUnsetAccessedBy, -1));
    SAY(prefetch(p, n, 0, s));
    CUDA(cudaStreamSynchronize(s));
    range("prefetched to device", p, 0, n);
    SAY(prefetch(p, n / 2, -1, s));
    CUDA(cudaStreamSynchronize(s));
    range("half back", p, 0, n);
    range("first half", p, 0, n / 2);
    int pt = -7, pid = -7, lt = -7, lid = -7;
    CUdeviceptr u = (CUdeviceptr)p;
    SAY(advise(p, n, cudaMemAdviseSetPreferredLocation, 0));
    SAY(cuMemRangeGetAttribute(&pt, 4, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE, u, n));
    SAY(cuMemRangeGetAttribute(&pid, 4, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID, u, n));
    SAY(cuMemRangeGetAttribute(&lt, 4, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE, u, n / 2));
    SAY(cuMemRangeGetAttribute(&lid, 4, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID, u, n / 2));
    printf("types: preferred %d %d, last %d %d\n", pt, pid, lt, lid);
    SAY(cuMemRangeGetAttribute(&pt, 4, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE, u, n));
    SAY(cuMemRangeGetAttribute(&pid, 4, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID, u, n));
    printf("mixed: %d\n", pt);
    int a = -7, b = -7;
    void *data[] = {&a, &b};
    size_t sizes[] = {4, 4};
    CUmem_range_attribute which[] = {CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION};
    SAY(cuMemRangeGetAttributes(data, sizes, which, 2, u, n));
    printf("together: %d %d\n", a, b);
    SAY(cudaStreamAttachMemAsync(s, p, 0, cudaMemAttachGlobal));
    SAY(cudaStreamAttachMemAsync(s, p, 0, cudaMemAttachSingle));
    SAY(cudaStreamSynchronize(s));
    SAY(cudaStreamAttachMemAsync(s, p, n, cudaMemAttachGlobal));
    SAY(cudaStreamAttachMemAsync(s, p, n / 2, cudaMemAttachGlobal));
    SAY(cudaStreamAttachMemAsync(s, p, 0, 9));
    CUDA(cudaStreamSynchronize(s));
    (void)cudaGetLastError();
    int wrong = 0;
    for (size_t i = 0; i < n; i++)
        wrong += p[i] != 1;
    expect(wrong == 0, "hints change no byte");
    CUDA(cudaStreamDestroy(s));
    CUDA(cudaFree(p));
}

static void mistakes()
{
    char *p, *d, host[16];
    int v = 0;
    CUDA(cudaMallocManaged((void **)&p, 8192));
    CUDA(cudaMalloc((void **)&d, 8192));
    SAY(cudaMallocManaged((void **)&d, 0));
    SAY(cudaMallocManaged((void **)nullptr, 16));
    void *q;
    SAY(cudaMallocManaged(&q, 16, 0));
    SAY(cudaMallocManaged(&q, 16, 3));
    SAY(cudaMallocManaged(&q, 16, cudaMemAttachHost));
    SAY(cudaFree(q));
    SAY(prefetch(d, 64, 0, 0));
    SAY(prefetch(host, 16, 0, 0));
    SAY(prefetch(p, 0, 0, 0));
    SAY(prefetch(p, 16384, 0, 0));
    SAY(prefetch(p, 64, 99, 0));
    SAY(advise(d, 64, cudaMemAdviseSetReadMostly, 0));
    SAY(advise(p, 0, cudaMemAdviseSetReadMostly, 0));
    SAY(advise(p, 16384, cudaMemAdviseSetReadMostly, 0));
    SAY(advise(p, 64, (cudaMemoryAdvise)99, 0));
    SAY(advise(p, 64, cudaMemAdviseSetPreferredLocation, 99));
    SAY(advise(p, 64, cudaMemAdviseSetReadMostly, 99));
    SAY(cuMemRangeGetAttribute(&v, 3, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, (CUdeviceptr)p, 64));
    SAY(cuMemRangeGetAttribute(&v, 8, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, (CUdeviceptr)p, 64));
    SAY(cuMemRangeGetAttribute(nullptr, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, (CUdeviceptr)p, 64));
    SAY(cuMemRangeGetAttribute(&v, 4, (CUmem_range_attribute)99, (CUdeviceptr)p, 64));
    SAY(cuMemRangeGetAttribute(&v, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, (CUdeviceptr)d, 64));
    SAY(cuMemRangeGetAttribute(&v, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, (CUdeviceptr)p, 0));
    SAY(cuMemRangeGetAttribute(&v, 6, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, (CUdeviceptr)p, 64));
    SAY(cuMemRangeGetAttribute(&v, 0, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, (CUdeviceptr)p, 64));
    SAY(cudaStreamAttachMemAsync(0, (void *)d, 0, cudaMemAttachGlobal));
    SAY(cudaStreamAttachMemAsync(0, (void *)p, 0, cudaMemAttachSingle));
    (void)cudaGetLastError();
    CUDA(cudaFree(p));
    CUDA(cudaFree(d));
}

// Memory of a destroyed context is nobody's, of whatever size.
static void ended()
{
    CUcontext before, own;
    CUdeviceptr p[2];
    unsigned type;
    CU(cuCtxGetCurrent(&before));
#if CUDA_VERSION >= 13000
    CU(cuCtxCreate(&own, nullptr, 0, 0));
#else
    CU(cuCtxCreate(&own, 0, 0));
#endif
    CU(cuMemAllocManaged(&p[0], 8192, CU_MEM_ATTACH_GLOBAL));
    CU(cuMemAllocManaged(&p[1], 3 << 20, CU_MEM_ATTACH_GLOBAL));
    *(int *)p[0] = *(int *)p[1] = 5;
    CU(cuCtxDestroy(own));
    CU(cuCtxSetCurrent(before));
    SAY(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p[0]));
    SAY(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p[1]));
    SAY(cuMemFree(p[0]));
    SAY(cuMemFree(p[1]));
}

int main()
{
    note_device();
    CUDA(cudaFree(0));
    int can = 0;
    CUDA(cudaDeviceGetAttribute(&can, cudaDevAttrManagedMemory, 0));
    if (!can) {
        void *p;
        cudaError_t e = cudaMallocManaged(&p, 16);
        note("no managed memory here: %s", cudaGetErrorName(e));
        return e == cudaErrorNotSupported ? 77 : 1;
    }
    both_sides();
    list();
    attributes();
    hints();
    mistakes();
    ended();
    return finish();
}
