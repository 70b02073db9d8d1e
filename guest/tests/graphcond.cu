// Conditional nodes whose condition is the default of each launch: if, if with else, switch, bodies
// made by nodes and by capture, a condition inside a body.
// needs: cuda 12.9
#include "check.h"

#if CUDART_VERSION >= 13000
#define ADD_NODE(node, g, deps, n, p) cudaGraphAddNode(node, g, deps, nullptr, n, p)
#else
#define ADD_NODE cudaGraphAddNode
#endif

__global__ void add(int *at, int value) { *at += value; }

static cudaStream_t s;
static int *d;

static cudaGraphNode_t kernel(cudaGraph_t g, const cudaGraphNode_t *after, int value)
{
    cudaGraphNode_t node;
    void *args[] = {&d, &value};
    cudaKernelNodeParams p = {};
    p.func = (void *)add;
    p.gridDim = p.blockDim = 1;
    p.kernelParams = args;
    CUDA(cudaGraphAddKernelNode(&node, g, after, after ? 1 : 0, &p));
    return node;
}

static cudaGraphNode_t conditional(cudaGraph_t g, cudaGraph_t owner, const cudaGraphNode_t *after, unsigned value,
                                   cudaGraphConditionalNodeType type, unsigned size, cudaGraph_t *bodies)
{
    cudaGraphConditionalHandle h;
    CUDA(cudaGraphConditionalHandleCreate(&h, owner, value, cudaGraphCondAssignDefault));
    cudaGraphNodeParams p = {cudaGraphNodeTypeConditional};
    p.conditional.handle = h;
    p.conditional.type = type;
    p.conditional.size = size;
    cudaGraphNode_t node;
    CUDA(ADD_NODE(&node, g, after, after ? 1 : 0, &p));
    for (unsigned i = 0; i < size; i++)
        bodies[i] = p.conditional.phGraph_out[i];
    return node;
}

static int launch(cudaGraph_t g, int times)
{
    cudaGraphExec_t x;
    int v = 0;
    CUDA(cudaMemset(d, 0, 4));
    CUDA(cudaGraphInstantiate(&x, g, 0));
    for (int i = 0; i < times; i++)
        CUDA(cudaGraphLaunch(x, s));
    CUDA(cudaStreamSynchronize(s));
    CUDA(cudaMemcpy(&v, d, 4, cudaMemcpyDeviceToHost));
    CUDA(cudaGraphExecDestroy(x));
    CUDA(cudaGraphDestroy(g));
    return v;
}

static void one(const char *what, unsigned value, cudaGraphConditionalNodeType type, unsigned size)
{
    cudaGraph_t g, body[4];
    CUDA(cudaGraphCreate(&g, 0));
    cudaGraphNode_t first = kernel(g, nullptr, 1000);
    cudaGraphNode_t c = conditional(g, g, &first, value, type, size, body);
    for (unsigned i = 0; i < size; i++)
        kernel(body[i], nullptr, (int)i * 10 + 1);
    kernel(g, &c, 5000);
    printf("%s %u: %d\n", what, value, launch(g, 2));
}

int main()
{
    note_device();
    CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CUDA(cudaMalloc(&d, 4));
    for (unsigned v = 0; v < 3; v++) {
        one("if", v, cudaGraphCondTypeIf, 1);
        one("if, else", v, cudaGraphCondTypeIf, 2);
    }
    for (unsigned v = 0; v < 5; v++)
        one("switch", v, cudaGraphCondTypeSwitch, 4);
    one("while", 0, cudaGraphCondTypeWhile, 1);

    // a body by capture, with a condition inside
    cudaGraph_t g, body, inner, end;
    CUDA(cudaGraphCreate(&g, 0));
    conditional(g, g, nullptr, 1, cudaGraphCondTypeIf, 1, &body);
    CUDA(cudaStreamBeginCaptureToGraph(s, body, nullptr, nullptr, 0, cudaStreamCaptureModeGlobal));
    add<<<1, 1, 0, s>>>(d, 7);
    add<<<1, 1, 0, s>>>(d, 70);
    CUDA(cudaStreamEndCapture(s, &end));
    expect(end == body, "a capture into a body ends with that body");
    size_t n = 0;
    CUDA(cudaGraphGetNodes(body, nullptr, &n));
    printf("nodes of the body: %zu\n", n);
    conditional(body, g, nullptr, 1, cudaGraphCondTypeIf, 1, &inner);
    kernel(inner, nullptr, 700);
    printf("nested: %d\n", launch(g, 3));

    CUDA(cudaGraphCreate(&g, 0));
    cudaGraphNodeParams p = {cudaGraphNodeTypeConditional};
    cudaGraphNode_t node;
    p.conditional.type = cudaGraphCondTypeIf;
    p.conditional.size = 1;
    printf("without a handle: %s\n", cudaGetErrorName(ADD_NODE(&node, g, nullptr, 0, &p)));
    cudaGetLastError();
    CUDA(cudaGraphDestroy(g));
    return finish();
}
