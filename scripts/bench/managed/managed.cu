// How fast managed memory is, where CPU and GPU use it in turns. Prints "NAME SECONDS" for each
// piece of work; scripts/bench/managed.sh runs it on the bare driver and under causeway run and
// prints ratios. Arguments: which pieces (all of them: none), sizes in MiB as turns:SIZE.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#define CUDA(call)                                                                              \
    do {                                                                                        \
        cudaError_t e_ = (call);                                                                \
        if (e_ != cudaSuccess) {                                                                \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorName(e_)); \
            exit(1);                                                                            \
        }                                                                                       \
    } while (0)

static double now()
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

__global__ void step(uint32_t *p, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        p[i] = p[i] * 3 + 1;
}
__global__ void some(uint32_t *p, const uint32_t *pages, int count)
{
    for (int k = blockIdx.x; k < count; k += gridDim.x)
        p[(size_t)pages[k] * 1024 + threadIdx.x] += 1;
}
__global__ void lookup(const uint32_t *table, size_t n, uint32_t *out)
{
    uint32_t sum = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        sum += table[i];
    atomicAdd(out, sum);
}
__global__ void empty() {}

static volatile uint32_t sink;

static void prefetch(void *p, size_t bytes, bool to_cpu)
{
    CUDA(cudaMemPrefetchAsync(p, bytes, cudaMemLocation{to_cpu ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice, 0}, 0, 0));
}

// turn is what a program does once: the CPU fills, kernels work, the CPU reads.
static double turn(uint32_t *p, size_t n, uint32_t seed, bool ahead, double part[3])
{
    double t0 = now();
    for (size_t i = 0; i < n; i++)
        p[i] = (uint32_t)i + seed;
    double t1 = now();
    if (ahead)
        prefetch(p, n * 4, false);
    for (int k = 0; k < 20; k++)
        step<<<1024, 256>>>(p, n);
    if (ahead)
        prefetch(p, n * 4, true);
    CUDA(cudaDeviceSynchronize());
    double t2 = now();
    uint32_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += p[i];
    sink = sum;
    double t3 = now();
    uint32_t a = 1, b = 0;
    for (int k = 0; k < 20; k++)
        b = b * 3 + 1, a *= 3;
    for (size_t i = 0; i < n; i += n / 97 + 1)
        if (p[i] != ((uint32_t)i + seed) * a + b) {
            fprintf(stderr, "word %zu is wrong\n", i);
            exit(1);
        }
    part[0] = t1 - t0, part[1] = t2 - t1, part[2] = t3 - t2;
    return t3 - t0;
}

static void turns(size_t mib, bool ahead)
{
    const size_t n = mib << 18;
    uint32_t *p;
    double part[3];
    const char *kind = ahead ? "prefetched" : "turns";
    double t = now();
    CUDA(cudaMallocManaged(&p, n * 4));
    double first = turn(p, n, 1, ahead, part);
    printf("%s-%zuMiB-first %.6f\n", kind, mib, now() - t);
    printf("# %s-%zuMiB-first fill %.4f kernels %.4f read %.4f sum %.4f\n", kind, mib, part[0], part[1], part[2], first);
    double again = turn(p, n, 2, ahead, part);
    printf("%s-%zuMiB-again %.6f\n", kind, mib, again);
    printf("# %s-%zuMiB-again fill %.4f kernels %.4f read %.4f\n", kind, mib, part[0], part[1], part[2]);
    t = now();
    CUDA(cudaFree(p));
    printf("# %s-%zuMiB free %.4f\n", kind, mib, now() - t);
    fflush(stdout);
}

// sparse: 1 % of the pages by kernels, 1 % by the CPU, again and again.
static void sparse()
{
    const size_t bytes = 1ull << 30, pages = bytes / 4096;
    const int count = (int)(pages / 100), rounds = 10;
    uint32_t *p, *list;
    CUDA(cudaMallocManaged(&p, bytes));
    CUDA(cudaMalloc(&list, count * 4));
    memset(p, 0, bytes);
    step<<<1024, 256>>>(p, bytes / 4);
    CUDA(cudaDeviceSynchronize());
    std::vector<uint32_t> at(count);
    uint64_t x = 88172645463325252ull;
    auto next = [&] { return x ^= x << 13, x ^= x >> 7, x ^= x << 17; };
    double t = now();
    for (int r = 0; r < rounds; r++) {
        for (int k = 0; k < count; k++)
            p[(next() % pages) * 1024 + r] += 1;
        for (int k = 0; k < count; k++)
            at[k] = (uint32_t)(next() % pages);
        CUDA(cudaMemcpy(list, at.data(), count * 4, cudaMemcpyHostToDevice));
        some<<<256, 256>>>(p, list, count);
        CUDA(cudaDeviceSynchronize());
    }
    printf("sparse %.6f\n", now() - t);
    CUDA(cudaFree(p));
    CUDA(cudaFree(list));
    fflush(stdout);
}

