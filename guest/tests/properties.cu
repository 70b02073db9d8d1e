// Everything that a program can ask of a device: properties, attributes, limits, flags; and of its
// own functions. All of it may differ between GPUs; what must agree with what is checked.
// needs: cuda 12.9
#include "driver.h"

#include <cstddef>

#define N(field) note(#field " %lld", (long long)p.field)
#define D3(field) note(#field " %d %d %d", p.field[0], p.field[1], p.field[2])
#define D2(field) note(#field " %d %d", p.field[0], p.field[1])

static void properties()
{
    cudaDeviceProp p;
    memset(&p, 0x5a, sizeof p);
    CUDA(cudaGetDeviceProperties(&p, 0));
    note("name %s", p.name);
    unsigned id = 0;
    for (char c : p.uuid.bytes)
        id = id * 31 + (unsigned char)c;
    note("uuid %08x, luid mask %u", id, p.luidDeviceNodeMask);
    N(totalGlobalMem), N(sharedMemPerBlock), N(regsPerBlock), N(warpSize), N(memPitch), N(maxThreadsPerBlock), D3(maxThreadsDim);
    D3(maxGridSize), N(totalConstMem), N(major), N(minor), N(textureAlignment), N(texturePitchAlignment), N(multiProcessorCount);
    N(integrated), N(canMapHostMemory), N(maxTexture1D), N(maxTexture1DMipmap), D2(maxTexture2D), D2(maxTexture2DMipmap);
    D3(maxTexture2DLinear), D2(maxTexture2DGather), D3(maxTexture3D), D3(maxTexture3DAlt), N(maxTextureCubemap), D2(maxTexture1DLayered);
    D3(maxTexture2DLayered), D2(maxTextureCubemapLayered), N(maxSurface1D), D2(maxSurface2D), D3(maxSurface3D), D2(maxSurface1DLayered);
    D3(maxSurface2DLayered), N(maxSurfaceCubemap), D2(maxSurfaceCubemapLayered), N(surfaceAlignment), N(concurrentKernels), N(ECCEnabled);
    N(pciBusID), N(pciDeviceID), N(pciDomainID), N(tccDriver), N(asyncEngineCount), N(unifiedAddressing), N(memoryBusWidth), N(l2CacheSize);
    N(persistingL2CacheMaxSize), N(maxThreadsPerMultiProcessor), N(streamPrioritiesSupported), N(globalL1CacheSupported);
    N(localL1CacheSupported), N(sharedMemPerMultiprocessor), N(regsPerMultiprocessor), N(managedMemory), N(isMultiGpuBoard);
    N(multiGpuBoardGroupID), N(hostNativeAtomicSupported), N(pageableMemoryAccess), N(concurrentManagedAccess);
    N(computePreemptionSupported), N(canUseHostPointerForRegisteredMem), N(cooperativeLaunch), N(sharedMemPerBlockOptin);
    N(pageableMemoryAccessUsesHostPageTables), N(directManagedMemAccessFromHost), N(maxBlocksPerMultiProcessor);
    N(accessPolicyMaxWindowSize), N(reservedSharedMemPerBlock), N(hostRegisterSupported), N(sparseCudaArraySupported);
    N(hostRegisterReadOnlySupported), N(timelineSemaphoreInteropSupported), N(memoryPoolsSupported), N(gpuDirectRDMASupported);
    N(gpuDirectRDMAFlushWritesOptions), N(gpuDirectRDMAWritesOrdering), N(memoryPoolSupportedHandleTypes);
    N(deferredMappingCudaArraySupported), N(ipcEventSupported), N(clusterLaunch), N(unifiedFunctionPointers);
#if CUDART_VERSION >= 13000
    N(deviceNumaConfig), N(deviceNumaId), N(mpsEnabled), N(hostNumaId), N(gpuPciDeviceID), N(gpuPciSubsystemID);
#endif
    expect(p.major >= 1 && p.warpSize == 32 && p.maxThreadsPerBlock > 0 && p.regsPerMultiprocessor >= p.regsPerBlock, "properties");
    int v = 0;
    bool good = true;
    const struct {
        cudaDeviceAttr attribute;
        long long value;
    } pairs[] = {{cudaDevAttrMaxThreadsPerBlock, p.maxThreadsPerBlock}, {cudaDevAttrMaxSharedMemoryPerBlockOptin, (long long)p.sharedMemPerBlockOptin},
                 {cudaDevAttrL2CacheSize, p.l2CacheSize}, {cudaDevAttrCooperativeLaunch, p.cooperativeLaunch},
                 {cudaDevAttrCanMapHostMemory, p.canMapHostMemory}, {cudaDevAttrManagedMemory, p.managedMemory},
                 {cudaDevAttrMaxBlocksPerMultiprocessor, p.maxBlocksPerMultiProcessor}, {cudaDevAttrClusterLaunch, p.clusterLaunch},
                 {cudaDevAttrMaxTexture3DWidth, p.maxTexture3D[0]}, {cudaDevAttrMemoryPoolsSupported, p.memoryPoolsSupported}};
    for (auto &x : pairs) {
        CUDA(cudaDeviceGetAttribute(&v, x.attribute, 0));
        good = good && v == x.value;
    }
    expect(good, "attributes agree with properties");
}

