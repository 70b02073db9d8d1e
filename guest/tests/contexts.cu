// Contexts come and go; what programs pin, stage and capture in the next one works as in the first.
#include "driver.h"

#include <vector>

__global__ void fill(uint32_t *p, int n, uint32_t v)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        p[i] = v + i;
}

// spin runs until the program writes go, or for so many turns: seconds.
__global__ void spin(const volatile uint32_t *go, uint32_t *seen)
{
    for (uint32_t turn = 0; turn < 50u * 1000 * 1000 && !*seen; turn++)
        *seen = *go;
}

static bool filled(const uint32_t *p, int n, uint32_t v)
{
    for (int i = 0; i < n; i++)
        if (p[i] != v + i)
            return false;
    return true;
}

// use does, in the current context, what needs memory that the process shares with the GPU: a small
// pinned allocation that a kernel writes, a registered page, a large pageable copy each way, and a
// graph's copy to pageable memory.
static void use(const char *when, uint32_t v)
{
    const int small = 64, large = 1 << 20;
    char what[100];
    uint32_t *pinned, *device;
    std::vector<uint32_t> pageable(large), captured(small);
    cudaStream_t s;
    cudaGraph_t g;
    cudaGraphExec_t x;

    CUDA(cudaHostAlloc(&pinned, small * sizeof *pinned, cudaHostAllocMapped));
    if (cudaHostGetDevicePointer((void **)&device, pinned, 0) == cudaErrorNotSupported)
        _Exit(77); // a GPU on another machine; run-tests.sh knows where this is allowed
    fill<<<1, small>>>(pinned, small, v);
    CUDA(cudaDeviceSynchronize());
    snprintf(what, sizeof what, "%s: a kernel writes pinned memory", when);
    expect(filled(pinned, small, v), what);

    CUDA(cudaMalloc(&device, large * sizeof *device));
    fill<<<large / 256, 256>>>(device, large, v + 1);
    CUDA(cudaMemcpy(pageable.data(), device, large * sizeof *device, cudaMemcpyDeviceToHost));
    snprintf(what, sizeof what, "%s: a large pageable copy from the device", when);
    expect(filled(pageable.data(), large, v + 1), what);
    for (int i = 0; i < large; i++)
        pageable[i] = v + 2 + i;
    CUDA(cudaMemcpy(device, pageable.data(), large * sizeof *device, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(pinned, device, small * sizeof *device, cudaMemcpyDeviceToHost));
    snprintf(what, sizeof what, "%s: and to it", when);
    expect(filled(pinned, small, v + 2), what);

    CUDA(cudaStreamCreate(&s));
    CUDA(cudaGraphCreate(&g, 0));
    cudaGraphNode_t node;
    CUDA(cudaGraphAddMemcpyNode1D(&node, g, nullptr, 0, captured.data(), device, small * sizeof *device, cudaMemcpyDeviceToHost));
    CUDA(cudaGraphInstantiateWithFlags(&x, g, 0));
    CUDA(cudaGraphLaunch(x, s));
    CUDA(cudaStreamSynchronize(s));
    snprintf(what, sizeof what, "%s: a graph copies to pageable memory", when);
    expect(filled(captured.data(), small, v + 2), what);
    CUDA(cudaGraphExecDestroy(x));
    CUDA(cudaGraphDestroy(g));
    CUDA(cudaStreamDestroy(s));
    CUDA(cudaFree(device));
    CUDA(cudaFreeHost(pinned));
}

static CUresult create(CUcontext *c, CUdevice dev)
{
#if CUDA_VERSION >= 13000
    return cuCtxCreate(c, nullptr, 0, dev);
#else
    return cuCtxCreate(c, 0, dev);
#endif
}

// beside ends a context whose pinned memory came first, while a kernel of another waits for what
// the program does next. NVIDIA's driver lets the end of a context wait for the other's kernel;
// whether it does is not compared.
static void beside(CUdevice dev)
{
    CUcontext first, second;
    uint32_t *early, *word, result = 0;
    cudaStream_t runs, writes;

    CU(create(&first, dev));
    CUDA(cudaHostAlloc(&early, 4096, cudaHostAllocPortable));
    CU(create(&second, dev));
    CUDA(cudaMalloc(&word, 2 * sizeof *word));
    CUDA(cudaMemset(word, 0, 2 * sizeof *word));
    CUDA(cudaStreamCreateWithFlags(&runs, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&writes, cudaStreamNonBlocking));
    CUDA(cudaDeviceSynchronize());
    spin<<<1, 1, 0, runs>>>(word, word + 1);
    CU(cuCtxDestroy(first));
    CUDA(cudaMemsetAsync(word, 1, 1, writes));
    CUDA(cudaStreamSynchronize(runs));
    CUDA(cudaMemcpy(&result, word + 1, sizeof result, cudaMemcpyDeviceToHost));
    printf("# a kernel saw what came after the end of another context: %s\n", result == 1 ? "yes" : "no");
    use("the second, after that", 30000);
    CU(cuCtxDestroy(second));
}

int main()
{
    CUdevice dev;
    CUcontext first, second;

    CU(cuInit(0));
    CU(cuDeviceGet(&dev, 0));
    note_device();
    for (uint32_t round = 0; round < 2; round++) {
        use("primary context", 1000 * round);
        CUDA(cudaDeviceReset());
    }
    for (uint32_t round = 0; round < 2; round++) {
        CU(create(&first, dev));
        use("a context of its own", 5000 + 1000 * round);
        CU(cuCtxDestroy(first));
    }
    CU(create(&first, dev));
    use("the first of two", 20000);
    CU(create(&second, dev));
    use("the second of two", 21000);
    CU(cuCtxDestroy(first));
    use("the second, without the first", 22000);
    CU(cuCtxDestroy(second));
    beside(dev);
    return finish();
}
