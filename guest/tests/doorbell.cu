// Memory that both processors see while the GPU works: the program holds a stream back and lets it
// go, and talks with a kernel that stays. needs: cuda 12.9
#include "driver.h"

#include <atomic>

struct Mail {
    unsigned asked, answered, question, answer;
};

// serve answers questions until it is told to end by a question of 0.
__global__ void serve(volatile Mail *m, int *served)
{
    for (unsigned turn = 1;; turn++) {
        while (m->asked != turn)
            ;
        __threadfence_system();
        unsigned q = m->question;
        m->answer = mix(q);
        __threadfence_system();
        m->answered = turn;
        if (q == 0)
            break;
        *served += 1;
    }
}

static bool within(double s, volatile unsigned *word, unsigned value)
{
    for (double until = seconds() + s; *word != value;)
        if (seconds() > until)
            return false;
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return true;
}

static void gate(volatile unsigned *host, CUdeviceptr device, CUstream s)
{
    CU(cuStreamWaitValue32(s, device, 1, CU_STREAM_WAIT_VALUE_GEQ));
    CU(cuStreamWriteValue32(s, device + 64, 42, CU_STREAM_WRITE_VALUE_DEFAULT));
    expect(!within(0.03, host + 16, 42) && cuStreamQuery(s) == CUDA_ERROR_NOT_READY, "a stream is held back");
    host[0] = 1;
    expect(within(60, host + 16, 42), "and let go");
    CU(cuStreamSynchronize(s));
}

static void talk(volatile Mail *m, CUdeviceptr device, int *served, CUstream s)
{
    const int turns = 50;
    bool good = true;
    int count = 0;
    *(Mail *)m = Mail{};
    CUDA(cudaMemset(served, 0, sizeof *served));
    CUDA(cudaDeviceSynchronize());
    serve<<<1, 1, 0, s>>>((volatile Mail *)device, served);
    CUDA(cudaGetLastError());
    for (unsigned t = 1; t <= turns + 1 && good; t++) {
        unsigned q = t <= turns ? t * 7 : 0;
        m->question = q;
        std::atomic_thread_fence(std::memory_order_seq_cst);
        m->asked = t;
        good = within(60, &m->answered, t) && m->answer == mix(q);
    }
    expect(good, "a kernel that stays answers");
    if (!good)
        _Exit(1); // it may stay for ever
    CU(cuStreamSynchronize(s));
    CUDA(cudaMemcpy(&count, served, sizeof count, cudaMemcpyDeviceToHost));
    printf("answers: %d\n", count);
}

int main()
{
    note_device();
    void *host, *device;
    int *served;
    CUstream s;
    CUDA(cudaHostAlloc(&host, 4096, cudaHostAllocMapped));
    cudaError_t e = cudaHostGetDevicePointer(&device, host, 0);
    if (e == cudaErrorNotSupported) {
        printf("skipped: kernels cannot reach this machine's memory from where they run\n");
        return 77; // a GPU on another machine; run-tests.sh knows where this is allowed
    }
    CUDA(e);
    memset(host, 0, 4096);
    CUDA(cudaMalloc(&served, sizeof *served));
    CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    gate((volatile unsigned *)host, (CUdeviceptr)device, s);
    talk((volatile Mail *)host, (CUdeviceptr)device, served, s);
    CU(cuStreamDestroy(s));
    CUDA(cudaFree(served));
    CUDA(cudaFreeHost(host));
    return finish();
}
