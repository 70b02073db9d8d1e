// Managed memory that CPU and GPU use in turns, as devices without concurrent access ask for: fills
// and sums of every size, system calls into it, threads, host functions, copies, graphs, arguments,
// prefetches, attachment, children, and freeing what is in use. needs: cuda 12.9
#include "driver.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

__global__ void twice(uint32_t *p, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        p[i] *= 2;
}
__global__ void poke(uint32_t *p, size_t n, size_t step, uint32_t v)
{
    for (size_t i = threadIdx.x * step; i < n; i += blockDim.x * step)
        p[i] += v;
}
struct arguments {
    uint32_t *p;
    size_t n;
};

static void fill(uint32_t *p, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = mix((uint32_t)i + seed);
}
static size_t wrong(const uint32_t *p, size_t n, uint32_t seed, uint32_t times)
{
    size_t bad = 0;
    for (size_t i = 0; i < n; i++)
        bad += p[i] != mix((uint32_t)i + seed) * times;
    return bad;
}

static void turns()
{
    for (size_t n : {1ul, 15ul, 1024ul, 16385ul, 70001ul, 1ul << 20}) {
        uint32_t *p, bad = 0;
        managed(&p, n * 4);
        fill(p, n, 7);
        for (uint32_t round = 1; round <= 3; round++) {
            twice<<<8, 256>>>(p, n);
            CUDA(cudaDeviceSynchronize());
            bad += wrong(p, n, 7, 1u << round) != 0;
        }
        twice<<<8, 256>>>(p, n);
        twice<<<8, 256>>>(p, n);
        p = p; // the second finds what the first left
        CUDA(cudaDeviceSynchronize());
        p[n - 1] = 1;
        twice<<<8, 256>>>(p, n);
        CUDA(cudaDeviceSynchronize());
        bad += n > 1 && p[0] != mix(7) * 64;
        bad += p[n - 1] != 2;
        printf("%zu words: %s\n", n, bad ? "FAILED" : "ok");
        failures += bad != 0;
        CUDA(cudaFree(p));
    }
}

// What nobody wrote is zero, and stays so beside what somebody did.
static void untouched()
{
    const size_t n = 1 << 20;
    uint32_t *p;
    managed(&p, n * 4);
    p[300000] = 5;
    poke<<<1, 32>>>(p, n, 65536, 3);
    CUDA(cudaDeviceSynchronize());
    size_t bad = 0;
    for (size_t i = 0; i < n; i++)
        bad += p[i] != (i == 300000 ? 5 : i % 65536 == 0 ? 3 : 0);
    expect(bad == 0, "untouched words are zero");
    // Here and there on both sides.
    for (int round = 0; round < 5; round++) {
        for (size_t i = 1000 * round; i < n; i += 100003)
            p[i] += 7;
        poke<<<1, 32>>>(p, n, 77777, 1);
        CUDA(cudaDeviceSynchronize());
    }
    std::vector<uint32_t> want(n);
    for (size_t i = 0; i < n; i++)
        want[i] = i == 300000 ? 5 : i % 65536 == 0 ? 3 : 0;
    for (int round = 0; round < 5; round++) {
        for (size_t i = 1000 * round; i < n; i += 100003)
            want[i] += 7;
        for (size_t i = 0; i < n; i += 77777)
            want[i] += 1;
    }
    expect(memcmp(p, want.data(), n * 4) == 0, "sparse writes of both");
    CUDA(cudaFree(p));
}

