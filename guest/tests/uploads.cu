// A synchronous copy of ordinary memory to the device, of more than 64 KiB: first what its stream still does, then it returns, and work on a
// stream that does not wait for the default stream finds the bytes in their place.
#include "check.h"

#include <vector>

__global__ void spin(long long cycles, uint32_t *done)
{
    long long start = clock64();
    while (clock64() - start < cycles)
        ;
    *done = 1;
}

int main()
{
    const size_t sizes[] = {(64 << 10) + 16, 256 << 10, 3 << 20, 20 << 20}, most = 20 << 20;
    uint32_t *device, *done;
    cudaStream_t other;
    CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CUDA(cudaMalloc(&device, most));
    CUDA(cudaMalloc(&done, sizeof *done));
    std::vector<uint32_t> in(most / 4), out(most / 4);
    int round = 0;
    for (size_t size : sizes)
        for (int box = 0; box < 2; box++) {
            uint32_t ended = 0, seed = ++round * 1000;
            char what[100];
            for (size_t i = 0; i < size / 4; i++)
                in[i] = mix(seed + i);
            CUDA(cudaMemset(done, 0, sizeof *done));
            spin<<<1, 1>>>(100000, done);
            if (box) // rows with a gap between them
                CUDA(cudaMemcpy2D(device, size / 2, in.data(), size / 2, size / 2 - 4, 2, cudaMemcpyHostToDevice));
            else
                CUDA(cudaMemcpy(device, in.data(), size, cudaMemcpyHostToDevice));
            CUDA(cudaMemcpyAsync(&ended, done, sizeof ended, cudaMemcpyDeviceToHost, other));
            CUDA(cudaMemcpyAsync(out.data(), device, size, cudaMemcpyDeviceToHost, other));
            CUDA(cudaStreamSynchronize(other));
            snprintf(what, sizeof what, "%zu bytes%s: the kernel before it has ended", size, box ? " in rows" : "");
            expect(ended == 1, what);
            bool same = true;
            for (size_t i = 0; i < size / 4; i++)
                same = same && (out[i] == in[i] || (box && (i + 1) % (size / 8) == 0));
            snprintf(what, sizeof what, "%zu bytes%s: there", size, box ? " in rows" : "");
            expect(same, what);
        }
    CUDA(cudaFree(done));
    CUDA(cudaFree(device));
    CUDA(cudaStreamDestroy(other));
    return finish();
}
