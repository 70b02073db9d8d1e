// Host functions and stream callbacks: order within a stream, what they see and what sees them,
// many at once, and that nothing which waits for one can hold it up.
#include "check.h"

#include <atomic>
#include <pthread.h>
#include <unistd.h>

__global__ void put(volatile int *p, int v) { *p = v; }
__global__ void add(int *p, int v) { *p += v; }
__global__ void copy(int *dst, const volatile int *src) { *dst = *src; }
__global__ void spin(volatile int *flag)
{
    while (*flag == 0)
        __threadfence_system();
}

static int *mapped; // pinned words that both sides reach

// order: the function sees the kernel before it, and the kernel after sees the function.
static void see(void *p)
{
    int *w = (int *)p;
    w[1] = w[0] + 1;
}

static void order()
{
    cudaStream_t s;
    int *d, got = 0;
    CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CUDA(cudaMalloc(&d, sizeof *d));
    mapped[0] = mapped[1] = 0;
    put<<<1, 1, 0, s>>>(mapped, 41);
    CUDA(cudaLaunchHostFunc(s, see, mapped));
    copy<<<1, 1, 0, s>>>(d, mapped + 1);
    CUDA(cudaMemcpyAsync(&got, d, sizeof got, cudaMemcpyDeviceToHost, s));
    CUDA(cudaStreamSynchronize(s));
    printf("function between kernels: %d, %d, %d\n", mapped[0], mapped[1], got);
    expect(got == 42, "order in a stream");
    CUDA(cudaFree(d));
    CUDA(cudaStreamDestroy(s));
}

// many functions on one stream run one after the other, each exactly once.
static int turns[512], turn;
static void note_turn(void *p) { turns[turn++] = (int)(intptr_t)p; }

static void many()
{
    cudaStream_t s;
    CUDA(cudaStreamCreate(&s));
    for (int i = 0; i < 512; i++)
        CUDA(cudaLaunchHostFunc(s, note_turn, (void *)(intptr_t)i));
    CUDA(cudaStreamSynchronize(s));
    int wrong = turn != 512;
    for (int i = 0; i < turn; i++)
        wrong += turns[i] != i;
    printf("512 functions: %d ran, %d out of turn\n", turn, wrong);
    expect(wrong == 0, "many functions");
    CUDA(cudaStreamDestroy(s));
}

// several streams at once, with kernels between the functions.
static std::atomic<int> ran;
static void count(void *p) { ran += *(int *)p; }

static void streams()
{
    const int n = 4, rounds = 20;
    cudaStream_t s[n];
    int *d, one = 1, sum[n];
    CUDA(cudaMalloc(&d, n * sizeof(int)));
    CUDA(cudaMemset(d, 0, n * sizeof(int)));
    CUDA(cudaDeviceSynchronize());
    for (cudaStream_t &t : s)
        CUDA(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking));
    for (int r = 0; r < rounds; r++)
        for (int i = 0; i < n; i++) {
            add<<<1, 1, 0, s[i]>>>(d + i, 1);
            CUDA(cudaLaunchHostFunc(s[i], count, &one));
        }
    for (cudaStream_t t : s)
        CUDA(cudaStreamSynchronize(t));
    CUDA(cudaMemcpy(sum, d, sizeof sum, cudaMemcpyDeviceToHost));
    printf("streams: %d functions, sums %d %d %d %d\n", ran.load(), sum[0], sum[1], sum[2], sum[3]);
    expect(ran == n * rounds, "functions on several streams");
    for (cudaStream_t t : s)
        CUDA(cudaStreamDestroy(t));
    CUDA(cudaFree(d));
}

// callbacks are told their stream and its status.
static struct {
    cudaStream_t stream;
    cudaError_t status;
    int calls, value;
} told;
static void tell(cudaStream_t s, cudaError_t status, void *p)
{
    told.stream = s;
    told.status = status;
    told.value = *(int *)p;
    told.calls++;
}

static void callback()
{
    cudaStream_t s;
    CUDA(cudaStreamCreate(&s));
    mapped[0] = 0;
    put<<<1, 1, 0, s>>>(mapped, 7);
    CUDA(cudaStreamAddCallback(s, tell, mapped, 0));
    CUDA(cudaStreamSynchronize(s));
    printf("callback: %d call, status %d, sees %d\n", told.calls, (int)told.status, told.value);
    expect(told.stream == s, "callback's stream");
    printf("flags 1: %s\n", cudaGetErrorName(cudaStreamAddCallback(s, tell, mapped, 1)));
    printf("no function: %s, %s\n", cudaGetErrorName(cudaStreamAddCallback(s, nullptr, mapped, 0)),
           cudaGetErrorName(cudaLaunchHostFunc(s, nullptr, mapped)));
    (void)cudaGetLastError();
    CUDA(cudaStreamDestroy(s));
    told.calls = 0;
    CUDA(cudaStreamAddCallback(0, tell, mapped, 0));
    CUDA(cudaDeviceSynchronize());
    expect(told.calls == 1 && told.stream == 0, "callback of the default stream");
}

