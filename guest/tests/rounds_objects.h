// rounds.cu's modes about objects: graphs, arrays and textures, what was set once, and functions of
// the host's in streams.
#pragma once

#include "rounds.h"

#include <cuda.h>
#include <dlfcn.h>

// captured makes a graph of two streams that part and join: a memset, copies, kernels.
static cudaGraph_t captured(cudaStream_t s, cudaStream_t side, uint32_t *d, uint32_t *other, uint32_t *back)
{
    cudaEvent_t part, join;
    cudaGraph_t g;
    CUDA(cudaEventCreateWithFlags(&part, cudaEventDisableTiming));
    CUDA(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    CUDA(cudaMemsetAsync(other, 0, N * 4, s));
    CUDA(cudaEventRecord(part, s));
    CUDA(cudaStreamWaitEvent(side, part, 0));
    step<<<GRID, BLOCK, 0, side>>>(other, N, 9);
    CUDA(cudaEventRecord(join, side));
    step<<<GRID, BLOCK, 0, s>>>(d, N, 3);
    CUDA(cudaStreamWaitEvent(s, join, 0));
    add<<<GRID, BLOCK, 0, s>>>(d, other, N);
    CUDA(cudaMemcpyAsync(back, d, N * 4, cudaMemcpyDeviceToHost, s));
    CUDA(cudaStreamEndCapture(s, &g));
    CUDA(cudaEventDestroy(part));
    CUDA(cudaEventDestroy(join));
    return g;
}

// graphs: a captured one, and one built by nodes of which one is changed in the executable graph
// each round.
static void graphs(Rounds &r)
{
    cudaStream_t s, side;
    uint32_t *d, *other, *back, *b, with = 0, n = N;
    CUDA(cudaStreamCreate(&s));
    CUDA(cudaStreamCreate(&side));
    for (uint32_t **p : {&d, &other, &b}) {
        CUDA(cudaMalloc(p, N * 4));
        CUDA(cudaMemset(*p, 0, N * 4));
    }
    CUDA(cudaMallocHost(&back, N * 4));
    cudaGraph_t g = captured(s, side, d, other, back), built;
    cudaGraphExec_t run, run_built;
    CUDA(cudaGraphInstantiateWithFlags(&run, g, 0));
    CUDA(cudaGraphCreate(&built, 0));
    void *args[] = {&b, &n, &with};
    cudaKernelNodeParams k = {};
    k.func = (void *)step;
    k.gridDim = dim3(GRID);
    k.blockDim = dim3(BLOCK);
    k.kernelParams = args;
    cudaGraphNode_t first, second;
    CUDA(cudaGraphAddKernelNode(&first, built, nullptr, 0, &k));
    CUDA(cudaGraphAddKernelNode(&second, built, &first, 1, &k));
    CUDA(cudaGraphInstantiateWithFlags(&run_built, built, 0));
    uint32_t want = 0, want_built = 0;
    std::vector<uint32_t> got(N);
    while (r.next()) {
        CUDA(cudaGraphLaunch(run, s));
        with = (uint32_t)r.n;
        CUDA(cudaGraphExecKernelNodeSetParams(run_built, second, &k));
        CUDA(cudaGraphLaunch(run_built, side));
        CUDA(cudaStreamSynchronize(s));
        CUDA(cudaStreamSynchronize(side));
        CUDA(cudaMemcpy(got.data(), b, N * 4, cudaMemcpyDeviceToHost));
        want = scramble(want, 3) + scramble(0, 9);
        want_built = scramble(scramble(want_built, 0), (uint32_t)r.n);
        r.check(all(back, std::vector<uint32_t>(N, want)) && all(got.data(), std::vector<uint32_t>(N, want_built)));
    }
}

// captures: a stream that captures all the time, which is launched in the end.
static void captures(Rounds &r)
{
    cudaStream_t s;
    cudaGraph_t g;
    cudaGraphExec_t run;
    uint32_t *d, got, want = 0, steps = 0;
    CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CUDA(cudaMalloc(&d, 4));
    CUDA(cudaMemset(d, 0, 4));
    CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    for (; r.next(); nap_ms(few ? 0 : 50)) {
        if (steps == 32)
            continue;
        step<<<1, 1, 0, s>>>(d, 1, steps);
        want = scramble(want, steps++);
    }
    CUDA(cudaStreamEndCapture(s, &g));
    CUDA(cudaGraphInstantiateWithFlags(&run, g, 0));
    CUDA(cudaGraphLaunch(run, s));
    CUDA(cudaStreamSynchronize(s));
    CUDA(cudaMemcpy(&got, d, 4, cudaMemcpyDeviceToHost));
    r.check(got == want);
    CUDA(cudaGraphExecDestroy(run));
    CUDA(cudaGraphDestroy(g));
}

enum { W = 64, H = 32 };

__global__ void through(cudaTextureObject_t picture, cudaTextureObject_t line, cudaSurfaceObject_t to, uint32_t *out)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    uint32_t v;
    surf2Dread(&v, to, x * 4, y);
    surf2Dwrite(scramble(v, 1), to, x * 4, y);
    out[y * W + x] = (uint32_t)(tex2D<float>(picture, x + 1.0f, y + 0.5f) * 2) + tex1Dfetch<uint32_t>(line, y * W + x) + v;
}

