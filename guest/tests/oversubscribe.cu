// needs: cuda 13.0 More managed memory than the GPU has room for: pieces of it change places with
// its use, and every byte stays right. Most of the GPU's memory is taken first; where processor and
// kernels may use managed memory at once (a bare driver) it is not, for the driver's own
// oversubscription is not the matter here.
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <vector>

#include "check.h"

// Sizes are in halves of pieces; the arguments are how many MiB such a half has (1; 16 on a GPU),
// and how many MiB there are once of much (four times the room).
static size_t half = 1 << 20, room_for = 12 * half, words = half / 4;

// One word of 256 bytes, so that the software GPU is done soon; all are compared.
__host__ __device__ static inline uint32_t added(size_t i, uint32_t v) { return i % 64 ? 0 : v; }
__global__ void add(uint32_t *p, size_t n, uint32_t v)
{
    for (size_t i = (blockIdx.x * (size_t)blockDim.x + threadIdx.x) * 64; i < n; i += (size_t)gridDim.x * blockDim.x * 64)
        p[i] += added(i, v);
}
// Words a page apart, so that many launches cost little.
__global__ void touch(uint32_t *a, const uint32_t *b, size_t n)
{
    for (size_t i = (blockIdx.x * (size_t)blockDim.x + threadIdx.x) * 1024; i < n; i += (size_t)gridDim.x * blockDim.x * 1024)
        a[i] += b[i + 1];
}

// A word of each page.
__global__ void mark(uint32_t *p, size_t pages, uint32_t v)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < pages; i += (size_t)gridDim.x * blockDim.x)
        p[i * 1024] += mix((uint32_t)i + v);
}

static void fill(uint32_t *p, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = mix((uint32_t)i + seed);
}
static bool right(const uint32_t *p, size_t n, uint32_t seed, uint32_t more)
{
    size_t bad = 0;
    for (size_t i = 0; i < n; i++)
        bad += p[i] != mix((uint32_t)i + seed) + added(i, more);
    return bad == 0;
}
static size_t room()
{
    size_t left, total;
    CUDA(cudaMemGetInfo(&left, &total));
    return left;
}

static void whole()
{
    size_t n = 18 * words;
    uint32_t *p;
    managed(&p, n * 4);
    expect(p[0] == 0 && p[n - 1] == 0 && p[16 * words] == 0, "new memory is zero");
    fill(p, n, 1);
    for (int i = 0; i < 3; i++)
        add<<<16, 256>>>(p, n, 5);
    CUDA(cudaDeviceSynchronize());
    expect(right(p, n, 1, 15), "one allocation of one and a half times the room");
    std::vector<uint32_t> copy(n);
    CUDA(cudaMemcpy(copy.data(), p, n * 4, cudaMemcpyDeviceToHost));
    expect(right(copy.data(), n, 1, 15), "copied from it");
    fill(copy.data(), n, 2);
    CUDA(cudaMemcpy(p, copy.data(), n * 4, cudaMemcpyHostToDevice));
    add<<<16, 256>>>(p, n, 1);
    CUDA(cudaDeviceSynchronize());
    expect(right(p, n, 2, 1), "copied to it");
    CUDA(cudaMemcpy(p, p + n / 2, n / 2 * 4, cudaMemcpyDeviceToDevice));
    CUDA(cudaDeviceSynchronize());
    size_t bad = 0;
    for (size_t i = 0; i < n / 2; i++)
        bad += p[i] != mix((uint32_t)(i + n / 2) + 2) + added(i + n / 2, 1);
    expect(!bad, "copied within it");
    CUDA(cudaMemset(p, 0x11, n * 4));
    CUDA(cudaMemset2D(p, 3000, 0x22, 1000, n * 4 / 3000));
    CUDA(cudaMemcpy2D(copy.data(), 1000, p, 3000, 1000, n * 4 / 3000, cudaMemcpyDeviceToHost));
    const uint8_t *bytes = (const uint8_t *)p, *box = (const uint8_t *)copy.data();
    for (size_t i = 0; i < n * 4 / 3000 * 3000; i++)
        bad += bytes[i] != (i % 3000 < 1000 ? 0x22 : 0x11);
    for (size_t i = 0; i < n * 4 / 3000 * 1000; i++)
        bad += box[i] != 0x22;
    expect(!bad, "filled, and copied by rows that lie over two pieces");
    CUDA(cudaFree(p));
}

