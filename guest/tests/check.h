// What every test program shares: checked calls, expectations, notes.
//
// A program prints deterministic lines, the same on every GPU, and lines that begin with '#' for
// what may differ (device name, times, sizes chosen by the driver); comparisons ignore the latter.
// Exit status 0 means that every expectation held.
#pragma once

#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

static int failures;

// CUDA ends the program when a call that must succeed does not.
#define CUDA(call)                                                                                   \
    do {                                                                                             \
        cudaError_t e_ = (call);                                                                     \
        if (e_ != cudaSuccess) {                                                                     \
            printf("%s:%d: %s: %d %s\n", __FILE__, __LINE__, #call, (int)e_, cudaGetErrorName(e_)); \
            fflush(stdout);                                                                          \
            _Exit(1);                                                                                \
        }                                                                                            \
    } while (0)

// managed allocates managed memory, which GPUs on other machines do not have: the program ends with
// status 77 there (run-tests.sh knows where this is allowed).
template <class T> static inline void managed(T **p, size_t size)
{
    cudaError_t e = cudaMallocManaged(p, size);
    if (e == cudaErrorNotSupported) {
        printf("skipped: no managed memory\n");
        fflush(stdout);
        _Exit(77);
    }
    CUDA(e);
}

static inline void expect(bool ok, const char *what)
{
    printf("%s: %s\n", what, ok ? "ok" : "FAILED");
    failures += !ok;
}

// note prints what may differ from one GPU to the next.
static inline void note(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("# ");
    vprintf(format, args);
    printf("\n");
    va_end(args);
}

static inline int finish()
{
    printf(failures ? "FAILED\n" : "PASSED\n");
    fflush(stdout);
    return failures != 0;
}

// argument returns the program's I-th argument as a number, or fallback.
static inline long argument(int argc, char **argv, int i, long fallback)
{
    return argc > i ? strtol(argv[i], nullptr, 0) : fallback;
}

static inline double seconds()
{
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

// mix is a small integer hash: test data that no layout mistake can leave looking right.
#ifdef __CUDACC__
__host__ __device__
#endif
static inline uint32_t mix(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352dU;
    x ^= x >> 15;
    x *= 0x846ca68bU;
    x ^= x >> 16;
    return x;
}

#ifdef __CUDACC__
static inline void note_device()
{
    int device;
    cudaDeviceProp p;
    CUDA(cudaGetDevice(&device));
    CUDA(cudaGetDeviceProperties(&p, device));
    note("device: %s, compute %d.%d, %d multiprocessors", p.name, p.major, p.minor, p.multiProcessorCount);
}
#endif
