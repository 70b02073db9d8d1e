//: title: per-thread default streams
//: part: 3
//: flags: -default-stream per-thread
#include "compat.h"
#include <thread>

__global__ void mix(uint32_t *x, uint32_t seed) {
  uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  x[i] = (x[i] ^ seed) * 2654435761u + i;
}

int main() {
  std::vector<uint32_t *> x;
  for (int k = 0; k < 6; k++) x.push_back(device(std::vector<uint32_t>(1 << 16, k)));
  std::vector<std::thread> threads;
  for (int k = 0; k < 6; k++)
    threads.emplace_back([&, k] {
      for (int i = 0; i < 200; i++) mix<<<256, 256>>>(x[k], k * 1000 + i);
      OK(cudaStreamSynchronize(cudaStreamPerThread));
    });
  for (auto &t : threads) t.join();
  for (int k = 0; k < 6; k++) show("thread", x[k], 1 << 16);
  std::puts("done");
}
