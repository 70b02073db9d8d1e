// A small network that learns, as one of rounds' modes.
#pragma once

#include "rounds.h"

#include <cmath>
#include <cstring>
#include <vector>

// Sums are made in one order, and each operation is rounded by itself: what a step comes to is one
// number, on any GPU and on the CPU.
#ifdef __CUDA_ARCH__
#define ADD(a, b) __fadd_rn(a, b)
#define MUL(a, b) __fmul_rn(a, b)
#else
#define ADD(a, b) ((a) + (b))
#define MUL(a, b) ((a) * (b))
#endif

enum { INPUTS = 8, HIDDEN = 32, BATCH = 16, SECOND = INPUTS * HIDDEN, WEIGHTS = SECOND + HIDDEN };

// What the steps of training are made of: each is done for one index, by a thread of the GPU or by
// the mirror.
__host__ __device__ static inline float number(uint32_t x) { return MUL((float)(x & 0xffff) - 32768.0f, 1.0f / 32768.0f); }

__host__ __device__ static inline void forward(const float *w, const float *x, float *hidden, int i)
{
    float sum = 0;
    for (int k = 0; k < INPUTS; k++)
        sum = ADD(sum, MUL(x[i / HIDDEN * INPUTS + k], w[k * HIDDEN + i % HIDDEN]));
    hidden[i] = sum > 0 ? sum : 0;
}

__host__ __device__ static inline void compare(const float *w, const float *hidden, const float *x, float *off, int b)
{
    float sum = 0;
    for (int h = 0; h < HIDDEN; h++)
        sum = ADD(sum, MUL(hidden[b * HIDDEN + h], w[SECOND + h]));
    off[b] = ADD(sum, -MUL(x[b * INPUTS], x[b * INPUTS + 1])); // what is to be learnt: a product
}

__host__ __device__ static inline void backward(float *w, float *moment, const float *hidden, const float *x, const float *off, float *gradient, int i)
{
    float sum = 0;
    for (int b = 0; b < BATCH; b++) {
        int h = i < SECOND ? i % HIDDEN : i - SECOND;
        float active = hidden[b * HIDDEN + h];
        if (i >= SECOND)
            sum = ADD(sum, MUL(off[b], active));
        else if (active > 0)
            sum = ADD(sum, MUL(MUL(off[b], w[SECOND + h]), x[b * INPUTS + i / HIDDEN]));
    }
    gradient[i] = sum;
    moment[i] = ADD(MUL(moment[i], 0.875f), sum);
}

__host__ __device__ static inline void update(float *w, const float *moment, int i) { w[i] = ADD(w[i], -MUL(moment[i], 1.0f / 512)); }

__host__ __device__ static inline float loss_of(const float *off)
{
    float sum = 0;
    for (int b = 0; b < BATCH; b++)
        sum = ADD(sum, MUL(off[b], off[b]));
    return sum;
}

__global__ void forwards(const float *w, const float *x, float *hidden) { forward(w, x, hidden, blockIdx.x * blockDim.x + threadIdx.x); }
__global__ void compares(const float *w, const float *hidden, const float *x, float *off) { compare(w, hidden, x, off, threadIdx.x); }
__global__ void losses(const float *off, float *loss) { *loss = loss_of(off); }
__global__ void backwards(float *w, float *moment, const float *hidden, const float *x, const float *off, float *gradient)
{
    backward(w, moment, hidden, x, off, gradient, blockIdx.x * blockDim.x + threadIdx.x);
}
__global__ void updates(float *w, const float *moment) { update(w, moment, blockIdx.x * blockDim.x + threadIdx.x); }

// Network does on the CPU what the GPU does.
struct Network {
    std::vector<float> w, moment;
    float step(const float *x)
    {
        float hidden[BATCH * HIDDEN], off[BATCH], gradient[WEIGHTS];
        for (int i = 0; i < BATCH * HIDDEN; i++)
            forward(w.data(), x, hidden, i);
        for (int b = 0; b < BATCH; b++)
            compare(w.data(), hidden, x, off, b);
        for (int i = 0; i < WEIGHTS; i++)
            backward(w.data(), moment.data(), hidden, x, off, gradient, i);
        for (int i = 0; i < WEIGHTS; i++)
            update(w.data(), moment.data(), i);
        return loss_of(off);
    }
};

