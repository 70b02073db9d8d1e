// Dynamic parallelism: kernels that launch kernels, streams of the device, recursion, memory shared
// by parent and child.
// rdc. ptx: 90. needs: cuda 13.0
#include "check.h"

__device__ int total;

__global__ void leaf(int *out, int value) { atomicAdd(out, value * (threadIdx.x + 1)); }

__global__ void parent(int *out)
{
    leaf<<<2, 4>>>(out, threadIdx.x + 1);
    if (threadIdx.x == 0)
        out[1] = cudaGetLastError();
}

__global__ void fill(int *v, int from, int n)
{
    if (n <= 8) {
        for (int i = 0; i < n; i++)
            v[from + i] = from + i;
        atomicAdd(&total, n);
        return;
    }
    fill<<<1, 1, 0, cudaStreamFireAndForget>>>(v, from, n / 2);
    fill<<<1, 1, 0, cudaStreamFireAndForget>>>(v, from + n / 2, n - n / 2);
}

__global__ void after(int *v, int n)
{
    long sum = 0;
    for (int i = 0; i < n; i++)
        sum += v[i];
    v[n] = int(sum);
}

__global__ void chain(int *v, int n)
{
    fill<<<1, 1, 0, cudaStreamFireAndForget>>>(v, 0, n);
    after<<<1, 1, 0, cudaStreamTailLaunch>>>(v, n);
}

int main()
{
    note_device();
    int *out;
    managed(&out, 4096);
    out[0] = 0;
    parent<<<1, 3>>>(out);
    CUDA(cudaGetLastError());
    CUDA(cudaDeviceSynchronize());
    printf("children: %d, error %d\n", out[0], out[1]);
    chain<<<1, 1>>>(out, 100);
    CUDA(cudaDeviceSynchronize());
    int n = 0;
    CUDA(cudaMemcpyFromSymbol(&n, total, sizeof n));
    printf("recursion: %d, sum %d\n", n, out[100]);
    return finish();
}
