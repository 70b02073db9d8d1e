//: title: dynamic parallelism: kernels that launch kernels, fire-and-forget and tail launches, device-side limits
//: part: 3
//: flags: -rdc=true -lcudadevrt
#include "compat.h"

__global__ void leaf(int *sum, int v) { atomicAdd(sum, v); }

__global__ void tree(int *sum, int depth) {
  if (depth == 0) {
    leaf<<<4, 32, 0, cudaStreamFireAndForget>>>(sum, 1);
    return;
  }
  tree<<<1, 1, 0, cudaStreamFireAndForget>>>(sum, depth - 1);
  tree<<<1, 1, 0, cudaStreamFireAndForget>>>(sum, depth - 1);
}

__global__ void last(int *sum, int *out) { *out = *sum; }

__global__ void sort(int *v, int lo, int hi) { // quicksort, a kernel per half
  if (hi - lo < 2) return;
  int p = v[(lo + hi) / 2], i = lo, j = hi - 1;
  while (i <= j) {
    while (v[i] < p) i++;
    while (v[j] > p) j--;
    if (i <= j) {
      int t = v[i];
      v[i++] = v[j], v[j--] = t;
    }
  }
  if (hi - lo < 64) { // small halves are sorted here
    for (int a = lo; a < hi; a++)
      for (int b = a + 1; b < hi; b++)
        if (v[b] < v[a]) {
          int t = v[a];
          v[a] = v[b], v[b] = t;
        }
    return;
  }
  sort<<<1, 1, 0, cudaStreamFireAndForget>>>(v, lo, j + 1);
  sort<<<1, 1, 0, cudaStreamFireAndForget>>>(v, i, hi);
}

__global__ void parent(int *sum, int *out) {
  tree<<<1, 1, 0, cudaStreamFireAndForget>>>(sum, 5);
  last<<<1, 1, 0, cudaStreamTailLaunch>>>(sum, out);
}

int main() {
  size_t pending = 0;
  OK(cudaDeviceSetLimit(cudaLimitDevRuntimePendingLaunchCount, 4096));
  OK(cudaDeviceGetLimit(&pending, cudaLimitDevRuntimePendingLaunchCount));
  std::printf("pending launches %zu\n", pending);
  int *sum = device(std::vector<int>(1)), *out = device(std::vector<int>(1));
  parent<<<1, 1>>>(sum, out);
  expect("tail launch sees all", show("tail launch sees all", out, 1), 32 * 128, 0);
  std::vector<int> v(4096);
  uint32_t s = 5;
  for (auto &x : v) x = (int)((s = s * 1664525u + 1013904223u) >> 12);
  int *d = device(v);
  sort<<<1, 1>>>(d, 0, (int)v.size());
  show("quicksort", d, v.size());
  OK(cudaMemcpy(v.data(), d, v.size() * 4, cudaMemcpyDeviceToHost));
  for (size_t i = 1; i < v.size(); i++)
    if (v[i] < v[i - 1]) std::exit((std::puts("not sorted"), 1));
  std::puts("done");
}
