// The mode of rounds.cu with more managed memory than the GPU has room for: pieces of it lie in the
// program's pages, and change places while it moves.
#pragma once

#include "rounds.h"

// One word of 256 bytes, so that the software GPU is done soon.
__global__ void strides(uint32_t *p, uint32_t n, uint32_t with)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        p[i * 64] = scramble(p[i * 64], with);
}

// over: three sets of which two fit. For some rounds the GPU uses two, then others; the processor
// reads one of them, and writes to it.
static void over(Rounds &r)
{
    enum { SETS = 3, STAY = 16 };
    cudaDeviceProp of;
    // Where the device promises that both may use it at once too.
    setenv("CAUSEWAY_MANAGED", "gpu", 0);
    CUDA(cudaGetDeviceProperties(&of, 0));
    bool soft = strstr(of.name, "Software");
    // A GPU's driver maps the host's pages in blocks of 32 MiB.
    setenv("CAUSEWAY_MANAGED_PIECE", soft ? "2" : "32", 0);
    const uint32_t piece = (soft ? 2 : 32) << 20, bytes = 3 * piece, steps = bytes / 256;
    const size_t room = 2 * (size_t)bytes + piece / 2;
    size_t left, total;
    void *hog = nullptr;
    uint32_t *p[SETS];
    std::vector<uint32_t> want[SETS];
    strides<<<1, 1>>>(nullptr, 0, 0);
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemGetInfo(&left, &total));
    if (left > room)
        CUDA(cudaMalloc(&hog, left - room));
    for (int s = 0; s < SETS; s++) {
        managed(&p[s], bytes);
        for (uint32_t i = 0; i < bytes / 4; i++)
            p[s][i] = mix(i + (uint32_t)s);
        for (uint32_t i = 0; i < steps; i++)
            want[s].push_back(p[s][i * 64]);
    }
    while (r.next()) {
        int a = (int)(r.n / STAY) % SETS, b = (a + 1) % SETS;
        for (int s : {a, b}) {
            strides<<<(steps + 127) / 128, 128>>>(p[s], steps, (uint32_t)r.n);
            for (uint32_t &v : want[s])
                v = scramble(v, (uint32_t)r.n);
        }
        if (r.n % 4 && !r.over())
            continue;
        CUDA(cudaDeviceSynchronize());
        int s = r.n % 8 ? a : (int)(r.n / 8) % SETS;
        bool right = true;
        for (uint32_t i = 0; i < steps; i++)
            right &= p[s][i * 64] == want[s][i] && p[s][i * 64 + 9] == mix(i * 64 + 9 + (uint32_t)s);
        r.check(right);
        p[s][0] = want[s][0] = (uint32_t)r.n;
    }
    for (auto &x : p)
        CUDA(cudaFree(x));
    CUDA(cudaFree(hog));
}

// handed: ROUNDS_MIB MiB that the processor has filled and a kernel then had: they lie at the GPU
// while nothing is called at all, and are compared in the end.
static void handed(Rounds &r)
{
    setenv("CAUSEWAY_MANAGED", "gpu", 0);
    const uint32_t mib = getenv("ROUNDS_MIB") ? (uint32_t)strtoul(getenv("ROUNDS_MIB"), nullptr, 10) : 1, words = mib << 18, steps = words / 64;
    uint32_t *p, wrong = 0;
    managed(&p, mib ? (size_t)words * 4 : 4);
    for (uint32_t i = 0; i < words; i++)
        p[i] = mix(i);
    strides<<<(steps + 127) / 128 + 1, 128>>>(p, steps, 5);
    CUDA(cudaDeviceSynchronize());
    while (r.next())
        nap_ms(few ? 0 : 100);
    for (uint32_t i = 0; i < words; i++)
        wrong += p[i] != (i % 64 ? mix(i) : scramble(mix(i), 5));
    r.check(wrong == 0);
    CUDA(cudaFree(p));
}
