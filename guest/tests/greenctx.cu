// Green contexts: parts of a device, their streams, events and contexts. needs: cuda 13.0
#include "driver.h"

#include <vector>

int main()
{
    CUdevice device;
    CUcontext primary, context, other;
    CU(cuInit(0));
    CU(cuDeviceGet(&device, 0));
    CU(cuDevicePrimaryCtxRetain(&primary, device));
    CU(cuCtxSetCurrent(primary));
    CUdevResource all = {}, group[4] = {}, rest = {};
    CUresult r = cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM);
    if (r == CUDA_ERROR_NOT_SUPPORTED) {
        printf("this device cannot be partitioned\n");
        return 77;
    }
    CU(r);
    note("%u multiprocessors", all.sm.smCount);
    unsigned count = 0;
    CU(cuDevSmResourceSplitByCount(nullptr, &count, &all, nullptr, 0, 16));
    expect(count == all.sm.smCount / 16, "as many groups as fit");
    count = 4;
    CU(cuDevSmResourceSplitByCount(group, &count, &all, &rest, 0, 16));
    printf("%u groups of %u\n", count, group[0].sm.smCount);
    expect(rest.sm.smCount <= all.sm.smCount - 4 * 16, "and a rest");
    CUdevResource nothing = {};
    count = 1;
    printf("no resource: %s\n", name_of(cuDevSmResourceSplitByCount(&rest, &count, &nothing, nullptr, 0, 16)));
    printf("too many: %s\n", name_of(cuDevSmResourceSplitByCount(&rest, &count, &all, nullptr, 0, 100000)));
    printf("no such type: %s\n", name_of(cuDeviceGetDevResource(device, &rest, (CUdevResourceType)9)));

    CUdevResourceDesc desc;
    CU(cuDevResourceGenerateDesc(&desc, group, 2));
    CUgreenCtx green, got;
    CU(cuGreenCtxCreate(&green, desc, device, CU_GREEN_CTX_DEFAULT_STREAM));
    printf("without a default stream: %s\n", name_of(cuGreenCtxCreate(&got, desc, device, 0)));
    CU(cuGreenCtxGetDevResource(green, &rest, CU_DEV_RESOURCE_TYPE_SM));
    printf("the green context has %u\n", rest.sm.smCount);
    CU(cuCtxFromGreenCtx(&context, green));
    CU(cuCtxFromGreenCtx(&other, green));
    expect(context == other && context != primary, "one context of it");
    unsigned long long id = 0, same = 1;
    CU(cuGreenCtxGetId(green, &id));
    CU(cuCtxGetId(context, &same));
    expect(id == same, "of the same number");
    CU(cuCtxGetDevResource(primary, &rest, CU_DEV_RESOURCE_TYPE_SM));
    expect(rest.sm.smCount == all.sm.smCount, "the primary context has all");

    CUstream stream, ordinary;
    CU(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
    printf("a blocking stream: %s\n", name_of(cuGreenCtxStreamCreate(&ordinary, green, 0, 0)));
    CU(cuStreamCreate(&ordinary, CU_STREAM_NON_BLOCKING));
    CU(cuStreamGetGreenCtx(stream, &got));
    expect(got == green, "the stream knows its green context");
    CU(cuStreamGetGreenCtx(ordinary, &got));
    expect(got == nullptr, "an ordinary one has none");

    // Work on the green stream, then on the ordinary one behind an event of the whole green
    // context.
    CUlibrary library;
    CUkernel kernel;
    CU(cuLibraryLoadData(&library, driverapi_fatbin, nullptr, nullptr, 0, nullptr, nullptr, 0));
    CU(cuLibraryGetKernel(&kernel, library, "scale"));
    const int n = 5000;
    std::vector<int> h(n);
    for (int i = 0; i < n; i++)
        h[i] = i;
    CUdeviceptr p;
    CU(cuMemAlloc(&p, n * sizeof(int)));
    CU(cuMemcpyHtoD(p, h.data(), n * sizeof(int)));
    // So few bytes may still be under way, and the next stream does not wait for the default
    // stream.
    CU(cuCtxSynchronize());
    int elements = n, add = 2;
    void *params[] = {&p, &elements, &add};
    CUevent event;
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU(cuLaunchKernel((CUfunction)kernel, 40, 1, 1, 128, 1, 1, 0, stream, params, nullptr));
    CU(cuGreenCtxRecordEvent(green, event));
    CU(cuStreamWaitEvent(ordinary, event, 0));
    CU(cuLaunchKernel((CUfunction)kernel, 40, 1, 1, 128, 1, 1, 0, ordinary, params, nullptr));
    CU(cuStreamSynchronize(ordinary));
    CU(cuMemcpyDtoH(h.data(), p, n * sizeof(int)));
    bool good = true;
    for (int i = 0; i < n; i++)
        good = good && h[i] == i * 9 + 8;
    expect(good, "kernels in order");

    CU(cuCtxSetCurrent(context));
    CU(cuMemsetD32(p, 42, n));
    CU(cuCtxSynchronize());
    CU(cuMemcpyDtoH(h.data(), p, n * sizeof(int)));
    expect(h[0] == 42 && h[n - 1] == 42, "current like any context");
    printf("destroyed like any context: %s\n", name_of(cuCtxDestroy(context)));
    CU(cuCtxSetCurrent(primary));
    CU(cuEventDestroy(event));
    CU(cuStreamDestroy(stream));
    CU(cuStreamDestroy(ordinary));
    CU(cuMemFree(p));
    CU(cuGreenCtxDestroy(green));
    printf("destroyed twice: %s\n", name_of(cuGreenCtxDestroy(green)));
    CU(cuLibraryUnload(library));
    CU(cuDevicePrimaryCtxRelease(device));
    return finish();
}