// The kernel reads and writes the memory for us.
static void calls()
{
    const size_t n = 300000;
    uint32_t *p;
    char path[] = "/tmp/managedpages.XXXXXX";
    int fd = mkstemp(path);
    unlink(path);
    managed(&p, n * 4);
    fill(p, n, 9);
    twice<<<8, 256>>>(p, n);
    CUDA(cudaDeviceSynchronize());
    size_t put = 0, got = 0;
    for (ssize_t k; put < n * 4 && (k = write(fd, (char *)p + put, n * 4 - put)) > 0;)
        put += k;
    expect(put == n * 4, "write takes what a kernel left");
    std::vector<uint32_t> back(n);
    expect(pread(fd, back.data(), n * 4, 0) == (ssize_t)(n * 4) && wrong(back.data(), n, 9, 2) == 0, "every byte of it");
    twice<<<8, 256>>>(p, n);
    CUDA(cudaDeviceSynchronize());
    lseek(fd, 0, SEEK_SET);
    for (ssize_t k; got < n * 4 && (k = read(fd, (char *)p + got, n * 4 - got)) > 0;)
        got += k;
    expect(got == n * 4 && wrong(p, n, 9, 2) == 0, "read fills it");
    twice<<<8, 256>>>(p, n);
    CUDA(cudaDeviceSynchronize());
    expect(wrong(p, n, 9, 4) == 0, "and a kernel sees it");
    close(fd);
    CUDA(cudaFree(p));
}

struct job {
    uint32_t *p;
    size_t n, bad;
    int k;
};
static void *all_of_it(void *arg)
{
    job *j = (job *)arg;
    j->bad = wrong(j->p, j->n, 3, 2);
    return nullptr;
}
static void *part_of_it(void *arg)
{
    job *j = (job *)arg;
    for (size_t i = j->k; i < j->n; i += 4)
        j->p[i] += 1;
    return nullptr;
}
static void threads()
{
    const size_t n = 1 << 19;
    uint32_t *p;
    pthread_t t[4];
    job j[4];
    managed(&p, n * 4);
    fill(p, n, 3);
    twice<<<8, 256>>>(p, n);
    CUDA(cudaDeviceSynchronize());
    size_t bad = 0;
    for (int k = 0; k < 4; k++) {
        j[k] = job{p, n, 0, k};
        pthread_create(&t[k], nullptr, all_of_it, &j[k]);
    }
    for (int k = 0; k < 4; k++) {
        pthread_join(t[k], nullptr);
        bad += j[k].bad;
    }
    expect(bad == 0, "threads that read the same");
    twice<<<8, 256>>>(p, n);
    CUDA(cudaDeviceSynchronize());
    for (int k = 0; k < 4; k++)
        pthread_create(&t[k], nullptr, part_of_it, &j[k]);
    for (int k = 0; k < 4; k++)
        pthread_join(t[k], nullptr);
    for (size_t i = 0; i < n; i++)
        bad += p[i] != mix((uint32_t)i + 3) * 4 + 1;
    expect(bad == 0, "threads that write side by side");
    CUDA(cudaFree(p));
}

