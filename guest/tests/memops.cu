// Stream memory operations: values written and waited for in stream order, batches of them, streams
// that wait for each other.
// needs: cuda 12.9
#include "driver.h"

__global__ void fill(int *x, int n, int v)
{
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        x[i] = v;
}

static CUdeviceptr at(const void *p) { return (CUdeviceptr)p; }

static CUstreamBatchMemOpParams write32(const void *p, uint32_t v)
{
    CUstreamBatchMemOpParams o = {};
    o.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    o.writeValue.address = at(p), o.writeValue.value = v;
    return o;
}

static CUstreamBatchMemOpParams write64(const void *p, uint64_t v)
{
    CUstreamBatchMemOpParams o = {};
    o.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    o.writeValue.address = at(p), o.writeValue.value64 = v;
    return o;
}

static CUstreamBatchMemOpParams wait32(const void *p, uint32_t v, unsigned how)
{
    CUstreamBatchMemOpParams o = {};
    o.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    o.waitValue.address = at(p), o.waitValue.value = v, o.waitValue.flags = how;
    return o;
}

// relay has two streams pass a counter to and fro.
static void relay(CUstream a, CUstream b, uint32_t *words, int *x)
{
    const int turns = 20, n = 256;
    int seen[n];
    CU(cuMemsetD32(at(words), 0, 64));
    CUDA(cudaMemset(x, 0, n * sizeof *x));
    CUDA(cudaDeviceSynchronize());
    for (int t = 0; t < turns; t++) {
        CUstream s = t % 2 ? b : a;
        CU(cuStreamWaitValue32(s, at(words), t, CU_STREAM_WAIT_VALUE_GEQ));
        fill<<<1, 128, 0, s>>>(x, n - t, t + 1);
        CU(cuStreamWriteValue32(s, at(words), t + 1, CU_STREAM_WRITE_VALUE_DEFAULT));
    }
    CU(cuStreamSynchronize(b));
    CUDA(cudaMemcpy(seen, x, sizeof seen, cudaMemcpyDeviceToHost));
    bool good = true;
    for (int i = 0; i < n; i++)
        good = good && seen[i] == (i <= n - turns ? turns : n - i);
    expect(good, "two streams take turns");
}

static void conditions(CUstream s, uint32_t *words)
{
    uint64_t got[4];
    uint32_t v[64];
    CU(cuStreamWriteValue64(s, at(words + 2), 0x1122334455667788ull, 0));
    CU(cuStreamWaitValue64(s, at(words + 2), 0x1122334455667788ull, CU_STREAM_WAIT_VALUE_EQ));
    CU(cuStreamWaitValue64(s, at(words + 2), 0x0100000000000000ull, CU_STREAM_WAIT_VALUE_AND));
    CU(cuStreamWaitValue64(s, at(words + 2), 0x1122334455667780ull, CU_STREAM_WAIT_VALUE_GEQ));
    CU(cuStreamWaitValue32(s, at(words + 2), 0x8, CU_STREAM_WAIT_VALUE_AND));
    CU(cuStreamWriteValue32(s, at(words + 4), 5, CU_STREAM_WRITE_VALUE_DEFAULT));
    // Greater or equal is a comparison around the circle: 5 is 10 after -5.
    CU(cuStreamWaitValue32(s, at(words + 4), (uint32_t)-5, CU_STREAM_WAIT_VALUE_GEQ));
    CU(cuStreamSynchronize(s));
    CUDA(cudaMemcpy(got, words, sizeof got, cudaMemcpyDeviceToHost));
    printf("64 bits: %llx\n", (unsigned long long)got[1]);
    CUstreamBatchMemOpParams ops[] = {write32(words + 8, 77), wait32(words + 8, 77, CU_STREAM_WAIT_VALUE_EQ), write32(words + 9, 78),
                                      write64(words + 10, 0xfedcba9876543210ull), wait32(words + 10, 0x10, CU_STREAM_WAIT_VALUE_AND)};
    CU(cuStreamBatchMemOp(s, 5, ops, 0));
    CU(cuStreamSynchronize(s));
    CUDA(cudaMemcpy(v, words, sizeof v, cudaMemcpyDeviceToHost));
    printf("batch: %u %u %x %x\n", v[8], v[9], v[10], v[11]);
    int nor = 0;
    CU(cuDeviceGetAttribute(&nor, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 0));
    if (nor)
        CU(cuStreamWaitValue32(s, at(words + 8), 0xfff0ffff, CU_STREAM_WAIT_VALUE_NOR));
    CU(cuStreamSynchronize(s));
}

static void mistakes(CUstream s, uint32_t *words)
{
    CUstreamBatchMemOpParams o = write32(words, 1);
    printf("null: %s\n", name_of(cuStreamWriteValue32(s, 0, 1, 0)));
    printf("odd address: %s\n", name_of(cuStreamWriteValue32(s, at(words) + 2, 1, 0)));
    printf("odd address, 64 bits: %s\n", name_of(cuStreamWriteValue64(s, at(words) + 4, 1, 0)));
    printf("flags of a wait: %s\n", name_of(cuStreamWaitValue32(s, at(words), 1, 0x80)));
    printf("flags of a write: %s\n", name_of(cuStreamWriteValue32(s, at(words), 1, 0x80)));
    printf("a write that is no barrier: %s\n", name_of(cuStreamWriteValue32(s, at(words), 1, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)));
    printf("flags of a batch: %s\n", name_of(cuStreamBatchMemOp(s, 1, &o, 1)));
    printf("a batch of nothing: %s\n", name_of(cuStreamBatchMemOp(s, 0, &o, 0)));
    printf("too long a batch: %s\n", name_of(cuStreamBatchMemOp(s, 257, nullptr, 0)));
    o.operation = (CUstreamBatchMemOpType)99;
    printf("an unknown operation: %s\n", name_of(cuStreamBatchMemOp(s, 1, &o, 0)));
    CU(cuStreamSynchronize(s));
}

int main()
{
    note_device();
    CUDA(cudaFree(nullptr));
    CUstream a, b;
    uint32_t *words;
    int *x;
    CU(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    CU(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    CUDA(cudaMalloc(&words, 256));
    CUDA(cudaMalloc(&x, 1024));
    relay(a, b, words, x);
    conditions(a, words);
    mistakes(a, words);
    CU(cuStreamDestroy(a));
    CU(cuStreamDestroy(b));
    return finish();
}
