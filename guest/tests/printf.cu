// Device printf: every conversion, order within a thread, and output at each kind of
// synchronisation.
#include "check.h"

__global__ void conversions()
{
    printf("int %d %i %5d|%-5d|%05d %+d\n", 1, -2, 3, 4, 5, 6);
    printf("unsigned %u %x %X %#x %o\n", 4000000000u, 0xbeefu, 0xbeefu, 0xbeefu, 8u);
    printf("long %ld %lld %llu %llx\n", -5000000000l, -9000000000000000000ll, 18000000000000000000ull, 0xfeedfacecafeull);
    printf("double %f %.2f %10.3f|%e %g %g\n", 1.5, 3.14159, 2.71828, 12345.678, 0.0001, 1e20);
    printf("float %f %a\n", 0.25f, 1.0);
    printf("char %c%c%c string %s|%8s|%-8s|%.2s\n", 'a', 'b', 'c', "text", "right", "left", "cut");
    printf("percent %% star %*d\n", 6, 42);
    printf("no arguments\n");
}

// turns lets the threads of one block speak in order.
__global__ void turns(const char *unused, int count)
{
    for (int t = 0; t < count; t++) {
        if (threadIdx.x == t)
            printf("thread %d of block (%d,%d,%d) says %d\n", threadIdx.x, blockIdx.x, blockIdx.y, blockIdx.z, t * t);
        __syncthreads();
    }
}

__global__ void many(int from, int to)
{
    for (int i = from; i < to; i++)
        printf("line %d of one thread\n", i);
}

int main()
{
    note_device();
    printf("before\n");
    fflush(stdout);
    conversions<<<1, 1>>>();
    CUDA(cudaDeviceSynchronize());
    fflush(stdout);

    turns<<<dim3(1, 1, 1), 40>>>(nullptr, 40);
    cudaStream_t s;
    CUDA(cudaStreamCreate(&s));
    CUDA(cudaStreamSynchronize(0));
    fflush(stdout);

    many<<<1, 1, 0, s>>>(0, 3);
    CUDA(cudaStreamSynchronize(s));
    fflush(stdout);

    many<<<1, 1, 0, s>>>(3, 6);
    cudaEvent_t e;
    CUDA(cudaEventCreate(&e));
    CUDA(cudaEventRecord(e, s));
    CUDA(cudaEventSynchronize(e));
    CUDA(cudaDeviceSynchronize());
    fflush(stdout);
    size_t size = 0;
    CUDA(cudaDeviceGetLimit(&size, cudaLimitPrintfFifoSize));
    expect(size >= 1 << 16, "buffer size");
    printf("after\n");
    return finish();
}
