//: title: cuRAND from C: host and device interfaces, five generators
//: part: 2
//: libs: curand
#include "compat.h"
#include <curand.h>
#include <curand_kernel.h>

__global__ void draw(float *out, unsigned long long seed) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  curandStatePhilox4_32_10_t s;
  curand_init(seed, i, 0, &s);
  out[i] = curand_uniform(&s) + curand_normal(&s);
}

int main() {
  float *d = device(std::vector<float>(100000));
  struct {
    const char *name;
    curandRngType_t type;
  } kinds[] = {{"xorwow", CURAND_RNG_PSEUDO_XORWOW}, {"mrg32k3a", CURAND_RNG_PSEUDO_MRG32K3A}, {"mtgp32", CURAND_RNG_PSEUDO_MTGP32},
               {"mt19937", CURAND_RNG_PSEUDO_MT19937}, {"philox", CURAND_RNG_PSEUDO_PHILOX4_32_10}};
  for (auto k : kinds) {
    curandGenerator_t g;
    OK(curandCreateGenerator(&g, k.type));
    OK(curandSetPseudoRandomGeneratorSeed(g, 42));
    OK(curandGenerateUniform(g, d, 100000));
    expect(k.name, show(k.name, d, 100000), 50000, 0.02);
    OK(curandGenerateNormal(g, d, 100000, 0, 1));
    show("  normal", d, 100000);
    OK(curandDestroyGenerator(g));
  }
  curandGenerator_t q;
  OK(curandCreateGenerator(&q, CURAND_RNG_QUASI_SOBOL32));
  OK(curandSetQuasiRandomGeneratorDimensions(q, 4));
  OK(curandGenerateUniform(q, d, 100000));
  show("sobol", d, 100000);
  draw<<<100, 256>>>(d, 7);
  show("device", d, 25600);
  std::puts("done");
}
