// What compilers emit beyond simple arithmetic: calls, recursion, local arrays, divergence, 64-bit
// and double arithmetic, vector loads, bit operations, conversions, generic addresses. The host
// computes the same.
// ptx only: cuda 11.8 12.9 (the sm_90 code of these toolkits' ptxas reads 0 for the generic address
// of shared memory below, on the bare driver too; the driver's own compiler gets it right)
#include "check.h"

#include <vector>

const int THREADS = 128;

#define BOTH __host__ __device__

BOTH __attribute__((noinline)) uint32_t fibonacci(uint32_t n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }

// permute makes the compiler index a local array by data.
BOTH static uint32_t permute(uint32_t seed)
{
    uint32_t a[16];
    for (int i = 0; i < 16; i++)
        a[i] = i * 17 + seed;
    for (int i = 15; i > 0; i--) {
        uint32_t j = mix(seed + i) % (i + 1), t = a[i];
        a[i] = a[j];
        a[j] = t;
    }
    uint32_t h = 0;
    for (int i = 0; i < 16; i++)
        h = h * 31 + a[i];
    return h;
}

// branchy takes different paths, loops and early returns in neighbouring lanes.
BOTH static uint32_t branchy(uint32_t x)
{
    uint32_t steps = 0;
    while (x != 1 && steps < 200) {
        if (x % 2 == 0) {
            x /= 2;
        } else {
            if (x % 7 == 3)
                return steps * 1000 + x % 1000;
            x = 3 * x + 1;
        }
        steps++;
    }
    switch (steps % 6) {
    case 0: return steps + 11;
    case 1: return steps * 13;
    case 2: return steps ^ 0x55;
    case 4: return steps << 3;
    default: return steps;
    }
}

BOTH static uint64_t wide(uint64_t a, uint64_t b)
{
    uint64_t r = a * b + (a >> 7) - (b << 9);
    r ^= a / (b | 1);
    r += a % (b | 1);
    int64_t s = (int64_t)a / ((int64_t)b | 1);
    return r ^ (uint64_t)s ^ (uint64_t)((int64_t)a >> 13);
}

BOTH static uint64_t bits_of(double d)
{
    uint64_t u;
    memcpy(&u, &d, 8);
    return u;
}

// real uses only operations that IEEE 754 rounds one way.
BOTH static uint64_t real(uint32_t x)
{
    double d = (double)(x % 1000) / 7.0 + sqrt((double)(x % 977));
    float f = (float)d;
    d += (double)(int)f + (double)(long long)(d * 1e9) + (double)(unsigned)(x % 5);
    d = fma(d, 1.25, -3.0) + fabs(-d) + floor(d) + ceil(d / 3) + trunc(d / 5) + fmin(d, 7.0) + fmax(f, 2.0f);
    return bits_of(d);
}

struct alignas(16) Quad {
    uint32_t x, y, z, w;
};

// load is a call of its own, so that its pointer is generic.
__device__ __noinline__ uint32_t load(const uint32_t *p) { return *p; }

__global__ void run(const Quad *quads, uint64_t *out)
{
    int t = threadIdx.x;
    uint64_t *o = out + t * 8;
    o[0] = fibonacci(t % 12);
    o[1] = permute(t);
    o[2] = branchy(t + 1);
    o[3] = wide(mix(t) * 0x100000001ull + 77, mix(t + 1000));
    o[4] = real(mix(t));
    Quad q = quads[t];
    uint2 halves = *(const uint2 *)&quads[t].z;
    o[5] = q.x + 3ull * q.y + 5ull * q.z + 7ull * q.w + halves.x + halves.y;
    uint32_t m = mix(t + 5);
    o[6] = __popc(m) + 100 * __clz(m) + 10000 * __ffs(m) + 1000000ull * (__brev(m) & 0xff) +
           ((uint64_t)__byte_perm(m, t, 0x3715) << 32) + __funnelshift_l(m, t, 9) + __umulhi(m, 12345) +
           (uint64_t)__popcll(wide(m, t));
    // Generic pointers: local, and shared or global by lane.
    __shared__ uint32_t s[THREADS];
    uint32_t l = t * 3;
    s[t] = t * 5;
    __syncthreads();
    uint32_t local = load(&l);
    const uint32_t *p = t % 3 == 0 ? &s[THREADS - 1 - t] : &quads[t].y;
    o[7] = t % 3 == 1 ? local : load(p);
}

static uint32_t reverse_bits(uint32_t x)
{
    uint32_t r = 0;
    for (int i = 0; i < 32; i++)
        r |= (x >> i & 1) << (31 - i);
    return r;
}

static void host(int t, const Quad *quads, uint64_t *o)
{
    o[0] = fibonacci(t % 12);
    o[1] = permute(t);
    o[2] = branchy(t + 1);
    o[3] = wide(mix(t) * 0x100000001ull + 77, mix(t + 1000));
    o[4] = real(mix(t));
    Quad q = quads[t];
    o[5] = q.x + 3ull * q.y + 5ull * q.z + 7ull * q.w + q.z + q.w;
    uint32_t m = mix(t + 5), u = t;
    // Selector 0x3715: bytes 5, 1, 7, 3 of t:m, from the lowest up.
    uint32_t perm = (u >> 8 & 0xff) | (m >> 8 & 0xff) << 8 | (u >> 24) << 16 | (m >> 24) << 24;
    o[6] = __builtin_popcount(m) + 100 * (m ? __builtin_clz(m) : 32) + 10000 * __builtin_ffs((int)m) +
           1000000ull * (reverse_bits(m) & 0xff) + ((uint64_t)perm << 32) + (u << 9 | m >> 23) +
           (uint32_t)((uint64_t)m * 12345 >> 32) + (uint64_t)__builtin_popcountll(wide(m, t));
    o[7] = t % 3 == 0 ? (THREADS - 1 - t) * 5 : t % 3 == 1 ? t * 3 : quads[t].y;
}

int main()
{
    note_device();
    const char *names[8] = {"recursion", "local array", "divergence", "64-bit arithmetic",
                            "floating point", "vector loads", "bit operations", "generic addresses"};
    std::vector<Quad> quads(THREADS);
    for (int i = 0; i < THREADS; i++)
        quads[i] = {mix(4 * i), mix(4 * i + 1), mix(4 * i + 2), mix(4 * i + 3)};
    Quad *dq;
    uint64_t *dout;
    std::vector<uint64_t> out(THREADS * 8);
    CUDA(cudaMalloc(&dq, THREADS * sizeof(Quad)));
    CUDA(cudaMalloc(&dout, out.size() * 8));
    CUDA(cudaMemcpy(dq, quads.data(), THREADS * sizeof(Quad), cudaMemcpyHostToDevice));
    run<<<1, THREADS>>>(dq, dout);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy(out.data(), dout, out.size() * 8, cudaMemcpyDeviceToHost));
    uint64_t hash[8] = {};
    int wrong[8] = {};
    for (int t = 0; t < THREADS; t++) {
        uint64_t want[8];
        host(t, quads.data(), want);
        for (int k = 0; k < 8; k++) {
            if (out[t * 8 + k] != want[k] && !wrong[k]++)
                note("%s: thread %d has %llx, not %llx", names[k], t, (unsigned long long)out[t * 8 + k], (unsigned long long)want[k]);
            hash[k] = hash[k] * 1099511628211ull + out[t * 8 + k];
        }
    }
    for (int k = 0; k < 8; k++) {
        printf("%016llx ", (unsigned long long)hash[k]);
        expect(wrong[k] == 0, names[k]);
    }
    return finish();
}
