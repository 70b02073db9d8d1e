// The order of work when it is submitted faster than a driver takes it: from many threads on
// streams of their own, from one thread over several streams, across streams by events, through the
// default stream, mixed with copies, memsets and queries. Each step's result depends on the step
// before, so that any change of order shows.
#include <thread>
#include <vector>

#include "check.h"

enum { STREAMS = 6, STEPS = 1200 };

__global__ void step(uint32_t *x, uint32_t i) { *x = *x * 1664525u + i; }

// fold takes all counters into one, in order.
__global__ void fold(uint32_t *x, const uint32_t *parts, int n)
{
    for (int k = 0; k < n; k++)
        *x = *x * 22695477u + parts[k];
}

static uint32_t advance(uint32_t x, uint32_t i) { return x * 1664525u + i; }

static uint32_t read(const uint32_t *dev)
{
    uint32_t v;
    CUDA(cudaMemcpy(&v, dev, sizeof v, cudaMemcpyDeviceToHost));
    return v;
}

// Many threads, each on a stream of its own; now and then they wait, or ask.
static void many_threads(uint32_t *dev, cudaStream_t *stream)
{
    CUDA(cudaMemset(dev, 0, STREAMS * sizeof *dev));
    std::vector<std::thread> threads;
    for (int t = 0; t < STREAMS; t++)
        threads.emplace_back([=] {
            for (int i = 0; i < STEPS; i++) {
                step<<<1, 1, 0, stream[t]>>>(dev + t, i + t);
                if (i % 400 == 399)
                    CUDA(cudaStreamSynchronize(stream[t]));
                if (i % 300 == 7) {
                    cudaError_t e = cudaStreamQuery(stream[t]);
                    if (e != cudaSuccess && e != cudaErrorNotReady)
                        CUDA(e);
                }
            }
            CUDA(cudaStreamSynchronize(stream[t]));
        });
    for (auto &t : threads)
        t.join();
    bool ok = true;
    for (int t = 0; t < STREAMS; t++) {
        uint32_t want = 0;
        for (int i = 0; i < STEPS; i++)
            want = advance(want, i + t);
        ok &= read(dev + t) == want;
    }
    expect(ok, "threads on streams of their own");
}

