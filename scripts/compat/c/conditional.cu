//: title: conditional graph nodes: if, while, switch, set from kernels
//: part: 3
#include "compat.h"

__global__ void choose(cudaGraphConditionalHandle h, const int *in) { cudaGraphSetConditional(h, *in); }
__global__ void count(cudaGraphConditionalHandle h, int *n, int limit) { cudaGraphSetConditional(h, ++*n < limit); }
__global__ void add(int *x, int v) { *x += v; }

static cudaGraphNode_t kernel(cudaGraph_t g, const cudaGraphNode_t *after, void *f, void **args) {
  cudaKernelNodeParams p = {};
  p.func = f, p.gridDim = dim3(1), p.blockDim = dim3(1), p.kernelParams = args;
  cudaGraphNode_t n;
  OK(cudaGraphAddKernelNode(&n, g, after, after ? 1 : 0, &p));
  return n;
}

static void run(const char *name, cudaGraphConditionalNodeType type, unsigned bodies, int first, int *in, int *x) {
  cudaGraph_t g;
  OK(cudaGraphCreate(&g, 0));
  cudaGraphConditionalHandle h;
  OK(cudaGraphConditionalHandleCreate(&h, g, type == cudaGraphCondTypeWhile ? 1 : 0, type == cudaGraphCondTypeWhile ? cudaGraphCondAssignDefault : 0));
  void *args[] = {&h, &in};
  cudaGraphNode_t before;
  if (type != cudaGraphCondTypeWhile) before = kernel(g, nullptr, (void *)choose, args);
  cudaGraphNodeParams p = {};
  p.type = cudaGraphNodeTypeConditional;
  p.conditional.handle = h, p.conditional.type = type, p.conditional.size = bodies;
  cudaGraphNode_t node;
#if CUDART_VERSION >= 13000
  OK(cudaGraphAddNode(&node, g, type == cudaGraphCondTypeWhile ? nullptr : &before, nullptr, type == cudaGraphCondTypeWhile ? 0 : 1, &p));
#else
  OK(cudaGraphAddNode(&node, g, type == cudaGraphCondTypeWhile ? nullptr : &before, type == cudaGraphCondTypeWhile ? 0 : 1, &p));
#endif
  for (unsigned i = 0; i < bodies; i++) {
    cudaGraph_t body = p.conditional.phGraph_out[i];
    int v = 1 << (4 * i), limit = 10;
    void *adds[] = {&x, &v};
    cudaGraphNode_t a = kernel(body, nullptr, (void *)add, adds);
    if (type == cudaGraphCondTypeWhile) {
      void *counts[] = {&h, &in, &limit};
      kernel(body, &a, (void *)count, counts);
    }
  }
  cudaGraphExec_t e;
  OK(cudaGraphInstantiate(&e, g, 0));
  for (int k = 0; k < 3; k++) {
    int value = first + k;
    OK(cudaMemcpy(in, &value, sizeof value, cudaMemcpyHostToDevice));
    OK(cudaMemset(x, 0, sizeof *x));
    OK(cudaGraphLaunch(e, nullptr));
    OK(cudaDeviceSynchronize());
    int got;
    OK(cudaMemcpy(&got, x, sizeof got, cudaMemcpyDeviceToHost));
    std::printf("%s, %d: %d\n", name, value, got);
  }
  OK(cudaGraphExecDestroy(e));
  OK(cudaGraphDestroy(g));
}

int main() {
  int *in = device(std::vector<int>(1)), *x = device(std::vector<int>(1));
  run("if", cudaGraphCondTypeIf, 1, 0, in, x);
  run("if else", cudaGraphCondTypeIf, 2, 0, in, x);
  run("while", cudaGraphCondTypeWhile, 1, 0, in, x);
  run("switch", cudaGraphCondTypeSwitch, 3, 1, in, x);
  std::puts("done");
}
