// The driver API itself: contexts, modules from PTX and fatbin, every form of launch, pointers,
// memory, errors.
#include "driver.h"

#include <vector>

// triple is what a PTX-writing program would pass: text, loaded as it stands.
static const char triple[] = ".version 6.4\n"
                             ".target sm_50\n"
                             ".address_size 64\n"
                             ".visible .entry triple(.param .u64 p, .param .u32 n)\n"
                             "{\n"
                             "  .reg .pred %q; .reg .b32 %r<6>; .reg .b64 %d<4>;\n"
                             "  ld.param.u64 %d1, [p];\n"
                             "  ld.param.u32 %r1, [n];\n"
                             "  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;\n"
                             "  mad.lo.s32 %r2, %r2, %r3, %r4;\n"
                             "  setp.ge.u32 %q, %r2, %r1;\n"
                             "  @%q bra DONE;\n"
                             "  cvta.to.global.u64 %d1, %d1;\n"
                             "  mul.wide.u32 %d2, %r2, 4;\n"
                             "  add.s64 %d1, %d1, %d2;\n"
                             "  ld.global.u32 %r5, [%d1];\n"
                             "  mul.lo.u32 %r5, %r5, 3;\n"
                             "  st.global.u32 [%d1], %r5;\n"
                             "DONE:\n"
                             "  ret;\n"
                             "}\n";

static CUdevice device;

static void devices()
{
    int count = 0, version = 0, value = 0;
    char name[256];
    size_t total = 0;
    CUuuid uuid;
    CUdevice d;
    printf("before cuInit: %s\n", name_of(cuDeviceGetCount(&count)));
    CU(cuInit(0));
    printf("cuInit with flags: %s\n", name_of(cuInit(1)));
    CU(cuDriverGetVersion(&version));
    CU(cuDeviceGetCount(&count));
    CU(cuDeviceGet(&device, 0));
    CU(cuDeviceGetName(name, sizeof name, device));
    CU(cuDeviceTotalMem(&total, device));
    CU(cuDeviceGetUuid(&uuid, device));
    note("driver %d, %d devices, %s, %zu bytes", version, count, name, total);
    expect(version >= 11080 && count >= 1 && total > 0, "device");
    CU(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, device));
    printf("warp size: %d\n", value);
    CU(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, device));
    printf("threads per block: %d\n", value);
    printf("device 99: %s\n", name_of(cuDeviceGet(&d, 99)));
    printf("attribute 9999: %s\n", name_of(cuDeviceGetAttribute(&value, (CUdevice_attribute)9999, device)));
    printf("no context yet: %s\n", name_of(cuCtxSynchronize()));
}

static void contexts(CUcontext *primary)
{
    CUcontext current = (CUcontext)1, popped = nullptr, again = nullptr, other = nullptr;
    CUdevice d = -1;
    unsigned flags = 0;
    int active = 0;
    CU(cuCtxGetCurrent(&current));
    expect(current == nullptr, "no current context");
    CU(cuDevicePrimaryCtxRetain(primary, device));
    CU(cuDevicePrimaryCtxRetain(&again, device));
    expect(again == *primary, "primary context is one");
    CU(cuDevicePrimaryCtxRelease(device));
    CU(cuDevicePrimaryCtxGetState(device, &flags, &active));
    expect(active == 1, "primary context is active");
    CU(cuCtxSetCurrent(*primary));
#if CUDA_VERSION >= 13000
    CU(cuCtxCreate(&other, nullptr, CU_CTX_SCHED_BLOCKING_SYNC, device));
#else
    CU(cuCtxCreate(&other, CU_CTX_SCHED_BLOCKING_SYNC, device));
#endif
    CU(cuCtxGetCurrent(&current));
    expect(current == other && other != *primary, "a created context is current");
    CU(cuCtxGetFlags(&flags));
    printf("its scheduling flags: %u\n", flags & CU_CTX_SCHED_MASK);
    CU(cuCtxPopCurrent(&popped));
    CU(cuCtxGetCurrent(&current));
    expect(popped == other && current == *primary, "pop uncovers the one below");
    CU(cuCtxPushCurrent(other));
    CU(cuCtxGetDevice(&d));
    expect(d == device, "device of the context");
    CUdeviceptr p;
    CU(cuMemAlloc(&p, 1000));
    CU(cuMemsetD8(p, 1, 1000));
    CU(cuCtxSynchronize());
    CU(cuCtxDestroy(other));
    CU(cuCtxGetCurrent(&current));
    expect(current == *primary, "destroying the current context uncovers the one below");
}

static void check_scaled(CUdeviceptr p, int n, int factor, int add, const char *what)
{
    std::vector<int> h(n);
    CU(cuMemcpyDtoH(h.data(), p, n * sizeof(int)));
    bool good = true;
    for (int i = 0; i < n; i++)
        good = good && h[i] == i * factor + add;
    expect(good, what);
}