static void phases()
{
    enum { SETS = 3, TURNS = 24 };
    size_t n = 6 * words;
    uint32_t *p[SETS], adds[SETS] = {0};
    for (int s = 0; s < SETS; s++) {
        managed(&p[s], n * 4);
        fill(p[s], n, s);
    }
    bool ok = true;
    for (int phase = 0; phase < 4; phase++) {
        int a = phase % SETS, b = (phase + 1) % SETS;
        for (int t = 0; t < TURNS; t++) {
            touch<<<4, 256>>>(p[a], p[b], n);
            if (t % 3 == 2)
                CUDA(cudaDeviceSynchronize());
        }
        CUDA(cudaDeviceSynchronize());
        add<<<16, 256>>>(p[b], n, 3);
        adds[b] += 3;
        CUDA(cudaDeviceSynchronize());
        for (size_t i = 1; i < n; i++)
            ok &= i % 1024 == 0 || p[b][i] == mix((uint32_t)i + b) + added(i, adds[b]);
    }
    for (int s = 0; s < SETS; s++)
        for (size_t i = 0; i < n; i++)
            ok &= i % 1024 == 0 || p[s][i] == mix((uint32_t)i + s) + added(i, adds[s]);
    expect(ok, "a working set that moves");
    for (int s = 0; s < SETS; s++)
        fill(p[s], n, s);
    int device = 0;
    for (int turn = 0; turn < 2; turn++)
        for (int s = 0; s < SETS; s++) {
            cudaMemLocation there = {cudaMemLocationTypeDevice, device}, here = {cudaMemLocationTypeHost, 0};
            CUDA(cudaMemPrefetchAsync(p[s], n * 4, there, 0, 0));
            add<<<16, 256>>>(p[s], n, 1);
            CUDA(cudaMemPrefetchAsync(p[s], n * 4, here, 0, 0));
            CUDA(cudaDeviceSynchronize());
            ok &= right(p[s], n, s, turn + 1);
        }
    expect(ok, "prefetched both ways");
    for (int s = 0; s < SETS; s++)
        CUDA(cudaFree(p[s]));
}

// Ordinary memory comes first: managed memory makes room for it, and takes that when it is free
// again.
static void ordinary(bool full)
{
    size_t n = 10 * words;
    uint32_t *p, *d;
    managed(&p, n * 4);
    fill(p, n, 9);
    add<<<16, 256>>>(p, n, 1);
    CUDA(cudaDeviceSynchronize());
    size_t before = room();
    CUDA(cudaMalloc(&d, 8 * half));
    CUDA(cudaMemset(d, 0, 8 * half));
    add<<<16, 256>>>(p, n, 1);
    CUDA(cudaDeviceSynchronize());
    expect(right(p, n, 9, 2), "memory that made room");
    size_t less = room();
    CUDA(cudaFree(d));
    size_t after = less;
    double until = seconds() + 30;
    for (int i = 0; i < 2 || (full && after >= 5 * half && seconds() < until); i++) {
        touch<<<4, 256>>>(p, p, n);
        CUDA(cudaDeviceSynchronize());
        after = room();
    }
    note("%zu MiB of the GPU's memory free, %zu with ordinary memory, %zu afterwards", before >> 20, less >> 20, after >> 20);
    expect(!full || (before < 5 * half && after < 5 * half), "it is back at the GPU when there is room");
    bool ok = true;
    for (size_t i = 0; i < n; i++)
        ok &= i % 1024 == 0 || p[i] == mix((uint32_t)i + 9) + added(i, 2);
    expect(ok, "and whole");
    cudaError_t e = full ? cudaMalloc(&d, 2 * room_for) : cudaErrorMemoryAllocation;
    expect(e == cudaErrorMemoryAllocation, "what would not fit without it is refused");
    cudaGetLastError();
    CUDA(cudaFree(p));
}

struct reader {
    const uint32_t *p;
    size_t n;
    std::atomic<int> *stop;
    bool ok;
};
static void *reads(void *arg)
{
    reader *r = (reader *)arg;
    uint32_t x = 1;
    for (int i = 0; i < 20000 && !*r->stop; i++) {
        x = x * 1664525 + 1013904223;
        r->ok &= r->p[x % r->n] == mix(x % (uint32_t)r->n + 4);
    }
    return nullptr;
}