// images: a filtered texture of an array, one of linear memory, and a surface that each round
// changes.
static void images(Rounds &r)
{
    cudaArray_t a, b;
    cudaChannelFormatDesc real = cudaCreateChannelDesc<float>(), word = cudaCreateChannelDesc<uint32_t>();
    uint32_t *linear, *out, value = 0;
    std::vector<float> h(W * H);
    std::vector<uint32_t> l(W * H), zero(W * H, 0), got(W * H), want(W * H);
    for (uint32_t i = 0; i < W * H; i++)
        h[i] = (float)(i % W * 2), l[i] = mix(i);
    CUDA(cudaMallocArray(&a, &real, W, H));
    CUDA(cudaMallocArray(&b, &word, W, H, cudaArraySurfaceLoadStore));
    CUDA(cudaMalloc(&linear, W * H * 4));
    CUDA(cudaMalloc(&out, W * H * 4));
    CUDA(cudaMemcpy2DToArray(a, 0, 0, h.data(), W * 4, W * 4, H, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy2DToArray(b, 0, 0, zero.data(), W * 4, W * 4, H, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(linear, l.data(), W * H * 4, cudaMemcpyHostToDevice));
    cudaResourceDesc of = {};
    cudaTextureDesc how = {};
    cudaTextureObject_t picture, line;
    cudaSurfaceObject_t surface;
    of.resType = cudaResourceTypeArray;
    of.res.array.array = a;
    how.filterMode = cudaFilterModeLinear;
    how.addressMode[0] = how.addressMode[1] = cudaAddressModeClamp;
    CUDA(cudaCreateTextureObject(&picture, &of, &how, nullptr));
    of.res.array.array = b;
    CUDA(cudaCreateSurfaceObject(&surface, &of));
    of = {};
    of.resType = cudaResourceTypeLinear;
    of.res.linear.devPtr = linear;
    of.res.linear.desc = word;
    of.res.linear.sizeInBytes = W * H * 4;
    how = {};
    CUDA(cudaCreateTextureObject(&line, &of, &how, nullptr));
    while (r.next()) {
        through<<<dim3(W / 32, H), 32>>>(picture, line, surface, out);
        CUDA(cudaMemcpy(got.data(), out, W * H * 4, cudaMemcpyDeviceToHost));
        // Halfway between two texels, but for the last, which clamps.
        for (uint32_t i = 0; i < W * H; i++)
            want[i] = (i % W == W - 1 ? (W - 1) * 4 : i % W * 4 + 2) + l[i] + value;
        value = scramble(value, 1);
        r.check(all(got.data(), want));
        CUDA(cudaMemcpy2DFromArray(got.data(), W * 4, b, 0, 0, W * 4, H, cudaMemcpyDeviceToHost));
        r.check(all(got.data(), std::vector<uint32_t>(W * H, value)));
    }
    CUDA(cudaDestroyTextureObject(picture));
    CUDA(cudaDestroyTextureObject(line));
    CUDA(cudaDestroySurfaceObject(surface));
}

__constant__ uint32_t fixed[16];
__device__ uint32_t tally;
extern __shared__ uint32_t wide[];
__global__ void by_setting(uint32_t *out)
{
    wide[threadIdx.x * 512] = fixed[threadIdx.x % 16];
    __syncthreads();
    out[threadIdx.x] = wide[(31 - threadIdx.x) * 512];
    if (threadIdx.x == 0)
        tally++;
}

// settings: what was set once is so in each round: variables, a function's attribute, limits,
// priorities, a pool and what lies in it.
static void settings(Rounds &r)
{
    enum { SHARED = 64 << 10 };
    int low, high, priority;
    unsigned flags;
    uint64_t keep = 3 << 20;
    size_t stack = 0, stack_before;
    uint32_t *out, *pooled, zero = 0, tallied, h[16];
    std::vector<uint32_t> got(N), want(N);
    cudaStream_t s;
    cudaMemPool_t pool;
    cudaMemPoolProps props = {};
    cudaFuncAttributes about;
    for (uint32_t i = 0; i < 16; i++)
        h[i] = mix(i + 100);
    CUDA(cudaMemcpyToSymbol(fixed, h, sizeof h));
    CUDA(cudaMemcpyToSymbol(tally, &zero, 4));
    CUDA(cudaFuncSetAttribute(by_setting, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED));
    CUDA(cudaDeviceGetLimit(&stack_before, cudaLimitStackSize));
    CUDA(cudaDeviceSetLimit(cudaLimitStackSize, 4096));
    CUDA(cudaDeviceGetStreamPriorityRange(&low, &high));
    CUDA(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, high));
    props.allocType = cudaMemAllocationTypePinned;
    props.location.type = cudaMemLocationTypeDevice;
    CUDA(cudaMemPoolCreate(&pool, &props));
    CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
    CUDA(cudaMallocFromPoolAsync(&pooled, N * 4, pool, s));
    CUDA(cudaMalloc(&out, 32 * 4));
    fill<<<GRID, BLOCK, 0, s>>>(pooled, N, 8);
    for (uint32_t i = 0; i < N; i++)
        want[i] = mix(i + 8);
    while (r.next()) {
        by_setting<<<1, 32, SHARED, s>>>(out);
        CUDA(cudaMemcpyAsync(got.data(), out, 32 * 4, cudaMemcpyDeviceToHost, s));
        CUDA(cudaStreamSynchronize(s));
        for (int i = 0; i < 32; i++)
            r.check(got[i] == h[(31 - i) % 16]);
        CUDA(cudaMemcpyFromSymbol(&tallied, tally, 4));
        r.check(tallied == r.n + 1);
        CUDA(cudaMemcpy(got.data(), pooled, N * 4, cudaMemcpyDeviceToHost));
        r.check(all(got.data(), want));
        CUDA(cudaFuncGetAttributes(&about, by_setting));
        CUDA(cudaDeviceGetLimit(&stack, cudaLimitStackSize));
        CUDA(cudaStreamGetPriority(s, &priority));
        CUDA(cudaStreamGetFlags(s, &flags));
        CUDA(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
        r.check(about.maxDynamicSharedSizeBytes == SHARED && stack == 4096 && priority == high && flags == cudaStreamNonBlocking && keep == 3 << 20);
    }
    CUDA(cudaFreeAsync(pooled, s));
    CUDA(cudaStreamDestroy(s));
    CUDA(cudaMemPoolDestroy(pool));
    CUDA(cudaDeviceSetLimit(cudaLimitStackSize, stack_before));
}

static void one_more(void *p) { ++*(std::atomic<long> *)p; }

// callbacks: functions of the host's between kernels, each run exactly once.
static void callbacks(Rounds &r)
{
    cudaStream_t s;
    uint32_t *d, got, want = 0;
    std::atomic<long> called{0};
    CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CUDA(cudaMalloc(&d, 4));
    CUDA(cudaMemset(d, 0, 4));
    while (r.next()) {
        for (int i = 0; i < 4; i++) {
            step<<<1, 1, 0, s>>>(d, 1, i);
            CUDA(cudaLaunchHostFunc(s, one_more, &called));
            want = scramble(want, i);
        }
        CUDA(cudaMemcpyAsync(&got, d, 4, cudaMemcpyDeviceToHost, s));
        CUDA(cudaStreamSynchronize(s));
        r.check(got == want && called == (r.n + 1) * 4);
    }
}

// driver finds an entry point of libcuda's, which this program is not linked with.
template <class F> static F *driver(F *, const char *name)
{
    static void *lib = dlopen("libcuda.so.1", RTLD_NOW);
    return (F *)dlsym(lib, name);
}
#define DRIVER(f, ...)                                                            \
    do {                                                                          \
        if (driver((decltype(&f))nullptr, #f)(__VA_ARGS__) != CUDA_SUCCESS)       \
            expect(false, #f);                                                    \
    } while (0)

// vmm: memory of cuMemCreate in a range of its own, one piece of it at two addresses.
static void vmm(Rounds &r)
{
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle piece[2];
    CUdeviceptr at;
    size_t size = 0;
    CUDA(cudaFree(0)); // a context
    DRIVER(cuMemGetAllocationGranularity, &size, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    expect(size >= N * 4, "granularity");
    DRIVER(cuMemAddressReserve, &at, 4 * size, 0, 0, 0);
    for (int i = 0; i < 2; i++)
        DRIVER(cuMemCreate, &piece[i], size, &prop, 0);
    const int order[] = {0, 1, 0}; // a hole behind them
    for (int i = 0; i < 3; i++)
        DRIVER(cuMemMap, at + i * size, size, 0, piece[order[i]], 0);
    DRIVER(cuMemSetAccess, at, 3 * size, &access, 1);
    uint32_t *first = (uint32_t *)at, *second = (uint32_t *)(at + size), *alias = (uint32_t *)(at + 2 * size);
    std::vector<uint32_t> got(N), want[2];
    for (int i = 0; i < 2; i++) {
        fill<<<GRID, BLOCK>>>(i ? second : first, N, i);
        for (uint32_t j = 0; j < N; j++)
            want[i].push_back(mix(j + i));
    }
    while (r.next()) {
        step<<<GRID, BLOCK>>>(r.n % 2 ? alias : first, N, r.n);
        add<<<GRID, BLOCK>>>(second, alias, N);
        for (int j = 0; j < N; j++) {
            want[0][j] = scramble(want[0][j], r.n);
            want[1][j] += want[0][j];
        }
        CUDA(cudaMemcpy(got.data(), r.n % 2 ? first : alias, N * 4, cudaMemcpyDeviceToHost));
        r.check(all(got.data(), want[0]));
        CUDA(cudaMemcpy(got.data(), second, N * 4, cudaMemcpyDeviceToHost));
        r.check(all(got.data(), want[1]));
    }
}

// green: two green contexts of a device's parts, one with a context of its own, whose streams take
// turns by events.
static void green(Rounds &r)
{
#if CUDART_VERSION >= 13000
    CUdevResource all = {}, half[2] = {}, rest = {};
    CUdevResourceDesc desc[2];
    CUgreenCtx part[2];
    CUcontext context;
    CUstream stream[2];
    CUevent done;
    unsigned n = 2;
    uint32_t *p;
    std::vector<uint32_t> got(N), want;
    CUDA(cudaMalloc(&p, N * 4)); // in the primary context
    if (driver((decltype(&cuDeviceGetDevResource))nullptr, "cuDeviceGetDevResource")(0, &all, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS) {
        printf("this device cannot be partitioned\n");
        _Exit(77);
    }
    DRIVER(cuDevSmResourceSplitByCount, half, &n, &all, &rest, 0, 16);
    for (int i = 0; i < 2; i++) {
        DRIVER(cuDevResourceGenerateDesc, &desc[i], &half[i], 1);
        DRIVER(cuGreenCtxCreate, &part[i], desc[i], 0, CU_GREEN_CTX_DEFAULT_STREAM);
        DRIVER(cuGreenCtxStreamCreate, &stream[i], part[i], CU_STREAM_NON_BLOCKING, 0);
    }
    DRIVER(cuCtxFromGreenCtx, &context, part[1]);
    DRIVER(cuEventCreate, &done, CU_EVENT_DISABLE_TIMING);
    fill<<<GRID, BLOCK>>>(p, N, 7);
    CUDA(cudaDeviceSynchronize());
    for (uint32_t j = 0; j < N; j++)
        want.push_back(mix(j + 7));
    while (r.next()) {
        for (int i = 0; i < 2; i++) {
            DRIVER(cuStreamWaitEvent, stream[i], done, 0);
            step<<<GRID, BLOCK, 0, (cudaStream_t)stream[i]>>>(p, N, r.n + i);
            DRIVER(cuEventRecord, done, stream[i]);
            for (int j = 0; j < N; j++)
                want[j] = scramble(want[j], r.n + i);
        }
        DRIVER(cuStreamSynchronize, stream[1]);
        CUDA(cudaMemcpy(got.data(), p, N * 4, cudaMemcpyDeviceToHost));
        r.check(::all(got.data(), want));
        if (r.n % 16 == 15) { // what the program holds is good for another
            CUdevResource quarter[2] = {};
            CUgreenCtx more;
            n = 2;
            DRIVER(cuDevSmResourceSplitByCount, quarter, &n, &half[0], nullptr, 0, 8);
            DRIVER(cuDevResourceGenerateDesc, &desc[0], quarter, n);
            DRIVER(cuGreenCtxCreate, &more, desc[0], 0, CU_GREEN_CTX_DEFAULT_STREAM);
            DRIVER(cuGreenCtxDestroy, more);
        }
    }
#else
    (void)r;
    printf("this toolkit has no green contexts\n");
    _Exit(77);
#endif
}
