// Launch attributes: programmatic dependent launches and events, domains of memory ordering,
// windows of the L2 cache; what streams keep of them, what is refused. needs: cuda 12.9
#include "driver.h"

#include <vector>

__global__ void first(int *x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
#if __CUDA_ARCH__ >= 900
    cudaTriggerProgrammaticLaunchCompletion();
#endif
    if (i < n)
        x[i] = x[i] * 3 + 1;
}

__global__ void second(const int *x, int *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
#if __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
#endif
    if (i < n)
        y[i] += x[i];
}

static const char *name(cudaError_t e)
{
    cudaGetLastError();
    return cudaGetErrorName(e);
}

static cudaLaunchConfig_t config(int n, cudaStream_t s, cudaLaunchAttribute *a, int count)
{
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3((n + 127) / 128), c.blockDim = dim3(128), c.stream = s, c.attrs = a, c.numAttrs = count;
    return c;
}

// dependent launches pairs whose second kernel may begin before the first has ended, and waits
// inside.
static void dependent(cudaStream_t s, int *x, int *y, int n)
{
    const int rounds = 30;
    std::vector<int> h(n);
    CUDA(cudaMemset(x, 0, n * sizeof *x));
    CUDA(cudaMemset(y, 0, n * sizeof *y));
    CUDA(cudaDeviceSynchronize());
    cudaLaunchAttribute a[1] = {};
    a[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    a[0].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t c = config(n, s, a, 1);
    int v = 0, want = 0;
    for (int r = 0; r < rounds; r++) {
        first<<<c.gridDim, c.blockDim, 0, s>>>(x, n);
        CUDA(cudaLaunchKernelEx(&c, second, (const int *)x, y, n));
        v = v * 3 + 1, want += v;
    }
    CUDA(cudaMemcpyAsync(h.data(), y, n * sizeof(int), cudaMemcpyDeviceToHost, s));
    CUDA(cudaStreamSynchronize(s));
    bool good = true;
    for (int k : h)
        good = good && k == want;
    expect(good, "programmatic dependent launches");
    // The same with an event that the first kernel triggers.
    cudaEvent_t e;
    cudaStream_t t;
    CUDA(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    a[0] = {};
    a[0].id = cudaLaunchAttributeLaunchCompletionEvent;
    a[0].val.launchCompletionEvent.event = e;
    c = config(n, s, a, 1);
    cudaError_t r = cudaLaunchKernelEx(&c, first, x, n);
    printf("launch completion event: %s\n", name(r));
    CUDA(cudaStreamWaitEvent(t, e, 0));
    CUDA(cudaStreamSynchronize(t));
    a[0] = {};
    a[0].id = cudaLaunchAttributeProgrammaticEvent;
    a[0].val.programmaticEvent.event = e;
    a[0].val.programmaticEvent.triggerAtBlockStart = 1;
    r = cudaLaunchKernelEx(&c, first, x, n);
    printf("programmatic event: %s\n", name(r));
    CUDA(cudaStreamWaitEvent(t, e, 0));
    CUDA(cudaStreamSynchronize(t));
    CUDA(cudaStreamSynchronize(s));
    // An event with timing is none of those.
    cudaEvent_t timed;
    CUDA(cudaEventCreate(&timed));
    a[0].val.programmaticEvent.event = timed;
    printf("programmatic event with timing: %s\n", name(cudaLaunchKernelEx(&c, first, x, n)));
    CUDA(cudaEventDestroy(timed));
    CUDA(cudaEventDestroy(e));
    CUDA(cudaStreamDestroy(t));
}

static void domains(cudaStream_t s, int *x, int n)
{
    int count = 0;
    CUDA(cudaDeviceGetAttribute(&count, cudaDevAttrMemSyncDomainCount, 0));
    note("domains: %d", count);
    cudaLaunchAttribute a[2] = {};
    a[0].id = cudaLaunchAttributeMemSyncDomain;
    a[0].val.memSyncDomain = cudaLaunchMemSyncDomainRemote;
    a[1].id = cudaLaunchAttributeMemSyncDomainMap;
    a[1].val.memSyncDomainMap.default_ = 0, a[1].val.memSyncDomainMap.remote = count > 1;
    cudaLaunchConfig_t c = config(n, s, a, 2);
    printf("domains of a launch: %s\n", name(cudaLaunchKernelEx(&c, first, x, n)));
    cudaStreamAttrValue v = {};
    v.memSyncDomain = cudaLaunchMemSyncDomainRemote;
    CUDA(cudaStreamSetAttribute(s, cudaStreamAttributeMemSyncDomain, &v));
    v = {};
    CUDA(cudaStreamGetAttribute(s, cudaStreamAttributeMemSyncDomain, &v));
    printf("domain of the stream: %d\n", (int)v.memSyncDomain);
    v = {};
    CUDA(cudaStreamGetAttribute(s, cudaStreamAttributeMemSyncDomainMap, &v));
    note("map of the stream: %d %d", v.memSyncDomainMap.default_, v.memSyncDomainMap.remote);
    a[1].val.memSyncDomainMap.remote = 200;
    printf("a domain that is not there: %s\n", name(cudaLaunchKernelEx(&c, first, x, n)));
    CUDA(cudaStreamSynchronize(s));
}

static void cache(cudaStream_t s, int *x, int n)
{
    cudaDeviceProp p;
    CUDA(cudaGetDeviceProperties(&p, 0));
    size_t limit = 1;
    note("L2: %d bytes, %d may persist, windows up to %d", p.l2CacheSize, p.persistingL2CacheMaxSize, p.accessPolicyMaxWindowSize);
    cudaError_t e = cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, p.persistingL2CacheMaxSize / 2);
    if (p.persistingL2CacheMaxSize > 0)
        CUDA(e);
    cudaGetLastError();
    if (e == cudaSuccess)
        CUDA(cudaDeviceGetLimit(&limit, cudaLimitPersistingL2CacheSize));
    note("limit: %zu: %s", limit, cudaGetErrorName(e));
    size_t bytes = n * sizeof *x;
    if (p.accessPolicyMaxWindowSize > 0 && bytes > (size_t)p.accessPolicyMaxWindowSize)
        bytes = p.accessPolicyMaxWindowSize;
    cudaStreamAttrValue v = {};
    v.accessPolicyWindow.base_ptr = x, v.accessPolicyWindow.num_bytes = bytes, v.accessPolicyWindow.hitRatio = 0.5f;
    v.accessPolicyWindow.hitProp = cudaAccessPropertyPersisting, v.accessPolicyWindow.missProp = cudaAccessPropertyStreaming;
    CUDA(cudaStreamSetAttribute(s, cudaStreamAttributeAccessPolicyWindow, &v));
    first<<<(n + 127) / 128, 128, 0, s>>>(x, n);
    cudaStreamAttrValue got = {};
    CUDA(cudaStreamGetAttribute(s, cudaStreamAttributeAccessPolicyWindow, &got));
    printf("window: %s, %zu bytes, ratio %g, %d and %d\n", got.accessPolicyWindow.base_ptr == x ? "there" : "elsewhere",
           got.accessPolicyWindow.num_bytes, got.accessPolicyWindow.hitRatio, (int)got.accessPolicyWindow.hitProp,
           (int)got.accessPolicyWindow.missProp);
    cudaStream_t t;
    CUDA(cudaStreamCreate(&t));
    CUDA(cudaStreamCopyAttributes(t, s));
    got = {};
    CUDA(cudaStreamGetAttribute(t, cudaStreamAttributeAccessPolicyWindow, &got));
    printf("copied: %zu bytes\n", got.accessPolicyWindow.num_bytes);
    CUDA(cudaStreamDestroy(t));
    cudaLaunchAttribute a[1] = {};
    a[0].id = cudaLaunchAttributeAccessPolicyWindow;
    a[0].val = v;
    cudaLaunchConfig_t c = config(n, s, a, 1);
    printf("window of a launch: %s\n", name(cudaLaunchKernelEx(&c, first, x, n)));
    v.accessPolicyWindow.num_bytes = 0;
    CUDA(cudaStreamSetAttribute(s, cudaStreamAttributeAccessPolicyWindow, &v));
    CUDA(cudaStreamSynchronize(s));
    printf("lines made normal again: %s\n", name(cudaCtxResetPersistingL2Cache()));
    cudaStreamAttrValue w = {};
    w.syncPolicy = cudaSyncPolicyYield;
    CUDA(cudaStreamSetAttribute(s, cudaStreamAttributeSynchronizationPolicy, &w));
    w = {};
    CUDA(cudaStreamGetAttribute(s, cudaStreamAttributeSynchronizationPolicy, &w));
    printf("way to wait: %d\n", (int)w.syncPolicy);
}

static void functions(int *x, int n)
{
    cudaLaunchAttribute a[1] = {};
    cudaLaunchConfig_t c = config(n, 0, a, 1);
    a[0].id = (cudaLaunchAttributeID)99;
    note("an unknown attribute: %s", name(cudaLaunchKernelEx(&c, first, x, n)));
    a[0].id = cudaLaunchAttributeIgnore;
    printf("an attribute to ignore: %s\n", name(cudaLaunchKernelEx(&c, first, x, n)));
    a[0].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    a[0].val.sharedMemCarveout = 50;
    printf("shared memory's part: %s\n", name(cudaLaunchKernelEx(&c, first, x, n)));
    CUDA(cudaFuncSetAttribute(first, cudaFuncAttributePreferredSharedMemoryCarveout, 25));
    cudaFuncAttributes f;
    CUDA(cudaFuncGetAttributes(&f, first));
    printf("shared memory's part of the function: %d\n", f.preferredShmemCarveout);
    printf("a part of 101: %s\n", name(cudaFuncSetAttribute(first, cudaFuncAttributePreferredSharedMemoryCarveout, 101)));
    printf("more dynamic memory than there is: %s\n", name(cudaFuncSetAttribute(first, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 20)));
    CUDA(cudaDeviceSynchronize());
}

int main()
{
    note_device();
    const int n = 10000;
    int *x, *y;
    cudaStream_t s;
    CUDA(cudaMalloc(&x, n * sizeof *x));
    CUDA(cudaMalloc(&y, n * sizeof *y));
    CUDA(cudaMemset(x, 0, n * sizeof *x));
    CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    dependent(s, x, y, n);
    domains(s, x, n);
    cache(s, x, n);
    functions(x, n);
    return finish();
}