// No kernel runs: processors may read while the memory changes places.
static void threads()
{
    size_t n = 6 * words;
    uint32_t *p[3];
    for (int s = 0; s < 3; s++) {
        managed(&p[s], n * 4);
        fill(p[s], n, 4);
    }
    std::atomic<int> stop{0};
    pthread_t t[4];
    reader r[4];
    for (int i = 0; i < 4; i++) {
        r[i] = {p[i % 2], n, &stop, true};
        if (pthread_create(&t[i], nullptr, reads, &r[i]))
            _Exit(1);
    }
    for (int i = 0; i < 12; i++) {
        cudaMemLocation there = {cudaMemLocationTypeDevice, 0}, here = {cudaMemLocationTypeHost, 0};
        CUDA(cudaMemPrefetchAsync(p[(i + 1) % 3], n * 4, here, 0, 0));
        CUDA(cudaMemPrefetchAsync(p[i % 3], n * 4, there, 0, 0));
        usleep(10000);
    }
    stop = 1;
    bool ok = true;
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], nullptr);
        ok &= r[i].ok;
    }
    for (int s = 0; s < 3; s++)
        ok &= right(p[s], n, 4, 0);
    expect(ok, "threads that read while it changes places");
    for (int s = 0; s < 3; s++)
        CUDA(cudaFree(p[s]));
}

static void *comes_and_goes(void *arg)
{
    std::atomic<int> *stop = (std::atomic<int> *)arg;
    for (int i = 0; !*stop; i++) {
        uint32_t *p;
        CUDA(cudaMallocManaged(&p, 3 * half));
        p[i] = 1;
        add<<<4, 256>>>(p, 3 * words, 1);
        CUDA(cudaFree(p));
    }
    return nullptr;
}

static void freed()
{
    size_t n = 7 * words;
    uint32_t *p[2];
    std::atomic<int> stop{0};
    pthread_t t;
    for (int s = 0; s < 2; s++) {
        managed(&p[s], n * 4);
        CUDA(cudaMemset(p[s], 0, n * 4));
    }
    CUDA(cudaDeviceSynchronize());
    if (pthread_create(&t, nullptr, comes_and_goes, &stop))
        _Exit(1);
    for (int i = 0; i < 24; i++)
        add<<<4, 256>>>(p[i / 8 % 2], n, 1);
    CUDA(cudaDeviceSynchronize());
    stop = 1;
    pthread_join(t, nullptr);
    CUDA(cudaDeviceSynchronize());
    size_t bad = 0;
    for (size_t i = 0; i < n; i++)
        bad += p[0][i] != added(i, 16) || p[1][i] != added(i, 8);
    expect(!bad, "beside a thread that makes and frees some");
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    int status = -1;
    waitpid(child, &status, 0);
    for (int i = 0; i < 10; i++)
        add<<<4, 256>>>(p[1], n, 1);
    CUDA(cudaDeviceSynchronize());
    for (size_t i = 0; i < n; i++)
        bad += p[0][i] != added(i, 16) || p[1][i] != added(i, 18);
    expect(!bad && status == 0, "after a fork");
    cudaStream_t s;
    cudaGraph_t g;
    cudaGraphExec_t exec;
    CUDA(cudaStreamCreate(&s));
    CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    CUDA(cudaMemcpyAsync(p[0], p[1], n * 4, cudaMemcpyDeviceToDevice, s));
    add<<<4, 256, 0, s>>>(p[0], n, 2);
    CUDA(cudaStreamEndCapture(s, &g));
    CUDA(cudaGraphInstantiateWithFlags(&exec, g, 0));
    for (int i = 0; i < 2; i++) {
        CUDA(cudaGraphLaunch(exec, s));
        CUDA(cudaStreamSynchronize(s));
        for (int k = 0; k < 6; k++)
            add<<<4, 256>>>(p[1], n, 1);
        CUDA(cudaDeviceSynchronize());
    }
    for (size_t i = 0; i < n; i++)
        bad += p[0][i] != added(i, 26) || p[1][i] != added(i, 30);
    expect(!bad, "copies of a graph");
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(g));
    CUDA(cudaFree(p[0]));
    CUDA(cudaFree(p[1]));
}

