// Stream capture: fork and join, host functions, events, memory, copies, legal questions meanwhile;
// replay.
// needs: cuda 12.9
#include "check.h"

#include <vector>

#if CUDART_VERSION >= 13000
#define CAPTURE_INFO(s, st, id, g, deps, n) cudaStreamGetCaptureInfo(s, st, id, g, deps, nullptr, n)
#define UPDATE(s, deps, n, flags) cudaStreamUpdateCaptureDependencies(s, deps, nullptr, n, flags)
#else
#define CAPTURE_INFO cudaStreamGetCaptureInfo_v2
#define UPDATE cudaStreamUpdateCaptureDependencies
#endif

enum { N = 1 << 12 };

__global__ void step(int *data, int n, int factor, int add)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        data[i] = data[i] * factor + add;
}

static void go(cudaStream_t s, int *d, int factor, int add)
{
    step<<<N / 128, 128, 0, s>>>(d, N, factor, add);
    CUDA(cudaGetLastError());
}

static int check(const int *d, int want)
{
    std::vector<int> h(N);
    CUDA(cudaMemcpy(h.data(), d, N * 4, cudaMemcpyDeviceToHost));
    int wrong = 0;
    for (int v : h)
        wrong += v != want;
    return wrong;
}

static int *a, *b, *pin;
static cudaStream_t s, side;

