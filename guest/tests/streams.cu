// Streams and events: chunks whose copies overlap with kernels, and order across streams. usage:
// streams [elements]
#include "check.h"

#include <vector>

__global__ void scale(const int *in, int *out, int n, int factor)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = in[i] * factor + 1;
}

// append writes its turn into a log; run from several streams, the log shows the order events
// enforced.
__global__ void append(int *log, int *count, int turn)
{
    for (int i = 0; i < 1000; i++)
        __threadfence();
    log[(*count)++] = turn;
}

static void overlap(int n)
{
    const int parts = 8, used = 4, part = n / parts;
    int *in, *out, *din, *dout;
    CUDA(cudaMallocHost(&in, n * sizeof(int)));
    CUDA(cudaMallocHost(&out, n * sizeof(int)));
    CUDA(cudaMalloc(&din, n * sizeof(int)));
    CUDA(cudaMalloc(&dout, n * sizeof(int)));
    for (int i = 0; i < n; i++)
        in[i] = (int)(mix(i) & 0xffffff);
    memset(out, 0, n * sizeof(int));
    cudaStream_t streams[used];
    for (cudaStream_t &s : streams)
        CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    double start = seconds();
    for (int p = 0; p < parts; p++) {
        cudaStream_t s = streams[p % used];
        int at = p * part;
        CUDA(cudaMemcpyAsync(din + at, in + at, part * sizeof(int), cudaMemcpyHostToDevice, s));
        scale<<<(part + 127) / 128, 128, 0, s>>>(din + at, dout + at, part, p + 2);
        CUDA(cudaGetLastError());
        CUDA(cudaMemcpyAsync(out + at, dout + at, part * sizeof(int), cudaMemcpyDeviceToHost, s));
    }
    for (cudaStream_t s : streams)
        CUDA(cudaStreamSynchronize(s));
    note("overlapped: %.3f ms", (seconds() - start) * 1e3);
    int wrong = 0;
    for (int p = 0; p < parts; p++)
        for (int i = p * part; i < (p + 1) * part; i++)
            wrong += out[i] != in[i] * (p + 2) + 1;
    printf("chunks: %d of %d elements, %d wrong\n", parts, part, wrong);
    expect(wrong == 0, "overlapping chunks");
    for (cudaStream_t s : streams) {
        CUDA(cudaStreamQuery(s));
        CUDA(cudaStreamDestroy(s));
    }
    CUDA(cudaFreeHost(in));
    CUDA(cudaFreeHost(out));
    CUDA(cudaFree(din));
    CUDA(cudaFree(dout));
}

// order sends eight turns through two streams, each waiting for the event of the one before.
static void order()
{
    const int turns = 8;
    int *log, *count, got[turns + 1];
    CUDA(cudaMalloc(&log, (turns + 1) * sizeof(int)));
    count = log + turns;
    CUDA(cudaMemset(log, 0, (turns + 1) * sizeof(int)));
    cudaStream_t s[2];
    cudaEvent_t done[turns];
    int least, greatest;
    CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CUDA(cudaStreamCreateWithPriority(&s[0], cudaStreamNonBlocking, greatest));
    CUDA(cudaStreamCreateWithPriority(&s[1], cudaStreamNonBlocking, least));
    CUDA(cudaDeviceSynchronize());
    for (int t = 0; t < turns; t++) {
        CUDA(cudaEventCreateWithFlags(&done[t], cudaEventDisableTiming));
        if (t > 0)
            CUDA(cudaStreamWaitEvent(s[t % 2], done[t - 1], 0));
        append<<<1, 1, 0, s[t % 2]>>>(log, count, t);
        CUDA(cudaGetLastError());
        CUDA(cudaEventRecord(done[t], s[t % 2]));
    }
    CUDA(cudaEventSynchronize(done[turns - 1]));
    CUDA(cudaMemcpy(got, log, sizeof got, cudaMemcpyDeviceToHost));
    bool good = got[turns] == turns;
    printf("order:");
    for (int t = 0; t < turns; t++) {
        printf(" %d", got[t]);
        good = good && got[t] == t;
        CUDA(cudaEventQuery(done[t]));
        CUDA(cudaEventDestroy(done[t]));
    }
    printf("\n");
    expect(good, "events order two streams");
    float ms;
    cudaEvent_t plain[2];
    for (cudaEvent_t &e : plain)
        CUDA(cudaEventCreate(&e));
    CUDA(cudaEventRecord(plain[0], s[0]));
    append<<<1, 1, 0, s[0]>>>(log, count, 0);
    CUDA(cudaEventRecord(plain[1], s[0]));
    CUDA(cudaStreamSynchronize(s[0]));
    CUDA(cudaEventElapsedTime(&ms, plain[0], plain[1]));
    expect(ms >= 0, "elapsed time");
    for (cudaEvent_t e : plain)
        CUDA(cudaEventDestroy(e));
    for (cudaStream_t x : s)
        CUDA(cudaStreamDestroy(x));
    CUDA(cudaFree(log));
}

// legacy checks that the default stream waits for blocking streams, and they for it.
static void legacy()
{
    int *log, got[4];
    CUDA(cudaMalloc(&log, sizeof got));
    CUDA(cudaMemset(log, 0, sizeof got));
    cudaStream_t a;
    CUDA(cudaStreamCreate(&a));
    append<<<1, 1, 0, a>>>(log, log + 3, 10);
    append<<<1, 1>>>(log, log + 3, 20);
    append<<<1, 1, 0, a>>>(log, log + 3, 30);
    CUDA(cudaMemcpy(got, log, sizeof got, cudaMemcpyDeviceToHost));
    printf("legacy: %d %d %d\n", got[0], got[1], got[2]);
    expect(got[0] == 10 && got[1] == 20 && got[2] == 30, "legacy stream is a barrier");
    CUDA(cudaStreamDestroy(a));
    CUDA(cudaFree(log));
}

int main(int argc, char **argv)
{
    note_device();
    overlap((int)argument(argc, argv, 1, 1 << 20));
    order();
    legacy();
    return finish();
}
