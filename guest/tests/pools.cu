// Memory pools: properties, statistics, the current pool of a device, access, what is refused; IPC
// within one process.
// needs: cuda 11.8
#include "driver.h"

static CUdevice device;
static CUstream stream;

static CUmemPoolProps props()
{
    CUmemPoolProps p = {};
    p.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return p;
}

static const char *create(CUmemPoolProps p)
{
    CUmemoryPool pool;
    CUresult r = cuMemPoolCreate(&pool, &p);
    if (r == CUDA_SUCCESS)
        CU(cuMemPoolDestroy(pool));
    return name_of(r);
}

static void creation()
{
    CUmemPoolProps p = props();
    printf("create: %s\n", create(p));
    p.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    printf("create, shareable: %s\n", create(p));
    p.handleTypes = CU_MEM_HANDLE_TYPE_WIN32;
    printf("create for another system: %s\n", create(p));
    p = props();
    p.allocType = CU_MEM_ALLOCATION_TYPE_INVALID;
    printf("create of no type: %s\n", create(p));
    p = props();
    p.location.id = 99;
    printf("create on device 99: %s\n", create(p));
}

static unsigned long long count(CUmemoryPool pool, CUmemPool_attribute a)
{
    cuuint64_t v = 99;
    CU(cuMemPoolGetAttribute(pool, a, &v));
    return v;
}

