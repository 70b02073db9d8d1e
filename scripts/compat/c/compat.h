// What the small library programs share: checks that end the program, reproducible input, and one
// line per result.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>
#include <cuda_runtime.h>

#define OK(call)                                                                    \
  do {                                                                              \
    auto r_ = (call);                                                               \
    if ((int)r_ != 0) {                                                             \
      std::printf("%s: line %d: %s returned %d\n", __FILE__, __LINE__, #call, (int)r_); \
      std::exit(1);                                                                 \
    }                                                                               \
  } while (0)

template <typename T> std::vector<T> input(size_t n, uint32_t seed = 1) {
  std::vector<T> v(n);
  uint32_t s = seed * 2654435761u + 1;
  for (auto &x : v) {
    s = s * 1664525u + 1013904223u;
    x = (T)((double)(s >> 8) / (1 << 23) - 1.0);
  }
  return v;
}

template <typename T> T *device(const std::vector<T> &v) {
  T *d;
  OK(cudaMalloc(&d, v.size() * sizeof(T)));
  OK(cudaMemcpy(d, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
  return d;
}

// show prints the hash of n elements' bytes (FNV-1a) and the sum of their absolute values, which a
// tolerance can judge.
template <typename T> double show(const char *name, const T *d, size_t n) {
  std::vector<T> v(n);
  OK(cudaDeviceSynchronize());
  OK(cudaMemcpy(v.data(), d, n * sizeof(T), cudaMemcpyDeviceToHost));
  uint64_t h = 14695981039346656037ull;
  for (size_t i = 0; i < n * sizeof(T); i++) h = (h ^ ((const unsigned char *)v.data())[i]) * 1099511628211ull;
  double sum = 0;
  for (auto x : v) sum += (double)x < 0 ? -(double)x : (double)x;
  std::printf("%s %016llx %.9g\n", name, (unsigned long long)h, sum);
  return sum;
}

// expect ends the program when a sum is not what mathematics says.
inline void expect(const char *name, double got, double want, double relative) {
  double d = got > want ? got - want : want - got, limit = relative * (want < 0 ? -want : want);
  if (d > limit) {
    std::printf("%s: got %.9g, expected %.9g\n", name, got, want);
    std::exit(1);
  }
}
