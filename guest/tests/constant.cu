// Constant memory, __device__ variables and copies to and from symbols.
#include "check.h"

struct Coefficients {
    int a, b;
    short c[6];
    long long d;
};

__constant__ Coefficients coefficients = {3, 4, {1, 2, 3, 4, 5, 6}, 1ll << 40};
__constant__ int table[1024];
__device__ int counter = 41;
__device__ unsigned long long results[4] = {1, 2, 3, 4};

__global__ void evaluate(long long *out)
{
    int i = threadIdx.x;
    const Coefficients &k = coefficients;
    out[i] = (long long)k.a * i * i + k.b * i + k.c[i % 6] + k.d + table[(i * 7) % 1024];
    if (i == 0) {
        counter++;
        results[2] = 77;
    }
}

int main()
{
    note_device();
    const int n = 256;
    long long *d, out[n];
    int host[1024], value = 0;
    CUDA(cudaMalloc(&d, sizeof out));
    for (int i = 0; i < 1024; i++)
        host[i] = (int)(mix(i) & 0xffff);
    CUDA(cudaMemcpyToSymbol(table, host, sizeof host));
    evaluate<<<1, n>>>(d);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy(out, d, sizeof out, cudaMemcpyDeviceToHost));
    bool good = true;
    for (int i = 0; i < n; i++)
        good = good && out[i] == 3ll * i * i + 4 * i + i % 6 + 1 + (1ll << 40) + host[(i * 7) % 1024];
    printf("out[255] = %lld\n", out[255]);
    expect(good, "initial constants and a copied table");

    CUDA(cudaMemcpyFromSymbol(&value, counter, sizeof value));
    printf("counter = %d\n", value);
    expect(value == 42, "device variable starts with its initializer");
    value = 100;
    CUDA(cudaMemcpyToSymbol(counter, &value, sizeof value));
    value = 9;
    CUDA(cudaMemcpyToSymbolAsync(coefficients, &value, sizeof value, offsetof(Coefficients, b), cudaMemcpyHostToDevice, 0));
    evaluate<<<1, n>>>(d);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy(out, d, sizeof out, cudaMemcpyDeviceToHost));
    good = true;
    for (int i = 0; i < n; i++)
        good = good && out[i] == 3ll * i * i + 9 * i + i % 6 + 1 + (1ll << 40) + host[(i * 7) % 1024];
    expect(good, "a member replaced at its offset");

    void *address;
    size_t size;
    CUDA(cudaGetSymbolAddress(&address, counter));
    CUDA(cudaGetSymbolSize(&size, table));
    CUDA(cudaMemcpy(&value, address, sizeof value, cudaMemcpyDeviceToHost));
    printf("counter = %d, table has %zu bytes\n", value, size);
    expect(value == 101 && size == sizeof table, "symbol address and size");
    unsigned long long r[4];
    CUDA(cudaMemcpyFromSymbol(r, results, sizeof r));
    printf("results = %llu %llu %llu %llu\n", r[0], r[1], r[2], r[3]);
    expect(r[0] == 1 && r[1] == 2 && r[2] == 77 && r[3] == 4, "device array");
    return finish();
}
