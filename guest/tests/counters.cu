// Counters that host threads and kernels count up with atomic operations of the system's scope.
// Where the device's attributes promise that both may do so at once, they do; elsewhere they take
// turns. No update may be lost. needs: cuda 12.9
#include "driver.h"

#include <atomic>
#include <thread>
#include <vector>

enum kind { ADD, REDUCE, CAS, WIDE, KINDS };
static const char *names[] = {"add", "reduction", "compare and swap", "add of 64 bits"};

__global__ void up(unsigned long long *at, int kind, int each)
{
    unsigned *p = (unsigned *)at;
    for (int i = 0; i < each; i++) {
        if (kind == ADD) {
            if (atomicAdd_system(p, 1u) == 0xffffffffu)
                return; // the old value is wanted
        } else if (kind == REDUCE) {
            atomicAdd_system(p, 1u);
        } else if (kind == WIDE) {
            atomicAdd_system(at, 1ull);
        } else {
            unsigned old = *(volatile unsigned *)p, seen;
            while ((seen = atomicCAS_system(p, old, old + 1)) != old)
                old = seen;
        }
    }
}

static const int blocks = 4, threads = 32, cpus = 2;

// host counts up until told to stop, at least `least` times in each thread, and returns how often.
static unsigned long long host(unsigned long long *at, int kind, const std::atomic<bool> &stop, unsigned long long least)
{
    std::atomic<unsigned long long> total{0};
    std::vector<std::thread> all;
    for (int i = 0; i < cpus; i++)
        all.emplace_back([&] {
            unsigned long long n = 0;
            for (; n < least || !stop; n++)
                if (kind == WIDE)
                    __atomic_fetch_add(at, 1ull, __ATOMIC_SEQ_CST);
                else
                    __atomic_fetch_add((unsigned *)at, 1u, __ATOMIC_SEQ_CST);
            total += n;
        });
    for (auto &t : all)
        t.join();
    return total;
}

// lost is how many updates are missing after both sides counted: at once, or one after the other.
static long long lost(unsigned long long *at, int kind, bool at_once, int each)
{
    *at = 0;
    std::atomic<bool> stop{!at_once};
    unsigned long long counted = 0;
    std::thread side;
    if (at_once)
        side = std::thread([&] { counted = host(at, kind, stop, 1000); });
    up<<<blocks, threads>>>(at, kind, each);
    CUDA(cudaDeviceSynchronize());
    stop = true;
    if (at_once)
        side.join();
    else
        counted = host(at, kind, stop, 1000);
    unsigned long long want = counted + (unsigned long long)blocks * threads * each, got = *at;
    return kind == WIDE ? (long long)(want - got) : (long long)(unsigned)(want - got);
}

static int attribute(cudaDeviceAttr a)
{
    int v = 0;
    CUDA(cudaDeviceGetAttribute(&v, a, 0));
    return v;
}

static void count(const char *what, unsigned long long *at, bool promised)
{
    note("%s: the host may count at the same time: %d", what, promised);
    for (int kind = 0; kind < KINDS; kind++) {
        char line[100];
        snprintf(line, sizeof line, "%s, %s", what, names[kind]);
        expect(lost(at, kind, promised, kind == CAS ? 10 : 100) == 0, line);
    }
}

int main(int argc, char **argv)
{
    // Also counts at once where that is not promised.
    const bool provoke = argument(argc, argv, 1, 0) != 0;
    note_device();
    unsigned long long *m, *p;
    managed(&m, sizeof *m);
    CUDA(cudaHostAlloc(&p, sizeof *p, cudaHostAllocMapped));
    const bool native = attribute(cudaDevAttrHostNativeAtomicSupported), concurrent = attribute(cudaDevAttrConcurrentManagedAccess);
    count("managed", m, concurrent);
    if (!attribute(cudaDevAttrCanMapHostMemory))
        // A GPU on another machine; run-tests.sh knows where this is allowed.
        return failures ? finish() : 77;
    count("pinned", p, native);
#if CUDA_VERSION >= 13000
    CUatomicOperation ops[] = {CU_ATOMIC_OPERATION_INTEGER_ADD, CU_ATOMIC_OPERATION_CAS};
    unsigned can[2] = {};
    CU(cuDeviceGetHostAtomicCapabilities(can, ops, 2, 0));
    expect(!native || (can[0] && can[1]), "capabilities agree with the attribute");
#else
    expect(true, "capabilities agree with the attribute");
#endif
    for (int i = 0; i < 2 && provoke; i++)
        for (int kind = 0; kind < KINDS; kind++)
            if (kind != CAS) // which never ends where the host's updates come in between
                note("%s at once, %s: %lld lost", i ? "pinned" : "managed", names[kind], lost(i ? p : m, kind, true, 1000));
    CUDA(cudaFreeHost(p));
    CUDA(cudaFree(m));
    return finish();
}
