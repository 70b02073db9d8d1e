//: title: stream memory operations: write, wait, batch; on device and on mapped host memory; the CPU lets a stream go on
//: part: 3
//: libs: cuda
#include "compat.h"
#include <chrono>
#include <cuda.h>
#include <thread>

__global__ void fill(int *x, int v) { x[threadIdx.x] = v; }

int main() {
  OK(cudaFree(nullptr));
  cudaStream_t a, b;
  OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
  OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
  int *x = device(std::vector<int>(256));
  uint32_t *flag = device(std::vector<uint32_t>(64));
  auto at = [](const void *p) { return (CUdeviceptr)p; };
  OK(cuStreamWaitValue32(b, at(flag), 5, CU_STREAM_WAIT_VALUE_GEQ)); // b waits for a
  OK(cudaMemcpyAsync(x, x, 0, cudaMemcpyDeviceToDevice, b));
  fill<<<1, 256, 0, b>>>(x, 2);
  fill<<<1, 256, 0, a>>>(x, 1);
  OK(cuStreamWriteValue32(a, at(flag), 9, CU_STREAM_WRITE_VALUE_DEFAULT));
  OK(cudaStreamSynchronize(b));
  expect("order", show("order", x, 256), 512, 0);
  OK(cuStreamWriteValue64(a, at(flag + 2), 0x1122334455667788ull, CU_STREAM_WRITE_VALUE_DEFAULT));
  OK(cuStreamWaitValue64(a, at(flag + 2), 0x1122334455667788ull, CU_STREAM_WAIT_VALUE_EQ));
  OK(cuStreamWaitValue32(a, at(flag + 2), 0x8, CU_STREAM_WAIT_VALUE_AND));
  CUstreamBatchMemOpParams ops[3] = {};
  ops[0].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  ops[0].writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_32, at(flag + 8), {77}, 0, 0};
  ops[1].operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  ops[1].waitValue = {CU_STREAM_MEM_OP_WAIT_VALUE_32, at(flag + 8), {77}, CU_STREAM_WAIT_VALUE_EQ, 0};
  ops[2].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  ops[2].writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_32, at(flag + 9), {78}, 0, 0};
  OK(cuStreamBatchMemOp(a, 3, ops, 0));
  OK(cudaStreamSynchronize(a));
  show("flags", flag, 64);
  volatile uint32_t *host, *seen;
  OK(cudaHostAlloc((void **)&host, 4096, cudaHostAllocMapped));
  host[0] = host[16] = 0;
  seen = host + 16;
  OK(cudaHostGetDevicePointer((void **)&flag, (void *)host, 0));
  OK(cuStreamWaitValue32(a, at(flag), 1, CU_STREAM_WAIT_VALUE_GEQ));
  OK(cuStreamWriteValue32(a, at(flag + 16), 42, CU_STREAM_WRITE_VALUE_DEFAULT));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  std::printf("held: %s, %u\n", cudaGetErrorName(cudaStreamQuery(a)), *seen);
  host[0] = 1;
  for (int i = 0; i < 2000 && *seen != 42; i++) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::printf("seen by the CPU: %u\n", *seen);
  OK(cudaStreamSynchronize(a));
  std::printf("bad address: %d\n", (int)cuStreamWriteValue32(a, 0, 1, 0));
  std::puts("done");
}
