// Notifications of the memory budget: registering, by both interfaces. Limits do not change while
// this runs, so that no function may be called, whatever is allocated; scripts/sessions.sh lowers
// one. Errors are tested in guest/libcuda/api/tests: a real driver crashes. needs: cuda 12.4
#include "driver.h"

#include <atomic>
#include <set>

static std::atomic<int> calls, host_calls;

static void told(CUasyncNotificationInfo *, void *, CUasyncCallbackHandle) { calls++; }
static void told_too(cudaAsyncNotificationInfo_t *, void *, cudaAsyncCallbackHandle_t) { calls++; }
static void count(void *) { host_calls++; }

int main()
{
    CUasyncCallbackHandle h[40] = {};
    cudaAsyncCallbackHandle_t r = nullptr;
    CU(cuInit(0));
    CU(cuDeviceRegisterAsyncNotification(0, told, h, &h[0])); // needs no context
    CUDA(cudaSetDevice(0));
    for (int i = 1; i < 40; i++)
        CU(cuDeviceRegisterAsyncNotification(0, told, &h[i], &h[i]));
    std::set<CUasyncCallbackHandle> different(h, h + 40);
    expect(different.size() == 40 && !different.count(nullptr), "40 registrations, 40 handles");
    CUDA(cudaDeviceRegisterAsyncNotification(0, told_too, nullptr, &r));

    // Beside them, functions of streams are called as ever.
    void *p;
    for (int i = 0; i < 100; i++) {
        CUDA(cudaMalloc(&p, 1 << 20));
        CUDA(cudaLaunchHostFunc(nullptr, count, nullptr));
        CUDA(cudaFree(p));
    }
    CUDA(cudaDeviceSynchronize());
    printf("host functions: %d\n", host_calls.load());

    for (int i = 39; i > 0; i -= 2)
        CU(cuDeviceUnregisterAsyncNotification(0, h[i]));
    for (int i = 0; i < 40; i += 2)
        CU(cuDeviceUnregisterAsyncNotification(0, h[i]));
    CUDA(cudaDeviceUnregisterAsyncNotification(0, r));
    CU(cuDeviceRegisterAsyncNotification(0, told, nullptr, &h[0])); // and again
    CU(cuDeviceUnregisterAsyncNotification(0, h[0]));
    expect(calls == 0, "none was called");
    return finish();
}
