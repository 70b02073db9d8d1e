//: title: NVRTC and nvJitLink from C: two programs compiled to LTO-IR, linked, loaded, launched
//: part: 2
//: libs: nvrtc nvJitLink cuda
#include "compat.h"
#include <cuda.h>
#include <nvJitLink.h>
#include <nvrtc.h>
#include <string>

static std::vector<char> ltoir(const char *src, const char *name) {
  nvrtcProgram p;
  OK(nvrtcCreateProgram(&p, src, name, 0, nullptr, nullptr));
  const char *opts[] = {"-arch=compute_90", "-dlto", "-rdc=true"};
  OK(nvrtcCompileProgram(p, 3, opts));
  size_t n;
  OK(nvrtcGetLTOIRSize(p, &n));
  std::vector<char> v(n);
  OK(nvrtcGetLTOIR(p, v.data()));
  OK(nvrtcDestroyProgram(&p));
  return v;
}

int main() {
  OK(cudaFree(nullptr));
  auto a = ltoir("extern __device__ int twice(int); extern \"C\" __global__ void k(int* o) { o[threadIdx.x] = twice(threadIdx.x) + 1; }", "a.cu");
  auto b = ltoir("__device__ int twice(int x) { return 2 * x; }", "b.cu");
  nvJitLinkHandle link;
  const char *opts[] = {"-arch=sm_90", "-lto"};
  OK(nvJitLinkCreate(&link, 2, opts));
  OK(nvJitLinkAddData(link, NVJITLINK_INPUT_LTOIR, a.data(), a.size(), "a"));
  OK(nvJitLinkAddData(link, NVJITLINK_INPUT_LTOIR, b.data(), b.size(), "b"));
  OK(nvJitLinkComplete(link));
  size_t n;
  OK(nvJitLinkGetLinkedCubinSize(link, &n));
  std::vector<char> cubin(n);
  OK(nvJitLinkGetLinkedCubin(link, cubin.data()));
  CUmodule m;
  CUfunction f;
  OK(cuModuleLoadData(&m, cubin.data()));
  OK(cuModuleGetFunction(&f, m, "k"));
  int *o = device(std::vector<int>(256));
  void *args[] = {&o};
  OK(cuLaunchKernel(f, 1, 1, 1, 256, 1, 1, 0, nullptr, args, nullptr));
  expect("sum", show("linked", o, 256), 256 * 256, 0);
  std::puts("done");
}
