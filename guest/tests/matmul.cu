// Tiled matrix multiplication with shared memory, timed by events. usage: matmul [rows]
#include "check.h"

#include <vector>

const int TILE = 16;

// multiply computes c = a * b for n x n matrices; n is a multiple of TILE.
__global__ void multiply(const float *a, const float *b, float *c, int n)
{
    __shared__ float ta[TILE][TILE], tb[TILE][TILE];
    int row = blockIdx.y * TILE + threadIdx.y, col = blockIdx.x * TILE + threadIdx.x;
    float sum = 0;
    for (int t = 0; t < n; t += TILE) {
        ta[threadIdx.y][threadIdx.x] = a[row * n + t + threadIdx.x];
        tb[threadIdx.y][threadIdx.x] = b[(t + threadIdx.y) * n + col];
        __syncthreads();
        for (int k = 0; k < TILE; k++)
            sum += ta[threadIdx.y][k] * tb[k][threadIdx.x];
        __syncthreads();
    }
    c[row * n + col] = sum;
}

int main(int argc, char **argv)
{
    const int n = (int)argument(argc, argv, 1, 256) / TILE * TILE;
    const size_t bytes = (size_t)n * n * sizeof(float);
    // Small whole numbers: every partial sum is exact in a float, in any order.
    std::vector<float> a(n * n), b(n * n), c(n * n);
    for (int i = 0; i < n * n; i++) {
        a[i] = (float)(int)(mix(i) % 17) - 8;
        b[i] = (float)(int)(mix(i + n * n) % 17) - 8;
    }
    note_device();

    float *da, *db, *dc;
    cudaEvent_t start, stop;
    CUDA(cudaEventCreate(&start));
    CUDA(cudaEventCreate(&stop));
    CUDA(cudaMalloc(&da, bytes));
    CUDA(cudaMalloc(&db, bytes));
    CUDA(cudaMalloc(&dc, bytes));
    CUDA(cudaMemcpy(da, a.data(), bytes, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(db, b.data(), bytes, cudaMemcpyHostToDevice));
    CUDA(cudaEventRecord(start));
    multiply<<<dim3(n / TILE, n / TILE), dim3(TILE, TILE)>>>(da, db, dc, n);
    CUDA(cudaGetLastError());
    CUDA(cudaEventRecord(stop));
    CUDA(cudaEventSynchronize(stop));
    float ms = -1;
    CUDA(cudaEventElapsedTime(&ms, start, stop));
    CUDA(cudaMemcpy(c.data(), dc, bytes, cudaMemcpyDeviceToHost));

    int wrong = 0;
    std::vector<int> row(n);
    for (int i = 0; i < n; i++) {
        std::fill(row.begin(), row.end(), 0);
        for (int k = 0; k < n; k++)
            for (int j = 0; j < n; j++)
                row[j] += (int)a[i * n + k] * (int)b[k * n + j];
        for (int j = 0; j < n; j++)
            wrong += c[i * n + j] != (float)row[j];
    }
    note("time: %.3f ms, bytes moved: %zu", ms, 3 * bytes);
    note("rate: %.3f GFLOP/s", 2.0 * n * n * n / (ms * 1e6));
    printf("matmul: %d x %d, %d wrong\n", n, n, wrong);
    expect(wrong == 0, "product");
    expect(ms > 0, "event time is positive");
    CUDA(cudaEventDestroy(start));
    CUDA(cudaEventDestroy(stop));
    CUDA(cudaFree(da));
    CUDA(cudaFree(db));
    CUDA(cudaFree(dc));
    return finish();
}
