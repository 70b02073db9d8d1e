// Operations across the lanes of a warp. Compiled to warp.ptx.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
#define KERNEL extern "C" __global__ void

KERNEL reduce(const int *in, int n, unsigned long long *out) {
  __shared__ int part[32];
  int s = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) s += in[i];
  for (int o = 16; o; o >>= 1) s += __shfl_down_sync(~0u, s, o);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
  __syncthreads();
  if (threadIdx.x < 32) {
    s = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0;
    for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
    if (threadIdx.x == 0) atomicAdd(out, (unsigned long long)s);
  }
}

KERNEL lanes(int *o) {
  int i = threadIdx.x, k = 0, p;
#define PUT(v) o[32 * k++ + i] = (v)
  PUT(__ballot_sync(~0u, i % 3 == 0));
  PUT(__any_sync(~0u, i == 40));
  PUT(__all_sync(~0u, i < 32));
  PUT(__shfl_sync(~0u, i, 5));
  PUT(__shfl_up_sync(~0u, i, 3, 8));
  PUT(__shfl_down_sync(~0u, i, 3, 16));
  PUT(__shfl_xor_sync(~0u, i * 2, 1));
  PUT(__match_any_sync(~0u, i % 5));
  PUT(__match_all_sync(~0u, i / 64, &p));
  PUT(p);
  PUT(__activemask());
  PUT(__popc(__ballot_sync(~0u, 1) & ((1u << i) - 1)));
  if (i < 8) {
    PUT(__activemask());
    PUT(__shfl_sync(0xff, i, i ^ 1));
  } else {
    k += 2;
  }
  __syncwarp();
  // Halves of the warp come here one after the other, and meet in the shuffle.
  int v = i < 16 ? o[i] + 1 : o[i] + 2;
  PUT(__shfl_xor_sync(~0u, v, 16));
}

KERNEL groups(int *o, const int *x) {
  auto b = cg::this_thread_block();
  auto t = cg::tiled_partition<16>(b);
  int v = x[b.thread_rank()];
  int s = cg::reduce(t, v, cg::plus<int>());
  t.sync();
  int m = t.shfl(v, 3);
  b.sync();
  o[b.thread_rank()] = s * 1000 + m + t.thread_rank();
  if (v & 1) {
    auto e = cg::coalesced_threads();
    o[b.thread_rank()] += e.size() * 1000000;
  }
}

KERNEL grid_sync(int *a, int n) {
  auto g = cg::this_grid();
  for (int k = 0; k < n; k++) {
    int i = g.thread_rank(), j = (i + 1) % g.size();
    int v = a[j];
    g.sync();
    a[i] = v;
    g.sync();
  }
}