static void launches()
{
    const int n = 1000;
    std::vector<int> h(n);
    for (int i = 0; i < n; i++)
        h[i] = i;
    CUdeviceptr p;
    CU(cuMemAlloc(&p, n * sizeof(int)));
    CU(cuMemcpyHtoD(p, h.data(), n * sizeof(int)));

    CUmodule ptx, fat;
    CUfunction f;
    CU(cuModuleLoadData(&ptx, triple));
    CU(cuModuleGetFunction(&f, ptx, "triple"));
    unsigned count = n;
    void *params[] = {&p, &count};
    CU(cuLaunchKernel(f, 8, 1, 1, 128, 1, 1, 0, nullptr, params, nullptr));
    check_scaled(p, n, 3, 0, "PTX text, parameter array");

    CU(cuModuleLoadDataEx(&fat, driverapi_fatbin, 0, nullptr, nullptr));
    CU(cuModuleGetFunction(&f, fat, "scale"));
    struct {
        CUdeviceptr p;
        int n, add;
    } packed = {p, n, 7};
    size_t size = sizeof packed;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
    CU(cuLaunchKernel(f, 8, 1, 1, 128, 1, 1, 0, nullptr, nullptr, extra));
    check_scaled(p, n, 9, 7, "fatbin, packed buffer");

    CUlaunchAttribute attribute;
    memset(&attribute, 0, sizeof attribute);
    attribute.id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
    attribute.value.priority = 0;
    CUlaunchConfig config;
    memset(&config, 0, sizeof config);
    config.gridDimX = 8;
    config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = 128;
    config.blockDimY = config.blockDimZ = 1;
    config.attrs = &attribute;
    config.numAttrs = 1;
    CUstream stream;
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    config.hStream = stream;
    int add = 1, elements = n;
    void *params3[] = {&p, &elements, &add};
    CU(cuLaunchKernelEx(&config, f, params3, nullptr));
    CU(cuStreamSynchronize(stream));
    check_scaled(p, n, 27, 22, "cuLaunchKernelEx with an attribute");

    CUdeviceptr symbol;
    int touched = 0;
    CU(cuModuleGetGlobal(&symbol, &size, fat, "touched"));
    CU(cuMemcpyDtoH(&touched, symbol, sizeof touched));
    printf("touched: %d in %zu bytes\n", touched, size);
    expect(touched == 7 && size == 4, "module variable");

    CU(cuModuleGetFunction(&f, fat, "mixed"));
    char a = 4;
    short b = 3;
    double c = 2;
    int d = 1;
    long long result = 0;
    void *params5[] = {&a, &p, &b, &c, &d};
    CU(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, stream, params5, nullptr));
    CU(cuStreamSynchronize(stream));
    CU(cuMemcpyDtoH(&result, p, sizeof result));
    printf("mixed parameters: %lld\n", result);
    expect(result == 1234, "padding between parameters");

    for (int i = 0; i < 256; i++)
        h[i] = i;
    CU(cuMemcpyHtoD(p, h.data(), 256 * sizeof(int)));
    CU(cuModuleGetFunction(&f, fat, "shared_sum"));
    CUdeviceptr sum = p + 512 * sizeof(int);
    void *params2[] = {&p, &sum};
    CU(cuLaunchKernel(f, 1, 1, 1, 256, 1, 1, 256 * sizeof(int), stream, params2, nullptr));
    CU(cuStreamSynchronize(stream));
    CU(cuMemcpyDtoH(&touched, sum, sizeof touched));
    printf("shared sum: %d\n", touched);
    int value = 0, blocks = 0;
    CU(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, f));
    expect(touched == 255 * 128 && value == 1024, "dynamic shared memory");
    CU(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 256, 1024));
    expect(blocks >= 1, "occupancy");
    int grid = 0, block = 0;
    CU(cuOccupancyMaxPotentialBlockSize(&grid, &block, f, nullptr, 0, 0));
    expect(grid >= 1 && block >= 32, "suggested block size");

    CUfunction absent;
    printf("kernel that is not there: %s\n", name_of(cuModuleGetFunction(&absent, fat, "absent")));
    printf("variable that is not there: %s\n", name_of(cuModuleGetGlobal(&symbol, &size, fat, "absent")));
    printf("too many threads: %s\n", name_of(cuLaunchKernel(f, 1, 1, 1, 2048, 1, 1, 0, stream, params2, nullptr)));
    CUmodule bad;
    printf("PTX with a mistake: %s\n", name_of(cuModuleLoadData(&bad, ".version 6.4\n.target sm_50\n.address_size 64\nnonsense;\n")));
    CU(cuModuleUnload(ptx));
    CU(cuModuleUnload(fat));
    CU(cuStreamDestroy(stream));
    CU(cuMemFree(p));
}