static void attributes()
{
    CUdevice device;
    CU(cuDeviceGet(&device, 0));
    for (int a = 0; a < 160; a++) {
        int v = 0x5a5a;
        CUresult r = cuDeviceGetAttribute(&v, (CUdevice_attribute)a, device);
        if (r == CUDA_SUCCESS)
            note("attribute %d: %d", a, v);
        else
            note("attribute %d: %s", a, name_of(r));
    }
    int v = 0;
    printf("attribute 0: %s, attribute 9999: ", name_of(cuDeviceGetAttribute(&v, (CUdevice_attribute)0, device)));
    printf("%s\n", name_of(cuDeviceGetAttribute(&v, (CUdevice_attribute)9999, device)));
    for (int e = 0; e < 8; e++) {
        int ok = -1;
        CUresult r = cuDeviceGetExecAffinitySupport(&ok, (CUexecAffinityType)e, device);
        note("execution affinity %d: %s %d", e, name_of(r), ok);
    }
    size_t bytes = 0;
    for (int format : {1, 2, 3, 8, 9, 10, 16, 32})
        for (int channels : {1, 2, 4}) {
            CUresult r = cuDeviceGetTexture1DLinearMaxWidth(&bytes, (CUarray_format)format, channels, device);
            note("widest texture of format %d, %d channels: %s %zu", format, channels, name_of(r), bytes);
        }
}

static void limits()
{
    CUDA(cudaFree(nullptr));
    for (int l = 0; l < 12; l++) {
        size_t v = 0;
        CUresult r = cuCtxGetLimit(&v, (CUlimit)l);
        note("limit %d: %s %zu", l, name_of(r), v);
    }
    unsigned flags = 99, version = 0;
    CU(cuCtxGetFlags(&flags));
    CUcontext c;
    CU(cuCtxGetCurrent(&c));
    CU(cuCtxGetApiVersion(c, &version));
    note("context flags %u, version %u", flags, version);
    CUfunc_cache prefer;
    CU(cuCtxGetCacheConfig(&prefer));
    int least, greatest;
    CU(cuCtxGetStreamPriorityRange(&least, &greatest));
    note("cache %d, priorities %d to %d", (int)prefer, least, greatest);
    size_t v = 0;
    CU(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
    CU(cuCtxGetLimit(&v, CU_LIMIT_STACK_SIZE));
    expect(v >= 4096, "stack");
    CU(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 16 << 20));
    CU(cuCtxGetLimit(&v, CU_LIMIT_MALLOC_HEAP_SIZE));
    expect(v >= 16 << 20, "heap");
    printf("an unknown limit: %s\n", name_of(cuCtxGetLimit(&v, (CUlimit)99)));
}

__global__ void simple(int *x) { x[threadIdx.x] = 1; }

__global__ void __launch_bounds__(192, 2) bounded(const float *in, float *out, int n)
{
    __shared__ float tile[192];
    float local[32];
    for (int i = 0; i < 32; i++)
        local[i] = in[(threadIdx.x * i) % n];
    tile[threadIdx.x] = local[n % 32] + local[(n / 3) % 32];
    __syncthreads();
    out[threadIdx.x] = tile[191 - threadIdx.x];
}

template <typename T> __global__ void constant(T *x)
{
    extern __shared__ char bytes[];
    T *dynamic = (T *)bytes;
    dynamic[threadIdx.x] = x[threadIdx.x];
    x[threadIdx.x] = sin(dynamic[31 - threadIdx.x % 32]);
}

struct SharedFor {
    __host__ __device__ size_t operator()(int threads) const { return threads * 64; }
};

static void function(const char *name, const void *f)
{
    cudaFuncAttributes a;
    memset(&a, 0x5a, sizeof a);
    CUDA(cudaFuncGetAttributes(&a, f));
    note("%s: shared %zu, constant %zu, local %zu, threads %d, registers %d, PTX %d, binary %d, cache mode %d, dynamic %d, carveout %d", name,
         a.sharedSizeBytes, a.constSizeBytes, a.localSizeBytes, a.maxThreadsPerBlock, a.numRegs, a.ptxVersion, a.binaryVersion,
         a.cacheModeCA, a.maxDynamicSharedSizeBytes, a.preferredShmemCarveout);
    note("%s: cluster must be set %d, %d %d %d, policy %d, not portable %d", name, a.clusterDimMustBeSet,
         a.requiredClusterWidth, a.requiredClusterHeight, a.requiredClusterDepth, a.clusterSchedulingPolicyPreference,
         a.nonPortableClusterSizeAllowed);
    for (int threads : {1, 32, 96, 192, 256, 1024})
        for (size_t shared : {(size_t)0, (size_t)1000, (size_t)40000}) {
            int blocks = -1;
            cudaError_t e = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, threads, shared);
            note("%s: %d threads, %zu bytes: %s %d", name, threads, shared, cudaGetErrorName(e), blocks);
            cudaGetLastError();
        }
    size_t bytes = 0;
    cudaError_t e = cudaOccupancyAvailableDynamicSMemPerBlock(&bytes, f, 2, 128);
    note("%s: shared memory left for 2 blocks of 128: %s %zu", name, cudaGetErrorName(e), bytes);
    int grid = 0, block = 0;
    CUDA(cudaOccupancyMaxPotentialBlockSize(&grid, &block, f, 0, 0));
    note("%s: %d blocks of %d", name, grid, block);
    CUDA(cudaOccupancyMaxPotentialBlockSizeVariableSMem(&grid, &block, f, SharedFor(), 512));
    note("%s: with 64 bytes for each thread, %d blocks of %d", name, grid, block);
    expect(a.maxThreadsPerBlock >= 192 && a.numRegs > 0 && block >= 32, name);
}

int main()
{
    properties();
    attributes();
    limits();
    function("simple", (const void *)simple);
    function("bounded", (const void *)bounded);
    function("floats", (const void *)constant<float>);
    function("doubles", (const void *)constant<double>);
    return finish();
}
