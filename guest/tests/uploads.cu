// A synchronous copy of ordinary memory to the device: it begins when its stream has done what it
// was given, which may be a function of the host that makes the bytes. Of more than 64 KiB it
// returns when they are in their place, also for a stream that does not wait for the default
// stream.
#include "check.h"

#include <algorithm>
#include <vector>

__global__ void spin(long long cycles, uint32_t *done)
{
    long long start = clock64();
    while (clock64() - start < cycles)
        ;
    *done = 1;
}

struct filling {
    uint32_t *words, seed;
    size_t count;
};

static void CUDART_CB fill(void *arg)
{
    const struct filling *f = (const struct filling *)arg;
    for (size_t i = 0; i < f->count; i++)
        f->words[i] = mix(f->seed + i);
}

// Few bytes or many, whether they lie in a row or not.
static void begins_behind(uint32_t *device, uint32_t *done, std::vector<uint32_t> &in, std::vector<uint32_t> &out)
{
    const size_t sizes[] = {8, 256, 4096, 20000, 64 << 10, 1 << 20};
    cudaStream_t other;
    CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    for (size_t size : sizes)
        for (int box = 0; box < 2; box++) {
            uint32_t ended = 0;
            char what[100];
            struct filling f = {in.data(), (uint32_t)(size + box), size / 4};
            std::fill(in.begin(), in.end(), 0);
            CUDA(cudaMemset(done, 0, sizeof *done));
            spin<<<1, 1>>>(100000, done);
            CUDA(cudaLaunchHostFunc(0, fill, &f));
            if (box)
                CUDA(cudaMemcpy2D(device, size, in.data(), size, size / 2, 2, cudaMemcpyHostToDevice));
            else
                CUDA(cudaMemcpy(device, in.data(), size, cudaMemcpyHostToDevice));
            CUDA(cudaMemcpyAsync(&ended, done, sizeof ended, cudaMemcpyDeviceToHost, other));
            CUDA(cudaStreamSynchronize(other));
            if (box)
                CUDA(cudaMemcpy2D(out.data(), size, device, size, size / 2, 2, cudaMemcpyDeviceToHost));
            else
                CUDA(cudaMemcpy(out.data(), device, size, cudaMemcpyDeviceToHost));
            snprintf(what, sizeof what, "%zu bytes%s: behind the kernel", size, box ? " in rows" : "");
            expect(ended == 1, what);
            bool same = true;
            for (size_t i = 0; i < size / 4 / (1 + box); i++)
                same = same && out[i] == mix(f.seed + i);
            snprintf(what, sizeof what, "%zu bytes%s: as the function before it made them", size, box ? " in rows" : "");
            expect(same, what);
        }
    CUDA(cudaStreamDestroy(other));
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
    begins_behind(device, done, in, out);
    CUDA(cudaFree(done));
    CUDA(cudaFree(device));
    CUDA(cudaStreamDestroy(other));
    return finish();
}