static void memory(CUcontext primary)
{
    CUdeviceptr p, base, pitched, q;
    size_t size = 0, pitch = 0, free_bytes = 0, total = 0;
    CU(cuMemAlloc(&p, 1 << 16));
    CU(cuMemGetAddressRange(&base, &size, p + 1000));
    expect(base == p && size == 1 << 16, "address range");
    CUmemorytype type = (CUmemorytype)0;
    CUcontext context = nullptr;
    CUdeviceptr as_device = 0;
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_CONTEXT,
                                   CU_POINTER_ATTRIBUTE_DEVICE_POINTER};
    void *data[] = {&type, &context, &as_device};
    CU(cuPointerGetAttributes(3, which, data, p + 100));
    expect(type == CU_MEMORYTYPE_DEVICE && context == primary && as_device == p + 100, "pointer attributes");
    CUdeviceptr start = 0;
    CU(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p + 100));
    expect(start == p, "range of a pointer");
    int on_stack;
    printf("attribute of a stack variable: %s\n",
           name_of(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)&on_stack)));
    type = (CUmemorytype)99;
    CU(cuPointerGetAttributes(3, which, data, (CUdeviceptr)&on_stack));
    expect(type == 0 && as_device == 0, "attributes of a stack variable");

    uint32_t words[16];
    CU(cuMemsetD32(p, 0x01020304, 16));
    CU(cuMemsetD16(p + 4, 0x0506, 3));
    CU(cuMemsetD8(p + 12, 7, 5));
    CU(cuMemcpyDtoD(p + 4096, p, 64));
    CU(cuMemcpyDtoH(words, p + 4096, 64));
    printf("memsets: %08x %08x %08x %08x %08x %08x\n", words[0], words[1], words[2], words[3], words[4], words[5]);
    CU(cuMemAllocPitch(&pitched, &pitch, 100, 10, 4));
    CU(cuMemsetD2D8(pitched, pitch, 9, 100, 10));
    uint8_t rows[30];
    CUDA_MEMCPY2D copy;
    memset(&copy, 0, sizeof copy);
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = pitched;
    copy.srcPitch = pitch;
    copy.srcXInBytes = 95;
    copy.srcY = 4;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = rows;
    copy.dstPitch = 5;
    copy.WidthInBytes = 5;
    copy.Height = 6;
    CU(cuMemcpy2D(&copy));
    bool good = true;
    for (int i = 0; i < 30; i++)
        good = good && rows[i] == 9;
    expect(good, "2D memset and copy");
    void *host;
    CU(cuMemHostAlloc(&host, 8192, CU_MEMHOSTALLOC_PORTABLE));
    CU(cuMemcpyDtoHAsync(host, p, 64, nullptr));
    CU(cuStreamSynchronize(nullptr));
    expect(memcmp(host, words, 64) == 0, "asynchronous copy to host");
    CU(cuMemFreeHost(host));
    CU(cuMemGetInfo(&free_bytes, &total));
    expect(free_bytes > 0 && free_bytes <= total, "memory info");
    printf("allocation of nothing: %s\n", name_of(cuMemAlloc(&q, 0)));
    printf("allocation of too much: %s\n", name_of(cuMemAlloc(&q, (size_t)1 << 50)));
    printf("free of a pointer inside: %s\n", name_of(cuMemFree(p + 16)));
    CU(cuMemFree(p));
    printf("free twice: %s\n", name_of(cuMemFree(p)));
    CU(cuMemFree(pitched));
}

static void events()
{
    CUevent a, b;
    CUstream s;
    float ms = -1;
    CU(cuStreamCreate(&s, CU_STREAM_DEFAULT));
    CU(cuEventCreate(&a, CU_EVENT_DEFAULT));
    CU(cuEventCreate(&b, CU_EVENT_BLOCKING_SYNC));
    CU(cuEventRecord(a, s));
    CU(cuEventRecord(b, s));
    CU(cuStreamWaitEvent(nullptr, b, 0));
    CU(cuEventSynchronize(b));
    CU(cuEventQuery(a));
    CU(cuStreamQuery(s));
    CU(cuEventElapsedTime(&ms, a, b));
    expect(ms >= 0, "events");
    CU(cuEventDestroy(a));
    CU(cuEventDestroy(b));
    CU(cuStreamDestroy(s));
}

static void lookups()
{
    void *f = nullptr;
#if CUDA_VERSION >= 12000
    CUdriverProcAddressQueryResult found;
    CU(cuGetProcAddress("cuMemAlloc", &f, 11080, CU_GET_PROC_ADDRESS_DEFAULT, &found));
#else
    CU(cuGetProcAddress("cuMemAlloc", &f, 11080, CU_GET_PROC_ADDRESS_DEFAULT));
#endif
    CUdeviceptr p = 0;
    CU(((CUresult(*)(CUdeviceptr *, size_t))f)(&p, 64));
    expect(p != 0, "entry point by name works");
    CU(cuMemFree(p));
    const int codes[] = {0, 1, 2, 3, 100, 101, 200, 201, 209, 218, 301, 400, 500, 600, 700, 719, 801, 999};
    for (int c : codes) {
        const char *text = nullptr;
        cuGetErrorString((CUresult)c, &text);
        printf("%d %s: %s\n", c, name_of((CUresult)c), text ? text : "(none)");
    }
    const char *text = "";
    printf("code 12345: %s\n", name_of(cuGetErrorString((CUresult)12345, &text)));
}

int main()
{
    CUcontext primary = nullptr;
    devices();
    contexts(&primary);
    launches();
    memory(primary);
    events();
    lookups();
    CU(cuDevicePrimaryCtxRelease(device));
    return finish();
}
