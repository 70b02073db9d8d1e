//: title: lazy and eager module loading
//: part: 3
//: libs: cuda
//: row: c_loading_lazy LAZY
//: row: c_loading_eager EAGER
#include "compat.h"
#include <cuda.h>
#include <cstring>

__device__ int counter = 5;
__constant__ int factors[4] = {1, 2, 3, 4};
template <int N> __global__ void kernel(int *o) { o[threadIdx.x] = factors[threadIdx.x & 3] * N + counter; }

int main(int argc, char **argv) {
  setenv("CUDA_MODULE_LOADING", argv[1], 1);
  int *o = device(std::vector<int>(128));
  CUmoduleLoadingMode mode;
  OK(cuModuleGetLoadingMode(&mode));
  std::printf("%s: mode %d\n", argv[1], (int)mode);
  kernel<1><<<1, 128>>>(o);
  show("one", o, 128);
  int seven = 7;
  OK(cudaMemcpyToSymbol(counter, &seven, sizeof seven));
  kernel<2><<<1, 128>>>(o);
  show("two", o, 128);
  cudaFuncAttributes a;
  OK(cudaFuncGetAttributes(&a, kernel<3>));
  std::printf("attributes: %d threads, %zu constant bytes\n", a.maxThreadsPerBlock, a.constSizeBytes);
  cudaFunction_t f, g;
  OK(cudaGetFuncBySymbol(&f, (void *)kernel<4>));
  OK(cudaGetFuncBySymbol(&g, (void *)kernel<2>));
  CUfunctionLoadingState never, used;
  OK(cuFuncIsLoaded(&never, f));
  OK(cuFuncIsLoaded(&used, g));
  const char *name;
  OK(cuFuncGetName(&name, g));
  std::printf("loaded: %d, %d, %s\n", (int)never, (int)used, name);
  void *args[] = {&o};
  OK(cuLaunchKernel(f, 1, 1, 1, 128, 1, 1, 0, nullptr, args, nullptr));
  show("four", o, 128);
  std::puts("done");
}
