//: speed: spawn 9
#include <cstdio>
#include <cuda_runtime.h>

__global__ void one(int *x) { *x = 42; }

int main() {
  int *d, h = 0;
  if (cudaMalloc(&d, 4)) return 1;
  one<<<1, 1>>>(d);
  if (cudaMemcpy(&h, d, 4, cudaMemcpyDeviceToHost) || h != 42) return 1;
  std::puts("# process_to_first_kernel is the whole life of this program");
}