// One thread, one counter, a different stream for each step: only events keep the order.
static void chained(uint32_t *dev, cudaStream_t *stream)
{
    cudaEvent_t event[2];
    uint32_t want = 0;
    for (auto &e : event)
        CUDA(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    CUDA(cudaMemset(dev, 0, sizeof *dev));
    CUDA(cudaDeviceSynchronize());
    for (int i = 0; i < STEPS; i++) {
        cudaStream_t s = stream[i * 5 % STREAMS], next = stream[(i + 1) * 5 % STREAMS];
        step<<<1, 1, 0, s>>>(dev, i);
        // Recorded again while others may still wait for what it was.
        CUDA(cudaEventRecord(event[i % 2], s));
        CUDA(cudaStreamWaitEvent(next, event[i % 2], 0));
        want = advance(want, i);
    }
    CUDA(cudaEventSynchronize(event[(STEPS - 1) % 2]));
    expect(read(dev) == want, "a chain over streams by events");
    for (auto &e : event)
        CUDA(cudaEventDestroy(e));
}

// Forks: each round all streams work, then one folds what they made, then they go on.
static void forked(uint32_t *dev, uint32_t *sum, cudaStream_t *stream)
{
    cudaEvent_t go, done[STREAMS];
    CUDA(cudaEventCreateWithFlags(&go, cudaEventDisableTiming));
    for (auto &e : done)
        CUDA(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    CUDA(cudaMemset(dev, 0, STREAMS * sizeof *dev));
    CUDA(cudaMemset(sum, 0, sizeof *sum));
    CUDA(cudaDeviceSynchronize());
    uint32_t want = 0, part[STREAMS] = {};
    for (int round = 0; round < 60; round++) {
        CUDA(cudaEventRecord(go, stream[0]));
        for (int t = 1; t < STREAMS; t++) {
            CUDA(cudaStreamWaitEvent(stream[t], go, 0));
            for (int i = 0; i < 4; i++) {
                step<<<1, 1, 0, stream[t]>>>(dev + t, round + i);
                part[t] = advance(part[t], round + i);
            }
            CUDA(cudaEventRecord(done[t], stream[t]));
        }
        for (int t = 1; t < STREAMS; t++)
            CUDA(cudaStreamWaitEvent(stream[0], done[t], 0));
        fold<<<1, 1, 0, stream[0]>>>(sum, dev, STREAMS);
        for (int t = 0; t < STREAMS; t++)
            want = want * 22695477u + part[t];
    }
    CUDA(cudaDeviceSynchronize());
    expect(read(sum) == want, "forks and joins");
    CUDA(cudaEventDestroy(go));
    for (auto &e : done)
        CUDA(cudaEventDestroy(e));
}

// Streams that block: the default stream's work comes after all that was submitted before it, and
// before all after it.
static void through_default(uint32_t *dev, uint32_t *sum)
{
    cudaStream_t s[3];
    uint32_t want = 0, part[3] = {};
    for (auto &x : s)
        CUDA(cudaStreamCreate(&x));
    CUDA(cudaMemset(dev, 0, 3 * sizeof *dev));
    CUDA(cudaMemset(sum, 0, sizeof *sum));
    for (int round = 0; round < 100; round++) {
        for (int i = 0; i < 12; i++) {
            step<<<1, 1, 0, s[i % 3]>>>(dev + i % 3, i);
            part[i % 3] = advance(part[i % 3], i);
        }
        fold<<<1, 1>>>(sum, dev, 3);
        for (uint32_t p : part)
            want = want * 22695477u + p;
    }
    CUDA(cudaDeviceSynchronize());
    expect(read(sum) == want, "through the default stream");
    for (auto &x : s)
        CUDA(cudaStreamDestroy(x));
}

// Memsets, copies between device memory and to pinned memory, and kernels, on several streams in
// turn.
static void mixed(uint32_t *dev, cudaStream_t *stream)
{
    uint32_t *host, want[STREAMS] = {};
    bool ok = true;
    CUDA(cudaMallocHost(&host, 200 * STREAMS * sizeof *host));
    CUDA(cudaMemset(dev, 0, 2 * STREAMS * sizeof *dev));
    CUDA(cudaDeviceSynchronize());
    for (int i = 0; i < 200; i++)
        for (int t = 0; t < STREAMS; t++) {
            uint32_t *a = dev + t, *b = dev + STREAMS + t;
            step<<<1, 1, 0, stream[t]>>>(a, i);
            CUDA(cudaMemcpyAsync(b, a, sizeof *a, cudaMemcpyDeviceToDevice, stream[t]));
            CUDA(cudaMemsetAsync(a, 0xff, sizeof *a, stream[t]));
            step<<<1, 1, 0, stream[t]>>>(b, t);
            CUDA(cudaMemcpyAsync(host + i * STREAMS + t, b, sizeof *b, cudaMemcpyDeviceToHost, stream[t]));
            CUDA(cudaMemcpyAsync(a, b, sizeof *a, cudaMemcpyDeviceToDevice, stream[t]));
        }
    CUDA(cudaDeviceSynchronize());
    for (int i = 0; i < 200; i++)
        for (int t = 0; t < STREAMS; t++) {
            want[t] = advance(advance(want[t], i), t);
            ok &= host[i * STREAMS + t] == want[t];
        }
    expect(ok, "kernels, memsets and copies in turn");
    CUDA(cudaFreeHost(host));
}

// Allocations, loads and frees in the middle of work.
static void between(uint32_t *dev, cudaStream_t *stream)
{
    uint32_t want = 0;
    CUDA(cudaMemset(dev, 0, 2 * sizeof *dev));
    CUDA(cudaDeviceSynchronize());
    for (int i = 0; i < 40; i++) {
        void *p;
        for (int k = 0; k < 20; k++) {
            step<<<1, 1, 0, stream[0]>>>(dev, k);
            step<<<1, 1, 0, stream[1]>>>(dev + 1, k);
            want = advance(want, k);
        }
        CUDA(cudaMalloc(&p, 1 << 16));
        CUDA(cudaMemsetAsync(p, i, 1 << 16, stream[1]));
        CUDA(cudaFree(p));
    }
    CUDA(cudaDeviceSynchronize());
    expect(read(dev) == want && read(dev + 1) == want, "allocations in the middle");
}

int main()
{
    uint32_t *dev;
    cudaStream_t stream[STREAMS];
    CUDA(cudaMalloc(&dev, 64 * sizeof *dev));
    for (auto &s : stream)
        CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    many_threads(dev, stream);
    chained(dev, stream);
    forked(dev, dev + 32, stream);
    through_default(dev, dev + 32);
    mixed(dev, stream);
    between(dev, stream);
    for (auto &s : stream)
        CUDA(cudaStreamDestroy(s));
    CUDA(cudaFree(dev));
    return finish();
}
