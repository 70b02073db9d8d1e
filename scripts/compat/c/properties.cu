//: title: every property and attribute of a device, limits, attributes and occupancy of kernels, symbols' sizes
//: part: 3
//: libs: cuda
//: note: attributes of what is not kept here are 0, docs/COVERAGE.md says why: concurrent access to managed memory (89), GPU direct RDMA (116 to 118, 110), DMA buffers (124), fabric handles (119 without its bit, 128), timeline semaphores (114), unified function pointers (129), launches over several GPUs (96), memory and pools of the host's own (141, 142, 144, 145); all other properties are the GPU's own
#include "compat.h"
#include <cstddef>
#include <cstring>
#include <cuda.h>

// What is another on purpose: scripts/compat compares lines without '#'.
static bool declared(int a) {
  for (int d : {89, 96, 110, 114, 116, 117, 118, 119, 124, 128, 129, 132, 141, 142, 143, 144, 145})
    if (a == d) return true;
  return false;
}

static unsigned hash(const void *p, size_t n) {
  unsigned h = 2166136261u;
  for (size_t i = 0; i < n; i++) h = (h ^ ((const unsigned char *)p)[i]) * 16777619u;
  return h;
}

__constant__ int table[1000];
__device__ double pair[2];

__global__ void simple(int *x) { x[threadIdx.x] = table[threadIdx.x] + (int)pair[0]; }

__global__ void __launch_bounds__(192, 2) bounded(const float *in, float *out, int n) {
  __shared__ float tile[192];
  float local[32];
  for (int i = 0; i < 32; i++) local[i] = in[(threadIdx.x * i) % n];
  tile[threadIdx.x] = local[n % 32] + local[(n / 3) % 32];
  __syncthreads();
  out[threadIdx.x] = tile[191 - threadIdx.x];
}

static void function(const char *name, const void *f) {
  cudaFuncAttributes a;
  OK(cudaFuncGetAttributes(&a, f));
  std::printf("%s: shared %zu, constant %zu, local %zu, threads %d, registers %d, PTX %d, binary %d, dynamic %d, part %d, cluster %d %d %d\n", name,
              a.sharedSizeBytes, a.constSizeBytes, a.localSizeBytes, a.maxThreadsPerBlock, a.numRegs, a.ptxVersion, a.binaryVersion,
              a.maxDynamicSharedSizeBytes, a.preferredShmemCarveout, a.requiredClusterWidth, a.requiredClusterHeight, a.requiredClusterDepth);
  for (int threads : {1, 32, 96, 192, 256, 1024})
    for (size_t shared : {0, 1000, 40000}) {
      int blocks = -1;
      OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, threads, shared));
      std::printf(" %d", blocks);
    }
  size_t bytes = 0;
  OK(cudaOccupancyAvailableDynamicSMemPerBlock(&bytes, f, 2, 128));
  int grid = 0, block = 0;
  OK(cudaOccupancyMaxPotentialBlockSize(&grid, &block, f, 0, 0));
  std::printf("; %zu; %d of %d\n", bytes, grid, block);
}

int main() {
  cudaDeviceProp p;
  OK(cudaGetDeviceProperties(&p, 0));
  CUdevice device;
  OK(cuDeviceGet(&device, 0));
  // The structure's bytes, less what is declared below as attributes.
  p.timelineSemaphoreInteropSupported = p.gpuDirectRDMASupported = p.gpuDirectRDMAWritesOrdering = 0;
  p.gpuDirectRDMAFlushWritesOptions = p.memoryPoolSupportedHandleTypes = p.unifiedFunctionPointers = p.concurrentManagedAccess = 0;
  std::printf("%s, uuid %08x, %zu bytes, %d.%d, properties %08x\n", p.name, hash(&p.uuid, sizeof p.uuid), p.totalGlobalMem, p.major, p.minor,
              hash(&p, offsetof(cudaDeviceProp, reserved)));
  for (int a = 0; a < 160; a++) {
    int v = 0;
    CUresult r = cuDeviceGetAttribute(&v, (CUdevice_attribute)a, device);
    std::printf("%sattribute %d: %d %d\n", declared(a) ? "# " : "", a, (int)r, v);
  }
  char bus[32];
  OK(cudaDeviceGetPCIBusId(bus, sizeof bus, 0));
  std::puts(bus);
  for (int e = 0; e < 4; e++) {
    int ok = -1;
    CUresult r = cuDeviceGetExecAffinitySupport(&ok, (CUexecAffinityType)e, device);
    std::printf("affinity %d: %d %d\n", e, (int)r, ok);
  }
  OK(cudaFree(nullptr));
  for (int l = 0; l < 12; l++) {
    size_t v = 0;
    CUresult r = cuCtxGetLimit(&v, (CUlimit)l);
    std::printf("limit %d: %d %zu\n", l, (int)r, v);
  }
  size_t size = 0;
  void *at = nullptr;
  OK(cudaGetSymbolSize(&size, table));
  OK(cudaGetSymbolAddress(&at, pair));
  std::printf("symbols: %zu, %d\n", size, at != nullptr);
  function("simple", (const void *)simple);
  function("bounded", (const void *)bounded);
  std::puts("done");
}