static void CUDART_CB host_function(void *arg)
{
    arguments *a = (arguments *)arg;
    for (size_t i = 0; i < a->n; i++)
        a->p[i] += 1;
}
static void in_order()
{
    const size_t n = 50000;
    uint32_t *p, *d;
    arguments *a; // itself in managed memory
    cudaStream_t s;
    managed(&p, n * 4);
    managed(&a, sizeof *a);
    CUDA(cudaMalloc(&d, n * 4));
    CUDA(cudaStreamCreate(&s));
    fill(p, n, 1);
    *a = arguments{p, n};
    void *args[] = {&a->p, &a->n};
    // arguments lie there too
    CUDA(cudaLaunchKernel((const void *)twice, dim3(8), dim3(256), args, 0, s));
    CUDA(cudaLaunchHostFunc(s, host_function, a));
    twice<<<8, 256, 0, s>>>(p, n);
    CUDA(cudaStreamSynchronize(s));
    size_t bad = 0;
    for (size_t i = 0; i < n; i++)
        bad += p[i] != mix((uint32_t)i + 1) * 4 + 2;
    expect(bad == 0, "kernel, host function, kernel");
    CUDA(cudaMemcpyAsync(d, p, n * 4, cudaMemcpyDefault, s));
    twice<<<8, 256, 0, s>>>(d, n);
    CUDA(cudaMemcpyAsync(p, d, n * 4, cudaMemcpyDefault, s));
    CUDA(cudaMemsetAsync(p + 100, 0xff, 400, s));
    CUDA(cudaStreamSynchronize(s));
    for (size_t i = 0; i < n; i++)
        bad += p[i] != (i >= 100 && i < 200 ? 0xffffffff : mix((uint32_t)i + 1) * 8 + 4);
    expect(bad == 0, "copies and sets");
    std::vector<uint32_t> h(n);
    fill(p, n, 5);
    CUDA(cudaMemcpy(h.data(), p, n * 4, cudaMemcpyDefault));
    expect(wrong(h.data(), n, 5, 1) == 0, "a copy of what the CPU wrote");
    fill(h.data(), n, 6);
    CUDA(cudaMemcpy(p, h.data(), n * 4, cudaMemcpyDefault));
    expect(wrong(p, n, 6, 1) == 0, "a copy over what the CPU wrote");

    cudaGraph_t g;
    cudaGraphExec_t e;
    CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    twice<<<8, 256, 0, s>>>(p, n);
    CUDA(cudaMemcpyAsync(d, p, n * 4, cudaMemcpyDefault, s));
    twice<<<8, 256, 0, s>>>(d, n);
    CUDA(cudaMemcpyAsync(p, d, n * 2, cudaMemcpyDefault, s));
    p[7] = p[7]; // while it captures
    CUDA(cudaStreamEndCapture(s, &g));
    CUDA(cudaGraphInstantiate(&e, g, 0));
    bad = 0;
    for (int round = 1; round <= 3; round++) {
        fill(p, n, 40 + round);
        CUDA(cudaGraphLaunch(e, s));
        CUDA(cudaStreamSynchronize(s));
        bad += wrong(p, n / 2, 40 + round, 4);
        for (size_t i = n / 2; i < n; i++)
            bad += p[i] != mix((uint32_t)i + 40 + round) * 2;
    }
    expect(bad == 0, "graphs");
    CUDA(cudaGraphExecDestroy(e));
    CUDA(cudaGraphDestroy(g));
    CUDA(cudaStreamDestroy(s));
    CUDA(cudaFree(p));
    CUDA(cudaFree(a));
    CUDA(cudaFree(d));
}

static CUresult prefetch(const void *p, size_t n, bool to_cpu)
{
    CUmemLocation l = {to_cpu ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE, 0};
    return cuMemPrefetchAsync_v2((CUdeviceptr)p, n, l, 0, 0);
}
static void hints()
{
    const size_t n = 1 << 21;
    uint32_t *p;
    managed(&p, n * 4);
    fill(p, n, 2);
    CU(prefetch(p, n * 4, false));
    twice<<<8, 256>>>(p, n);
    CU(prefetch(p, n * 4, true));
    CUDA(cudaDeviceSynchronize());
    expect(wrong(p, n, 2, 2) == 0, "prefetched both ways");
    CU(prefetch(p + 5000, 400000, false));
    twice<<<8, 256>>>(p, n);
    CU(prefetch(p + 70000, 400000, true));
    CUDA(cudaDeviceSynchronize());
    expect(wrong(p, n, 2, 4) == 0, "parts of it");
    CUDA(cudaFree(p));
}

static void attached()
{
    const size_t n = 1 << 18;
    uint32_t *p, *q, *h;
    cudaStream_t s, t;
    CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking));
    managed(&p, n * 4);
    managed(&q, n * 4);
    CUDA(cudaMallocManaged(&h, n * 4, cudaMemAttachHost));
    CUDA(cudaStreamAttachMemAsync(s, p, 0, cudaMemAttachSingle));
    CUDA(cudaStreamAttachMemAsync(t, q, 0, cudaMemAttachSingle));
    CUDA(cudaStreamSynchronize(s));
    CUDA(cudaStreamSynchronize(t));
    fill(p, n, 1);
    fill(q, n, 2);
    size_t bad = 0;
    for (int round = 1; round <= 4; round++) { // one stream's memory while the other works
        twice<<<8, 256, 0, s>>>(p, n);
        bad += wrong(q, n, 2, 1u << (round - 1));
        fill(h, n, round);
        CUDA(cudaStreamSynchronize(s));
        twice<<<8, 256, 0, t>>>(q, n);
        bad += wrong(p, n, 1, 1u << round) + wrong(h, n, round, 1);
        CUDA(cudaStreamSynchronize(t));
    }
    expect(bad == 0, "attached to streams and to the host");
    CUDA(cudaStreamAttachMemAsync(s, h, 0, cudaMemAttachGlobal));
    CUDA(cudaStreamSynchronize(s));
    twice<<<8, 256, 0, s>>>(h, n);
    CUDA(cudaStreamSynchronize(s));
    expect(wrong(h, n, 4, 2) == 0, "attached to all again");
    for (uint32_t *x : {p, q, h})
        CUDA(cudaFree(x));
    CUDA(cudaStreamDestroy(s));
    CUDA(cudaStreamDestroy(t));
}

