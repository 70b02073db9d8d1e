//: title: cuBLAS from C: axpy, dot, gemm in four types, strided batched, syrk, trsm, grouped streams
//: part: 2
//: libs: cublas
#include "compat.h"
#include <cmath>
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

int main() {
  const int n = 256;
  cublasHandle_t h;
  OK(cublasCreate(&h));
  cudaStream_t s;
  OK(cudaStreamCreate(&s));
  OK(cublasSetStream(h, s));
  void *work;
  OK(cudaMalloc(&work, 32 << 20));
  OK(cublasSetWorkspace(h, work, 32 << 20));
  auto a = input<float>(n * n, 1), b = input<float>(n * n, 2);
  float *da = device(a), *db = device(b), *dc = device(std::vector<float>(n * n));
  float one = 1, zero = 0, two = 2, dot = 0;
  OK(cublasSaxpy(h, n * n, &two, da, 1, db, 1));
  show("axpy", db, n * n);
  OK(cublasSdot(h, n * n, da, 1, db, 1, &dot));
  double want = 0;
  for (int i = 0; i < n * n; i++) want += (double)a[i] * (b[i] + 2 * a[i]);
  expect("dot", dot, want, 1e-4);
  std::printf("dot %.9g\n", dot);
  OK(cublasSetPointerMode(h, CUBLAS_POINTER_MODE_DEVICE));
  float *dres = device(std::vector<float>(1));
  OK(cublasSnrm2(h, n * n, da, 1, dres));
  show("nrm2 to device memory", dres, 1);
  OK(cublasSetPointerMode(h, CUBLAS_POINTER_MODE_HOST));
  OK(cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_T, n, n, n, &one, da, n, db, n, &zero, dc, n));
  show("sgemm", dc, n * n);
  OK(cublasSgemmStridedBatched(h, CUBLAS_OP_N, CUBLAS_OP_N, 32, 32, 32, &one, da, 32, 1024, db, 32, 1024, &zero, dc, 32, 1024, 64));
  show("strided batched", dc, n * n);
  OK(cublasSsyrk(h, CUBLAS_FILL_MODE_LOWER, CUBLAS_OP_N, n, n, &one, da, n, &zero, dc, n));
  show("syrk", dc, n * n);
  std::vector<double> l(n * n);
  for (int j = 0; j < n; j++)
    for (int i = j; i < n; i++) l[j * n + i] = i == j ? 4 : a[j * n + i] / n;
  double *dl = device(l), *dx = device(input<double>(n * n, 3)), done = 1, dzero = 0, *dd = device(std::vector<double>(n * n));
  OK(cublasDtrsm(h, CUBLAS_SIDE_LEFT, CUBLAS_FILL_MODE_LOWER, CUBLAS_OP_N, CUBLAS_DIAG_NON_UNIT, n, n, &done, dl, n, dx, n));
  show("trsm", dx, n * n);
  OK(cublasDgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &done, dl, n, dx, n, &dzero, dd, n));
  show("dgemm", dd, n * n);
  std::vector<__half> ha(n * n), hb(n * n);
  std::vector<__nv_bfloat16> ba(n * n), bb(n * n);
  for (int i = 0; i < n * n; i++) {
    ha[i] = __float2half(a[i]), hb[i] = __float2half(b[i]);
    ba[i] = __float2bfloat16(a[i]), bb[i] = __float2bfloat16(b[i]);
  }
  OK(cublasGemmEx(h, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, device(ha), CUDA_R_16F, n, device(hb), CUDA_R_16F, n, &zero, dc,
                  CUDA_R_32F, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  show("fp16", dc, n * n);
  OK(cublasGemmEx(h, CUBLAS_OP_T, CUBLAS_OP_N, n, n, n, &one, device(ba), CUDA_R_16BF, n, device(bb), CUDA_R_16BF, n, &zero, dc,
                  CUDA_R_32F, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  show("bf16", dc, n * n);
  OK(cublasDestroy(h));
  std::puts("done");
}
