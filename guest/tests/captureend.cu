// Captures that end without asking for their graph: into a graph that the program has, as bodies of
// conditional nodes are built, and into one that nobody wants. needs: cuda 12.9
#include "driver.h"

__global__ void add(int *at, int value) { *at += value; }

static cudaStream_t s;
static int *d;

static void say(const char *what, CUresult r) { printf("%s: %s\n", what, name_of(r)); }

static int value()
{
    int v = 0;
    CUDA(cudaMemcpy(&v, d, sizeof v, cudaMemcpyDeviceToHost));
    return v;
}

// status is whether the stream captures.
static int status()
{
    CUstreamCaptureStatus st = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    CU(cuStreamIsCapturing(s, &st));
    return st;
}

static int replay(CUgraph g)
{
    CUgraphExec x;
    CUDA(cudaMemset(d, 0, sizeof *d));
    CU(cuGraphInstantiate(&x, g, 0));
    CU(cuGraphLaunch(x, s));
    CU(cuStreamSynchronize(s));
    CU(cuGraphExecDestroy(x));
    return value();
}

static void into_own()
{
    CUgraph g;
    size_t nodes = 0;
    CU(cuGraphCreate(&g, 0));
    CU(cuStreamBeginCaptureToGraph(s, g, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_GLOBAL));
    add<<<1, 1, 0, s>>>(d, 3);
    add<<<1, 1, 0, s>>>(d, 4);
    say("end into a graph of our own", cuStreamEndCapture(s, nullptr));
    CU(cuGraphGetNodes(g, nullptr, &nodes));
    printf("capturing %d, nodes %zu, value %d\n", status(), nodes, replay(g));
    // A second capture goes on behind the first.
    CUgraphNode last[2];
    CU(cuGraphGetNodes(g, last, &nodes));
    CU(cuStreamBeginCaptureToGraph(s, g, last, nullptr, nodes, CU_STREAM_CAPTURE_MODE_RELAXED));
    add<<<1, 1, 0, s>>>(d, 5);
    say("and on", cuStreamEndCapture(s, nullptr));
    CU(cuGraphGetNodes(g, nullptr, &nodes));
    expect(nodes == 3 && replay(g) == 12, "both parts run");
    CU(cuGraphDestroy(g));
}

// The body of a conditional node, as its makers' example builds it.
static void body()
{
    CUgraph g;
    CUgraphConditionalHandle handle;
    CUcontext ctx;
    CU(cuCtxGetCurrent(&ctx));
    CU(cuGraphCreate(&g, 0));
    CU(cuGraphConditionalHandleCreate(&handle, g, ctx, 1, 1 /* CU_GRAPH_COND_ASSIGN_DEFAULT */));
    CUgraphNodeParams p = {};
    p.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
    p.conditional.handle = handle;
    p.conditional.type = CU_GRAPH_COND_TYPE_IF;
    p.conditional.size = 1;
    p.conditional.ctx = ctx;
    CUgraphNode node;
#if CUDA_VERSION >= 13000
    CU(cuGraphAddNode(&node, g, nullptr, nullptr, 0, &p));
#else
    CU(cuGraphAddNode(&node, g, nullptr, 0, &p));
#endif
    CU(cuStreamBeginCaptureToGraph(s, p.conditional.phGraph_out[0], nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
    add<<<1, 1, 0, s>>>(d, 40);
    say("end of a body", cuStreamEndCapture(s, nullptr));
    expect(replay(g) == 40, "the body runs");
    CU(cuGraphDestroy(g));
}

static void unwanted()
{
    CU(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    add<<<1, 1, 0, s>>>(d, 1);
    say("end without a graph", cuStreamEndCapture(s, nullptr));
    printf("capturing %d\n", status());
    CU(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    say("a wait inside", cuStreamSynchronize(s));
    say("end of a spoilt capture", cuStreamEndCapture(s, nullptr));
    printf("capturing %d\n", status());
    say("end of none", cuStreamEndCapture(s, nullptr));
    CUgraph g = (CUgraph)&g;
    say("end of none, with a graph", cuStreamEndCapture(s, &g));
    expect(g == nullptr, "which is none");
    add<<<1, 1, 0, s>>>(d, 2);
    CU(cuStreamSynchronize(s));
}

int main()
{
    note_device();
    CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CUDA(cudaMalloc(&d, sizeof *d));
    into_own();
    body();
    unwanted();
    CUDA(cudaStreamDestroy(s));
    CUDA(cudaFree(d));
    return finish();
}
