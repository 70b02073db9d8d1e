// The mode of rounds.cu in which two processes share memory and events: each round goes through the
// GPU memory of both.
#pragma once

#include "rounds.h"

#include <cerrno>
#include <sys/wait.h>

// Shared is what a process gives the other: handles, which stay good as long as the memory and the
// event are there.
struct Shared {
    cudaIpcMemHandle_t memory;
    cudaIpcEventHandle_t event;
};

// Side is one of the two processes.
struct Side {
    int in; // a pipe
    FILE *out;
    uint32_t *own, *other;
    cudaEvent_t done, others_done;
    Shared given, got;

    template <typename T> void send(const T &v) const
    {
        if (fwrite(&v, sizeof v, 1, out) != 1 || fflush(out) != 0)
            _Exit(5);
    }
    // receive is false when the other side has ended.
    template <typename T> bool receive(T &v) const
    {
        for (size_t at = 0; at < sizeof v;) {
            ssize_t k = read(in, (char *)&v + at, sizeof v - at);
            if (k < 0 && errno == EINTR)
                continue;
            if (k <= 0)
                return false;
            at += (size_t)k;
        }
        return true;
    }
    void open() { CUDA(cudaIpcOpenMemHandle((void **)&other, got.memory, cudaIpcMemLazyEnablePeerAccess)); }

    bool begin(uint32_t seed)
    {
        CUDA(cudaMalloc(&own, N * 4));
        CUDA(cudaEventCreateWithFlags(&done, cudaEventDisableTiming | cudaEventInterprocess));
        fill<<<GRID, BLOCK>>>(own, N, seed);
        CUDA(cudaDeviceSynchronize());
        CUDA(cudaIpcGetMemHandle(&given.memory, own));
        CUDA(cudaIpcGetEventHandle(&given.event, done));
        send(given);
        if (!receive(got))
            return false;
        open();
        CUDA(cudaIpcOpenEventHandle(&others_done, got.event));
        return true;
    }
    // half changes the other's memory behind what the other has on its way, and says so by its own
    // event.
    void half(uint32_t n)
    {
        CUDA(cudaStreamWaitEvent(0, others_done, 0));
        step<<<GRID, BLOCK>>>(other, N, n);
        add<<<GRID, BLOCK>>>(other, own, N);
        CUDA(cudaEventRecord(done));
        if (n % 8 == 7) { // opened by a handle that was given out in the beginning
            CUDA(cudaDeviceSynchronize());
            CUDA(cudaIpcCloseMemHandle(other));
            open();
        }
    }
};

// Mirror is what the memory of both must hold.
struct Mirror {
    std::vector<uint32_t> a, b;
    Mirror()
    {
        for (uint32_t i = 0; i < N; i++) {
            a.push_back(mix(i + 1));
            b.push_back(mix(i + 2));
        }
    }
    static void half(std::vector<uint32_t> &other, const std::vector<uint32_t> &own, uint32_t n)
    {
        for (int i = 0; i < N; i++)
            other[i] = scramble(other[i], n) + own[i];
    }
    // round is one of both sides.
    void round(uint32_t n)
    {
        half(b, a, n);
        half(a, b, n);
    }
};

// holds says whether device memory is what the mirror says.
static bool holds(const uint32_t *p, const std::vector<uint32_t> &want)
{
    std::vector<uint32_t> got(N);
    CUDA(cudaMemcpy(got.data(), p, N * 4, cudaMemcpyDeviceToHost));
    return all(got.data(), want);
}

// second is the other process: it does its half of each round, and sees what the first wrote.
static int second(int in, int out)
{
    Side s = {};
    Mirror want;
    uint32_t n, wrong;
    s.in = in, s.out = fdopen(out, "w");
    if (!s.begin(2))
        return 0;
    while (s.receive(n)) {
        s.half(n);
        want.round(n);
        CUDA(cudaEventSynchronize(s.done));
        wrong = !holds(s.own, want.b);
        s.send(wrong);
    }
    return 0;
}

// processes: two of them, each with memory and an event that the other has by a handle.
static void processes(Rounds &r)
{
    int there[2], back[2], status = -1;
    if (pipe(there) || pipe(back))
        _Exit(1);
    pid_t child = fork(); // before anything of CUDA
    if (child < 0)
        _Exit(1);
    if (child == 0) {
        signal(SIGTERM, SIG_IGN);
        close(there[1]);
        close(back[0]);
        _Exit(second(there[0], back[1]));
    }
    close(there[0]);
    close(back[1]);
    Side s = {};
    Mirror want;
    s.in = back[0], s.out = fdopen(there[1], "w");
    if (!s.begin(1))
        _Exit(1);
    while (r.next()) {
        uint32_t n = (uint32_t)r.n, wrong = 1;
        s.half(n);
        s.send(n);
        if (!s.receive(wrong))
            _Exit(1);
        want.round(n);
        CUDA(cudaStreamWaitEvent(0, s.others_done, 0));
        r.check(wrong == 0 && holds(s.own, want.a) && holds(s.other, want.b));
    }
    fclose(s.out);
    r.check(waitpid(child, &status, 0) == child && status == 0);
}