// busy: while a function takes its time, calls that wait for the device, and more launches than any
// queue holds, come after it.
static void nap(void *p)
{
    usleep(30000);
    *(volatile int *)p = 1;
}

static void busy()
{
    cudaStream_t s;
    int *d, *e, got = 0;
    CUDA(cudaStreamCreate(&s));
    CUDA(cudaMalloc(&d, sizeof *d));
    CUDA(cudaMalloc(&e, 1 << 20));
    CUDA(cudaMemset(d, 0, sizeof *d));
    mapped[2] = 0;
    CUDA(cudaLaunchHostFunc(s, nap, mapped + 2));
    CUDA(cudaFree(e));
    note("cudaFree came back %s the function", mapped[2] ? "after" : "before");
    for (int i = 0; i < 3; i++)
        CUDA(cudaLaunchHostFunc(s, nap, mapped + 2));
    for (int i = 0; i < 3000; i++)
        add<<<1, 1, 0, s>>>(d, 1);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpyAsync(&got, d, sizeof got, cudaMemcpyDeviceToHost, s));
    CUDA(cudaStreamSynchronize(s));
    printf("3000 launches behind functions: %d\n", got);
    expect(got == 3000, "launches behind a function that naps");
    CUDA(cudaFree(d));
    CUDA(cudaStreamDestroy(s));
}

// waits: a function may wait for another stream's kernel, and a kernel for a function.
static void await_kernel(void *p)
{
    volatile int *w = (volatile int *)p;
    for (int i = 0; i < 60000 && w[0] == 0; i++)
        usleep(1000);
    w[1] = w[0] ? 2 : -1;
}
static void let_go(void *p) { *(volatile int *)p = 1; }

static void waits()
{
    cudaStream_t a, b;
    CUDA(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    mapped[4] = mapped[5] = mapped[6] = 0;
    CUDA(cudaLaunchHostFunc(a, await_kernel, mapped + 4));
    put<<<1, 1, 0, b>>>(mapped + 4, 1);
    CUDA(cudaStreamSynchronize(b));
    CUDA(cudaStreamSynchronize(a));
    expect(mapped[5] == 2, "function that waits for another stream's kernel");
    spin<<<1, 1, 0, b>>>(mapped + 6);
    CUDA(cudaLaunchHostFunc(a, let_go, mapped + 6));
    CUDA(cudaStreamSynchronize(b));
    expect(mapped[6] == 1, "kernel that waits for a function");
    CUDA(cudaStreamDestroy(a));
    CUDA(cudaStreamDestroy(b));
}

// forbidden: functions may not call CUDA.
static cudaError_t inside[3];
static pthread_t where;
static void forbidden(void *)
{
    void *p;
    inside[0] = cudaMalloc(&p, 16);
    inside[1] = cudaStreamSynchronize(0);
    inside[2] = cudaGetLastError();
    where = pthread_self();
}

static void rules()
{
    CUDA(cudaLaunchHostFunc(0, forbidden, nullptr));
    CUDA(cudaDeviceSynchronize());
    printf("inside: malloc %s, synchronise %s, last %s\n", cudaGetErrorName(inside[0]), cudaGetErrorName(inside[1]),
           cudaGetErrorName(inside[2]));
    printf("outside: %s\n", cudaGetErrorName(cudaGetLastError()));
    expect(!pthread_equal(where, pthread_self()), "not on the caller's thread");
}

int main()
{
    note_device();
    int *reached;
    CUDA(cudaHostAlloc(&mapped, 4096, cudaHostAllocMapped));
    if (cudaHostGetDevicePointer(&reached, mapped, 0) != cudaSuccess) {
        // Half of the program shows memory that both sides reach; the other half runs everywhere.
        (void)cudaGetLastError();
        many();
        streams();
        busy();
        rules();
        note("host memory cannot be mapped here");
        return finish() ? 1 : 77;
    }
    order();
    many();
    streams();
    callback();
    busy();
    waits();
    rules();
    return finish();
}
