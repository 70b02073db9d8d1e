//: title: cuBLASLt from C: heuristics, bias and GELU epilogue in bf16, FP8 with scales
//: part: 2
//: libs: cublasLt
#include "compat.h"
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>

template <typename T> static T *random(size_t n, int seed) {
  auto f = input<float>(n, seed);
  std::vector<T> v(n);
  for (size_t i = 0; i < n; i++) v[i] = T(f[i]);
  return device(v);
}

static void multiply(cublasLtHandle_t h, const char *name, cudaDataType in, const void *a, const void *b, cublasLtEpilogue_t epilogue, const void *bias,
                     const float *scale) {
  const int m = 256, n = 512, k = 128;
  cublasLtMatmulDesc_t op;
  OK(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  cublasOperation_t t = CUBLAS_OP_T;
  OK(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof t));
  OK(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
  if (bias) OK(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
  if (scale) {
    OK(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &scale, sizeof scale));
    OK(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &scale, sizeof scale));
  }
  cublasLtMatrixLayout_t la, lb, lc;
  OK(cublasLtMatrixLayoutCreate(&la, in, k, m, k));
  OK(cublasLtMatrixLayoutCreate(&lb, in, k, n, k));
  OK(cublasLtMatrixLayoutCreate(&lc, CUDA_R_16BF, m, n, m));
  cublasLtMatmulPreference_t pref;
  size_t bytes = 32 << 20;
  OK(cublasLtMatmulPreferenceCreate(&pref));
  OK(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
  cublasLtMatmulHeuristicResult_t found[8];
  int count = 0;
  OK(cublasLtMatmulAlgoGetHeuristic(h, op, la, lb, lc, lc, pref, 8, found, &count));
  std::printf("%s: %d algorithms\n", name, count);
  void *work;
  OK(cudaMalloc(&work, bytes));
  __nv_bfloat16 *c;
  OK(cudaMalloc(&c, m * n * sizeof *c));
  float one = 1, zero = 0;
  for (int i = 0; i < count && i < 2; i++) {
    OK(cublasLtMatmul(h, op, &one, a, la, b, lb, &zero, c, lc, c, lc, &found[i].algo, work, bytes, 0));
    OK(cudaDeviceSynchronize());
    std::vector<__nv_bfloat16> v(m * n);
    OK(cudaMemcpy(v.data(), c, m * n * sizeof *c, cudaMemcpyDeviceToHost));
    uint64_t hash = 14695981039346656037ull;
    for (size_t k = 0; k < v.size() * 2; k++) hash = (hash ^ ((unsigned char *)v.data())[k]) * 1099511628211ull;
    std::printf("%s %d %016llx\n", name, i, (unsigned long long)hash);
  }
}

int main() {
  cublasLtHandle_t h;
  OK(cublasLtCreate(&h));
  auto a = random<__nv_bfloat16>(256 * 128, 1), b = random<__nv_bfloat16>(512 * 128, 2), bias = random<__nv_bfloat16>(256, 3);
  multiply(h, "bf16", CUDA_R_16BF, a, b, CUBLASLT_EPILOGUE_DEFAULT, nullptr, nullptr);
  multiply(h, "bias+gelu", CUDA_R_16BF, a, b, CUBLASLT_EPILOGUE_GELU_BIAS, bias, nullptr);
  multiply(h, "fp8", CUDA_R_8F_E4M3, random<__nv_fp8_e4m3>(256 * 128, 4), random<__nv_fp8_e4m3>(512 * 128, 5), CUBLASLT_EPILOGUE_DEFAULT, nullptr,
           device(std::vector<float>{0.5f}));
  OK(cublasLtDestroy(h));
  std::puts("done");
}
