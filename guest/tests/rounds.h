// What rounds.cu's modes share: how long they go on, what they say meanwhile, kernels whose results
// the host can foretell.
#pragma once

#include "check.h"

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <unistd.h>
#include <vector>

static volatile sig_atomic_t stopping;
static long few; // rounds in all; 0: until SIGTERM

static inline int64_t now_ms()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static inline void nap_ms(long ms)
{
    timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, nullptr);
}

// between_ms is how long a program rests between two rounds: ROUNDS_NAP, or 10.
static inline long between_ms()
{
    static const long ms = getenv("ROUNDS_NAP") ? atol(getenv("ROUNDS_NAP")) : 10;
    return ms;
}

// one write, so that lines of several processes do not mix.
static inline void tell(const char *format, ...)
{
    char line[160];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (write(1, line, n) != n)
        _Exit(4);
}

// tell_unlike says which words of a copy are not the mirror's, and in how many pages of the mirror
// they lie. GPU work that was lost, done twice or out of order shows in every word, from then on;
// so do, in those of a page alone, writes to a page of the mirror that got lost when the guest's
// memory went to another host. A copy of other bytes shows in one round.
static inline void tell_unlike(int which, const uint32_t *got, const std::vector<uint32_t> &want)
{
    size_t words = 0, pages = 0, first = 0, last = 0;
    uintptr_t page = 0;
    for (size_t i = 0; i < want.size(); i++) {
        if (got[i] == want[i])
            continue;
        uintptr_t at = (uintptr_t)&want[i] / 4096;
        pages += words == 0 || at != page;
        page = at;
        first = words++ == 0 ? i : first;
        last = i;
    }
    tell("@unlike %d: %zu of %zu words, %zu to %zu, in %zu pages; mirror at %p, copy at %p\n", which, words, want.size(), first, last, pages, (const void *)want.data(), (const void *)got);
}

// Rounds counts a mode's rounds and what was wrong in them. One thread calls next; any may count.
struct Rounds {
    long n = 0;
    std::atomic<long> wrong{0};
    int64_t last = 0, said = 0, pause = 0;

    bool over() const { return few ? n >= few : stopping != 0; }

    // next ends a round, if there was one, and says whether there is to be another.
    bool next()
    {
        int64_t now = now_ms();
        if (last) {
            n++;
            pause = now - last > pause ? now - last : pause;
        } else if (!few) {
            tell("@ready %d\n", (int)getpid());
        }
        last = now;
        if (!few && n && now - said >= 200) {
            tell("@round %ld %ld\n", n, wrong.load());
            said = now;
        }
        if (!few)
            nap_ms(between_ms());
        return !over();
    }
    void check(bool right) { wrong += !right; }
};

// step's value after one pass is scramble's of the value before.
#ifdef __CUDACC__
__host__ __device__
#endif
static inline uint32_t scramble(uint32_t x, uint32_t with) { return x * 1664525u + 1013904223u + with; }

#ifdef __CUDACC__
__global__ void step(uint32_t *p, uint32_t n, uint32_t with)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        p[i] = scramble(p[i], with);
}

__global__ void add(uint32_t *to, const uint32_t *from, uint32_t n)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        to[i] += from[i];
}

__global__ void fill(uint32_t *p, uint32_t n, uint32_t seed)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        p[i] = mix(i + seed);
}

// differ counts the words that fill would not have written.
__global__ void differ(const uint32_t *p, uint32_t n, uint32_t seed, uint32_t *count)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && p[i] != mix(i + seed))
        atomicAdd(count, 1u);
}

// grind passes one word through scramble(x, 0) so many times.
__global__ void grind(uint32_t *p, uint64_t times)
{
    uint32_t x = *p;
    for (uint64_t i = 0; i < times; i++)
        x = scramble(x, 0);
    *p = x;
}
#endif

// ground is what grind makes of x, by squaring the map.
static inline uint32_t ground(uint32_t x, uint64_t times)
{
    uint32_t a = 1664525u, c = 1013904223u;
    for (; times; times >>= 1) {
        if (times & 1)
            x = x * a + c;
        c = c * a + c;
        a = a * a;
    }
    return x;
}
