// Much output of kernels: more lines than the buffer's first size holds, from many threads.
#include "check.h"

#include <algorithm>
#include <string>
#include <unistd.h>
#include <vector>

__global__ void lines(int from, int count, const char *text)
{
    for (int i = from + blockIdx.x * blockDim.x + threadIdx.x; i < from + count; i += gridDim.x * blockDim.x)
        printf("%d %s %g\n", i, text, i * 0.5);
}

__device__ char long_text[300];

// caught runs a kernel and returns the lines that it printed.
static std::vector<std::string> caught(int from, int count, int blocks, int threads, const char *text)
{
    fflush(stdout);
    FILE *f = tmpfile();
    int saved = dup(1);
    dup2(fileno(f), 1);
    lines<<<blocks, threads>>>(from, count, text);
    cudaError_t e = cudaDeviceSynchronize();
    fflush(stdout);
    dup2(saved, 1);
    close(saved);
    CUDA(e);
    rewind(f);
    std::vector<std::string> all;
    char line[1024];
    while (fgets(line, sizeof line, f))
        all.push_back(line);
    fclose(f);
    return all;
}

static bool complete(std::vector<std::string> got, int from, int count, const char *text, bool ordered)
{
    std::vector<std::string> want;
    char line[1024];
    for (int i = from; i < from + count; i++) {
        snprintf(line, sizeof line, "%d %s %g\n", i, text, i * 0.5);
        want.push_back(line);
    }
    if (!ordered) {
        std::sort(got.begin(), got.end());
        std::sort(want.begin(), want.end());
    }
    return got == want;
}

int main()
{
    note_device();
    char text[300];
    void *device;
    memset(text, 'x', sizeof text);
    text[250] = 0;
    CUDA(cudaMemcpyToSymbol(long_text, text, sizeof text));
    CUDA(cudaGetSymbolAddress(&device, long_text));
    CUDA(cudaDeviceSetLimit(cudaLimitPrintfFifoSize, 8 << 20));
    size_t size = 0;
    CUDA(cudaDeviceGetLimit(&size, cudaLimitPrintfFifoSize));
    expect(size >= 8 << 20, "buffer of 8 MiB");
    expect(complete(caught(0, 20000, 1, 1, (const char *)device), 0, 20000, text, true), "20000 long lines of one thread, in order");
    expect(complete(caught(100, 6000, 12, 64, (const char *)device), 100, 6000, text, false), "lines of 768 threads");
    expect(complete(caught(7, 3, 1, 32, (const char *)device), 7, 3, text, false), "three lines");
    expect(complete(caught(50, 100, 1, 1, (const char *)device), 50, 100, text, true), "a hundred lines");
    return finish();
}
