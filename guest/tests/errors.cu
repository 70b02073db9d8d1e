// Error cases: what each mistake returns, which errors stick and which do not. Every case runs in a
// child of its own, forked before CUDA starts, so that no error leaks into the next case.
#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

__global__ void nothing() {}
__global__ void store(int *p, int value) { *p = value; }
__global__ void trap() { asm volatile("trap;"); }
__global__ void __launch_bounds__(64) small() {}

static void report(const char *what, cudaError_t e)
{
    printf("  %s: %d %s, \"%s\"\n", what, (int)e, cudaGetErrorName(e), cudaGetErrorString(e));
}

static void launch_limits()
{
    nothing<<<1, 2048>>>();
    report("2048 threads", cudaPeekAtLastError());
    report("read", cudaGetLastError());
    report("read again", cudaGetLastError());
    nothing<<<0, 32>>>();
    report("no blocks", cudaGetLastError());
    nothing<<<dim3(1, 70000), 32>>>();
    report("70000 blocks in y", cudaGetLastError());
    nothing<<<1, dim3(1, 1, 65)>>>();
    report("65 threads in z", cudaGetLastError());
    nothing<<<1, dim3(64, 32)>>>();
    report("64 x 32 threads", cudaGetLastError());
    nothing<<<1, 32, 1 << 20>>>();
    report("1 MiB of shared memory", cudaGetLastError());
    small<<<1, 128>>>();
    cudaError_t e = cudaGetLastError();
    printf("  128 threads, bounds say 64: %s\n", e == cudaSuccess ? "accepted" : "refused");
    note("as %s", cudaGetErrorName(e));
    nothing<<<1, 32>>>();
    report("a good launch after all that", cudaGetLastError());
    report("synchronise", cudaDeviceSynchronize());
}

static void arguments()
{
    int *d, h = 0;
    report("malloc", cudaMalloc(&d, 4096));
    report("malloc of 2^50 bytes", cudaMalloc(&d, (size_t)1 << 50));
    report("read", cudaGetLastError());
    report("malloc", cudaMalloc(&d, 4096));
    report("malloc to null", cudaMalloc((void **)nullptr, 16));
    report("free of a bad pointer", cudaFree((void *)0x1234));
    report("free of null", cudaFree(nullptr));
    report("copy to a bad device pointer", cudaMemcpy((void *)0x1234, &h, 4, cudaMemcpyHostToDevice));
    report("copy past the end", cudaMemcpy(d, malloc(8192), 8192, cudaMemcpyHostToDevice));
    report("memset past the end", cudaMemset(d, 0, 8192));
    report("copy of nothing", cudaMemcpy(d, &h, 0, cudaMemcpyHostToDevice));
    report("unknown copy kind", cudaMemcpy(d, &h, 4, (cudaMemcpyKind)99));
    report("device 99", cudaSetDevice(99));
    cudaDeviceProp p;
    report("properties of device 99", cudaGetDeviceProperties(&p, 99));
    report("2D copy wider than its pitch", cudaMemcpy2D(d, 16, &h, 64, 32, 1, cudaMemcpyHostToDevice));
    (void)cudaGetLastError();
    report("free", cudaFree(d));
    report("free twice", cudaFree(d));
}

static void events()
{
    cudaEvent_t a, b, untimed;
    float ms;
    CUDA(cudaEventCreate(&a));
    CUDA(cudaEventCreate(&b));
    CUDA(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
    report("elapsed, never recorded", cudaEventElapsedTime(&ms, a, b));
    report("query, never recorded", cudaEventQuery(a));
    CUDA(cudaEventRecord(a));
    CUDA(cudaEventRecord(untimed));
    CUDA(cudaDeviceSynchronize());
    report("elapsed, without timing", cudaEventElapsedTime(&ms, a, untimed));
    report("bad flags", cudaEventCreateWithFlags(&b, 0xff));
}

// after shows that a kernel's fault sticks to the process.
static void after(cudaError_t e)
{
    int *d;
    report("synchronise", e);
    report("malloc", cudaMalloc(&d, 16));
    nothing<<<1, 1>>>();
    report("launch", cudaGetLastError());
    report("synchronise again", cudaDeviceSynchronize());
}

static void bad_address()
{
    CUDA(cudaFree(0));
    store<<<1, 1>>>((int *)0x10, 1);
    // A launch may already report the fault of its own kernel: that is a matter of time.
    note("launch: %s", cudaGetErrorName(cudaGetLastError()));
    after(cudaDeviceSynchronize());
}

static void misaligned()
{
    char *d;
    CUDA(cudaMalloc(&d, 64));
    store<<<1, 1>>>((int *)(d + 1), 1);
    after(cudaDeviceSynchronize());
}

static void trapped()
{
    CUDA(cudaFree(0));
    trap<<<1, 1>>>();
    after(cudaDeviceSynchronize());
}

// seen_by_copy: the fault appears at the next call that waits, whatever it is.
static void seen_by_copy()
{
    int *d, h;
    CUDA(cudaMalloc(&d, 64));
    store<<<1, 1>>>(nullptr, 1);
    report("copy after the fault", cudaMemcpy(&h, d, 4, cudaMemcpyDeviceToHost));
}

static void names()
{
    const int codes[] = {0, 1, 2, 3, 9, 35, 98, 100, 101, 209, 400, 600, 700, 719, 801, 999, 12345};
    for (int c : codes)
        report("code", (cudaError_t)c);
}

static void run(const char *name, void (*body)())
{
    printf("%s\n", name);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        body();
        exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) {
        printf("  the child ended with status 0x%x\n", status);
        failures++;
    }
}

int main()
{
    run("launch limits", launch_limits);
    run("arguments", arguments);
    run("events", events);
    run("bad address", bad_address);
    run("misaligned address", misaligned);
    run("trap", trapped);
    run("seen by a copy", seen_by_copy);
    run("names", names);
    return finish();
}
