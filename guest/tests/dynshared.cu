// Dynamic shared memory: sizes at launch, several arrays in one block of it, and more than 48 KiB
// by opting in.
#include "check.h"

#include <vector>

// reverse keeps ints and doubles in one dynamic allocation, after a static one.
__global__ void reverse(int *ints, double *doubles, int n)
{
    extern __shared__ double memory[];
    __shared__ int bias;
    double *d = memory;
    int *i = (int *)(memory + n);
    int t = threadIdx.x;
    if (t == 0)
        bias = 1000;
    d[t] = doubles[t];
    i[t] = ints[t];
    __syncthreads();
    doubles[t] = d[n - 1 - t] + bias;
    ints[t] = i[n - 1 - t] + bias;
}

// fill writes all of a large allocation and adds it up again in another order.
__global__ void fill(unsigned long long *sum, int words)
{
    extern __shared__ unsigned words_[];
    for (int i = threadIdx.x; i < words; i += blockDim.x)
        words_[i] = i * 3 + blockIdx.x;
    __syncthreads();
    unsigned long long own = 0;
    for (int i = threadIdx.x; i < words; i += blockDim.x)
        own += words_[words - 1 - i];
    atomicAdd(&sum[blockIdx.x], own);
}

int main()
{
    note_device();
    for (int n : {1, 33, 256, 1024}) {
        std::vector<int> i(n);
        std::vector<double> d(n);
        for (int k = 0; k < n; k++) {
            i[k] = k;
            d[k] = k * 0.5;
        }
        int *di;
        double *dd;
        CUDA(cudaMalloc(&di, n * sizeof(int)));
        CUDA(cudaMalloc(&dd, n * sizeof(double)));
        CUDA(cudaMemcpy(di, i.data(), n * sizeof(int), cudaMemcpyHostToDevice));
        CUDA(cudaMemcpy(dd, d.data(), n * sizeof(double), cudaMemcpyHostToDevice));
        reverse<<<1, n, n * (sizeof(int) + sizeof(double))>>>(di, dd, n);
        CUDA(cudaGetLastError());
        CUDA(cudaMemcpy(i.data(), di, n * sizeof(int), cudaMemcpyDeviceToHost));
        CUDA(cudaMemcpy(d.data(), dd, n * sizeof(double), cudaMemcpyDeviceToHost));
        bool good = true;
        for (int k = 0; k < n; k++)
            good = good && i[k] == n - 1 - k + 1000 && d[k] == (n - 1 - k) * 0.5 + 1000;
        printf("%4d threads, %5zu bytes: ", n, n * (sizeof(int) + sizeof(double)));
        expect(good, "reversed");
        CUDA(cudaFree(di));
        CUDA(cudaFree(dd));
    }

    const int large = 64 << 10, blocks = 4;
    unsigned long long *sum, got[blocks];
    CUDA(cudaMalloc(&sum, sizeof got));
    CUDA(cudaMemset(sum, 0, sizeof got));
    fill<<<blocks, 256, large>>>(sum, large / 4);
    cudaError_t e = cudaGetLastError();
    printf("64 KiB without opting in: %s\n", cudaGetErrorName(e));
    expect(e == cudaErrorInvalidValue, "refused");
    CUDA(cudaFuncSetAttribute(fill, cudaFuncAttributeMaxDynamicSharedMemorySize, large));
    fill<<<blocks, 256, large>>>(sum, large / 4);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy(got, sum, sizeof got, cudaMemcpyDeviceToHost));
    bool good = true;
    const unsigned long long words = large / 4;
    for (int b = 0; b < blocks; b++)
        good = good && got[b] == 3 * (words * (words - 1) / 2) + b * words;
    printf("64 KiB after opting in: %llu\n", got[0]);
    expect(good, "filled");
    e = cudaFuncSetAttribute(fill, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 20);
    printf("opting in to 1 MiB: %s\n", cudaGetErrorName(e));
    expect(e == cudaErrorInvalidValue, "refused");
    (void)cudaGetLastError();
    return finish();
}
