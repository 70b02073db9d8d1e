// Events: states, times on one stream and across two, flags, and mistakes; priorities of streams
// and of kernels. needs: cuda 12.9
#include "check.h"

__global__ void spin(long long cycles, int *out)
{
    long long start = clock64();
    while (clock64() - start < cycles)
        ;
    atomicAdd(out, 1);
}

__global__ void mark(int *out) { out[1] = out[0]; }

static const char *name(cudaError_t e)
{
    cudaGetLastError();
    return cudaGetErrorName(e);
}

static void times(int *out)
{
    cudaStream_t a, b;
    cudaEvent_t e[4];
    float whole, first, second, other;
    CUDA(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    for (cudaEvent_t &x : e)
        CUDA(cudaEventCreate(&x));
    CUDA(cudaMemset(out, 0, 8));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaEventRecord(e[0], a));
    spin<<<1, 1, 0, a>>>(2000000, out);
    CUDA(cudaEventRecord(e[1], a));
    CUDA(cudaStreamWaitEvent(b, e[1], 0));
    spin<<<1, 1, 0, b>>>(2000000, out);
    CUDA(cudaEventRecord(e[2], b));
    CUDA(cudaStreamWaitEvent(a, e[2], 0));
    mark<<<1, 1, 0, a>>>(out);
    CUDA(cudaEventRecord(e[3], a));
    CUDA(cudaEventSynchronize(e[3]));
    int seen[2];
    CUDA(cudaMemcpy(seen, out, sizeof seen, cudaMemcpyDeviceToHost));
    printf("after both: %d\n", seen[1]);
    CUDA(cudaEventElapsedTime(&first, e[0], e[1]));
    CUDA(cudaEventElapsedTime(&second, e[1], e[2]));
    CUDA(cudaEventElapsedTime(&whole, e[0], e[2]));
    CUDA(cudaEventElapsedTime(&other, e[2], e[0]));
    note("%.3f ms and %.3f ms, together %.3f ms", first, second, whole);
    expect(first > 0.3f && second > 0.3f, "each takes its time");
    expect(whole > 0.99f * (first + second) && whole < 1.01f * (first + second) + 0.01f, "times add up across streams");
    expect(other < 0 && other > -1.01f * whole - 0.01f, "backwards is negative");
    // A record again forgets the earlier one.
    CUDA(cudaEventRecord(e[0], a));
    CUDA(cudaEventSynchronize(e[0]));
    CUDA(cudaEventElapsedTime(&other, e[2], e[0]));
    expect(other >= 0, "recorded again");
    for (cudaEvent_t x : e)
        CUDA(cudaEventDestroy(x));
    CUDA(cudaStreamDestroy(a));
    CUDA(cudaStreamDestroy(b));
}

static void states(int *out)
{
    cudaStream_t s;
    cudaEvent_t timed, plain, blocking, x = nullptr;
    float ms = 0;
    CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CUDA(cudaEventCreate(&timed));
    CUDA(cudaEventCreateWithFlags(&plain, cudaEventDisableTiming));
    CUDA(cudaEventCreateWithFlags(&blocking, cudaEventBlockingSync));
    printf("never recorded: query %s, ", name(cudaEventQuery(timed)));
    printf("synchronize %s, ", name(cudaEventSynchronize(timed)));
    printf("time %s\n", name(cudaEventElapsedTime(&ms, timed, blocking)));
    CUDA(cudaStreamWaitEvent(s, timed, 0));
    spin<<<1, 1, 0, s>>>(60000000, out);
    CUDA(cudaEventRecord(timed, s));
    CUDA(cudaEventRecord(plain, s));
    CUDA(cudaEventRecordWithFlags(blocking, s, cudaEventRecordDefault));
    cudaError_t running = cudaEventQuery(plain), between = cudaEventElapsedTime(&ms, timed, blocking);
    cudaGetLastError();
    // A slow program may be too late to see it run.
    expect((running == cudaErrorNotReady || running == cudaSuccess) && (between == cudaErrorNotReady || between == cudaSuccess), "not ready");
    CUDA(cudaEventSynchronize(blocking));
    printf("done: %s, ", name(cudaEventQuery(plain)));
    printf("time without timing %s\n", name(cudaEventElapsedTime(&ms, plain, timed)));
    printf("unknown flags: %s\n", name(cudaEventCreateWithFlags(&x, 0x100)));
    printf("interprocess with timing: %s\n", name(cudaEventCreateWithFlags(&x, cudaEventInterprocess)));
    printf("no event: %s\n", name(cudaEventRecord(nullptr, s)));
    printf("flags of a record: %s\n", name(cudaEventRecordWithFlags(timed, s, 0x10)));
    printf("flags of a wait: %s\n", name(cudaStreamWaitEvent(s, timed, 0x10)));
    // An event may be destroyed before it happens; whoever waits for it is not disturbed.
    spin<<<1, 1, 0, s>>>(100000, out);
    CUDA(cudaEventRecord(plain, s));
    CUDA(cudaStreamWaitEvent(0, plain, 0));
    CUDA(cudaEventDestroy(plain));
    CUDA(cudaStreamSynchronize(0));
    CUDA(cudaStreamDestroy(s));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaEventDestroy(timed));
    CUDA(cudaEventDestroy(blocking));
}

