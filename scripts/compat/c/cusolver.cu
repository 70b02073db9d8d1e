//: title: cuSOLVER from C: LU, Cholesky, QR, eigenvalues, SVD, 64-bit interface
//: part: 2
//: libs: cusolver cublas cusparse
#include "compat.h"
#include <cusolverDn.h>

int main() {
  const int n = 128;
  cusolverDnHandle_t h;
  OK(cusolverDnCreate(&h));
  auto a = input<double>(n * n, 1);
  std::vector<double> spd(n * n), b(n, 0);
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) spd[i * n + j] = (a[i * n + j] + a[j * n + i]) / 2 + (i == j ? n : 0);
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) b[i] += spd[j * n + i]; // the solution is all ones
  int *info = device(std::vector<int>(1)), *pivot = device(std::vector<int>(n)), lwork = 0;
  double *da = device(spd), *db = device(b), *work;
  OK(cudaMalloc(&work, 64 << 20));
  OK(cusolverDnDgetrf_bufferSize(h, n, n, da, n, &lwork));
  OK(cusolverDnDgetrf(h, n, n, da, n, work, pivot, info));
  OK(cusolverDnDgetrs(h, CUBLAS_OP_N, n, 1, da, n, pivot, db, n, info));
  expect("LU", show("LU", db, n), n, 1e-9);
  da = device(spd), db = device(b);
  OK(cusolverDnDpotrf_bufferSize(h, CUBLAS_FILL_MODE_LOWER, n, da, n, &lwork));
  OK(cusolverDnDpotrf(h, CUBLAS_FILL_MODE_LOWER, n, da, n, work, lwork, info));
  OK(cusolverDnDpotrs(h, CUBLAS_FILL_MODE_LOWER, n, 1, da, n, db, n, info));
  expect("Cholesky", show("Cholesky", db, n), n, 1e-9);
  da = device(spd);
  double *tau = device(std::vector<double>(n)), trace = 0;
  OK(cusolverDnDgeqrf_bufferSize(h, n, n, da, n, &lwork));
  OK(cusolverDnDgeqrf(h, n, n, da, n, tau, work, lwork, info));
  show("QR", tau, n);
  da = device(spd);
  double *w = device(std::vector<double>(n));
  OK(cusolverDnDsyevd_bufferSize(h, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, n, da, n, w, &lwork));
  OK(cusolverDnDsyevd(h, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, n, da, n, w, work, lwork, info));
  for (int i = 0; i < n; i++) trace += spd[i * n + i];
  expect("eigenvalues", show("eigenvalues", w, n), trace, 1e-9);
  da = device(a);
  double *u = device(std::vector<double>(n * n)), *v = device(std::vector<double>(n * n)), *s = device(std::vector<double>(n));
  OK(cusolverDnDgesvd_bufferSize(h, n, n, &lwork));
  OK(cusolverDnDgesvd(h, 'A', 'A', n, n, da, n, s, u, n, v, n, work, lwork, nullptr, info));
  show("SVD", s, n);
  cusolverDnParams_t params;
  size_t onDevice = 0, onHost = 0;
  OK(cusolverDnCreateParams(&params));
  da = device(spd);
  OK(cusolverDnXpotrf_bufferSize(h, params, CUBLAS_FILL_MODE_LOWER, n, CUDA_R_64F, da, n, CUDA_R_64F, &onDevice, &onHost));
  std::vector<char> host(onHost + 1);
  OK(cusolverDnXpotrf(h, params, CUBLAS_FILL_MODE_LOWER, n, CUDA_R_64F, da, n, CUDA_R_64F, work, onDevice, host.data(), onHost, info));
  show("Xpotrf", da, n * n);
  show("info", info, 1);
  OK(cusolverDnDestroy(h));
  std::puts("done");
}
