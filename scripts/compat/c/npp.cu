//: title: NPP: a Gauss filter, and segmentation by watershed, whose library gives kernels the address of an integer on its stack
//: part: 2
//: libs: nppif nppc
#include "compat.h"
#include <nppi_filtering_functions.h>

int main() {
  const int w = 640, h = 480;
  NppStreamContext c = {};
  cudaDeviceProp p;
  OK(cudaGetDeviceProperties(&p, 0));
  OK(cudaStreamCreate(&c.hStream));
  c.nMultiProcessorCount = p.multiProcessorCount;
  c.nMaxThreadsPerMultiProcessor = p.maxThreadsPerMultiProcessor;
  c.nMaxThreadsPerBlock = p.maxThreadsPerBlock;
  c.nSharedMemPerBlock = p.sharedMemPerBlock;
  c.nCudaDevAttrComputeCapabilityMajor = p.major;
  c.nCudaDevAttrComputeCapabilityMinor = p.minor;
  OK(cudaStreamGetFlags(c.hStream, &c.nStreamFlags));
  std::vector<uint8_t> image((size_t)w * h); // bowls, each of which is a segment
  for (int y = 0; y < h; y++)
    for (int x = 0; x < w; x++) {
      int dx = x % 64 - 32, dy = y % 48 - 24;
      image[(size_t)y * w + x] = (uint8_t)(dx * dx / 8 + dy * dy / 6);
    }
  uint8_t *src = device(image), *smooth = device(image);
  for (int round = 0; round < 3; round++) { // its registration is made and ended each time
    OK(nppiFilterGauss_8u_C1R_Ctx(src + 2 * w + 2, w, smooth + 2 * w + 2, w, {w - 4, h - 4}, NPP_MASK_SIZE_5_X_5, c));
    show("gauss", smooth, image.size());
    size_t bytes = 0;
    OK(nppiSegmentWatershedGetBufferSize_8u_C1R({w, h}, &bytes));
    Npp8u *scratch;
    Npp32u *labels;
    OK(cudaMalloc(&scratch, bytes));
    OK(cudaMalloc(&labels, sizeof(Npp32u) * w * h));
    OK(nppiSegmentWatershed_8u_C1IR_Ctx(smooth, w, labels, 4 * w, round % 2 ? nppiNormL1 : nppiNormInf, NPP_WATERSHED_SEGMENT_BOUNDARIES_NONE, {w, h}, scratch, c));
    show("segments", smooth, image.size());
    std::vector<Npp32u> of((size_t)w * h);
    OK(cudaMemcpy(of.data(), labels, of.size() * 4, cudaMemcpyDeviceToHost));
    size_t edges = 0;
    for (size_t i = 1; i < of.size(); i++) edges += i % w && of[i] != of[i - 1];
    std::printf("borders crossed %zu\n", edges);
    OK(cudaFree(scratch));
    OK(cudaFree(labels));
  }
  OK(cudaFree(src));
  OK(cudaFree(smooth));
  OK(cudaStreamDestroy(c.hStream));
}
