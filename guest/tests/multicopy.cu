// Copies both ways beside kernels on three streams, and a processor that counts while the GPU
// works: what users try first.
// usage: multicopy [elements]
#include "check.h"

#include <vector>

__global__ void add(int *out, const int *in, int n, int k)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        for (int r = 0, v = in[i]; r < 10; r++, out[i] = v)
            v += k;
}

// Three stages in flight: part i comes in while part i-1 is worked on and part i-2 goes out.
static void pipeline(int n)
{
    const int depth = 3, parts = 11;
    int *in[depth], *out[depth], *din[depth], *dout[depth];
    cudaStream_t s[depth];
    cudaEvent_t done[depth];
    bool good = true;
    for (int d = 0; d < depth; d++) {
        CUDA(cudaHostAlloc(&in[d], n * sizeof(int), d == 1 ? cudaHostAllocWriteCombined : cudaHostAllocDefault));
        CUDA(cudaHostAlloc(&out[d], n * sizeof(int), cudaHostAllocPortable));
        CUDA(cudaMalloc(&din[d], n * sizeof(int)));
        CUDA(cudaMalloc(&dout[d], n * sizeof(int)));
        CUDA(cudaStreamCreate(&s[d]));
        CUDA(cudaEventCreateWithFlags(&done[d], cudaEventBlockingSync | cudaEventDisableTiming));
    }
    auto check = [&](int part) {
        int d = part % depth;
        CUDA(cudaEventSynchronize(done[d]));
        for (int i = 0; i < n; i++)
            good = good && out[d][i] == i * (part + 1) + 10 * part;
    };
    for (int p = 0; p < parts; p++) {
        int d = p % depth;
        if (p >= depth)
            check(p - depth);
        for (int i = 0; i < n; i++)
            in[d][i] = i * (p + 1);
        CUDA(cudaMemcpyAsync(din[d], in[d], n * sizeof(int), cudaMemcpyHostToDevice, s[d]));
        add<<<(n + 255) / 256, 256, 0, s[d]>>>(dout[d], din[d], n, p);
        CUDA(cudaMemcpyAsync(out[d], dout[d], n * sizeof(int), cudaMemcpyDeviceToHost, s[d]));
        CUDA(cudaEventRecord(done[d], s[d]));
    }
    for (int p = parts - depth; p < parts; p++)
        check(p);
    expect(good, "copies both ways beside kernels");
    for (int d = 0; d < depth; d++) {
        CUDA(cudaFreeHost(in[d]));
        CUDA(cudaFreeHost(out[d]));
        CUDA(cudaFree(din[d]));
        CUDA(cudaFree(dout[d]));
        CUDA(cudaStreamDestroy(s[d]));
        CUDA(cudaEventDestroy(done[d]));
    }
}

static void counting(int n)
{
    int *h, *d;
    cudaEvent_t start, stop;
    CUDA(cudaMallocHost(&h, n * sizeof(int)));
    CUDA(cudaMalloc(&d, n * sizeof(int)));
    CUDA(cudaEventCreate(&start));
    CUDA(cudaEventCreate(&stop));
    for (int i = 0; i < n; i++)
        h[i] = i;
    double begin = seconds();
    CUDA(cudaEventRecord(start, 0));
    CUDA(cudaMemcpyAsync(d, h, n * sizeof(int), cudaMemcpyHostToDevice, 0));
    add<<<(n + 255) / 256, 256>>>(d, d, n, 26);
    CUDA(cudaMemcpyAsync(h, d, n * sizeof(int), cudaMemcpyDeviceToHost, 0));
    CUDA(cudaEventRecord(stop, 0));
    double queued = seconds();
    unsigned long counter = 0;
    while (cudaEventQuery(stop) == cudaErrorNotReady)
        counter++;
    float ms = 0;
    CUDA(cudaEventElapsedTime(&ms, start, stop));
    note("queued in %.3f ms, GPU %.3f ms, counted to %lu", (queued - begin) * 1e3, ms, counter);
    bool good = ms > 0;
    for (int i = 0; i < n; i++)
        good = good && h[i] == i + 260;
    expect(good, "asynchronous calls");
    CUDA(cudaFreeHost(h));
    CUDA(cudaFree(d));
    CUDA(cudaEventDestroy(start));
    CUDA(cudaEventDestroy(stop));
}

// bandwidth copies each size each way, from pageable and pinned memory, and looks at every byte.
static void bandwidth()
{
    bool good = true;
    for (int pinned = 0; pinned < 2; pinned++)
        for (size_t n : {(size_t)1, (size_t)1000, (size_t)4096, (size_t)102400, (size_t)1 << 20, ((size_t)4 << 20) + 3}) {
            unsigned char *h, *back, *d, *e;
            if (pinned) {
                CUDA(cudaMallocHost(&h, n));
                CUDA(cudaMallocHost(&back, n));
            } else {
                h = (unsigned char *)malloc(n), back = (unsigned char *)malloc(n);
            }
            CUDA(cudaMalloc(&d, n));
            CUDA(cudaMalloc(&e, n));
            for (size_t i = 0; i < n; i++)
                h[i] = (unsigned char)(i * 7 + (i >> 8)), back[i] = 0;
            double t0 = seconds();
            CUDA(cudaMemcpy(d, h, n, cudaMemcpyHostToDevice));
            double t1 = seconds();
            CUDA(cudaMemcpy(e, d, n, cudaMemcpyDeviceToDevice));
            CUDA(cudaDeviceSynchronize());
            double t2 = seconds();
            CUDA(cudaMemcpy(back, e, n, cudaMemcpyDeviceToHost));
            double t3 = seconds();
            note("%s, %zu bytes: in %.2f, across %.2f, out %.2f GB/s", pinned ? "pinned" : "pageable", n, n / (t1 - t0) / 1e9,
                 n / (t2 - t1) / 1e9, n / (t3 - t2) / 1e9);
            good = good && !memcmp(h, back, n);
            if (pinned) {
                CUDA(cudaFreeHost(h));
                CUDA(cudaFreeHost(back));
            } else {
                free(h), free(back);
            }
            CUDA(cudaFree(d));
            CUDA(cudaFree(e));
        }
    expect(good, "every size, every way");
}

int main(int argc, char **argv)
{
    const int n = (int)argument(argc, argv, 1, 1 << 16);
    note_device();
    pipeline(n);
    counting(n);
    bandwidth();
    return finish();
}
