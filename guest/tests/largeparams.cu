// Kernels with many bytes of parameters: 4 KiB everywhere, nearly 32 KiB on GPUs and drivers that
// have them. needs: cuda 12.9
#include "driver.h"

#include <vector>

template <int N> struct Block {
    uint32_t v[N];
};

template <int N> __global__ void sum(const __grid_constant__ Block<N> p, unsigned long long *out, int stride)
{
    unsigned long long s = 0;
    for (int i = threadIdx.x; i < N; i += stride)
        s += (unsigned long long)p.v[i] * (i + 1);
    atomicAdd(out, s);
}

// pick takes its parameter by value and changes its copy.
template <int N> __global__ void pick(Block<N> p, unsigned long long *out, int at)
{
    p.v[at] += 1;
    *out = p.v[at] + p.v[0] + p.v[N - 1];
}

template <int N> static void size(unsigned long long *out)
{
    static Block<N> p;
    unsigned long long want = 0, got = 0;
    for (int i = 0; i < N; i++) {
        p.v[i] = mix(i + N);
        want += (unsigned long long)p.v[i] * (i + 1);
    }
    cudaFuncAttributes a;
    CUDA(cudaFuncGetAttributes(&a, sum<N>));
    CUDA(cudaMemset(out, 0, 8));
    // Parameters are taken at the call: what becomes of the block afterwards does not matter.
    sum<N><<<1, 64>>>(p, out, 64);
    cudaError_t e = cudaGetLastError();
    memset(&p, 0xff, sizeof p);
    if (e != cudaSuccess) {
        printf("%d bytes: %s\n", 4 * N, cudaGetErrorName(e));
        failures++;
        return;
    }
    CUDA(cudaMemcpy(&got, out, sizeof got, cudaMemcpyDeviceToHost));
    bool good = got == want;
    for (int i = 0; i < N; i++)
        p.v[i] = i * 3;
    pick<N><<<1, 1>>>(p, out, N / 2);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy(&got, out, sizeof got, cudaMemcpyDeviceToHost));
    good = good && got == (unsigned long long)(N / 2 * 3 + 1 + (N - 1) * 3);
    // Many in flight, each with its own.
    CUDA(cudaMemset(out, 0, 8));
    want = 0;
    for (int k = 0; k < 20; k++) {
        for (int i = 0; i < N; i++)
            p.v[i] = k;
        sum<N><<<1, 64>>>(p, out, 64);
        want += (unsigned long long)k * ((unsigned long long)N * (N + 1) / 2);
    }
    CUDA(cudaMemcpy(&got, out, sizeof got, cudaMemcpyDeviceToHost));
    printf("%d bytes: ", 4 * N);
    expect(good && got == want, "parameters");
    size_t offset = 0, bytes = 0;
    cudaFunction_t f;
    CUDA(cudaGetFuncBySymbol(&f, (void *)sum<N>));
    CU(cuFuncGetParamInfo((CUfunction)f, 1, &offset, &bytes));
    printf("the second is at %zu\n", offset);
}

int main()
{
    note_device();
    unsigned long long *out;
    CUDA(cudaMalloc(&out, 8));
    size<100>(out);
    size<1000>(out);
    size<1020>(out);
    size<1022>(out);
    size<4000>(out);
    size<8186>(out);
    return finish();
}
