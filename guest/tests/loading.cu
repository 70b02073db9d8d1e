// Loading modules when they are first needed and all at once (CUDA_MODULE_LOADING): modes, what is
// loaded when, results alike. The program starts itself once for each mode. needs: cuda 12.9
#include "driver.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

__device__ int counter = 5;
__constant__ int factors[4] = {1, 2, 3, 4};
__managed__ int shared_by_both = 11;

template <int N> __global__ void kernel(int *out)
{
    out[threadIdx.x] = factors[threadIdx.x & 3] * N + counter + shared_by_both;
}

static bool right(const int *out, int n, int count)
{
    int h[128];
    CUDA(cudaMemcpy(h, out, sizeof h, cudaMemcpyDeviceToHost));
    bool good = true;
    for (int i = 0; i < 128; i++)
        good = good && h[i] == ((i & 3) + 1) * n + count + 11;
    return good;
}

static int one(const char *mode)
{
    int *out;
    CUmoduleLoadingMode m;
    CU(cuInit(0));
    CU(cuModuleGetLoadingMode(&m));
    printf("%s: mode %d\n", mode, (int)m);
    CUDA(cudaMalloc(&out, 128 * sizeof *out));
    kernel<1><<<1, 128>>>(out);
    expect(right(out, 1, 5), "first kernel");
    int seven = 7;
    CUDA(cudaMemcpyToSymbol(counter, &seven, sizeof seven));
    kernel<2><<<1, 128>>>(out);
    expect(right(out, 2, 7), "second kernel");
    cudaFuncAttributes a;
    CUDA(cudaFuncGetAttributes(&a, kernel<3>));
    printf("attributes: %d threads, %d shared bytes\n", a.maxThreadsPerBlock, (int)a.sharedSizeBytes);
    cudaFunction_t f, g;
    CUDA(cudaGetFuncBySymbol(&f, (void *)kernel<4>));
    CUDA(cudaGetFuncBySymbol(&g, (void *)kernel<2>));
    CUfunctionLoadingState never, used;
    CU(cuFuncIsLoaded(&never, (CUfunction)f));
    CU(cuFuncIsLoaded(&used, (CUfunction)g));
    const char *name = nullptr;
    CU(cuFuncGetName(&name, (CUfunction)g));
    printf("loaded: %d, %d, %s\n", (int)never, (int)used, name);
    CU(cuFuncLoad((CUfunction)f));
    CU(cuFuncIsLoaded(&never, (CUfunction)f));
    printf("after loading it: %d\n", (int)never);
    void *args[] = {&out};
    CU(cuLaunchKernel((CUfunction)f, 1, 1, 1, 128, 1, 1, 0, nullptr, args, nullptr));
    expect(right(out, 4, 7), "a kernel by its handle");
    // From an image of the program's own.
    CUmodule module;
    CU(cuModuleLoadData(&module, driverapi_fatbin));
    unsigned functions = 0;
    CU(cuModuleGetFunctionCount(&functions, module));
    CUfunction found;
    CU(cuModuleGetFunction(&found, module, "scale"));
    CU(cuFuncIsLoaded(&never, found));
    printf("an image: %u functions, loaded: %d\n", functions, (int)never);
    CU(cuModuleUnload(module));
    CUDA(cudaFree(out));
    return finish();
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return one(argv[1]);
    for (const char *mode : {"EAGER", "LAZY", "DEFAULT", "other"}) {
        setenv("CUDA_MODULE_LOADING", mode, 1);
        fflush(stdout);
        char *args[] = {argv[0], (char *)mode, nullptr};
        pid_t child;
        int status = -1;
        if (posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, args, environ) || waitpid(child, &status, 0) != child || status)
            failures++;
    }
    return finish();
}
