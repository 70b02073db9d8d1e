//: title: thread block clusters, distributed shared memory, programmatic dependent launch
//: part: 3
#include "compat.h"
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

// Every block of a cluster adds its neighbours' shared memory.
__global__ void neighbours(int *out) {
  __shared__ int mine[64];
  auto cluster = cg::this_cluster();
  mine[threadIdx.x] = blockIdx.x * 64 + threadIdx.x;
  cluster.sync();
  int sum = 0;
  for (unsigned r = 0; r < cluster.num_blocks(); r++) sum += cluster.map_shared_rank(mine, r)[threadIdx.x];
  cluster.sync();
  out[blockIdx.x * 64 + threadIdx.x] = sum;
}

__global__ void __cluster_dims__(4, 1, 1) fixedSize(int *out) { out[blockIdx.x] = cg::this_cluster().block_rank() * 10 + cg::this_cluster().num_blocks(); }

__global__ void first(int *x) {
  x[blockIdx.x * blockDim.x + threadIdx.x] = 7;
  cudaTriggerProgrammaticLaunchCompletion();
}

__global__ void second(int *x) {
  cudaGridDependencySynchronize();
  x[blockIdx.x * blockDim.x + threadIdx.x] *= 6;
}

int main() {
  int *out = device(std::vector<int>(64 * 64));
  OK(cudaFuncSetAttribute(neighbours, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  for (unsigned size : {1, 2, 8, 16}) {
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3(64), c.blockDim = dim3(64);
    cudaLaunchAttribute attr[1] = {};
    attr[0].id = cudaLaunchAttributeClusterDimension;
    attr[0].val.clusterDim = {size, 1, 1};
    c.attrs = attr, c.numAttrs = 1;
    int active = 0;
    OK(cudaOccupancyMaxActiveClusters(&active, neighbours, &c));
    OK(cudaMemset(out, 0, 64 * 64 * sizeof *out));
    OK(cudaLaunchKernelEx(&c, neighbours, out));
    std::printf("%u blocks: %s\n", size, active > 0 ? "active" : "none");
    show("  sums", out, 64 * 64);
  }
  cudaLaunchConfig_t c = {};
  c.gridDim = dim3(64), c.blockDim = dim3(64);
  int potential = 0;
  OK(cudaOccupancyMaxPotentialClusterSize(&potential, neighbours, &c));
  std::printf("largest cluster %d\n", potential);
  fixedSize<<<16, 32>>>(out);
  show("compiled size", out, 16);
  cudaLaunchAttribute odd[1] = {};
  odd[0].id = cudaLaunchAttributeClusterDimension;
  odd[0].val.clusterDim = {3, 1, 1};
  c.attrs = odd, c.numAttrs = 1;
  std::printf("64 blocks in threes: %s\n", cudaGetErrorName(cudaLaunchKernelEx(&c, neighbours, out)));
  cudaGetLastError();
  cudaStream_t s;
  OK(cudaStreamCreate(&s));
  cudaLaunchAttribute pdl[1] = {};
  pdl[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  pdl[0].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t d = {};
  d.gridDim = dim3(16), d.blockDim = dim3(256), d.stream = s;
  for (int k = 0; k < 20; k++) {
    first<<<16, 256, 0, s>>>(out);
    d.attrs = pdl, d.numAttrs = 1;
    OK(cudaLaunchKernelEx(&d, second, out));
  }
  OK(cudaStreamSynchronize(s));
  expect("dependent launch", show("dependent launch", out, 4096), 42 * 4096, 0);
  std::puts("done");
}