static void statistics(CUmemoryPool pool)
{
    CUdeviceptr p, q;
    cuuint64_t keep = UINT64_MAX, zero = 0, five = 5;
    int on = -1;
    CU(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &on));
    printf("opportunistic reuse: %d\n", on);
    printf("release threshold: %llu\n", count(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD));
    CU(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
    printf("release threshold is the greatest: %d\n", count(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) == UINT64_MAX);
    CU(cuMemAllocFromPoolAsync(&p, 4 << 20, pool, stream));
    CU(cuMemAllocFromPoolAsync(&q, 2 << 20, pool, stream));
    printf("used: %llu, most: %llu\n", count(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), count(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH));
    CU(cuMemsetD8Async(p, 7, 4 << 20, stream));
    CU(cuMemFreeAsync(q, stream));
    CU(cuStreamSynchronize(stream));
    printf("used: %llu, most: %llu\n", count(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), count(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH));
    expect(count(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= 4 << 20, "reserved");
    printf("set the most used to five: %s\n", name_of(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &five)));
    CU(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
    printf("most used: %llu\n", count(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH));
    printf("attribute 99: %s\n", name_of(cuMemPoolGetAttribute(pool, (CUmemPool_attribute)99, &keep)));
    CU(cuMemFreeAsync(p, stream));
    CU(cuStreamSynchronize(stream));
    CU(cuMemPoolTrimTo(pool, 0));
    printf("after trimming: used %llu, reserved %llu\n", count(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT),
           count(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
}

static void pointers(CUmemoryPool pool, CUmemoryPool own)
{
    CUdeviceptr p, q;
    CUmemoryPool of = nullptr;
    CUcontext c = (CUcontext)1;
    CU(cuMemAllocFromPoolAsync(&p, 4 << 20, own, stream));
    CU(cuMemAllocAsync(&q, 1 << 20, stream));
    CU(cuStreamSynchronize(stream));
    CU(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p));
    expect(of == own, "pool of a pointer");
    CU(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, q));
    expect(of == pool, "default pool of a pointer");
    CU(cuPointerGetAttribute(&c, CU_POINTER_ATTRIBUTE_CONTEXT, p));
    expect(c == nullptr, "memory of no context");
    CU(cuMemFreeAsync(p, stream));
    CU(cuMemFree(q));
    CU(cuMemAllocFromPoolAsync(&p, 1 << 20, own, stream));
    CU(cuMemFree(p));
}

static void current(CUmemoryPool pool)
{
    CUmemoryPool now = nullptr, own;
    CUmemPoolProps pp = props();
    CUdeviceptr p;
    CU(cuMemPoolCreate(&own, &pp));
    CU(cuDeviceGetMemPool(&now, device));
    expect(now == pool, "the default pool is current");
    CU(cuDeviceSetMemPool(device, own));
    CU(cuDeviceGetMemPool(&now, device));
    expect(now == own, "another pool is current");
    CU(cuMemAllocAsync(&p, 1 << 20, stream));
    CU(cuStreamSynchronize(stream));
    printf("used of it: %llu\n", count(own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
    pointers(own, own);
    CU(cuMemPoolDestroy(own));
    CU(cuDeviceGetMemPool(&now, device));
    expect(now == pool, "the default pool is current again");
    CU(cuMemsetD8(p, 1, 1 << 20)); // outlives its pool
    CU(cuCtxSynchronize());
    CU(cuMemFreeAsync(p, stream));
    CU(cuStreamSynchronize(stream));
    printf("destroy the default pool: %s\n", name_of(cuMemPoolDestroy(pool)));
}

static void access(CUmemoryPool own)
{
    CUmemLocation l = {};
    CUmemAccess_flags f = (CUmemAccess_flags)99;
    CUmemAccessDesc d = {};
    l.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CU(cuMemPoolGetAccess(&f, own, &l));
    printf("access of its device: %d\n", (int)f);
    l.id = 99;
    printf("access of device 99: %s\n", name_of(cuMemPoolGetAccess(&f, own, &l)));
    d.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    d.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    printf("give it to its device: %s\n", name_of(cuMemPoolSetAccess(own, &d, 1)));
    d.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    printf("take it from its device: %s\n", name_of(cuMemPoolSetAccess(own, &d, 1)));
    d.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
    printf("let its device read only: %s\n", name_of(cuMemPoolSetAccess(own, &d, 1)));
    d.location.id = 99;
    printf("give it to device 99: %s\n", name_of(cuMemPoolSetAccess(own, &d, 1)));
}

static void sharing(CUmemoryPool pool, CUmemoryPool own)
{
    CUdeviceptr plain, pooled, p;
    CUipcMemHandle h, junk = {};
    CUmemPoolPtrExportData data;
    CUevent e;
    CUipcEventHandle eh;
    int fd;
    CU(cuMemAlloc(&plain, 1 << 20));
    CU(cuMemAllocAsync(&pooled, 1 << 20, stream));
    CU(cuStreamSynchronize(stream));
    CU(cuIpcGetMemHandle(&h, plain));
    printf("handle of an address within: %s\n", name_of(cuIpcGetMemHandle(&h, plain + 4096)));
    printf("handle of pool memory: %s\n", name_of(cuIpcGetMemHandle(&h, pooled)));
    printf("handle of nothing: %s\n", name_of(cuIpcGetMemHandle(&h, 0)));
    CU(cuIpcGetMemHandle(&h, plain));
    printf("open one's own: %s\n", name_of(cuIpcOpenMemHandle(&p, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)));
    printf("open without flags: %s\n", name_of(cuIpcOpenMemHandle(&p, h, 0)));
    printf("open junk: %s\n", name_of(cuIpcOpenMemHandle(&p, junk, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)));
    printf("close one's own: %s\n", name_of(cuIpcCloseMemHandle(plain)));
    CU(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    printf("handle of a plain event: %s\n", name_of(cuIpcGetEventHandle(&eh, e)));
    CU(cuEventDestroy(e));
    printf("event for others, with timing: %s\n", name_of(cuEventCreate(&e, CU_EVENT_INTERPROCESS)));
    memset(&eh, 0, sizeof eh);
    printf("open a junk event: %s\n", name_of(cuIpcOpenEventHandle(&e, eh)));
    printf("export the default pool: %s\n", name_of(cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)));
    printf("export a pool that is not shareable: %s\n",
           name_of(cuMemPoolExportToShareableHandle(&fd, own, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)));
    printf("export a pointer of the default pool: %s\n", name_of(cuMemPoolExportPointer(&data, pooled)));
    printf("export a plain pointer: %s\n", name_of(cuMemPoolExportPointer(&data, plain)));
    printf("import another file as a pool: %s\n",
           name_of(cuMemPoolImportFromShareableHandle(&own, (void *)1, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)));
    CU(cuMemFree(plain));
    CU(cuMemFree(pooled));
}

int main()
{
    CUmemoryPool pool, own;
    CUmemPoolProps pp = props();
    int v = 0;
    CUDA(cudaFree(nullptr));
    CU(cuDeviceGet(&device, 0));
    CU(cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, device));
    printf("supported: %d\n", v);
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuDeviceGetDefaultMemPool(&pool, device));
    creation();
    CU(cuMemPoolCreate(&own, &pp));
    statistics(own);
    pointers(pool, own);
    current(pool);
    access(own);
    sharing(pool, own);
    CU(cuMemPoolDestroy(own));
    CU(cuStreamDestroy(stream));
    return finish();
}
