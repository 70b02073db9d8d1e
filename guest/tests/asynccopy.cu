// Asynchronous copies into shared memory: pipelines of cp.async, their groups, zero fill, and
// barriers that await them.
// ptx: 80. needs: cuda 12.9
#include "check.h"

#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda_pipeline.h>

namespace cg = cooperative_groups;

// Sums tiles of two stages while the next one is on its way.
__global__ void staged(const int4 *in, int tiles, int *out)
{
    __shared__ int4 stage[2][64];
    int t = threadIdx.x, sum = 0;
    __pipeline_memcpy_async(&stage[0][t], &in[t], 16);
    __pipeline_commit();
    for (int i = 0; i < tiles; i++) {
        if (i + 1 < tiles)
            __pipeline_memcpy_async(&stage[(i + 1) & 1][t], &in[(i + 1) * 64 + t], 16);
        __pipeline_commit();
        __pipeline_wait_prior(1);
        __syncthreads();
        int4 v = stage[i & 1][63 - t];
        sum += v.x + 3 * v.y + 5 * v.z + 7 * v.w;
        __syncthreads();
    }
    out[t] = sum;
}

// Copies of 4 and 8 bytes, and some that read less than they write.
__global__ void small(const int *in, int *out)
{
    __shared__ __align__(16) int box[256];
    int t = threadIdx.x;
    __pipeline_memcpy_async(&box[t], &in[t], 4);
    __pipeline_memcpy_async(&box[64 + 2 * (t % 32)], &in[64 + 2 * (t % 32)], 8);
    if (t < 32)
        // The last 4 * (t % 5) bytes are zero.
        __pipeline_memcpy_async(&box[128 + 4 * t], &in[4 * t], 16, 4 * (t % 5));
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    for (int i = t; i < 256; i += 64)
        out[i] = box[i];
}

// A barrier of the block counts the copies' bytes in.
__global__ void awaited(const int *in, int *out)
{
    __shared__ __align__(16) int box[1024];
#pragma nv_diag_suppress static_var_with_dynamic_init
    __shared__ cuda::barrier<cuda::thread_scope_block> ready;
    auto block = cg::this_thread_block();
    if (block.thread_rank() == 0)
        init(&ready, block.size());
    block.sync();
    cuda::memcpy_async(block, box, in, cuda::aligned_size_t<16>(sizeof box), ready);
    ready.arrive_and_wait();
    int sum = 0;
    for (int i = threadIdx.x; i < 1024; i += blockDim.x)
        sum += box[1023 - i] * (i % 3);
    out[threadIdx.x] = sum;
    block.sync();
    cg::memcpy_async(block, box, in + 1, 4 * 512); // as the alignment allows
    cg::wait(block);
    out[threadIdx.x] += box[threadIdx.x];
}

// Producer and consumer in a pipeline of the block.
__global__ void produced(const int *in, int rounds, int *out)
{
    __shared__ __align__(16) int box[2][128];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    auto block = cg::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state);
    int sum = 0;
    for (int i = 0, ahead = 0; i < rounds; i++) {
        for (; ahead < rounds && ahead < i + 2; ahead++) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, box[ahead % 2], in + ahead * 128, cuda::aligned_size_t<16>(512), pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        sum += box[i % 2][127 - threadIdx.x] * (i + 1);
        pipe.consumer_release();
    }
    out[threadIdx.x] = sum;
}

static void show(const char *what, const int *v, int n)
{
    unsigned sum = 0;
    for (int i = 0; i < n; i++)
        sum = mix(sum ^ unsigned(v[i]));
    printf("%s: %d %d ... %d, sum %08x\n", what, v[0], v[1], v[n - 1], sum);
}

int main()
{
    note_device();
    const int N = 64 * 16 * 4;
    int *in, *out;
    managed(&in, N * 4);
    managed(&out, 4096);
    for (int i = 0; i < N; i++)
        in[i] = mix(i) % 1000;
    staged<<<1, 64>>>((int4 *)in, 16, out);
    CUDA(cudaDeviceSynchronize());
    show("staged", out, 64);
    small<<<1, 64>>>(in, out);
    CUDA(cudaDeviceSynchronize());
    show("small", out, 256);
    awaited<<<1, 128>>>(in, out);
    CUDA(cudaDeviceSynchronize());
    show("awaited", out, 128);
    produced<<<1, 128>>>(in, 8, out);
    CUDA(cudaDeviceSynchronize());
    show("produced", out, 128);
    return finish();
}