static void fork_join()
{
    cudaEvent_t fork, copied, join;
    CUDA(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    CUDA(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming));
    CUDA(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    CUDA(cudaMemset(a, 0, N * 4));
    CUDA(cudaMemset(b, 0, N * 4));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    CUDA(cudaMemsetAsync(a, 0, N * 4, s));
    go(s, a, 1, 5);
    CUDA(cudaEventRecord(fork, s));
    CUDA(cudaStreamWaitEvent(side, fork, 0));
    cudaStreamCaptureStatus st;
    CUDA(cudaStreamIsCapturing(side, &st));
    printf("the side stream captures: %d\n", (int)st);
    CUDA(cudaMemcpyAsync(b, a, N * 4, cudaMemcpyDeviceToDevice, side));
    CUDA(cudaEventRecord(copied, side));
    go(side, b, 3, 1);
    CUDA(cudaStreamWaitEvent(s, copied, 0)); // the next one writes what is copied
    go(s, a, 2, 0);
    CUDA(cudaEventRecord(join, side));
    CUDA(cudaStreamWaitEvent(s, join, 0));
    step<<<N / 128, 128, 0, s>>>(b, N, 10, 0);
    unsigned long long id = 0;
    cudaGraph_t seen = nullptr, g;
    const cudaGraphNode_t *deps;
    size_t n = 0;
    CUDA(CAPTURE_INFO(s, &st, &id, &seen, &deps, &n));
    printf("status %d, an id %s, dependencies %zu\n", (int)st, id ? "yes" : "no", n);
    CUDA(cudaStreamEndCapture(s, &g));
    expect(seen == g, "the graph is the one that was seen while capturing");
    expect(check(a, 0) == 0 && check(b, 0) == 0, "nothing ran yet");
    CUDA(cudaStreamIsCapturing(side, &st));
    printf("the side stream captures: %d\n", (int)st);
    CUDA(cudaGraphGetNodes(g, nullptr, &n));
    printf("nodes: %zu\n", n);
    cudaGraphNode_t nodes[16];
    n = 16;
    CUDA(cudaGraphGetNodes(g, nodes, &n));
    int kinds[16] = {};
    for (size_t i = 0; i < n; i++) {
        cudaGraphNodeType t;
        CUDA(cudaGraphNodeGetType(nodes[i], &t));
        kinds[t]++;
        if (t == cudaGraphNodeTypeKernel) {
            cudaKernelNodeParams p = {};
            CUDA(cudaGraphKernelNodeGetParams(nodes[i], &p));
            kinds[15] += *(int *)p.kernelParams[2]; // factors
            kinds[14] += p.gridDim.x == N / 128 && p.blockDim.x == 128;
        }
    }
    printf("kernels %d, copies %d, memsets %d, factors %d, shapes %d\n", kinds[cudaGraphNodeTypeKernel], kinds[cudaGraphNodeTypeMemcpy],
           kinds[cudaGraphNodeTypeMemset], kinds[15], kinds[14]);
    cudaGraphExec_t x;
    CUDA(cudaGraphInstantiate(&x, g, 0));
    CUDA(cudaGraphUpload(x, s));
    for (int i = 0; i < 3; i++)
        CUDA(cudaGraphLaunch(x, s));
    CUDA(cudaStreamSynchronize(s));
    expect(check(a, 10) == 0 && check(b, 160) == 0, "fork and join");
    CUDA(cudaGraphDestroy(g));
    CUDA(cudaGraphLaunch(x, side));
    CUDA(cudaStreamSynchronize(side));
    expect(check(b, 160) == 0, "on another stream, the graph gone");
    CUDA(cudaGraphExecDestroy(x));
    CUDA(cudaEventDestroy(fork));
    CUDA(cudaEventDestroy(join));
    CUDA(cudaEventDestroy(copied));
}

static int calls;

static void called(void *p)
{
    calls += *(int *)p;
}

static void copies()
{
    static int amount = 1;
    calls = 0;
    CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    CUDA(cudaMemcpyAsync(a, pin, N * 4, cudaMemcpyHostToDevice, s));
    go(s, a, 2, 1);
    CUDA(cudaMemcpyAsync(pin + N, a, N * 4, cudaMemcpyDeviceToHost, s));
    CUDA(cudaMemcpy2DAsync(pin + 2 * N, 64, a, 128, 32, 16, cudaMemcpyDeviceToHost, s));
    CUDA(cudaLaunchHostFunc(s, called, &amount));
    cudaGraph_t g;
    CUDA(cudaStreamEndCapture(s, &g));
    cudaGraphExec_t x;
    CUDA(cudaGraphInstantiate(&x, g, 0));
    int wrong = 0;
    for (int round = 1; round <= 3; round++) {
        for (int i = 0; i < N; i++)
            pin[i] = i * round;
        memset(pin + N, 0, 2 * N * 4);
        CUDA(cudaGraphLaunch(x, s));
        CUDA(cudaStreamSynchronize(s));
        for (int i = 0; i < N; i++)
            wrong += pin[N + i] != 2 * i * round + 1;
        for (int y = 0; y < 16; y++)
            for (int i = 0; i < 16; i++)
                wrong += pin[2 * N + y * 16 + i] != (i < 8 ? 2 * (y * 32 + i) * round + 1 : 0);
    }
    expect(wrong == 0, "pinned memory in and out at each launch");
    printf("host function ran %d times\n", calls);
    CUDA(cudaGraphExecDestroy(x));
    CUDA(cudaGraphDestroy(g));
}

// pageable memory is read and written when the graph runs, as pinned memory is.
static void pageable()
{
    std::vector<int> in(N), out(N);
    CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    CUDA(cudaMemcpyAsync(a, in.data(), N * 4, cudaMemcpyHostToDevice, s));
    go(s, a, 3, 2);
    CUDA(cudaMemcpyAsync(out.data(), a, N * 4, cudaMemcpyDeviceToHost, s));
    cudaGraph_t g;
    CUDA(cudaStreamEndCapture(s, &g));
    cudaGraphExec_t x;
    CUDA(cudaGraphInstantiate(&x, g, 0));
    int wrong = 0;
    for (int round = 1; round <= 3; round++) {
        for (int i = 0; i < N; i++)
            in[i] = i + round;
        CUDA(cudaGraphLaunch(x, s));
        CUDA(cudaStreamSynchronize(s));
        for (int i = 0; i < N; i++)
            wrong += out[i] != 3 * (i + round) + 2;
    }
    expect(wrong == 0, "pageable memory in and out at each launch");
    CUDA(cudaGraphExecDestroy(x));
    CUDA(cudaGraphDestroy(g));
}

static void memory()
{
    int *p = nullptr;
    CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    CUDA(cudaMallocAsync(&p, N * 4, s));
    CUDA(cudaMemsetAsync(p, 0, N * 4, s));
    go(s, p, 1, 9);
    CUDA(cudaMemcpyAsync(b, p, N * 4, cudaMemcpyDeviceToDevice, s));
    CUDA(cudaFreeAsync(p, s));
    cudaGraph_t g;
    CUDA(cudaStreamEndCapture(s, &g));
    cudaGraphExec_t x;
    CUDA(cudaGraphInstantiate(&x, g, 0));
    for (int i = 0; i < 3; i++)
        CUDA(cudaGraphLaunch(x, s));
    CUDA(cudaStreamSynchronize(s));
    expect(check(b, 9) == 0, "memory of the graph");
    CUDA(cudaGraphExecDestroy(x));
    CUDA(cudaGraphDestroy(g));

    // without the free the application frees, and a launch brings the memory again
    CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    CUDA(cudaMallocAsync(&p, N * 4, s));
    CUDA(cudaMemsetAsync(p, 0, N * 4, s));
    go(s, p, 1, 4);
    CUDA(cudaStreamEndCapture(s, &g));
    CUDA(cudaGraphInstantiate(&x, g, 0));
    for (int i = 0; i < 2; i++) {
        CUDA(cudaGraphLaunch(x, s));
        go(s, p, 3, i);
        CUDA(cudaMemcpyAsync(b, p, N * 4, cudaMemcpyDeviceToDevice, s));
        CUDA(cudaFreeAsync(p, s));
        CUDA(cudaStreamSynchronize(s));
        expect(check(b, 12 + i) == 0, "memory that outlives its launch");
    }
    CUDA(cudaGraphExecDestroy(x));
    CUDA(cudaGraphDestroy(g));
}

// another stream works on while one captures.
static void meanwhile()
{
    CUDA(cudaMemset(a, 0, N * 4));
    CUDA(cudaMemset(b, 0, N * 4));
    CUDA(cudaDeviceSynchronize()); // s and side do not wait for the legacy stream
    CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    go(s, a, 1, 1);
    go(side, b, 1, 7);
    CUDA(cudaStreamSynchronize(side));
    int v = 0;
    CUDA(cudaMemcpyAsync(&v, b, 4, cudaMemcpyDeviceToHost, side));
    CUDA(cudaStreamSynchronize(side));
    printf("meanwhile: %d\n", v);
    void *p;
    CUDA(cudaMalloc(&p, 1 << 20));
    CUDA(cudaFree(p));
    cudaGraph_t g;
    CUDA(cudaStreamEndCapture(s, &g));
    expect(check(a, 0) == 0 && check(b, 7) == 0, "only the capturing stream waits");
    CUDA(cudaGraphDestroy(g));
}

// a fill of an address where no memory is: the capture takes it up, and nobody launches it.
static void stray()
{
    CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    cudaError_t e = cudaMemsetAsync((void *)0x80, 0, 1 << 16, s);
    printf("a captured fill of nowhere: %s, %s\n", cudaGetErrorName(e), cudaGetErrorName(cudaGetLastError()));
    cudaGraph_t g;
    CUDA(cudaStreamEndCapture(s, &g));
    cudaGraphNode_t node;
    size_t n = 1;
    CUDA(cudaGraphGetNodes(g, &node, &n));
    cudaMemsetParams m = {};
    CUDA(cudaGraphMemsetNodeGetParams(node, &m));
    printf("its nodes: %zu, at %p\n", n, m.dst);
    CUDA(cudaGraphDestroy(g));
    printf("outside of captures: %s\n", cudaGetErrorName(cudaMemsetAsync((void *)0x80, 0, 1 << 16, side)));
    cudaGetLastError();
}

// a capture whose next node depends on what the application says.
static void rewired()
{
    CUDA(cudaMemset(a, 0, N * 4));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    go(s, a, 1, 1);
    cudaStreamCaptureStatus st;
    cudaGraph_t g, end;
    const cudaGraphNode_t *deps;
    size_t n = 0;
    CUDA(CAPTURE_INFO(s, &st, nullptr, &g, &deps, &n));
    cudaMemsetParams m = {};
    m.dst = a;
    m.elementSize = 4;
    m.value = 20;
    m.width = N;
    m.height = 1;
    cudaGraphNode_t set;
    CUDA(cudaGraphAddMemsetNode(&set, g, deps, n, &m));
    CUDA(UPDATE(s, &set, 1, cudaStreamSetCaptureDependencies));
    go(s, a, 2, 2);
    CUDA(cudaStreamEndCapture(s, &end));
    CUDA(cudaGraphGetNodes(end, nullptr, &n));
    printf("nodes with one that was added by hand: %zu\n", n);
    cudaGraphExec_t x;
    CUDA(cudaGraphInstantiate(&x, end, 0));
    CUDA(cudaGraphLaunch(x, s));
    CUDA(cudaStreamSynchronize(s));
    expect(check(a, 42) == 0, "a node added while capturing");
    CUDA(cudaGraphExecDestroy(x));
    CUDA(cudaGraphDestroy(end));
}

int main()
{
    note_device();
    int mapped = 0;
    CUDA(cudaDeviceGetAttribute(&mapped, cudaDevAttrCanMapHostMemory, 0));
    if (!mapped) {
        printf("skipped: graphs cannot copy this machine's memory from where they run\n");
        return 77;
    }
    CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    CUDA(cudaMalloc(&a, N * 4));
    CUDA(cudaMalloc(&b, N * 4));
    CUDA(cudaMallocHost(&pin, 3 * N * 4));
    fork_join();
    copies();
    memory();
    meanwhile();
    stray();
    rewired();
    pageable();
    return finish();
}
