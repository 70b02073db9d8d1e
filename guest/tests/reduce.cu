// Reduction with shuffles, votes and atomics. usage: reduce [elements]
#include "check.h"

#include <algorithm>
#include <vector>

const unsigned FULL = 0xffffffffu;

struct Result {
    unsigned long long sum;
    unsigned max, min, odd, exclusive;
    int all_below;
};

__global__ void reduce(const uint32_t *in, int n, Result *out)
{
    __shared__ unsigned long long sums[32];
    __shared__ unsigned maxima[32];
    unsigned long long sum = 0;
    unsigned max = 0, min = FULL, odd = 0;
    for (int base = blockIdx.x * blockDim.x; base < n; base += gridDim.x * blockDim.x) {
        int i = base + threadIdx.x;
        uint32_t x = i < n ? in[i] : 0;
        sum += x;
        max = x > max ? x : max;
        if (i < n)
            min = x < min ? x : min;
        odd += __popc(__ballot_sync(FULL, x & 1)); // the same in every lane
    }
    for (int d = 16; d > 0; d /= 2) {
        sum += __shfl_down_sync(FULL, sum, d);
        unsigned other = __shfl_xor_sync(FULL, max, d);
        max = other > max ? other : max;
        other = __shfl_xor_sync(FULL, min, d);
        min = other < min ? other : min;
    }
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (lane == 0) {
        sums[warp] = sum;
        maxima[warp] = max;
        atomicAdd(&out->odd, odd);
        atomicMin(&out->min, min);
    }
    __syncthreads();
    if (warp == 0) {
        bool there = lane < blockDim.x / 32;
        sum = there ? sums[lane] : 0;
        max = there ? maxima[lane] : 0;
        for (int d = 16; d > 0; d /= 2) {
            sum += __shfl_down_sync(FULL, sum, d);
            unsigned other = __shfl_down_sync(FULL, max, d);
            max = other > max ? other : max;
        }
        if (lane == 0) {
            atomicAdd(&out->sum, sum);
            atomicMax(&out->max, max);
        }
    }
    if (!__all_sync(FULL, max < 1u << 20))
        atomicExch(&out->all_below, 0);
}

// scan leaves each thread's exclusive prefix sum, by shuffles within warps and shared memory
// between them.
__global__ void scan(const uint32_t *in, uint32_t *out)
{
    __shared__ uint32_t totals[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t own = in[threadIdx.x], x = own;
    for (int d = 1; d < 32; d *= 2) {
        uint32_t y = __shfl_up_sync(FULL, x, d);
        if (lane >= d)
            x += y;
    }
    if (lane == 31)
        totals[warp] = x;
    __syncthreads();
    if (warp == 0) {
        uint32_t t = lane < blockDim.x / 32 ? totals[lane] : 0;
        for (int d = 1; d < 32; d *= 2) {
            uint32_t y = __shfl_up_sync(FULL, t, d);
            if (lane >= d)
                t += y;
        }
        totals[lane] = t;
    }
    __syncthreads();
    out[threadIdx.x] = x - own + (warp ? totals[warp - 1] : 0);
}

// ticket takes a lock-free turn by compare-and-swap; the sum of all turns is known.
__global__ void ticket(unsigned *next, unsigned long long *sum)
{
    unsigned seen = *(volatile unsigned *)next, old;
    do {
        old = seen;
        seen = atomicCAS(next, old, old + 1);
    } while (seen != old);
    atomicAdd(sum, (unsigned long long)old);
}

int main(int argc, char **argv)
{
    const int n = (int)argument(argc, argv, 1, 1 << 20);
    std::vector<uint32_t> in(n);
    Result want = {0, 0, FULL, 0, 0, 1};
    for (int i = 0; i < n; i++) {
        in[i] = mix(i) & 0xfffff;
        want.sum += in[i];
        want.max = std::max(want.max, in[i]);
        want.min = std::min(want.min, in[i]);
        want.odd += in[i] & 1;
    }
    note_device();
    uint32_t *din, *dscan;
    Result *dout, got, start = {0, 0, FULL, 0, 0, 1};
    CUDA(cudaMalloc(&din, n * sizeof(uint32_t)));
    CUDA(cudaMalloc(&dscan, 1024 * sizeof(uint32_t)));
    CUDA(cudaMalloc(&dout, sizeof(Result)));
    CUDA(cudaMemcpy(din, in.data(), n * sizeof(uint32_t), cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(dout, &start, sizeof start, cudaMemcpyHostToDevice));
    reduce<<<64, 256>>>(din, n, dout);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy(&got, dout, sizeof got, cudaMemcpyDeviceToHost));
    printf("sum %llu max %u min %u odd %u\n", got.sum, got.max, got.min, got.odd);
    expect(got.sum == want.sum, "sum");
    expect(got.max == want.max && got.min == want.min, "extremes");
    expect(got.odd == want.odd, "votes");
    expect(got.all_below == 1, "all lanes below the bound");

    std::vector<uint32_t> prefix(1024);
    scan<<<1, 1024>>>(din, dscan);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy(prefix.data(), dscan, 1024 * sizeof(uint32_t), cudaMemcpyDeviceToHost));
    uint32_t running = 0;
    bool good = true;
    for (int i = 0; i < 1024; i++) {
        good = good && prefix[i] == running;
        running += in[i];
    }
    printf("prefix of 1024: %u\n", prefix[1023]);
    expect(good, "prefix sums");

    CUDA(cudaMemset(dout, 0, sizeof(Result)));
    ticket<<<16, 64>>>(&dout->max, &dout->sum);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy(&got, dout, sizeof got, cudaMemcpyDeviceToHost));
    printf("tickets: %u, sum %llu\n", got.max, got.sum);
    expect(got.max == 1024 && got.sum == 1023ull * 1024 / 2, "compare-and-swap");
    return finish();
}
