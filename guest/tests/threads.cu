// Threads launching at once, each on its own stream, on the legacy stream and with events between
// them.
// usage: threads [threads] [launches]
#include "check.h"

#include <atomic>
#include <thread>
#include <vector>

__global__ void add(int *p, int n, int value)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        p[i] += value;
}

__global__ void count(unsigned long long *total) { atomicAdd(total, 1ull); }

static std::atomic<int> wrong;

// own runs LAUNCHES dependent kernels on one stream and checks the outcome.
static void own(int id, int launches)
{
    const int n = 1000;
    cudaStream_t s;
    int *d, h[n];
    CUDA(cudaSetDevice(0));
    CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CUDA(cudaMalloc(&d, n * sizeof(int)));
    CUDA(cudaMemsetAsync(d, 0, n * sizeof(int), s));
    for (int l = 1; l <= launches; l++)
        add<<<(n + 127) / 128, 128, 0, s>>>(d, n, l * (id + 1));
    CUDA(cudaMemcpyAsync(h, d, n * sizeof(int), cudaMemcpyDeviceToHost, s));
    CUDA(cudaStreamSynchronize(s));
    for (int x : h)
        wrong += x != launches * (launches + 1) / 2 * (id + 1);
    // The error of one thread is its own.
    add<<<1, 4096, 0, s>>>(d, n, 1);
    // (Which one is the runtime's choice: 13.0 hands the driver's on.)
    wrong += cudaGetLastError() != (CUDART_VERSION >= 13000 ? cudaErrorInvalidValue : cudaErrorInvalidConfiguration);
    CUDA(cudaStreamDestroy(s));
    CUDA(cudaFree(d));
}

int main(int argc, char **argv)
{
    const int threads = (int)argument(argc, argv, 1, 8), launches = (int)argument(argc, argv, 2, 50);
    note_device();
    std::vector<std::thread> all;
    double start = seconds();
    for (int t = 0; t < threads; t++)
        all.emplace_back(own, t, launches);
    for (std::thread &t : all)
        t.join();
    note("%d launches in %.3f ms", threads * launches, (seconds() - start) * 1e3);
    printf("%d threads of %d launches, %d wrong\n", threads, launches, wrong.load());
    expect(wrong == 0, "streams of their own");
    expect(cudaPeekAtLastError() == cudaSuccess, "no error reaches the main thread");

    unsigned long long *total, got = 0;
    CUDA(cudaMalloc(&total, sizeof got));
    CUDA(cudaMemset(total, 0, sizeof got));
    all.clear();
    for (int t = 0; t < threads; t++)
        all.emplace_back([=] {
            for (int l = 0; l < launches; l++)
                count<<<2, 32>>>(total);
            CUDA(cudaGetLastError());
        });
    for (std::thread &t : all)
        t.join();
    CUDA(cudaMemcpy(&got, total, sizeof got, cudaMemcpyDeviceToHost));
    printf("legacy stream: %llu\n", got);
    expect(got == 64ull * threads * launches, "one stream shared by all");

    // A chain through all threads: each waits for its predecessor's event.
    std::vector<cudaEvent_t> done(threads);
    for (cudaEvent_t &e : done)
        CUDA(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    CUDA(cudaMemset(total, 0, sizeof got));
    CUDA(cudaDeviceSynchronize());
    std::atomic<int> turn{0};
    all.clear();
    for (int t = 0; t < threads; t++)
        all.emplace_back([&, t] {
            cudaStream_t s;
            CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
            while (turn != t)
                std::this_thread::yield();
            if (t > 0)
                CUDA(cudaStreamWaitEvent(s, done[t - 1], 0));
            count<<<1, 1, 0, s>>>(total);
            CUDA(cudaEventRecord(done[t], s));
            turn++;
            CUDA(cudaEventSynchronize(done[t]));
            CUDA(cudaStreamDestroy(s));
        });
    for (std::thread &t : all)
        t.join();
    CUDA(cudaMemcpy(&got, total, sizeof got, cudaMemcpyDeviceToHost));
    printf("chain: %llu\n", got);
    expect(got == (unsigned long long)threads, "events between threads");
    return finish();
}
