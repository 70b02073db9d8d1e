// What a device's attributes promise, and what they say is not there, against the calls that it is
// about. needs: cuda 13.0
#include "driver.h"

#include <atomic>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

__global__ void nothing(int *p) { *p = 1; }

// Both sides answer each other while the kernel runs, or it gives up: p[0] is the kernel's, p[1]
// the processor's, p[2] what the kernel saw of that.
__global__ void meet(volatile unsigned *p)
{
    p[0] = 1;
    __threadfence_system();
    for (int i = 0; i < 400000000 && p[1] == 0; i++)
        ;
    p[2] = p[1];
}
__global__ void count(unsigned *p, int each)
{
    for (int i = 0; i < each; i++)
        atomicAdd_system(p, 1u);
}

static CUdevice dev;
static CUstream s;
static CUdeviceptr mem; // 4 MiB of the device

static int attribute(int a)
{
    int v = 0;
    CUresult r = cuDeviceGetAttribute(&v, (CUdevice_attribute)a, dev);
    return r == CUDA_SUCCESS ? v : 0; // one that this driver does not know promises nothing
}

static CUresult create(CUmemLocationType where, unsigned long long handles, bool shared)
{
    CUmemAllocationProp p = {};
    CUmemGenericAllocationHandle h;
    size_t size = 0;
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = where;
    p.requestedHandleTypes = (CUmemAllocationHandleType)handles;
    CUresult r = cuMemGetAllocationGranularity(&size, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (!r)
        r = cuMemCreate(&h, size, &p, 0);
    if (r)
        return r;
    char handle[64];
    if (shared)
        r = cuMemExportToShareableHandle(handle, h, p.requestedHandleTypes, 0);
    if (shared && !r && handles == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        close(*(int *)handle);
    CU(cuMemRelease(h));
    return r;
}

static CUresult pool(CUmemLocationType where, unsigned long long handles)
{
    CUmemPoolProps p = {};
    CUmemoryPool made;
    p.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = where;
    p.handleTypes = (CUmemAllocationHandleType)handles;
    CUresult r = cuMemPoolCreate(&made, &p);
    if (!r)
        CU(cuMemPoolDestroy(made));
    return r;
}

static CUresult map_host()
{
    void *p;
    CUdeviceptr d;
    CUresult r = cuMemHostAlloc(&p, 4096, CU_MEMHOSTALLOC_DEVICEMAP);
    if (r)
        return r;
    r = cuMemHostGetDevicePointer(&d, p, 0);
    CU(cuMemFreeHost(p));
    return r;
}

static CUresult host_registered(unsigned flags, bool same)
{
    char *p = (char *)mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CUdeviceptr d = 0;
    CUresult r = cuMemHostRegister(p, 8192, flags);
    if (!r && same && !(r = cuMemHostGetDevicePointer(&d, p, 0)) && d != (CUdeviceptr)p)
        r = CUDA_ERROR_INVALID_VALUE;
    cuMemHostUnregister(p);
    munmap(p, 8192);
    return r;
}

static CUresult managed_memory()
{
    CUdeviceptr p;
    CUresult r = cuMemAllocManaged(&p, 4096, CU_MEM_ATTACH_GLOBAL);
    if (!r) {
        *(volatile int *)p = 1;
        CU(cuMemFree(p));
    }
    return r;
}

// As CONCURRENT_MANAGED_ACCESS has it. Memory that comes to the processor only when the kernel has
// ended fails: neither hears the other before.
static bool meet_in(unsigned *p)
{
    volatile unsigned *words = p;
    words[0] = words[1] = words[2] = 0;
    meet<<<1, 1>>>(p);
    while (words[0] == 0 && cudaStreamQuery(nullptr) == cudaErrorNotReady)
        ;
    words[1] = 7;
    CUDA(cudaDeviceSynchronize());
    return words[2] == 7;
}

// No update of either side is lost, though both count at once.
static bool count_both(unsigned *p)
{
    enum { EACH = 100, LANES = 128 };
    std::atomic<bool> stop{false};
    unsigned mine = 0;
    *p = 0;
    std::thread side([&] {
        for (; mine < 1000 || !stop; mine++)
            __atomic_fetch_add(p, 1u, __ATOMIC_SEQ_CST);
    });
    count<<<4, LANES / 4>>>(p, EACH);
    CUDA(cudaDeviceSynchronize());
    stop = true;
    side.join();
    return *(volatile unsigned *)p == mine + EACH * LANES;
}

static CUresult from_pool()
{
    CUdeviceptr p;
    CUresult r = cuMemAllocAsync(&p, 4096, s);
    return r ? r : cuMemFreeAsync(p, s);
}

static CUresult dma_buffer()
{
    int fd = -1;
    CUresult r = cuMemGetHandleForAddressRange(&fd, mem, 2 << 20, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    if (!r)
        close(fd);
    return r;
}

static CUresult launch(CUlaunchAttributeID id, int value)
{
    CUfunction f;
    CUlaunchAttribute a = {};
    CUlaunchConfig c = {};
    CUDA(cudaGetFuncBySymbol((cudaFunction_t *)&f, (const void *)nothing));
    a.id = id;
    if (id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
        a.value.clusterDim = {(unsigned)value, 1, 1};
    else
        a.value.cooperative = value;
    c.gridDimX = 2;
    c.gridDimY = c.gridDimZ = c.blockDimX = c.blockDimY = c.blockDimZ = 1;
    c.hStream = s;
    c.attrs = &a;
    c.numAttrs = 1;
    void *args[] = {&mem};
    CUresult r = cuLaunchKernelEx(&c, f, args, nullptr);
    return r ? r : cuStreamSynchronize(s);
}

static CUresult array(unsigned flags)
{
    CUarray a;
    CUDA_ARRAY3D_DESCRIPTOR d = {};
    d.Width = d.Height = 64;
    d.Format = CU_AD_FORMAT_FLOAT;
    d.NumChannels = 1;
    d.Flags = flags;
    CUresult r = cuArray3DCreate(&a, &d);
    if (!r)
        CU(cuArrayDestroy(a));
    return r;
}

static CUresult batch(CUstreamBatchMemOpType op)
{
    CUstreamBatchMemOpParams p = {};
    p.operation = op;
    return cuStreamBatchMemOp(s, 1, &p, 0);
}

static CUresult multicast()
{
    CUmulticastObjectProp p = {};
    CUmemGenericAllocationHandle h;
    p.numDevices = 2;
    p.size = 2 << 20;
    p.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUresult r = cuMulticastCreate(&h, &p);
    if (!r)
        CU(cuMemRelease(h));
    return r;
}

static CUresult ipc_event()
{
    CUevent e;
    CUipcEventHandle h;
    CU(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
    CUresult r = cuIpcGetEventHandle(&h, e);
    CU(cuEventDestroy(e));
    return r;
}

static CUresult priorities()
{
    int least = 0, greatest = 0;
    CU(cuCtxGetStreamPriorityRange(&least, &greatest));
    return greatest < least ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult wait(unsigned flags)
{
    CUresult r = cuStreamWaitValue32(s, mem, 0, flags);
    return r ? r : cuStreamSynchronize(s);
}

static CUresult decompress()
{
    CUmemDecompressParams p = {};
    return cuMemBatchDecompressAsync(&p, 1, 0, nullptr, s);
}

static bool refusal(CUresult r)
{
    return r == CUDA_ERROR_NOT_SUPPORTED || r == CUDA_ERROR_INVALID_VALUE || r == CUDA_ERROR_NOT_PERMITTED || r == CUDA_ERROR_INVALID_DEVICE;
}

// holds compares a promise with a call's result. A machine may forbid what its device can (fabric
// handles, say).
static void holds(const char *what, bool promised, CUresult r, bool may_be_forbidden = false)
{
    bool ok = promised ? r == CUDA_SUCCESS || (may_be_forbidden && r == CUDA_ERROR_NOT_PERMITTED) : refusal(r);
    note("%s: %s, %s", what, promised ? "promised" : "not promised", name_of(r));
    expect(ok, what);
}

#define HAS(name) (attribute(CU_DEVICE_ATTRIBUTE_##name) != 0)

static void host_memory()
{
    const bool mapped = HAS(CAN_MAP_HOST_MEMORY);
    holds("mapped host memory", mapped, map_host());
    holds("registered host memory", HAS(HOST_REGISTER_SUPPORTED), host_registered(0, false));
    holds("registered at its own address", HAS(CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM), host_registered(CU_MEMHOSTREGISTER_DEVICEMAP, true));
    holds("registered for reading", HAS(READ_ONLY_HOST_REGISTER_SUPPORTED), host_registered(CU_MEMHOSTREGISTER_READ_ONLY, true));
    holds("managed memory", HAS(MANAGED_MEMORY), managed_memory());
    holds("host memory by address", HAS(HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED), create(CU_MEM_LOCATION_TYPE_HOST, 0, false));
    holds("host memory of a node", HAS(HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED), create(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0, false));
    holds("pools of host memory", HAS(HOST_MEMORY_POOLS_SUPPORTED), pool(CU_MEM_LOCATION_TYPE_HOST, 0));
    holds("pools of a node", HAS(HOST_NUMA_MEMORY_POOLS_SUPPORTED), pool(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0));
}

// What is said of both sides at the same memory. Each holds where it is promised; what is not
// promised is not tried, as a kernel that runs off its memory takes the context along. Where the
// GPU would need the host's page tables, or the processor the GPU's memory, the weaker promise has
// to hold as well.
static void both_sides()
{
    const bool at_once = HAS(CONCURRENT_MANAGED_ACCESS), atomics = HAS(HOST_NATIVE_ATOMIC_SUPPORTED), pageable = HAS(PAGEABLE_MEMORY_ACCESS);
    const bool tables = HAS(PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES), direct = HAS(DIRECT_MANAGED_MEM_ACCESS_FROM_HOST);
    note("both at managed memory: %d, directly: %d, atomics: %d, memory of malloc: %d, by the host's tables: %d", at_once, direct, atomics, pageable, tables);
    unsigned *managed_words = nullptr, *pinned = nullptr;
    if (HAS(MANAGED_MEMORY))
        CUDA(cudaMallocManaged(&managed_words, 4096));
    expect(!at_once || (managed_words && meet_in(managed_words)), "managed memory while a kernel runs");
    expect(!at_once || count_both(managed_words), "atomics of both on managed memory");
    if (atomics)
        CUDA(cudaHostAlloc(&pinned, 4096, cudaHostAllocMapped));
    expect(!atomics || (meet_in(pinned) && count_both(pinned)), "atomics of both on the host's memory");
    CUDA(cudaFree(managed_words));
    if (pinned)
        CUDA(cudaFreeHost(pinned));
    int *of_malloc = (int *)malloc(4096);
    *of_malloc = 0;
    if (pageable)
        nothing<<<1, 1>>>(of_malloc);
    expect(!pageable || (cudaDeviceSynchronize() == cudaSuccess && *of_malloc == 1), "memory of malloc in a kernel");
    free(of_malloc);
    expect(!tables || pageable, "the host's page tables");
    expect(!direct || at_once, "managed memory that the processor reaches at the GPU");
}

static void sharing()
{
    const int kinds = attribute(CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES);
    holds("memory by address", HAS(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED), create(CU_MEM_LOCATION_TYPE_DEVICE, 0, false));
    holds("shared by a descriptor", HAS(HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED),
          create(CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, true));
    holds("shared over a fabric", HAS(HANDLE_TYPE_FABRIC_SUPPORTED), create(CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_HANDLE_TYPE_FABRIC, true), true);
    holds("pools", HAS(MEMORY_POOLS_SUPPORTED), from_pool());
    holds("pools shared by a descriptor", kinds & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
          pool(CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    holds("pools shared over a fabric", kinds & CU_MEM_HANDLE_TYPE_FABRIC, pool(CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_HANDLE_TYPE_FABRIC), true);
    holds("DMA buffers", HAS(DMA_BUF_SUPPORTED), dma_buffer());
    holds("flushes of other devices' writes", attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS) & 1,
          cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER));
    holds("multicast", HAS(MULTICAST_SUPPORTED), multicast());
    holds("events between processes", HAS(IPC_EVENT_SUPPORTED), ipc_event());
}

static void work()
{
    holds("priorities", HAS(STREAM_PRIORITIES_SUPPORTED), priorities());
    holds("cooperative launches", HAS(COOPERATIVE_LAUNCH), launch(CU_LAUNCH_ATTRIBUTE_COOPERATIVE, 1));
    holds("clusters", HAS(CLUSTER_LAUNCH), launch(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, 2));
    CU(cuMemsetD32(mem, 0, 1));
    holds("waits of streams", HAS(CAN_USE_64_BIT_STREAM_MEM_OPS), wait(CU_STREAM_WAIT_VALUE_EQ));
    holds("waits for any bit that is not set", HAS(CAN_USE_STREAM_WAIT_VALUE_NOR), wait(CU_STREAM_WAIT_VALUE_NOR));
    holds("waits that flush", HAS(CAN_FLUSH_REMOTE_WRITES), wait(CU_STREAM_WAIT_VALUE_GEQ | CU_STREAM_WAIT_VALUE_FLUSH));
    holds("flushes of streams", HAS(CAN_FLUSH_REMOTE_WRITES), batch(CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES));
    holds("sparse arrays", HAS(SPARSE_CUDA_ARRAY_SUPPORTED), array(CUDA_ARRAY3D_SPARSE));
    holds("arrays mapped later", HAS(DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED), array(CUDA_ARRAY3D_DEFERRED_MAPPING));
    holds("decompression", HAS(MEM_DECOMPRESS_ALGORITHM_MASK), decompress());
}

int main()
{
    note_device();
    CUDA(cudaFree(nullptr));
    CU(cuDeviceGet(&dev, 0));
    CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    CU(cuMemAlloc(&mem, 4 << 20));
    host_memory();
    sharing();
    work();
    CU(cuStreamSynchronize(s));
    CU(cuMemFree(mem));
    CU(cuStreamDestroy(s));
    both_sides();
    return finish();
}
