// Functions of the program that streams call and that touch managed memory or want a lock of the
// program's, with more queued behind them than a driver takes, and while a thread waits to free
// memory. Argument: launches (3000). needs: cuda 13.0
#include "driver.h"

#include <atomic>
#include <mutex>
#include <thread>
#include <unistd.h>

__global__ void add(uint32_t *p)
{
    if (threadIdx.x == 0 && blockIdx.x == 0)
        p[0] += 1;
}

struct job {
    uint32_t *p, seen;
};
static void CUDART_CB touch(void *arg)
{
    job *j = (job *)arg;
    usleep(200000);
    j->seen = j->p[0];
    j->p[1000] += 7;
}

static std::mutex lock;
static void CUDART_CB wants_lock(void *arg)
{
    usleep(100000);
    std::lock_guard<std::mutex> held(lock);
    ++*(std::atomic<int> *)arg;
}

// A function writes one part of an allocation while another stream's kernel, whose end it waits
// for, writes the part beside it. Where the device does not promise that both may at once it should
// not; nothing of either is lost all the same.
static const uint32_t PART = 65536; // words

__global__ void beside(volatile uint32_t *flag, uint32_t *p)
{
    while (*flag == 0)
        ;
    for (uint32_t i = threadIdx.x; i < PART; i += blockDim.x)
        p[i] = i + 7;
}

struct two {
    volatile uint32_t *p;
    bool writes;
    uint32_t sum;
    std::atomic<int> touched, over;
};
static void CUDART_CB meanwhile(void *arg)
{
    two *t = (two *)arg;
    for (uint32_t i = 0; i < PART; i++)
        if (t->writes)
            t->p[i] = i;
        else
            t->sum += t->p[i];
    t->touched = 1;
    while (!t->over)
        usleep(1000);
}

static void side_by_side(bool writes)
{
    two t = {nullptr, writes, 0, {0}, {0}};
    cudaStream_t s[3];
    uint32_t bad = 0, *p, *flag;
    for (auto &x : s)
        CUDA(cudaStreamCreateWithFlags(&x, cudaStreamNonBlocking));
    CUDA(cudaMalloc(&flag, 4));
    CUDA(cudaMemset(flag, 0, 4));
    managed(&p, 3 * PART * 4);
    memset(p, 1, 3 * PART * 4);
    t.p = p;
    add<<<1, 32>>>(p);
    CUDA(cudaDeviceSynchronize());
    beside<<<1, 256, 0, s[0]>>>(flag, p + PART);
    CUDA(cudaLaunchHostFunc(s[1], meanwhile, &t));
    while (!t.touched)
        usleep(1000);
    CUDA(cudaMemsetAsync(flag, 1, 4, s[2]));
    CUDA(cudaStreamSynchronize(s[0]));
    t.over = 1;
    CUDA(cudaStreamSynchronize(s[1]));
    for (uint32_t i = 0; i < PART; i++) {
        bad += p[i] != (writes ? i : 0x01010101u + (i == 0));
        bad += p[PART + i] != i + 7 || p[2 * PART + i] != 0x01010101u;
    }
    expect(bad == 0, writes ? "a function writes beside what a kernel writes" : "a function reads beside what a kernel writes");
    for (auto &x : s)
        CUDA(cudaStreamDestroy(x));
    CUDA(cudaFree(p));
    CUDA(cudaFree(flag));
}

// Memory that the driver has pinned is freed by one thread, as what is taken last may still be
// used; another holds the lock and asks for something.
static void pinned(cudaStream_t s, job *j)
{
    uint32_t *h[3];
    std::atomic<int> calls{0};
    for (auto &x : h)
        CUDA(cudaMallocHost(&x, 4 << 20));
    uint32_t before = j->p[1000];
    CUDA(cudaLaunchHostFunc(s, touch, j));
    std::thread frees([&h] { CUDA(cudaFreeHost(h[0])); });
    frees.join();
    CUDA(cudaStreamSynchronize(s));
    expect(j->p[1000] == before + 7, "freeing pinned memory while a function is ahead");
    lock.lock();
    CUDA(cudaLaunchHostFunc(s, wants_lock, &calls));
    std::thread second([&h] { CUDA(cudaFreeHost(h[1])); });
    usleep(200000);
    size_t left, total;
    CUDA(cudaMemGetInfo(&left, &total));
    lock.unlock();
    second.join();
    CUDA(cudaStreamSynchronize(s));
    expect(calls == 1, "the same with a lock that is held around a question");
    CUDA(cudaFreeHost(h[2]));
}

