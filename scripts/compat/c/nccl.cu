//: title: NCCL from C: two GPUs of one process, all-reduce and all-gather in a group
//: part: 4
//: libs: nccl
//: gpus: 2
#include "compat.h"
#include <nccl.h>

int main() {
  const size_t n = 1 << 20;
  ncclComm_t comm[2];
  int devs[2] = {0, 1};
  OK(ncclCommInitAll(comm, 2, devs));
  float *x[2], *y[2];
  cudaStream_t s[2];
  for (int i = 0; i < 2; i++) {
    OK(cudaSetDevice(i));
    OK(cudaStreamCreate(&s[i]));
    x[i] = device(input<float>(n, i + 1));
    y[i] = device(std::vector<float>(2 * n));
  }
  OK(ncclGroupStart());
  for (int i = 0; i < 2; i++) OK(ncclAllReduce(x[i], x[i], n, ncclFloat, ncclSum, comm[i], s[i]));
  OK(ncclGroupEnd());
  OK(ncclGroupStart());
  for (int i = 0; i < 2; i++) OK(ncclAllGather(x[i], y[i], n, ncclFloat, comm[i], s[i]));
  OK(ncclGroupEnd());
  for (int i = 0; i < 2; i++) {
    OK(cudaSetDevice(i));
    OK(cudaStreamSynchronize(s[i]));
    show("all_reduce", x[i], n);
    show("all_gather", y[i], 2 * n);
  }
  for (int i = 0; i < 2; i++) OK(ncclCommDestroy(comm[i]));
  std::puts("done");
}
