// Notifications of the memory budget: registering and its errors, by both interfaces. Limits do not change while this runs, so that no
// function may be called, whatever is allocated; scripts/sessions.sh lowers one. needs: cuda 12.4
#include "driver.h"

#include <atomic>
#include <set>
#include <sys/wait.h>
#include <unistd.h>

static std::atomic<int> calls, host_calls;

static void told(CUasyncNotificationInfo *, void *, CUasyncCallbackHandle) { calls++; }
static void told_too(cudaAsyncNotificationInfo_t *, void *, cudaAsyncCallbackHandle_t) { calls++; }
static void count(void *) { host_calls++; }

static void errors()
{
    CUasyncCallbackHandle h = nullptr;
    int devices = 0;
    CU(cuDeviceGetCount(&devices));
    printf("no function: %s\n", name_of(cuDeviceRegisterAsyncNotification(0, nullptr, nullptr, &h)));
    printf("nowhere for the handle: %s\n", name_of(cuDeviceRegisterAsyncNotification(0, told, nullptr, nullptr)));
    printf("no such device: %s, %s\n", name_of(cuDeviceRegisterAsyncNotification(devices, told, nullptr, &h)),
           name_of(cuDeviceRegisterAsyncNotification(-1, told, nullptr, &h)));
    expect(h == nullptr, "no handle then");
}

int main()
{
    CUasyncCallbackHandle h[40] = {};
    cudaAsyncCallbackHandle_t r = nullptr;
    printf("before cuInit: %s\n", name_of(cuDeviceRegisterAsyncNotification(0, told, nullptr, &h[0])));
    CU(cuInit(0));
    CU(cuDeviceRegisterAsyncNotification(0, told, h, &h[0])); // needs no context
    errors();
    CUDA(cudaSetDevice(0));
    for (int i = 1; i < 40; i++)
        CU(cuDeviceRegisterAsyncNotification(0, told, &h[i], &h[i]));
    std::set<CUasyncCallbackHandle> different(h, h + 40);
    expect(different.size() == 40 && !different.count(nullptr), "40 registrations, 40 handles");
    CUDA(cudaDeviceRegisterAsyncNotification(0, told_too, nullptr, &r));
    printf("runtime, no function: %s\n", cudaGetErrorName(cudaDeviceRegisterAsyncNotification(0, nullptr, nullptr, &r)));

    // Beside them, functions of streams are called as ever.
    void *p;
    for (int i = 0; i < 100; i++) {
        CUDA(cudaMalloc(&p, 1 << 20));
        CUDA(cudaLaunchHostFunc(nullptr, count, nullptr));
        CUDA(cudaFree(p));
    }
    CUDA(cudaDeviceSynchronize());
    printf("host functions: %d\n", host_calls.load());

    fflush(stdout);
    pid_t child = fork();
    if (child == 0)
        _exit(cuDeviceRegisterAsyncNotification(0, told, nullptr, &h[0]));
    int status = 0;
    waitpid(child, &status, 0);
    printf("in a forked child: %s\n", WIFEXITED(status) ? name_of((CUresult)WEXITSTATUS(status)) : "ended by a signal");

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
