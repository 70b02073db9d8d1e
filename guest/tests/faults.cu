// What goes wrong, one case a process: usage: faults CASE (without: their names). It prints the
// code of each call after the fault; scripts/faults.sh compares them with those of a real driver,
// line by line. needs: cuda 12.9
#include "driver.h"
#include "faults.h"

// --- kernels that fault --------------------------------------------------------------------------

// So far off that nothing lies there, wherever the driver has put the allocation.
static int *beyond(int bit) { return (int *)((uintptr_t)d ^ (uintptr_t)1 << bit); }
static void oob() { store<<<1, 1>>>(beyond(45), 1); }
static void oob_load() { load<<<1, 1>>>(beyond(44), d); }
static void null_pointer() { store<<<1, 1>>>(nullptr, 1); }
static void host_pointer() { store<<<1, 1>>>(host, 1); }
static void misaligned() { store<<<1, 1>>>((int *)((char *)d + 1), 1); }
static void misaligned64() { store64<<<1, 1>>>((long long *)(d + 1)); }
static void trapped() { trap<<<1, 1>>>(); }
static void broke() { breakpoint<<<1, 1>>>(); }
static void asserted() { check<<<2, 4>>>(8); }
static void out_of_shared() { shared_out<<<1, 1, 64>>>(1 << 20, d); }
static void shared_odd() { shared_misaligned<<<1, 64>>>(1, d); }
static void bad_jump() { jump<<<1, 1>>>((function)0x8, d); }
static void stack() { overflow<<<1, 1>>>(d); }
static void used_after_free()
{
    int *p;
    CUDA(cudaMalloc(&p, 64 << 20));
    CUDA(cudaFree(p));
    store<<<1, 1>>>(p, 1);
}
static void late()
{
    spin<<<1, 1, 0, other>>>(100000000);
    store<<<1, 1, 0, other>>>(nullptr, 1);
    CUDA(cudaEventRecord(event, other));
    SAY(cudaEventSynchronize(event));
}

static void faulting(void (*fault)())
{
    prepare();
    fault();
    note("launch: %d", (int)cudaPeekAtLastError());
    after();
}

// --- mistakes that stay without consequences -----------------------------------------------------

static void good()
{
    int v = 0;
    store<<<1, 1>>>(d, 5);
    SAY(cudaGetLastError());
    SAY(cudaMemcpy(&v, d, 4, cudaMemcpyDeviceToHost));
    line("value", v);
}

static void out_of_memory()
{
    prepare();
    size_t f, t;
    void *p;
    CUDA(cudaMemGetInfo(&f, &t));
    SAY(cudaMalloc(&p, t + (t >> 2)));
    SAY(cudaGetLastError());
    SAY(cudaMallocAsync(&p, t + (t >> 2), other));
    SAY(cudaGetLastError());
    size_t pitch;
    SAY(cudaMallocPitch(&p, &pitch, 1 << 20, 1 << 20));
    SAY(cudaGetLastError());
    SAY(cudaMalloc(&p, (size_t)-1));
    SAY(cudaMalloc(&p, 0));
    good();
}

static void double_free()
{
    prepare();
    int *p;
    CUDA(cudaMalloc(&p, 64));
    SAY(cudaFree(p));
    SAY(cudaFree(p));
    SAY(cudaGetLastError());
    SAY(cudaFree(d + 1));
    SAY(cudaFree(host));
    SAY(cudaFreeHost(host));
    SAY(cudaFreeHost(d));
    SAY(cudaFree(pinned));
    SAY(cudaFreeHost(pinned));
    SAY(cudaFreeHost(pinned));
    SAY(cudaFreeAsync(p, other));
    SAY(cudaGetLastError());
    SAY(cuMemFree((CUdeviceptr)p));
    SAY(cuMemFreeHost(host));
    SAY(cudaHostUnregister(host));
    good();
}

