// Kernels of driverapi and library, embedded there as a fatbin.
#include <cstdint>

__constant__ int scale_by = 3;
__device__ int touched = 5;

extern "C" __global__ void scale(int *p, int n, int add)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        p[i] = p[i] * scale_by + add;
    if (i == 0)
        touched++;
}

// mixed has parameters that need padding between them: packed buffers must agree about it.
extern "C" __global__ void mixed(char a, long long *out, short b, double c, int d)
{
    if (threadIdx.x == 0)
        *out = a + 10ll * b + 100 * (long long)c + 1000ll * d;
}

extern "C" __global__ void shared_sum(const int *in, int *out)
{
    extern __shared__ int s[];
    s[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
        int sum = 0;
        for (int i = 0; i < (int)blockDim.x; i++)
            sum += s[i];
        *out = sum;
    }
}