// As much as asked for, in a dozen allocations, of which the processor has the pages of two: in a
// guest with an emulated processor these take long. What pinned memory takes is left: it is had
// beside that, and kernels reach it.
static void much(size_t bytes)
{
    enum { SETS = 12, TOUCHED = 2, PINNED = 8 << 20 };
    size_t each = bytes / SETS & ~(size_t)4095, pages = each / 4096;
    std::vector<uint32_t> page(1024), copy(each / 4);
    uint32_t *p[SETS], *pinned, *there;
    for (int s = 0; s < SETS; s++) {
        managed(&p[s], each);
        if (s < TOUCHED)
            memset(p[s], s + 1, each);
        else
            CUDA(cudaMemset(p[s], s + 1, each));
        mark<<<16, 256>>>(p[s], pages, s);
        CUDA(cudaDeviceSynchronize());
    }
    cudaDeviceProp of;
    CUDA(cudaGetDeviceProperties(&of, 0));
    CUDA(cudaMallocHost(&pinned, PINNED));
    memset(pinned, 0, PINNED);
    bool ok = true;
    if (of.canMapHostMemory) { // not over a network
        CUDA(cudaHostGetDevicePointer(&there, pinned, 0));
        mark<<<16, 256>>>(there, PINNED / 4096, 99);
        CUDA(cudaDeviceSynchronize());
        for (size_t i = 0; i < PINNED / 4096; i++)
            ok &= pinned[i * 1024] == mix((uint32_t)i + 99);
    }
    expect(ok, "pinned memory beside much more than the room");
    for (int s = 0; s < SETS; s++)
        mark<<<16, 256>>>(p[s], pages, s + 1000);
    CUDA(cudaDeviceSynchronize());
    for (int s = 0; s < SETS; s++) {
        memset(page.data(), s + 1, 4096);
        uint32_t before = page[0];
        const uint32_t *now = s < TOUCHED ? p[s] : copy.data();
        if (s >= TOUCHED)
            CUDA(cudaMemcpy(copy.data(), p[s], each, cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < pages && ok; i++) {
            page[0] = before + mix((uint32_t)i + s) + mix((uint32_t)i + s + 1000);
            ok &= !memcmp(now + i * 1024, page.data(), 4096);
        }
        CUDA(cudaFree(p[s]));
    }
    expect(ok, "every byte of it");
    CUDA(cudaFreeHost(pinned));
}

int main(int argc, char **argv)
{
    cudaDeviceProp of;
    // Where the device promises that both may use it at once too.
    setenv("CAUSEWAY_MANAGED", "gpu", 0);
    CUDA(cudaGetDeviceProperties(&of, 0));
    // A GPU's driver maps the host's pages in blocks of 32 MiB.
    half = (size_t)argument(argc, argv, 1, strstr(of.name, "Software") ? 1 : 16) << 20;
    room_for = 12 * half;
    words = half / 4;
    char piece[32];
    snprintf(piece, sizeof piece, "%zu", 2 * half >> 20);
    setenv("CAUSEWAY_MANAGED_PIECE", piece, 1);
    int concurrent = 0;
    CUDA(cudaFree(0));
    CUDA(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0));
    bool full = !concurrent;
    void *hog = nullptr;
    uint32_t *warm;
    CUDA(cudaMalloc(&warm, 4096)); // code is loaded
    add<<<1, 1>>>(warm, 1, 1);
    touch<<<1, 1>>>(warm, warm, 1);
    CUDA(cudaDeviceSynchronize());
    if (full)
        CUDA(cudaMalloc(&hog, (room() - room_for) & ~(size_t)((2 << 20) - 1)));
    note("%zu MiB of the GPU's memory left", room() >> 20);
    whole();
    size_t at_first = room(); // a driver has a few KiB more by now, once
    phases();
    ordinary(full);
    threads();
    freed();
    much(argument(argc, argv, 2, 4 * room_for >> 20) << 20);
    size_t at_last = room();
    note("%zu KiB of the GPU's memory left at first, %zu at last", at_first >> 10, at_last >> 10);
    expect(!full || at_last == at_first, "nothing is left behind");
    CUDA(cudaFree(warm));
    CUDA(cudaFree(hog));
    return finish();
}