static void bad_copies()
{
    prepare();
    static char big[8192];
    SAY(cudaMemcpy(d, big, 8192, cudaMemcpyHostToDevice));
    SAY(cudaMemcpy(big, d, 8192, cudaMemcpyDeviceToHost));
    SAY(cudaMemcpy((void *)0x1234, big, 4, cudaMemcpyHostToDevice));
    SAY(cudaMemcpy(d, d + (1 << 28), 4, cudaMemcpyDeviceToDevice));
    SAY(cudaMemset(d, 0, 8192));
    SAY(cudaMemset((void *)0x1234, 0, 4));
    SAY(cudaMemcpy(host, d, 4, cudaMemcpyHostToDevice));
    SAY(cudaGetLastError());
    good();
}

// Handles that are gone: a real driver checks some, crashes on others. Each case ends with what
// still works.
static void destroyed_stream()
{
    prepare();
    SAY(cudaStreamDestroy(third));
    store<<<1, 1, 0, third>>>(d, 1);
    SAY(cudaGetLastError());
    SAY(cudaStreamSynchronize(third));
    SAY(cudaStreamQuery(third));
    SAY(cudaEventRecord(event, third));
    SAY(cudaMemsetAsync(d, 0, 64, third));
    SAY(cudaStreamDestroy(third));
    (void)cudaGetLastError();
    good();
}

static void destroyed_event()
{
    prepare();
    SAY(cudaEventDestroy(fresh));
    SAY(cudaEventRecord(fresh, other));
    SAY(cudaEventQuery(fresh));
    SAY(cudaEventSynchronize(fresh));
    SAY(cudaStreamWaitEvent(other, fresh, 0));
    SAY(cudaEventDestroy(fresh));
    (void)cudaGetLastError();
    good();
}

static void destroyed_module()
{
    prepare();
    CUmodule m;
    CUfunction f, g;
    CU(cuModuleLoadData(&m, driverapi_fatbin));
    CU(cuModuleGetFunction(&f, m, "scale"));
    SAY(cuModuleUnload(m));
    SAY(cuModuleGetFunction(&g, m, "scale"));
    SAY(cuModuleUnload(m));
    good();
}

static void destroyed_function()
{
    prepare();
    CUmodule m;
    CUfunction f;
    CU(cuModuleLoadData(&m, driverapi_fatbin));
    CU(cuModuleGetFunction(&f, m, "scale"));
    SAY(cuModuleUnload(m));
    int n = 0;
    void *args[] = {&d, &n, &n};
    SAY(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, nullptr, args, nullptr));
    good();
}

static void destroyed_context()
{
    prepare();
    CUcontext mine, now;
    CUstream s;
    CUevent e;
    CUdeviceptr p, q;
    CUmodule m;
    CUfunction f;
    CU(cuCtxCreate_v2(&mine, 0, 0));
    CU(cuStreamCreate(&s, 0));
    CU(cuEventCreate(&e, 0));
    CU(cuMemAlloc(&p, 64));
    CU(cuModuleLoadData(&m, driverapi_fatbin));
    CU(cuModuleGetFunction(&f, m, "scale"));
    SAY(cuCtxDestroy(mine));
    SAY(cuCtxGetCurrent(&now));
    SAY(cuMemFree(p));
    SAY(cuMemAlloc(&q, 64));
    SAY(cuCtxSetCurrent(mine));
    SAY(cuCtxPushCurrent(mine));
    SAY(cuCtxDestroy(mine));
    good();
}

