// Thread block clusters: their numbers, barriers, shared memory of other blocks, attributes at
// compile time and at launch.
// ptx: 90. needs: cuda 12.9
#include "check.h"

#include <cooperative_groups.h>
namespace cg = cooperative_groups;

const int BINS = 64;

__device__ void numbers(int *out)
{
    cg::cluster_group c = cg::this_cluster();
    if (threadIdx.x == 0) {
        int b = blockIdx.x + gridDim.x * blockIdx.y;
        out[b] = int(c.block_rank()) + 10 * int(c.num_blocks()) + 100 * int(c.block_index().x) + 1000 * int(c.block_index().y) +
                 10000 * int(c.dim_blocks().x) + 100000 * int(c.dim_blocks().y);
    }
}

__global__ void __cluster_dims__(2, 2) fixed(int *out) { numbers(out); }
__global__ void open(int *out) { numbers(out); }

// Each block counts a share of the data; counts of a bin live in the block that owns it.
__global__ void histogram(const unsigned *data, int n, int *bins)
{
    extern __shared__ int mine[];
    cg::cluster_group c = cg::this_cluster();
    int blocks = c.num_blocks(), each = BINS / blocks;
    for (int i = threadIdx.x; i < each; i += blockDim.x)
        mine[i] = 0;
    c.sync();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        int bin = mix(data[i]) % BINS;
        atomicAdd(c.map_shared_rank(mine, bin / each) + bin % each, 1);
    }
    c.sync();
    for (int i = threadIdx.x; i < each; i += blockDim.x)
        atomicAdd(&bins[c.block_rank() * each + i], mine[i]);
}

// A ring: each block reads from the next one's memory, writes into the one before.
__global__ void ring(int *out)
{
    __shared__ int box[64], left[64];
    cg::cluster_group c = cg::this_cluster();
    unsigned rank = c.block_rank(), n = c.num_blocks();
    box[threadIdx.x] = rank * 1000 + threadIdx.x;
    auto token = c.barrier_arrive();
    left[threadIdx.x] = -1;
    c.barrier_wait(std::move(token));
    int *next = c.map_shared_rank(box, (rank + 1) % n);
    int got = next[63 - threadIdx.x];
    int *before = c.map_shared_rank(left, (rank + n - 1) % n);
    c.sync();
    before[threadIdx.x] = got + int(c.query_shared_rank(next));
    c.sync();
    out[blockIdx.x * 64 + threadIdx.x] = left[threadIdx.x];
}

static cudaError_t launch(void (*k)(int *), dim3 grid, dim3 cluster, int *out)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute a[1];
    a[0].id = cudaLaunchAttributeClusterDimension;
    a[0].val.clusterDim.x = cluster.x;
    a[0].val.clusterDim.y = cluster.y;
    a[0].val.clusterDim.z = cluster.z;
    config.gridDim = grid;
    config.blockDim = 64;
    config.attrs = a;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, k, out);
}

static void show(const char *what, const int *v, int n)
{
    unsigned sum = 0;
    for (int i = 0; i < n; i++)
        sum = mix(sum ^ unsigned(v[i]));
    printf("%s: %d %d %d ... %d, sum %08x\n", what, v[0], v[1], v[2], v[n - 1], sum);
}

int main()
{
    note_device();
    int *out, supported = 0;
    managed(&out, 1 << 16);
    CUDA(cudaDeviceGetAttribute(&supported, cudaDevAttrClusterLaunch, 0));
    printf("cluster launch: %d\n", supported);
    fixed<<<dim3(4, 4), 64>>>(out);
    CUDA(cudaGetLastError());
    CUDA(cudaDeviceSynchronize());
    show("fixed 2x2", out, 16);
    CUDA(launch(open, dim3(8, 2), dim3(4, 1, 1), out));
    CUDA(cudaDeviceSynchronize());
    show("open 4x1", out, 16);
    open<<<4, 64>>>(out);
    CUDA(cudaDeviceSynchronize());
    show("open without", out, 4);
    printf("grid no multiple: %s\n", cudaGetErrorName(launch(open, dim3(7), dim3(4, 1, 1), out)));
    printf("too large: %s\n", cudaGetErrorName(launch(open, dim3(32), dim3(32, 1, 1), out)));
    cudaGetLastError();

    const int N = 20000;
    unsigned *data;
    managed(&data, N * 4);
    for (int i = 0; i < N; i++)
        data[i] = mix(i);
    memset(out, 0, BINS * 4);
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute a[1];
    a[0].id = cudaLaunchAttributeClusterDimension;
    a[0].val.clusterDim = {8, 1, 1};
    config.gridDim = 16;
    config.blockDim = 128;
    config.dynamicSmemBytes = BINS / 8 * 4;
    config.attrs = a;
    config.numAttrs = 1;
    int active = 0;
    CUDA(cudaOccupancyMaxActiveClusters(&active, histogram, &config));
    expect(active > 0, "clusters fit");
    int largest = 0;
    CUDA(cudaOccupancyMaxPotentialClusterSize(&largest, histogram, &config));
    printf("largest portable cluster: %d\n", largest);
    CUDA(cudaLaunchKernelEx(&config, histogram, (const unsigned *)data, N, out));
    CUDA(cudaDeviceSynchronize());
    int total = 0;
    for (int i = 0; i < BINS; i++)
        total += out[i];
    expect(total == N, "histogram is complete");
    show("histogram", out, BINS);
    CUDA(launch(ring, dim3(8), dim3(4, 1, 1), out));
    CUDA(cudaDeviceSynchronize());
    show("ring", out, 512);
    return finish();
}