// training: batches from pinned memory, a network of two layers whose activations and gradients are
// the stream's pool's for one step, and its loss, which comes back. Every loss is what the mirror
// says, bit by bit, and so are the weights in the end. "@curve ROUNDS SUM FIRST LAST" sums all of
// them up: a run that never moved ends with the same line. With ROUNDS_STEPS in the environment it
// ends after so many by itself.
static void training(Rounds &r)
{
    const char *steps = getenv("ROUNDS_STEPS");
    long most = steps ? strtol(steps, nullptr, 10) : 0;
    Network mirror;
    for (int i = 0; i < WEIGHTS; i++)
        mirror.w.push_back(MUL(number(mix(i)), 0.5f));
    mirror.moment.assign(WEIGHTS, 0);
    cudaStream_t s;
    float *w, *moment, *x, *back, *batch, first = 0, last = 0;
    uint32_t sum = 0;
    CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CUDA(cudaMalloc(&w, WEIGHTS * sizeof(float)));
    CUDA(cudaMalloc(&moment, WEIGHTS * sizeof(float)));
    CUDA(cudaMalloc(&x, BATCH * INPUTS * sizeof(float)));
    CUDA(cudaMallocHost(&batch, BATCH * INPUTS * sizeof(float)));
    CUDA(cudaMallocHost(&back, sizeof(float)));
    CUDA(cudaMemcpy(w, mirror.w.data(), WEIGHTS * sizeof(float), cudaMemcpyHostToDevice));
    CUDA(cudaMemset(moment, 0, WEIGHTS * sizeof(float)));
    while (r.next() && (!most || r.n < most)) {
        float *hidden, *off, *gradient, *loss;
        for (int i = 0; i < BATCH * INPUTS; i++)
            batch[i] = number(mix((uint32_t)(r.n % 64) * BATCH * INPUTS + i + 99));
        CUDA(cudaMallocAsync(&hidden, BATCH * HIDDEN * sizeof(float), s));
        CUDA(cudaMallocAsync(&off, BATCH * sizeof(float), s));
        CUDA(cudaMallocAsync(&loss, sizeof(float), s));
        CUDA(cudaMemcpyAsync(x, batch, BATCH * INPUTS * sizeof(float), cudaMemcpyHostToDevice, s));
        forwards<<<BATCH, HIDDEN, 0, s>>>(w, x, hidden);
        compares<<<1, BATCH, 0, s>>>(w, hidden, x, off);
        losses<<<1, 1, 0, s>>>(off, loss);
        CUDA(cudaMallocAsync(&gradient, WEIGHTS * sizeof(float), s));
        backwards<<<INPUTS + 1, HIDDEN, 0, s>>>(w, moment, hidden, x, off, gradient);
        updates<<<INPUTS + 1, HIDDEN, 0, s>>>(w, moment);
        CUDA(cudaMemcpyAsync(back, loss, sizeof(float), cudaMemcpyDeviceToHost, s));
        for (float *p : {hidden, off, loss, gradient})
            CUDA(cudaFreeAsync(p, s));
        CUDA(cudaStreamSynchronize(s));
        float want = mirror.step(batch);
        uint32_t bits;
        memcpy(&bits, back, sizeof bits);
        r.check(memcmp(&want, back, sizeof want) == 0);
        sum = mix(sum ^ bits);
        last = *back;
        if (r.n == 0)
            first = last;
    }
    std::vector<float> got(WEIGHTS);
    CUDA(cudaMemcpy(got.data(), w, WEIGHTS * sizeof(float), cudaMemcpyDeviceToHost));
    r.check(memcmp(got.data(), mirror.w.data(), WEIGHTS * sizeof(float)) == 0);
    if (!few)
        tell("@curve %ld %08x %a %a\n", r.n, sum, (double)first, (double)last);
}

#undef ADD
#undef MUL