// table: kernels read all of it, the CPU a little, nobody writes.
static void table()
{
    const size_t bytes = 256 << 20, n = bytes / 4;
    uint32_t *p, *out, sum = 0;
    CUDA(cudaMallocManaged(&p, bytes));
    CUDA(cudaMalloc(&out, 4));
    for (size_t i = 0; i < n; i++)
        p[i] = (uint32_t)i;
    CUDA(cudaMemAdvise(p, bytes, cudaMemAdviseSetReadMostly, cudaMemLocation{cudaMemLocationTypeDevice, 0}));
    lookup<<<1024, 256>>>(p, n, out);
    CUDA(cudaDeviceSynchronize());
    double t = now(), reading = 0;
    for (int r = 0; r < 20; r++) {
        double begin = now();
        for (size_t i = 0; i < n / 100; i++)
            sum += p[i * 7 % (n / 50)];
        reading += now() - begin;
        lookup<<<1024, 256>>>(p, n, out);
        CUDA(cudaDeviceSynchronize());
    }
    sink = sum;
    t = now() - t;
    printf("table %.6f\n# table: reading %.6f, kernels %.6f\n", t, reading, t - reading);
    CUDA(cudaFree(p));
    CUDA(cudaFree(out));
    fflush(stdout);
}

// fault: one byte here and there.
static void fault()
{
    const size_t bytes = 512 << 20, count = 500;
    uint8_t *p;
    uint32_t sum = 0;
    CUDA(cudaMallocManaged(&p, bytes));
    step<<<1024, 256>>>((uint32_t *)p, bytes / 4);
    CUDA(cudaDeviceSynchronize());
    double t = now();
    for (size_t i = 0; i < count; i++)
        sum += p[(i * 37 % count) * (1 << 20)];
    printf("fault %.9f\n", (now() - t) / count);
    t = now();
    for (size_t i = 0; i < count; i++)
        p[(i * 37 % count) * (1 << 20)] = 1;
    printf("# write after read %.2f us\n", (now() - t) / count * 1e6);
    sink = sum;
    CUDA(cudaFree(p));
    fflush(stdout);
}

// idle: what a program costs that has managed memory, some of it at the CPU, and does nothing.
static void idle()
{
    const double least = 3;
    const size_t bytes = 64 << 20;
    uint8_t *p;
    CUDA(cudaMallocManaged(&p, bytes));
    memset(p, 1, bytes);
    step<<<1024, 256>>>((uint32_t *)p, bytes / 4);
    CUDA(cudaDeviceSynchronize());
    sink = p[5 << 20];
    clock_t begin = clock();
    std::this_thread::sleep_for(std::chrono::duration<double>(least));
    printf("idle %.9f\n", (double)(clock() - begin) / CLOCKS_PER_SEC); // of processor time
    CUDA(cudaFree(p));
    fflush(stdout);
}

static void launches(const char *name)
{
    const int count = 200000;
    for (int k = 0; k < 1000; k++)
        empty<<<1, 1>>>();
    CUDA(cudaDeviceSynchronize());
    double t = now();
    for (int k = 0; k < count; k++)
        empty<<<1, 1>>>();
    CUDA(cudaDeviceSynchronize());
    printf("%s %.9f\n", name, (now() - t) / count);
    fflush(stdout);
}

#include "over.cuh"

int main(int argc, char **argv)
{
    std::vector<std::string> what(argv + 1, argv + argc);
    if (what.empty())
        what = {"launches", "turns:64", "turns:1024", "turns:8192", "sparse", "table", "fault", "idle", "over:6144"};
    CUDA(cudaFree(0));
    for (const std::string &w : what) {
        if (w == "launches") {
            uint8_t *p;
            launches("launch");
            CUDA(cudaMallocManaged(&p, 64 << 20));
            memset(p, 1, 64 << 20);
            launches("launch-with-managed");
            CUDA(cudaFree(p));
        } else if (w.compare(0, 6, "turns:") == 0) {
            turns(strtoul(w.c_str() + 6, nullptr, 10), false);
            turns(strtoul(w.c_str() + 6, nullptr, 10), true);
        } else if (w.compare(0, 5, "over:") == 0) {
            over(strtoul(w.c_str() + 5, nullptr, 10));
        } else if (w == "sparse") {
            sparse();
        } else if (w == "table") {
            table();
        } else if (w == "fault") {
            fault();
        } else if (w == "idle") {
            idle();
        } else {
            fprintf(stderr, "unknown piece of work %s\n", w.c_str());
            return 1;
        }
    }
    return 0;
}
