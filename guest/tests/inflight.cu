// Symbols that change while kernels that read them wait their turn: each kernel sees what was
// copied before it, from pinned and pageable memory, by address and by name; memory allocated and
// freed in stream order beside it.
#include "check.h"

#include <vector>

__constant__ int table[4096];
__device__ int turn;
__device__ struct { long long a; int b[3]; } record;
static __device__ double hidden[2] = {1.5, 2.5};

__global__ void read(int *out, int k)
{
    int s = 0;
    for (int i = threadIdx.x; i < 4096; i += blockDim.x)
        s += table[i] * (i % 7 + 1);
    atomicAdd(&out[k], s);
    if (threadIdx.x == 0) {
        atomicAdd(&out[k], turn);
        hidden[1] += 1;
        record.b[1] = turn;
    }
}

static int sum(const int *t, int turn)
{
    int s = turn;
    for (int i = 0; i < 4096; i++)
        s += t[i] * (i % 7 + 1);
    return s;
}

int main()
{
    note_device();
    const int rounds = 24;
    int *pinned, *out;
    std::vector<int> pageable(4096), want(2 * rounds), got(2 * rounds);
    cudaStream_t s;
    CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CUDA(cudaMallocHost(&pinned, rounds * 4096 * sizeof(int)));
    CUDA(cudaMallocAsync(&out, 2 * rounds * sizeof(int), s));
    CUDA(cudaMemsetAsync(out, 0, 2 * rounds * sizeof(int), s));
    void *address;
    size_t size;
    CUDA(cudaGetSymbolAddress(&address, table));
    CUDA(cudaGetSymbolSize(&size, table));
    expect(size == sizeof table, "size of a table");
    CUDA(cudaGetSymbolSize(&size, record));
    printf("size of a record: %zu\n", size);
    CUDA(cudaGetSymbolSize(&size, hidden));
    printf("size of a static variable: %zu\n", size);
    for (int r = 0; r < rounds; r++) {
        int *p = pinned + r * 4096;
        for (int i = 0; i < 4096; i++)
            p[i] = (int)(mix(r * 4096 + i) % 1000);
        CUDA(cudaMemcpyToSymbolAsync(table, p, sizeof table, 0, cudaMemcpyHostToDevice, s));
        CUDA(cudaMemcpyToSymbolAsync(turn, &r, sizeof r, 0, cudaMemcpyHostToDevice, s));
        read<<<1, 128, 0, s>>>(out, 2 * r);
        want[2 * r] = sum(p, r);
        for (int i = 0; i < 4096; i++)
            pageable[i] = p[4095 - i];
        // Pageable memory is read before the call returns: it may change at once.
        CUDA(cudaMemcpyAsync(address, pageable.data(), sizeof table, cudaMemcpyHostToDevice, s));
        want[2 * r + 1] = sum(pageable.data(), r);
        std::fill(pageable.begin(), pageable.end(), -1);
        read<<<1, 128, 0, s>>>(out, 2 * r + 1);
        // A temporary that lives for one round, in stream order.
        int *temporary;
        CUDA(cudaMallocAsync(&temporary, (r + 1) * 10000, s));
        CUDA(cudaMemsetAsync(temporary, r, (r + 1) * 10000, s));
        CUDA(cudaFreeAsync(temporary, s));
    }
    CUDA(cudaMemcpyAsync(got.data(), out, 2 * rounds * sizeof(int), cudaMemcpyDeviceToHost, s));
    CUDA(cudaFreeAsync(out, s));
    CUDA(cudaStreamSynchronize(s));
    expect(got == want, "every kernel sees its own table");
    double h[2];
    CUDA(cudaMemcpyFromSymbol(h, hidden, sizeof h));
    printf("static variable: %g %g\n", h[0], h[1]);
    int b[3] = {9, 9, 9};
    CUDA(cudaMemcpyFromSymbol(b, record, sizeof b, 8));
    printf("record: %d %d %d\n", b[0], b[1], b[2]);
    printf("beyond a symbol: %s\n", cudaGetErrorName(cudaMemcpyToSymbol(turn, b, 8)));
    cudaGetLastError();
    printf("no symbol: %s\n", cudaGetErrorName(cudaGetSymbolAddress(&address, &rounds)));
    cudaGetLastError();

    // Memory passes from one stream to another by an event; freed on the second, it is used again
    // there.
    cudaStream_t t;
    cudaEvent_t e, f;
    CUDA(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    CUDA(cudaEventCreateWithFlags(&f, cudaEventDisableTiming));
    bool good = true;
    for (int r = 1; r <= 10; r++) {
        unsigned char *p, *q, host[3];
        const size_t bytes = 1 << (10 + r);
        CUDA(cudaMallocAsync(&p, bytes, s));
        CUDA(cudaMemsetAsync(p, r, bytes, s));
        CUDA(cudaEventRecord(e, s));
        CUDA(cudaStreamWaitEvent(t, e, 0));
        CUDA(cudaMallocAsync(&q, bytes, t));
        CUDA(cudaMemcpyAsync(q, p, bytes, cudaMemcpyDeviceToDevice, t));
        CUDA(cudaFreeAsync(p, t));
        CUDA(cudaMemcpyAsync(host, q, 1, cudaMemcpyDeviceToHost, t));
        CUDA(cudaMemcpyAsync(host + 1, q + bytes / 2, 1, cudaMemcpyDeviceToHost, t));
        CUDA(cudaMemcpyAsync(host + 2, q + bytes - 1, 1, cudaMemcpyDeviceToHost, t));
        CUDA(cudaEventRecord(f, t));
        CUDA(cudaStreamWaitEvent(s, f, 0));
        CUDA(cudaFreeAsync(q, s));
        CUDA(cudaStreamSynchronize(t));
        good = good && host[0] == r && host[1] == r && host[2] == r;
    }
    expect(good, "memory that passes from stream to stream");
    CUDA(cudaDeviceSynchronize());
    return finish();
}
