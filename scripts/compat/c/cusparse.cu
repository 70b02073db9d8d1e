//: title: cuSPARSE from C: SpMV, SpMM, dense to sparse, SpSV
//: part: 2
//: libs: cusparse
#include "compat.h"
#include <cusparse.h>

int main() {
  const int n = 1000;
  cusparseHandle_t h;
  OK(cusparseCreate(&h));
  std::vector<int> row{0}, col; // a tridiagonal matrix: every row sums to 1 but the first and last
  std::vector<float> val;
  for (int i = 0; i < n; i++) {
    if (i > 0) col.push_back(i - 1), val.push_back(-1);
    col.push_back(i), val.push_back(3);
    if (i < n - 1) col.push_back(i + 1), val.push_back(-1);
    row.push_back((int)col.size());
  }
  cusparseSpMatDescr_t m;
  OK(cusparseCreateCsr(&m, n, n, val.size(), device(row), device(col), device(val), CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO,
                       CUDA_R_32F));
  float *x = device(std::vector<float>(n * 8, 1)), *y = device(std::vector<float>(n * 8)), one = 1, zero = 0;
  cusparseDnVecDescr_t vx, vy;
  OK(cusparseCreateDnVec(&vx, n, x, CUDA_R_32F));
  OK(cusparseCreateDnVec(&vy, n, y, CUDA_R_32F));
  size_t bytes = 0;
  void *work;
  auto op = CUSPARSE_OPERATION_NON_TRANSPOSE;
  OK(cusparseSpMV_bufferSize(h, op, &one, m, vx, &zero, vy, CUDA_R_32F, CUSPARSE_SPMV_CSR_ALG2, &bytes));
  OK(cudaMalloc(&work, bytes + 1));
  OK(cusparseSpMV(h, op, &one, m, vx, &zero, vy, CUDA_R_32F, CUSPARSE_SPMV_CSR_ALG2, work));
  expect("SpMV", show("SpMV", y, n), n + 2, 1e-6);
  cusparseDnMatDescr_t dx, dy;
  OK(cusparseCreateDnMat(&dx, n, 8, n, x, CUDA_R_32F, CUSPARSE_ORDER_COL));
  OK(cusparseCreateDnMat(&dy, n, 8, n, y, CUDA_R_32F, CUSPARSE_ORDER_COL));
  OK(cusparseSpMM_bufferSize(h, op, op, &one, m, dx, &zero, dy, CUDA_R_32F, CUSPARSE_SPMM_CSR_ALG2, &bytes));
  OK(cudaMalloc(&work, bytes + 1));
  OK(cusparseSpMM(h, op, op, &one, m, dx, &zero, dy, CUDA_R_32F, CUSPARSE_SPMM_CSR_ALG2, work));
  expect("SpMM", show("SpMM", y, n * 8), 8 * (n + 2), 1e-6);
  cusparseDnMatDescr_t dense;
  float *d = device(input<float>(64 * 64, 7));
  OK(cusparseCreateDnMat(&dense, 64, 64, 64, d, CUDA_R_32F, CUSPARSE_ORDER_ROW));
  cusparseSpMatDescr_t sp;
  int *offsets = device(std::vector<int>(65));
  OK(cusparseCreateCsr(&sp, 64, 64, 0, offsets, nullptr, nullptr, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, CUDA_R_32F));
  OK(cusparseDenseToSparse_bufferSize(h, dense, sp, CUSPARSE_DENSETOSPARSE_ALG_DEFAULT, &bytes));
  OK(cudaMalloc(&work, bytes + 1));
  OK(cusparseDenseToSparse_analysis(h, dense, sp, CUSPARSE_DENSETOSPARSE_ALG_DEFAULT, work));
  int64_t rows, cols, nnz;
  OK(cusparseSpMatGetSize(sp, &rows, &cols, &nnz));
  std::printf("nnz %lld\n", (long long)nnz);
  int *ci = device(std::vector<int>(nnz));
  float *v = device(std::vector<float>(nnz));
  OK(cusparseCsrSetPointers(sp, offsets, ci, v));
  OK(cusparseDenseToSparse_convert(h, dense, sp, CUSPARSE_DENSETOSPARSE_ALG_DEFAULT, work));
  show("dense to sparse", v, nnz);
  cusparseSpSVDescr_t sv;
  OK(cusparseSpSV_createDescr(&sv));
  auto lower = CUSPARSE_FILL_MODE_LOWER;
  OK(cusparseSpMatSetAttribute(m, CUSPARSE_SPMAT_FILL_MODE, &lower, sizeof lower));
  OK(cusparseSpSV_bufferSize(h, op, &one, m, vx, vy, CUDA_R_32F, CUSPARSE_SPSV_ALG_DEFAULT, sv, &bytes));
  OK(cudaMalloc(&work, bytes + 1));
  OK(cusparseSpSV_analysis(h, op, &one, m, vx, vy, CUDA_R_32F, CUSPARSE_SPSV_ALG_DEFAULT, sv, work));
  OK(cusparseSpSV_solve(h, op, &one, m, vx, vy, CUDA_R_32F, CUSPARSE_SPSV_ALG_DEFAULT, sv));
  show("SpSV", y, n);
  OK(cusparseDestroy(h));
  std::puts("done");
}