// Copies and graphs behind a function.
static void queued(cudaStream_t s, job *j, uint32_t *d, uint32_t times)
{
    cudaGraph_t g;
    cudaGraphExec_t exec;
    uint32_t *h;
    CUDA(cudaMallocHost(&h, 4 << 20));
    CUDA(cudaMemset(d, 0, 4096));
    CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    add<<<1, 32, 0, s>>>(d);
    CUDA(cudaStreamEndCapture(s, &g));
    CUDA(cudaGraphInstantiateWithFlags(&exec, g, 0));
    uint32_t before = j->p[1000];
    CUDA(cudaLaunchHostFunc(s, touch, j));
    for (uint32_t k = 0; k < times; k++) {
        CUDA(cudaMemcpyAsync(h, d, 4096, cudaMemcpyDeviceToHost, s));
        CUDA(cudaGraphLaunch(exec, s));
    }
    CUDA(cudaStreamSynchronize(s));
    expect(j->p[1000] == before + 7 && h[0] == times - 1, "copies and graphs behind a function");
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(g));
    CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    CUDA(cudaLaunchHostFunc(s, touch, j));
    CUDA(cudaStreamEndCapture(s, &g));
    CUDA(cudaGraphInstantiateWithFlags(&exec, g, 0));
    CUDA(cudaGraphLaunch(exec, s));
    CUDA(cudaFreeHost(h));
    CUDA(cudaStreamSynchronize(s));
    expect(j->p[1000] == before + 14, "freeing pinned memory while a graph calls a function");
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(g));
}

// Memory of a pool that goes back, and the program's own that is unmapped, while another stream's
// function has yet to touch managed memory: it is not kept from it.
static void CUDART_CB at_once(void *arg)
{
    job *j = (job *)arg;
    usleep(300000);
    double t = seconds();
    j->p[1000] += 7;
    j->seen = (uint32_t)((seconds() - t) * 1000);
}

static void taken_away(cudaStream_t s, job *j)
{
    CUmemPoolProps props = {};
    props.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED;
    props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = props.location;
    CUmemoryPool pool;
    CUmemGenericAllocationHandle h;
    CUdeviceptr m, va;
    CUstream t;
    size_t size = 2 << 20;
    uint32_t before = j->p[1000], longest = 0;
    CU(cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
    bool pools = cuMemPoolCreate(&pool, &props) == CUDA_SUCCESS;
    CU(cuMemGetAllocationGranularity(&size, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    CU(cuMemAddressReserve(&va, size, 0, 0, 0));
    CU(cuMemCreate(&h, size, &prop, 0));
    CU(cuMemMap(va, size, 0, h, 0));
    for (int own = 0; own < 2; own++) {
        if (pools) {
            CU(cuMemAllocFromPoolAsync(&m, 1 << 20, pool, t));
            add<<<1, 32, 0, t>>>((uint32_t *)m);
            CU(cuMemFreeAsync(m, t));
        }
        add<<<1, 32, 0, s>>>(j->p);
        CUDA(cudaLaunchHostFunc(s, at_once, j));
        if (own)
            CU(cuMemUnmap(va, size));
        else
            CU(cuStreamSynchronize(t));
        CUDA(cudaStreamSynchronize(s));
        longest = j->seen > longest ? j->seen : longest;
    }
    note("%u ms", longest);
    // The software GPU waited for 5 s.
    expect(j->p[1000] == before + 14 && longest < 4500, "unmapping while a function is ahead");
    CU(cuMemRelease(h));
    CU(cuMemAddressFree(va, size));
    if (pools)
        CU(cuMemPoolDestroy(pool));
    CU(cuStreamDestroy(t));
}

int main(int argc, char **argv)
{
    // Where the device promises that both may use it at once too.
    setenv("CAUSEWAY_MANAGED", "gpu", 0);
    const uint32_t launches = (uint32_t)argument(argc, argv, 1, 3000);
    alarm(400);
    note_device();
    cudaStream_t s;
    uint32_t *p, *d[4];
    CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    managed(&p, 8000);
    memset(p, 0, 8000);
    for (auto &x : d)
        CUDA(cudaMalloc(&x, 4 << 20));
    job j = {p, 99};
    double t = seconds();
    add<<<1, 32, 0, s>>>(p);
    CUDA(cudaLaunchHostFunc(s, touch, &j));
    for (uint32_t k = 0; k < launches; k++)
        add<<<1, 32, 0, s>>>(p);
    CUDA(cudaStreamSynchronize(s));
    note("%.3f s", seconds() - t);
    expect(j.seen == 1 && p[0] == launches + 1 && p[1000] == 7, "many launches behind a function");
    for (auto x : d) {
        CUDA(cudaLaunchHostFunc(s, touch, &j));
        std::thread other([x] { CUDA(cudaFree(x)); });
        add<<<1, 32, 0, s>>>(p);
        other.join();
    }
    CUDA(cudaStreamSynchronize(s));
    expect(p[0] == launches + 5 && p[1000] == 35, "freeing while a function is ahead");
    pinned(s, &j);
    uint32_t *few;
    CUDA(cudaMalloc(&few, 4096));
    queued(s, &j, few, launches / 4);
    CUDA(cudaFree(few));
    taken_away(s, &j);
    CUDA(cudaFree(p));
    CUDA(cudaStreamDestroy(s));
    side_by_side(false);
    side_by_side(true);
    return finish();
}
