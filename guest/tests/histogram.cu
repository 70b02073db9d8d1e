// Histogram with atomics on shared and on global memory. usage: histogram [elements]
#include "check.h"

#include <vector>

const int BINS = 256;

__global__ void in_shared(const uint8_t *data, int n, unsigned *bins)
{
    __shared__ unsigned local[BINS];
    for (int i = threadIdx.x; i < BINS; i += blockDim.x)
        local[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&local[data[i]], 1);
    __syncthreads();
    for (int i = threadIdx.x; i < BINS; i += blockDim.x)
        if (local[i])
            atomicAdd(&bins[i], local[i]);
}

__global__ void in_global(const uint8_t *data, int n, unsigned *bins)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicInc(&bins[data[i]], 0xffffffffu);
}

int main(int argc, char **argv)
{
    const int n = (int)argument(argc, argv, 1, 1 << 20);
    std::vector<uint8_t> data(n);
    std::vector<unsigned> want(BINS), got(BINS);
    for (int i = 0; i < n; i++) {
        uint32_t h = mix(i);
        data[i] = (uint8_t)((h & 0xff) & (h >> 8)); // uneven on purpose: some bins are crowded
        want[data[i]]++;
    }
    note_device();
    uint8_t *ddata;
    unsigned *dbins;
    CUDA(cudaMalloc(&ddata, n));
    CUDA(cudaMalloc(&dbins, BINS * sizeof(unsigned)));
    CUDA(cudaMemcpy(ddata, data.data(), n, cudaMemcpyHostToDevice));
    for (int pass = 0; pass < 2; pass++) {
        CUDA(cudaMemset(dbins, 0, BINS * sizeof(unsigned)));
        if (pass == 0)
            in_shared<<<32, 256>>>(ddata, n, dbins);
        else
            in_global<<<32, 256>>>(ddata, n, dbins);
        CUDA(cudaGetLastError());
        CUDA(cudaMemcpy(got.data(), dbins, BINS * sizeof(unsigned), cudaMemcpyDeviceToHost));
        expect(got == want, pass == 0 ? "shared atomics" : "global atomics");
    }
    printf("bin 0: %u, bin 3: %u, bin 255: %u\n", got[0], got[3], got[255]);
    return finish();
}