// Many small objects, some of which go while others are used.
static void small()
{
    std::vector<uint32_t *> all;
    size_t bad = 0;
    for (int i = 0; i < 60; i++) {
        uint32_t *p;
        managed(&p, 64 + 40 * i);
        p[3] = i;
        all.push_back(p);
    }
    for (int i = 0; i < 60; i++)
        twice<<<1, 32>>>(all[i], 10);
    for (int i = 0; i < 60; i += 3)
        CUDA(cudaFree(all[i])); // perhaps in use
    for (int i = 0; i < 60; i++)
        if (i % 3 != 0)
            bad += all[i][3] != 2u * i;
    for (int i = 0; i < 60; i += 3) {
        uint32_t *p;
        managed(&p, 64 + 40 * i); // not cleared
        memset(p, i, 64 + 40 * i);
        twice<<<1, 32>>>(p, 16);
        all[i] = p;
    }
    CUDA(cudaDeviceSynchronize());
    for (int i = 0; i < 60; i++)
        bad += i % 3 ? all[i][3] != 2u * i : all[i][4] != i * 0x01010101u * 2;
    for (uint32_t *p : all)
        CUDA(cudaFree(p));
    expect(bad == 0, "small objects");
}

static void children()
{
    const size_t n = 100000;
    uint32_t *p;
    managed(&p, n * 4);
    fill(p, n, 8);
    twice<<<8, 256>>>(p, n);
    CUDA(cudaDeviceSynchronize());
    size_t bad = p[5] != mix(13) * 2;
    pid_t pid = fork();
    if (pid == 0) {
        char *own = (char *)malloc(1 << 20);
        memset(own, 1, 1 << 20);
        _exit(0);
    }
    int status = -1;
    bad += wrong(p, n, 8, 2);
    waitpid(pid, &status, 0);
    expect(bad == 0 && status == 0, "a child leaves it alone");
    twice<<<8, 256>>>(p, n);
    CUDA(cudaFree(p)); // in use
    CUDA(cudaDeviceSynchronize());
    expect(true, "freed while in use");
}

// Allocators throw pages away: they are zero then, for a kernel too. Those of a bare driver stay as
// they were, or cannot be thrown away.
static void thrown_away()
{
    const size_t n = 1 << 20, from = n / 4, to = n / 2;
    uint32_t *p;
    bool thrown = false;
    managed(&p, n * 4);
    for (uint32_t times = 1; times <= 2; times++) {
        fill(p, n, times);
        if (times == 2)
            thrown = madvise(p + from, (to - from) * 4, MADV_DONTNEED) == 0;
        twice<<<64, 256>>>(p, n);
        CUDA(cudaDeviceSynchronize());
    }
    note("thrown away: %d, zero: %d", thrown, p[from] == 0);
    size_t bad = 0;
    bool zero = thrown && p[from] == 0;
    for (size_t i = 0; i < n; i++)
        bad += p[i] != (zero && i >= from && i < to ? 0 : mix((uint32_t)i + 2) * 2);
    expect(bad == 0, "pages that are thrown away");
    CUDA(cudaFree(p));
}

int main()
{
    // Where the device promises that both may use it at once too.
    setenv("CAUSEWAY_MANAGED", "gpu", 0);
    note_device();
    CUDA(cudaFree(0));
    turns();
    untouched();
    calls();
    threads();
    in_order();
    hints();
    attached();
    small();
    children();
    thrown_away();
    return finish();
}
