//: title: cooperative launch, grid synchronisation, cooperative groups; a grid that is too large
//: part: 3
#include "compat.h"
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;

// Each round needs every block's result of the round before.
__global__ void rounds(int *a, int n, int times) {
  auto grid = cg::this_grid();
  for (int k = 0; k < times; k++) {
    for (int i = grid.thread_rank(); i < n; i += grid.size()) a[((k + 1) & 1) * n + i] = a[(k & 1) * n + (i + 1) % n] + 1;
    grid.sync();
  }
}

__global__ void groups(int *out) {
  auto block = cg::this_thread_block();
  auto warp = cg::tiled_partition<32>(block);
  auto quad = cg::tiled_partition<4>(warp);
  int t = block.thread_rank();
  out[t] = cg::reduce(warp, t, cg::plus<int>());
  out[256 + t] = cg::inclusive_scan(quad, t);
  if (t % 3 == 0) {
    auto some = cg::coalesced_threads();
    out[512 + t] = some.size() * 100 + some.thread_rank();
  }
  auto same = cg::labeled_partition(warp, t % 5);
  out[768 + t] = cg::reduce(same, t, cg::greater<int>());
}

int main() {
  int can = 0, perSM = 0, sms = 0;
  OK(cudaDeviceGetAttribute(&can, cudaDevAttrCooperativeLaunch, 0));
  OK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&perSM, rounds, 256, 0));
  std::printf("cooperative launch %d, %d blocks per multiprocessor\n", can, perSM);
  int n = 100000, times = 40, *a = device(std::vector<int>(2 * n));
  void *args[] = {&a, &n, &times};
  OK(cudaLaunchCooperativeKernel((void *)rounds, dim3(perSM * sms), dim3(256), args));
  expect("rounds", show("rounds", a, n), 40.0 * n, 0);
  cudaError_t e = cudaLaunchCooperativeKernel((void *)rounds, dim3(perSM * sms + 1), dim3(256), args);
  std::printf("too large: %s\n", cudaGetErrorName(e));
  cudaGetLastError();
  cudaLaunchConfig_t c = {};
  c.gridDim = dim3(sms), c.blockDim = dim3(128);
  cudaLaunchAttribute attr[1] = {};
  attr[0].id = cudaLaunchAttributeCooperative, attr[0].val.cooperative = 1;
  c.attrs = attr, c.numAttrs = 1;
  OK(cudaMemset(a, 0, 2 * n * sizeof *a));
  OK(cudaLaunchKernelEx(&c, rounds, a, n, times));
  expect("by attribute", show("by attribute", a, n), 40.0 * n, 0);
  int *out = device(std::vector<int>(1024));
  groups<<<1, 256>>>(out);
  show("groups", out, 1024);
  std::puts("done");
}
