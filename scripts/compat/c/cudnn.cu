//: title: cuDNN from C: convolution forward and backward, pooling, softmax, activation
//: part: 2
//: libs: cudnn
#include "compat.h"
#include <cudnn.h>

int main() {
  cudnnHandle_t h;
  OK(cudnnCreate(&h));
  std::printf("# version %zu\n", cudnnGetVersion());
  const int n = 4, c = 16, hw = 32, k = 8;
  cudnnTensorDescriptor_t x, y;
  cudnnFilterDescriptor_t w;
  cudnnConvolutionDescriptor_t conv;
  OK(cudnnCreateTensorDescriptor(&x));
  OK(cudnnCreateTensorDescriptor(&y));
  OK(cudnnCreateFilterDescriptor(&w));
  OK(cudnnCreateConvolutionDescriptor(&conv));
  OK(cudnnSetTensor4dDescriptor(x, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, n, c, hw, hw));
  OK(cudnnSetTensor4dDescriptor(y, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, n, k, hw, hw));
  OK(cudnnSetFilter4dDescriptor(w, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, k, c, 3, 3));
  OK(cudnnSetConvolution2dDescriptor(conv, 1, 1, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
  float *dx = device(input<float>(n * c * hw * hw, 1)), *dw = device(input<float>(k * c * 9, 2));
  float *dy = device(std::vector<float>(n * k * hw * hw)), *gx = device(std::vector<float>(n * c * hw * hw)), *gw = device(std::vector<float>(k * c * 9));
  float one = 1, zero = 0;
  size_t bytes = 0;
  auto algo = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
  OK(cudnnGetConvolutionForwardWorkspaceSize(h, x, w, conv, y, algo, &bytes));
  void *work;
  OK(cudaMalloc(&work, 64 << 20));
  OK(cudnnConvolutionForward(h, &one, x, dx, w, dw, conv, algo, work, bytes, &zero, y, dy));
  show("forward", dy, n * k * hw * hw);
  OK(cudnnConvolutionBackwardData(h, &one, w, dw, y, dy, conv, CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, work, 64 << 20, &zero, x, gx));
  show("backward data", gx, n * c * hw * hw);
  OK(cudnnConvolutionBackwardFilter(h, &one, x, dx, y, dy, conv, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, work, 64 << 20, &zero, w, gw));
  show("backward filter", gw, k * c * 9);
  cudnnActivationDescriptor_t act;
  OK(cudnnCreateActivationDescriptor(&act));
  OK(cudnnSetActivationDescriptor(act, CUDNN_ACTIVATION_SIGMOID, CUDNN_PROPAGATE_NAN, 0));
  OK(cudnnActivationForward(h, act, &one, y, dy, &zero, y, dy));
  show("sigmoid", dy, n * k * hw * hw);
  OK(cudnnSoftmaxForward(h, CUDNN_SOFTMAX_ACCURATE, CUDNN_SOFTMAX_MODE_CHANNEL, &one, y, dy, &zero, y, dy));
  expect("softmax", show("softmax", dy, n * k * hw * hw), n * hw * hw, 1e-4);
  OK(cudnnDestroy(h));
  std::puts("done");
}
