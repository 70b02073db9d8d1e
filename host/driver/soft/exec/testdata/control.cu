// Control flow: calls, divergence, barriers. Compiled to control.ptx.
#include <cassert>
#include <cstdio>
#define KERNEL extern "C" __global__ void

__device__ __noinline__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }

KERNEL recursion(int *o) { o[threadIdx.x] = fib(threadIdx.x % 16); }

typedef int (*binary)(int, int);
__device__ int plus(int a, int b) { return a + b; }
__device__ int minus(int a, int b) { return a - b; }
__device__ int times(int a, int b) { return a * b; }
__device__ binary table[3] = {plus, minus, times};

KERNEL function_pointers(int *o) {
  int i = threadIdx.x;
  o[i] = table[i % 3](i, 7);
}

struct Shape {
  __device__ virtual int f(int x) = 0;
};
struct Adder : Shape {
  int k;
  __device__ Adder(int k) : k(k) {}
  __device__ int f(int x) override { return x + k; }
};
struct Square : Shape {
  __device__ int f(int x) override { return x * x; }
};

KERNEL virtual_calls(int *o) {
  int i = threadIdx.x;
  Adder a(100);
  Square b;
  Shape *p = i & 1 ? (Shape *)&a : (Shape *)&b;
  o[i] = p->f(i);
}

KERNEL switch_table(int *o) {
  int i = threadIdx.x, r;
  switch (i % 11) {
  case 0: r = 11; break;
  case 1: r = i * 3; break;
  case 2: r = 77; break;
  case 3: r = i; break;
  case 4: r = -1; break;
  case 5: r = i * i; break;
  case 6: r = 5; break;
  case 7: r = i ^ 3; break;
  case 8: r = 42; // falls through
  default: r = 1000;
  }
  o[i] = r;
}

// Threads leave one by one while the rest meet at barriers.
KERNEL early_exit(int *o, int n) {
  int i = threadIdx.x;
  for (int k = 0; k < 8; k++) {
    if (i >= n - k * 4) return;
    __syncthreads();
    o[i] += k;
  }
}

// A lock taken by threads of one warp: the holder must get on while the others
// spin.
KERNEL spin_lock(int *lock, int *count) {
  while (atomicCAS(lock, 0, 1) != 0) {
  }
  *(volatile int *)count = *(volatile int *)count + 1;
  __threadfence();
  atomicExch(lock, 0);
}

// Warps of a block, then blocks, wait for each other.
KERNEL hand_over(volatile int *turn) {
  int me = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) {
    int last = gridDim.x * (blockDim.x / 32) - 1;
    while (*turn != last - me) {
    }
    __threadfence();
    *turn = last - me + 1;
  }
}

KERNEL collatz(const int *x, int *o, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int s = 0, v = x[i];
  while (v != 1) {
    v = v & 1 ? 3 * v + 1 : v / 2;
    s++;
    if (s > 500) break;
    if (v % 7 == 3) continue;
    s += v & 1;
  }
  o[i] = s;
}

KERNEL barrier_reductions(int *o) {
  int i = threadIdx.x;
  int c = __syncthreads_count(i % 3 == 0), a = __syncthreads_and(i < 1000), r = __syncthreads_or(i == 5);
  o[i] = c * 4 + a * 2 + r;
}

KERNEL assertion(int k) { assert(threadIdx.x != k); }

KERNEL forever(volatile int *p) {
  while (*p == 0) {
  }
}

__device__ __noinline__ int bottomless(int n, int *p) {
  volatile int a[4];
  a[n & 3] = *p;
  if (*p == -1) return 0;
  return bottomless(n + 1, p) + a[n & 3];
}
KERNEL overflow(int *o) { *o = bottomless(*o, o); }

KERNEL prints(int k) {
  printf("%d|%5d|%-5d|%05d|%+d|%u|%x|%#X|%o|%ld|%lld|%llu|%c|%s|%10s|%-6s|%f|%.2f|%e|%g|%p|%%\n", k, k, k, k, k, k, k, k, k,
         (long)k, (long long)k * 1000000007LL, ~0ull, 'A', "str", "right", "left", 1.5, 3.14159, 12345.678, 0.0001, (void *)0);
}
