//: title: cuFFT from C: 1D, batched, 2D, 3D, real, double, round trips, a plan on a stream
//: part: 2
//: libs: cufft
#include "compat.h"
#include <cufft.h>

int main() {
  cudaStream_t s;
  OK(cudaStreamCreate(&s));
  for (int n : {64, 1000, 4096, 104729, 1 << 18}) {
    cufftHandle p;
    OK(cufftPlan1d(&p, n, CUFFT_C2C, 2));
    OK(cufftSetStream(p, s));
    auto v = input<float>(4 * (size_t)n, n);
    float *d = device(v);
    OK(cufftExecC2C(p, (cufftComplex *)d, (cufftComplex *)d, CUFFT_FORWARD));
    char name[32];
    std::snprintf(name, sizeof name, "c2c %d", n);
    show(name, d, v.size());
    OK(cufftExecC2C(p, (cufftComplex *)d, (cufftComplex *)d, CUFFT_INVERSE));
    OK(cudaStreamSynchronize(s));
    std::vector<float> back(v.size());
    OK(cudaMemcpy(back.data(), d, v.size() * 4, cudaMemcpyDeviceToHost));
    double worst = 0;
    for (size_t i = 0; i < v.size(); i++) {
      double e = back[i] / n - v[i];
      worst = e * e > worst ? e * e : worst;
    }
    if (worst > 1e-8) std::exit((std::printf("round trip %d is off by %g\n", n, worst), 1));
    OK(cufftDestroy(p));
    OK(cudaFree(d));
  }
  cufftHandle p2, p3, pr, pz;
  OK(cufftPlan2d(&p2, 256, 192, CUFFT_C2C));
  float *d = device(input<float>(2 * 256 * 192, 2));
  OK(cufftExecC2C(p2, (cufftComplex *)d, (cufftComplex *)d, CUFFT_FORWARD));
  show("2d", d, 2 * 256 * 192);
  OK(cufftPlan3d(&p3, 32, 30, 28, CUFFT_C2C));
  d = device(input<float>(2 * 32 * 30 * 28, 3));
  OK(cufftExecC2C(p3, (cufftComplex *)d, (cufftComplex *)d, CUFFT_FORWARD));
  show("3d", d, 2 * 32 * 30 * 28);
  OK(cufftPlan1d(&pr, 1024, CUFFT_R2C, 16));
  d = device(input<float>(16 * 1024, 4));
  float *o = device(std::vector<float>(16 * 513 * 2));
  OK(cufftExecR2C(pr, d, (cufftComplex *)o));
  show("r2c", o, 16 * 513 * 2);
  OK(cufftPlan1d(&pz, 1500, CUFFT_Z2Z, 4));
  double *z = device(input<double>(2 * 1500 * 4, 5));
  OK(cufftExecZ2Z(pz, (cufftDoubleComplex *)z, (cufftDoubleComplex *)z, CUFFT_FORWARD));
  show("z2z", z, 2 * 1500 * 4);
  std::puts("done");
}
