// Adds two vectors. usage: vectoradd [elements]
#include "check.h"

#include <vector>

__global__ void add(const float *a, const float *b, float *c, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        c[i] = a[i] + b[i];
}

int main(int argc, char **argv)
{
    const int n = (int)argument(argc, argv, 1, 1 << 20);
    const size_t bytes = n * sizeof(float);
    std::vector<float> a(n), b(n), c(n);
    for (int i = 0; i < n; i++) {
        a[i] = (float)(mix(i) & 0xffff);
        b[i] = (float)(mix(i + n) & 0xffff);
    }
    note_device();

    double start = seconds();
    float *da, *db, *dc;
    CUDA(cudaMalloc(&da, bytes));
    CUDA(cudaMalloc(&db, bytes));
    CUDA(cudaMalloc(&dc, bytes));
    CUDA(cudaMemcpy(da, a.data(), bytes, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(db, b.data(), bytes, cudaMemcpyHostToDevice));
    add<<<(n + 255) / 256, 256>>>(da, db, dc, n);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy(c.data(), dc, bytes, cudaMemcpyDeviceToHost));
    double took = seconds() - start;
    CUDA(cudaFree(da));
    CUDA(cudaFree(db));
    CUDA(cudaFree(dc));

    int wrong = 0;
    for (int i = 0; i < n; i++)
        wrong += c[i] != a[i] + b[i];
    note("time: %.3f ms, bytes moved: %zu", took * 1e3, 3 * bytes);
    printf("vectoradd: %d elements, %d wrong\n", n, wrong);
    expect(wrong == 0, "sum");
    return finish();
}
