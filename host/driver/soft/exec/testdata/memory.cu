// Memory: spaces, vectors, structures, atomics. Compiled to memory.ptx.
#define KERNEL extern "C" __global__ void

KERNEL vector_add(const float *a, const float *b, float *c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

#define TILE 16
KERNEL matmul(const float *A, const float *B, float *C, int n) {
  __shared__ float As[TILE][TILE], Bs[TILE][TILE];
  int tx = threadIdx.x, ty = threadIdx.y, row = blockIdx.y * TILE + ty, col = blockIdx.x * TILE + tx;
  float s = 0;
  for (int t = 0; t < (n + TILE - 1) / TILE; t++) {
    As[ty][tx] = row < n && t * TILE + tx < n ? A[row * n + t * TILE + tx] : 0;
    Bs[ty][tx] = col < n && t * TILE + ty < n ? B[(t * TILE + ty) * n + col] : 0;
    __syncthreads();
    for (int k = 0; k < TILE; k++) s += As[ty][k] * Bs[k][tx];
    __syncthreads();
  }
  if (row < n && col < n) C[row * n + col] = s;
}

KERNEL local_sort(const int *x, int *o, int n) {
  int a[16], i = threadIdx.x;
  for (int k = 0; k < 16; k++) a[k] = x[(i * 5 + k) % n];
  for (int p = 0; p < 16; p++)
    for (int k = 0; k + 1 < 16; k++)
      if (a[k] > a[k + 1]) {
        int t = a[k];
        a[k] = a[k + 1];
        a[k + 1] = t;
      }
  for (int k = 0; k < 16; k++) o[i * 16 + k] = a[k];
}

__constant__ float coef[8] = {1, 2, 3, 4, 5, 6, 7, 8};
__constant__ int offsets[64];
__device__ int counter = 5;
__device__ const char *names[2] = {"alpha", "beta"};

KERNEL constants(float *o, const int *ix) {
  int i = threadIdx.x;
  float s = 0;
  for (int k = 0; k < 8; k++) s = s * 0.5f + coef[(k + ix[i]) & 7];
  o[i] = s + offsets[i & 63] + names[i & 1][0];
  atomicAdd(&counter, 1);
}

KERNEL histogram(const unsigned char *d, int n, unsigned *o) {
  __shared__ unsigned h[256];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) h[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&h[d[i]], 1);
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&o[i], h[i]);
}

KERNEL scan(const int *x, int *o, int n) {
  extern __shared__ int s[];
  int i = threadIdx.x;
  s[i] = i < n ? x[i] : 0;
  __syncthreads();
  for (int d = 1; d < blockDim.x; d *= 2) {
    int v = i >= d ? s[i - d] : 0;
    __syncthreads();
    s[i] += v;
    __syncthreads();
  }
  if (i < n) o[i] = s[i];
}

KERNEL dynamic_and_static(int *o) {
  extern __shared__ double d[];
  __shared__ char pad[3];
  d[threadIdx.x] = threadIdx.x * 0.5;
  if (threadIdx.x < 3) pad[threadIdx.x] = threadIdx.x;
  __syncthreads();
  o[threadIdx.x] = (int)(d[blockDim.x - 1 - threadIdx.x] * 2) + pad[2];
}

struct Mixed {
  char c;
  short s;
  int i;
  double d;
  float f[3];
  long long l;
};

KERNEL by_value(Mixed p, Mixed *o) {
  Mixed q = p;
  q.c++;
  q.s *= 2;
  q.i -= 5;
  q.d *= 1.5;
  q.f[threadIdx.x % 3] = 9;
  q.l <<= 3;
  o[threadIdx.x] = q;
}

__device__ __noinline__ void swap(int *a, int *b) {
  int t = *a;
  *a = *b;
  *b = t;
}
__device__ __noinline__ float4 sum(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

KERNEL vectors(float4 *v, const float4 *a, const uchar4 *c, double2 *d, int *o) {
  int i = threadIdx.x;
  v[i] = sum(a[i], a[31 - i]);
  uchar4 q = c[i];
  d[i] = make_double2(q.x + q.y, q.z * q.w);
  int x = i, y = 2 * i;
  swap(&x, &y);
  o[i] = x * 100 + y;
}

KERNEL atomics(int *a, unsigned *u, unsigned long long *l, float *f, double *d, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  atomicAdd(a, i);
  atomicSub(a + 1, i);
  atomicMin(a + 2, -i);
  atomicMax(a + 3, i);
  atomicOr((unsigned *)a + 4, 1u << (i & 31));
  atomicAnd((unsigned *)a + 5, ~(1u << (i & 7)));
  atomicXor((unsigned *)a + 6, i);
  atomicExch(a + 7, n);
  if (atomicCAS(a + 8, 0, 1) == 0) atomicAdd(a + 9, 1);
  atomicInc(u, 9);
  atomicDec(u + 1, 9);
  atomicAdd(l, (unsigned long long)i << 20);
  atomicMax(l + 1, (unsigned long long)i);
  atomicCAS(l + 2, 0ull, 5ull);
  atomicAdd(f, 0.5f);
  atomicAdd(d, 0.25);
  atomicAdd_block(a + 10, 1);
  atomicAdd_system(a + 11, 1);
}

KERNEL store_at(int *p, long long bytes) { *(int *)((char *)p + bytes) = 1; }
KERNEL load_at(int *p, long long bytes, int *o) { *o = *(int *)((char *)p + bytes); }