static void priorities(int *out)
{
    int least, greatest, p = 99;
    unsigned flags = 99;
    CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    note("priorities: %d to %d", least, greatest);
    expect(least == 0 && greatest < 0, "range of priorities");
    const int asked[] = {least, -1, greatest, greatest - 1, least + 1, -100};
    for (int a : asked) {
        cudaStream_t s;
        CUDA(cudaStreamCreateWithPriority(&s, a % 2 ? cudaStreamNonBlocking : cudaStreamDefault, a));
        CUDA(cudaStreamGetPriority(s, &p));
        CUDA(cudaStreamGetFlags(s, &flags));
        note("asked %d, got %d", a, p);
        expect(p == (a > least ? least : a < greatest ? greatest : a) && flags == (a % 2 != 0), "a priority within the range");
        CUDA(cudaStreamDestroy(s));
    }
    CUDA(cudaStreamGetPriority(0, &p));
    CUDA(cudaStreamGetFlags(0, &flags));
    printf("the default stream: %d, flags %u\n", p, flags);
    CUDA(cudaStreamGetPriority(cudaStreamPerThread, &p));
    CUDA(cudaStreamGetFlags(cudaStreamPerThread, &flags));
    printf("the thread's own: %d, flags %u\n", p, flags);
    cudaStream_t s;
    CUDA(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, -1));
    CUDA(cudaMemset(out, 0, 8));
    CUDA(cudaDeviceSynchronize());
    for (int want : {0, -1, -3, -5}) {
        cudaLaunchAttribute a[1] = {};
        a[0].id = cudaLaunchAttributePriority;
        a[0].val.priority = want;
        cudaLaunchConfig_t c = {};
        c.gridDim = dim3(1), c.blockDim = dim3(1), c.stream = s, c.attrs = a, c.numAttrs = 1;
        CUDA(cudaLaunchKernelEx(&c, spin, 100ll, out));
    }
    cudaStreamAttrValue v = {};
    CUDA(cudaStreamGetAttribute(s, cudaStreamAttributePriority, &v));
    printf("attribute: %d\n", v.priority);
    v.priority = 0;
    CUDA(cudaStreamSetAttribute(s, cudaStreamAttributePriority, &v));
    CUDA(cudaStreamGetPriority(s, &p));
    CUDA(cudaStreamSynchronize(s));
    int ran = 0;
    CUDA(cudaMemcpy(&ran, out, sizeof ran, cudaMemcpyDeviceToHost));
    printf("set: %d, kernels run: %d\n", p, ran);
    CUDA(cudaStreamDestroy(s));
}

int main()
{
    note_device();
    int *out;
    CUDA(cudaMalloc(&out, 8));
    times(out);
    states(out);
    priorities(out);
    return finish();
}
