// Large copies of ordinary memory: of every size around the library's limits, from a mapped file,
// to memory that was never touched, behind a kernel that takes long, and from several threads at
// once.
#include "check.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

// slow keeps a stream busy: one thread, dependent steps.
__global__ void slow(unsigned long long *p, int steps)
{
    unsigned long long v = *p;
    for (int i = 0; i < steps; i++)
        v = v * 6364136223846793005ull + 1;
    *p = v;
}

static uint64_t value(uint64_t i, uint64_t seed) { return (i + seed) * 0x9e3779b97f4a7c15ull; }

static void fill(void *p, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i < bytes / 8; i++)
        ((uint64_t *)p)[i] = value(i, seed);
}

static bool holds(const void *p, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i < bytes / 8; i++)
        if (((const uint64_t *)p)[i] != value(i, seed))
            return false;
    return true;
}

static char *fresh(size_t bytes)
{
    return (char *)mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void sizes()
{
    bool ok = true;
    for (size_t n : {(size_t)32 << 10, (size_t)264 << 10, ((size_t)2 << 20) - 8, (size_t)5 << 20, ((size_t)16 << 20) + 8, (size_t)40 << 20}) {
        std::vector<uint64_t> from(n / 8 + 1);
        char *d, *to = fresh(n + 8192);
        CUDA(cudaMalloc(&d, n + 8));
        fill(from.data(), n, n);
        CUDA(cudaMemcpy(d + 8, from.data(), n, cudaMemcpyHostToDevice));
        memset(from.data(), 0, n); // the call returned: the source is the program's again
        CUDA(cudaMemcpy(to + 24, d + 8, n, cudaMemcpyDeviceToHost));
        ok = ok && holds(to + 24, n, n) && to[23] == 0 && to[24 + n] == 0;
        munmap(to, n + 8192);
        CUDA(cudaFree(d));
    }
    expect(ok, "sizes from 32 KiB to 40 MiB");
}

static void file()
{
    const size_t n = 24 << 20;
    char path[] = "/tmp/pageable-XXXXXX", *d;
    int fd = mkstemp(path);
    std::vector<uint64_t> b(n / 8);
    fill(b.data(), n, 7);
    bool written = fd >= 0 && unlink(path) == 0 && write(fd, b.data(), n) == (ssize_t)n;
    void *p = mmap(nullptr, n, PROT_READ, MAP_PRIVATE, fd, 0);
    CUDA(cudaMalloc(&d, n));
    CUDA(cudaMemcpy(d, p, n, cudaMemcpyHostToDevice));
    memset(b.data(), 0, n);
    CUDA(cudaMemcpy(b.data(), d, n, cudaMemcpyDeviceToHost));
    expect(written && holds(b.data(), n, 7), "a file mapped for reading");
    munmap(p, n);
    close(fd);
    CUDA(cudaFree(d));
}

// A copy in the order of a stream whose kernel takes its time, and another stream's copies beside
// it.
static void behind()
{
    const size_t n = 48 << 20;
    cudaStream_t busy, idle;
    unsigned long long *p;
    char *d, *e;
    std::vector<uint64_t> a(n / 8), b(n / 8), c(n / 8);
    CUDA(cudaStreamCreateWithFlags(&busy, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&idle, cudaStreamNonBlocking));
    CUDA(cudaMalloc(&p, 8));
    CUDA(cudaMalloc(&d, n));
    CUDA(cudaMalloc(&e, n));
    CUDA(cudaMemset(p, 0, 8));
    fill(a.data(), n, 1);
    fill(b.data(), n, 2);
    slow<<<1, 1, 0, busy>>>(p, 3000000);
    std::thread other([&] {
        CUDA(cudaSetDevice(0));
        CUDA(cudaMemcpyAsync(e, b.data(), n, cudaMemcpyHostToDevice, idle));
        CUDA(cudaMemcpyAsync(c.data(), e, n, cudaMemcpyDeviceToHost, idle));
        CUDA(cudaStreamSynchronize(idle));
    });
    CUDA(cudaMemcpyAsync(d, a.data(), n, cudaMemcpyHostToDevice, busy));
    memset(a.data(), 0, n);
    slow<<<1, 1, 0, busy>>>(p, 300000);
    CUDA(cudaMemcpyAsync(a.data(), d, n, cudaMemcpyDeviceToHost, busy));
    expect(holds(a.data(), n, 1), "behind a kernel");
    other.join();
    expect(holds(c.data(), n, 2), "beside it");
    CUDA(cudaFree(p));
    CUDA(cudaFree(d));
    CUDA(cudaFree(e));
}

static void threads()
{
    std::vector<std::thread> all;
    std::vector<int> bad(6);
    for (int t = 0; t < 6; t++)
        all.emplace_back([t, &bad] {
            const size_t n = (6 + t) << 20;
            char *d;
            std::vector<uint64_t> v(n / 8);
            CUDA(cudaSetDevice(0));
            CUDA(cudaMalloc(&d, n));
            for (int r = 0; r < 4; r++) {
                fill(v.data(), n, t * 100 + r);
                CUDA(cudaMemcpyAsync(d, v.data(), n, cudaMemcpyHostToDevice, cudaStreamPerThread));
                memset(v.data(), 0, n);
                CUDA(cudaMemcpyAsync(v.data(), d, n, cudaMemcpyDeviceToHost, cudaStreamPerThread));
                CUDA(cudaStreamSynchronize(cudaStreamPerThread));
                bad[t] += !holds(v.data(), n, t * 100 + r);
            }
            CUDA(cudaFree(d));
        });
    int wrong = 0;
    for (auto &t : all)
        t.join();
    for (int b : bad)
        wrong += b;
    expect(wrong == 0, "six threads at once");
}

int main()
{
    sizes();
    file();
    behind();
    threads();
    return finish();
}
