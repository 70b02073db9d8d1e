// Libraries: context-independent loading, as CUDA 12 and newer runtimes do it. needs: cuda 12.0
#include "driver.h"

#include <vector>

int main()
{
    CUdevice device;
    CUcontext context;
    CU(cuInit(0));
    CU(cuDeviceGet(&device, 0));
    CUlibrary library;
    CU(cuLibraryLoadData(&library, driverapi_fatbin, nullptr, nullptr, 0, nullptr, nullptr, 0));
    CUkernel kernel;
    CU(cuLibraryGetKernel(&kernel, library, "scale"));
    expect(kernel != nullptr, "loaded without a context");
    printf("kernel that is not there: %s\n", name_of(cuLibraryGetKernel(&kernel, library, "absent")));
    CU(cuLibraryGetKernel(&kernel, library, "scale"));

    CU(cuDevicePrimaryCtxRetain(&context, device));
    CU(cuCtxSetCurrent(context));
    const int n = 500;
    std::vector<int> h(n);
    for (int i = 0; i < n; i++)
        h[i] = i;
    CUdeviceptr p;
    CU(cuMemAlloc(&p, n * sizeof(int)));
    CU(cuMemcpyHtoD(p, h.data(), n * sizeof(int)));
    int elements = n, add = 2;
    void *params[] = {&p, &elements, &add};
    // A kernel launches as a function does; the driver finds the one of the current context.
    CU(cuLaunchKernel((CUfunction)kernel, 4, 1, 1, 128, 1, 1, 0, nullptr, params, nullptr));
    CUfunction function;
    CU(cuKernelGetFunction(&function, kernel));
    CU(cuLaunchKernel(function, 4, 1, 1, 128, 1, 1, 0, nullptr, params, nullptr));
    CU(cuMemcpyDtoH(h.data(), p, n * sizeof(int)));
    bool good = true;
    for (int i = 0; i < n; i++)
        good = good && h[i] == i * 9 + 8;
    printf("h[499] = %d\n", h[499]);
    expect(good, "launched as kernel and as function");

    CUdeviceptr symbol;
    size_t size = 0;
    int touched = 0;
    CU(cuLibraryGetGlobal(&symbol, &size, library, "touched"));
    CU(cuMemcpyDtoH(&touched, symbol, sizeof touched));
    printf("touched: %d in %zu bytes\n", touched, size);
    expect(touched == 7 && size == 4, "library variable");
    CUmodule module;
    CU(cuLibraryGetModule(&module, library));
    CU(cuModuleGetFunction(&function, module, "mixed"));
    int threads = 0;
    CU(cuKernelGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, device));
    printf("threads per block: %d\n", threads);
    CU(cuLibraryUnload(library));
    CU(cuMemFree(p));
    CU(cuDevicePrimaryCtxRelease(device));
    return finish();
}