static void invalid_handles()
{
    prepare();
    void *junk = malloc(4096);
    memset(junk, 0x5a, 4096);
    SAY(cuStreamSynchronize((CUstream)junk));
    SAY(cuEventSynchronize((CUevent)junk));
    SAY(cuStreamSynchronize((CUstream)3));
    SAY(cuEventQuery(nullptr));
    CUfunction f;
    SAY(cuModuleGetFunction(&f, nullptr, "scale"));
    SAY(cuModuleUnload(nullptr));
    SAY(cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
    SAY(cuCtxSetCurrent((CUcontext)junk));
    SAY(cuCtxDestroy(nullptr));
    SAY(cuMemFree(0x1234));
    CUdevice dev;
    SAY(cuDeviceGet(&dev, 1000));
    SAY(cuDeviceGet(&dev, -1));
    good();
}

static void launch_limits()
{
    prepare();
    float *p = (float *)d;
    int v = 0;
    nothing<<<1, 1025>>>();
    SAY(cudaGetLastError());
    nothing<<<1, dim3(1, 1, 65)>>>();
    SAY(cudaGetLastError());
    nothing<<<dim3(1, 65536), 1>>>();
    SAY(cudaGetLastError());
    nothing<<<1, 1, 64 << 10>>>();
    SAY(cudaGetLastError());
    nothing<<<1, 1, 1 << 30>>>();
    SAY(cudaGetLastError());
    nothing<<<0, 1>>>();
    SAY(cudaGetLastError());
    SAY(cudaFuncSetAttribute(nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 20));
    SAY(cudaFuncSetAttribute(nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, 96 << 10));
    nothing<<<1, 1, 96 << 10>>>();
    SAY(cudaGetLastError());
    void *args[] = {&p};
    SAY(cudaLaunchCooperativeKernel(many_registers, dim3(100000), dim3(1024), args, 0, other));
    SAY(cudaLaunchKernel((const void *)&v, dim3(1), dim3(1), args, 0, other));
    CUfunction f;
    SAY(cudaGetFuncBySymbol(&f, (const void *)many_registers));
    SAY(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
    (void)cudaGetLastError();
    good();
}

static void bad_images()
{
    prepare();
    CUmodule m;
    CUlibrary l;
    static char junk[4096];
    memset(junk, 'x', sizeof junk - 1);
    SAY(cuModuleLoadData(&m, junk));
    SAY(cuModuleLoadData(&m, ".version 9.9\n.target sm_75\n.address_size 64\n"));
    SAY(cuModuleLoadData(&m, ".version 6.4\n.target sm_75\n.address_size 64\n.visible .entry f() { bogus.u32 %r1; ret; }\n"));
    SAY(cuModuleLoad(&m, "/nonexistent"));
    SAY(cuLibraryLoadData(&l, junk, nullptr, nullptr, 0, nullptr, nullptr, 0));
    CU(cuModuleLoadData(&m, driverapi_fatbin));
    CUfunction f;
    CUdeviceptr p;
    size_t n;
    SAY(cuModuleGetFunction(&f, m, "no_such_function"));
    SAY(cuModuleGetGlobal(&p, &n, m, "no_such_global"));
    good();
}

static void in_child()
{
    prepare();
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        void *p;
        int n = 0;
        CUcontext c;
        CUdeviceptr q;
        SAY(cudaMalloc(&p, 64));
        SAY(cudaDeviceSynchronize());
        SAY(launch());
        SAY(cudaGetDeviceCount(&n));
        SAY(cuInit(0));
        SAY(cuCtxGetCurrent(&c));
        SAY(cuMemAlloc(&q, 64));
        SAY(cuCtxSynchronize());
        SAY(cuDeviceGetCount(&n));
        SAY(cuDriverGetVersion(&n));
        SAY(cudaDeviceReset());
        _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    line("child", status);
    good();
}

// A fault in one of two contexts of a process.
static void two_contexts()
{
    prepare();
    CUcontext first, mine;
    CU(cuCtxGetCurrent(&first));
    CU(cuCtxCreate_v2(&mine, 0, 0));
    CUdeviceptr p, q;
    CUmodule m;
    CU(cuMemAlloc(&p, 64));
    CU(cuModuleLoadData(&m, driverapi_fatbin));
    CU(cuMemsetD32(p, 1, 16));
    SAY(cuStreamWriteValue32(nullptr, p, 2, 0));
    CU(cuCtxSynchronize());
    CU(cuCtxSetCurrent(first));
    store<<<1, 1>>>(nullptr, 1);
    SAY(cuCtxSynchronize());
    CU(cuCtxSetCurrent(mine));
    SAY(cuCtxSynchronize());
    SAY(cuMemAlloc(&q, 64));
    SAY(cuMemsetD32(p, 1, 16));
    SAY(cuCtxSynchronize());
    SAY(cuCtxDestroy(mine));
    SAY(cuCtxSetCurrent(first));
    SAY(cuCtxSynchronize());
}

// A context of the program's own that fails, and its successor.
static void own_context()
{
    CUcontext a, b;
    CUdeviceptr p;
    CU(cuInit(0));
    CU(cuCtxCreate_v2(&a, 0, 0));
    CU(cuMemAlloc(&p, 64));
    store<<<1, 1>>>(nullptr, 1);
    SAY(cuCtxSynchronize());
    SAY(cuMemAlloc(&p, 64));
    SAY(cuCtxGetCurrent(&b));
    SAY(cuCtxDestroy(a));
    SAY(cuCtxGetCurrent(&b));
    SAY(cuCtxCreate_v2(&b, 0, 0));
    SAY(cuMemAlloc(&p, 64));
    SAY(cuMemsetD32(p, 1, 16));
    SAY(cuCtxSynchronize());
}

// --- for scripts: processes that are killed, and one that must not notice ------------------------

static void infinite()
{
    prepare();
    forever<<<1, 1>>>(d);
    CUDA(cudaGetLastError());
    printf("running\n");
    fflush(stdout);
    (void)cudaDeviceSynchronize();
}

// A host function that never returns.
static void stuck()
{
    prepare();
    CUDA(cudaLaunchHostFunc(other, [](void *) { pause(); }, nullptr));
    store<<<1, 1, 0, other>>>(d, 1);
    printf("running\n");
    fflush(stdout);
    (void)cudaStreamSynchronize(other);
}

// steady works until the file FAULTS_STOP is there, and checks every result.
static void steady()
{
    prepare();
    double end = seconds() + 120;
    int rounds = 0, wrong = 0, v = 0;
    for (; seconds() < end && access(getenv("FAULTS_STOP") ? getenv("FAULTS_STOP") : "", F_OK) != 0; rounds++) {
        store<<<1, 1, 0, other>>>(d, rounds);
        CUDA(cudaMemcpyAsync(&v, d, 4, cudaMemcpyDeviceToHost, other));
        CUDA(cudaStreamSynchronize(other));
        wrong += v != rounds;
        if (rounds == 10) {
            printf("steady\n");
            fflush(stdout);
        }
    }
    note("%d rounds", rounds);
    printf("steady: %d wrong\n", wrong);
}

// The worker of this process is killed from outside meanwhile.
static void orphan()
{
    prepare();
    printf("waiting\n");
    fflush(stdout);
    for (int i = 0; i < 1000 && cudaStreamSynchronize(other) == cudaSuccess; i++)
        usleep(10000);
    after();
}

static const struct {
    const char *name;
    void (*run)();
    void (*fault)();
} cases[] = {
    {"oob", nullptr, oob},
    {"oob_load", nullptr, oob_load},
    {"null", nullptr, null_pointer},
    {"host_pointer", nullptr, host_pointer},
    {"misaligned", nullptr, misaligned},
    {"misaligned64", nullptr, misaligned64},
    {"trap", nullptr, trapped},
    {"breakpoint", nullptr, broke},
    {"assert", nullptr, asserted},
    {"shared_oob", nullptr, out_of_shared},
    {"shared_misaligned", nullptr, shared_odd},
    {"bad_jump", nullptr, bad_jump},
    {"stack", nullptr, stack},
    {"used_after_free", nullptr, used_after_free},
    {"late", nullptr, late},
    {"out_of_memory", out_of_memory, nullptr},
    {"double_free", double_free, nullptr},
    {"bad_copies", bad_copies, nullptr},
    {"destroyed_stream", destroyed_stream, nullptr},
    {"destroyed_event", destroyed_event, nullptr},
    {"destroyed_module", destroyed_module, nullptr},
    {"destroyed_function", destroyed_function, nullptr},
    {"destroyed_context", destroyed_context, nullptr},
    {"invalid_handles", invalid_handles, nullptr},
    {"launch_limits", launch_limits, nullptr},
    {"bad_images", bad_images, nullptr},
    {"child", in_child, nullptr},
    {"two_contexts", two_contexts, nullptr},
    {"own_context", own_context, nullptr},
    {"infinite", infinite, nullptr}, // the last four need a script
    {"stuck", stuck, nullptr},
    {"steady", steady, nullptr},
    {"orphan", orphan, nullptr},
};

int main(int argc, char **argv)
{
    const rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    for (const auto &c : cases) {
        if (argc < 2) {
            printf("%s\n", c.name);
        } else if (strcmp(argv[1], c.name) == 0) {
            if (c.fault)
                faulting(c.fault);
            else
                c.run();
            return failures != 0;
        }
    }
    return argc < 2 ? 0 : 2;
}
