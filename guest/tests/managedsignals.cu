// Handlers of signals that touch managed memory, wherever the signal finds the thread: in launches,
// copies, fills, allocations, waits. What they wrote is there, and nothing waits for ever.
// Argument: seconds (1). needs: cuda 13.0
#include "driver.h"

#include <atomic>
#include <csignal>
#include <pthread.h>
#include <sys/time.h>
#include <thread>
#include <unistd.h>
#include <vector>

__global__ void add(uint32_t *p, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        p[i] += 1;
}

static volatile uint32_t *counter; // managed, and of the handler alone
static volatile sig_atomic_t handled;
static void handler(int)
{
    handled = handled + 1;
    counter[(handled % 9) * 3000] += 1;
}

static const size_t N = 300000;

// Everything that a thread may be found in.
static void work(double until)
{
    uint32_t *p, *d, rounds = 0, bad = 0;
    std::vector<uint32_t> h(N);
    managed(&p, N * 4);
    CUDA(cudaMalloc(&d, N * 4));
    memset(p, 0, N * 4);
    do {
        for (int k = 0; k < 20; k++)
            add<<<4, 128>>>(p, 100);
        CUDA(cudaMemsetAsync(p + 100, 0, 400));
        CUDA(cudaMemcpyAsync(d, p, N * 4, cudaMemcpyDefault));
        CUDA(cudaMemcpy(h.data(), d, N * 4, cudaMemcpyDeviceToHost));
        bad += h[5] != 20 * (rounds + 1);
        CUDA(cudaMemcpy(p + 1000, h.data(), 100000, cudaMemcpyHostToDevice));
        uint32_t *q;
        managed(&q, 5000);
        q[3] = rounds;
        add<<<1, 32>>>(q, 10);
        CUDA(cudaDeviceSynchronize());
        bad += q[3] != rounds + 1 || p[7] != 20 * (rounds + 1);
        CUDA(cudaFree(q));
    } while (++rounds, seconds() < until);
    CUDA(cudaFree(p));
    CUDA(cudaFree(d));
    note("%u rounds", rounds);
    expect(rounds > 0 && bad == 0, "what the thread did meanwhile");
}

// A handler that is there when all managed memory has long been allocated, of a signal that ends
// programs without one.
static void later()
{
    uint32_t *p;
    size_t bad = 0;
    managed(&p, N * 4);
    memset(p, 0, N * 4);
    struct sigaction a = {}, before;
    a.sa_handler = handler;
    a.sa_flags = SA_RESTART;
    sigaction(SIGTERM, &a, &before);
    timespec then, now; // the library asks once a tick what handlers there are
    clock_gettime(CLOCK_MONOTONIC_COARSE, &then);
    do
        clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    while (now.tv_sec == then.tv_sec && now.tv_nsec == then.tv_nsec);
    pthread_t self = pthread_self();
    std::atomic<bool> end{false};
    std::thread sender([&] {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, nullptr);
        for (uint32_t k = 0; !end; k++) {
            pthread_kill(self, SIGTERM);
            usleep(100 + mix(k) % 900);
        }
    });
    for (uint32_t r = 1; r <= 100; r++) {
        add<<<4, 128>>>(p, N);
        CUDA(cudaDeviceSynchronize());
        for (size_t i = 0; i < N; i += 5000)
            bad += p[i] != r;
    }
    end = true;
    sender.join();
    sigaction(SIGTERM, &before, nullptr);
    expect(bad == 0, "a handler that came later");
    CUDA(cudaFree(p));
}

int main(int argc, char **argv)
{
    // Where the device promises that both may use it at once too.
    setenv("CAUSEWAY_MANAGED", "gpu", 0);
    alarm(200);
    note_device();
    managed((uint32_t **)&counter, 100000);
    memset((void *)counter, 0, 100000);
    struct sigaction a = {};
    a.sa_handler = handler;
    a.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &a, nullptr);
    double until = seconds() + argument(argc, argv, 1, 1);
    pthread_t self = pthread_self();
    std::thread sender([&] {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, nullptr);
        for (uint32_t k = 0; seconds() < until; k++) {
            pthread_kill(self, SIGUSR1);
            usleep(100 + mix(k) % 900);
        }
    });
    work(until);
    sender.join();
    later();
    CUDA(cudaDeviceSynchronize());
    long sum = 0;
    for (int i = 0; i < 9; i++)
        sum += counter[i * 3000];
    note("%ld signals", (long)handled);
    expect(handled > 0 && sum == handled, "what handlers wrote");
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    expect(!sigismember(&mask, SIGUSR1) && !sigismember(&mask, SIGINT), "no signal stays blocked");
    CUDA(cudaFree((void *)counter));
    return finish();
}
