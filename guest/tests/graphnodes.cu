// Graphs built node by node: each kind of node, edges, questions, clones, parameters, memory of a
// graph, host nodes, user objects.
// needs: cuda 12.9
#include "check.h"

#include <atomic>
#include <vector>

#if CUDART_VERSION >= 13000
#define ADD_EDGES(g, from, to, n) cudaGraphAddDependencies(g, from, to, nullptr, n)
#define REMOVE_EDGES(g, from, to, n) cudaGraphRemoveDependencies(g, from, to, nullptr, n)
#define GET_EDGES(g, from, to, n) cudaGraphGetEdges(g, from, to, nullptr, n)
#define GET_BEFORE(node, list, n) cudaGraphNodeGetDependencies(node, list, nullptr, n)
#define GET_AFTER(node, list, n) cudaGraphNodeGetDependentNodes(node, list, nullptr, n)
#else
#define ADD_EDGES cudaGraphAddDependencies
#define REMOVE_EDGES cudaGraphRemoveDependencies
#define GET_EDGES cudaGraphGetEdges
#define GET_BEFORE cudaGraphNodeGetDependencies
#define GET_AFTER cudaGraphNodeGetDependentNodes
#endif

enum { N = 1 << 12 };

__global__ void fma_(int *data, int n, int factor, int add)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        data[i] = data[i] * factor + add;
}

__global__ void sum(const int *a, const int *b, int *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = a[i] + b[i];
}

struct Wide {
    int v[24];
};

__global__ void spread(Wide w, short s, double d, int *out)
{
    int i = threadIdx.x;
    out[i] = i < 24 ? w.v[i] + s + (int)d : -1;
}

static cudaGraphNode_t kernel(cudaGraph_t g, const std::vector<cudaGraphNode_t> &deps, void *f, dim3 grid, dim3 block, void **args)
{
    cudaKernelNodeParams p = {};
    p.func = f;
    p.gridDim = grid;
    p.blockDim = block;
    p.kernelParams = args;
    cudaGraphNode_t node;
    CUDA(cudaGraphAddKernelNode(&node, g, deps.data(), deps.size(), &p));
    return node;
}

static cudaGraphNode_t copy(cudaGraph_t g, const std::vector<cudaGraphNode_t> &deps, void *dst, void *src, size_t bytes)
{
    cudaGraphNode_t node;
    CUDA(cudaGraphAddMemcpyNode1D(&node, g, deps.data(), deps.size(), dst, src, bytes, cudaMemcpyDefault));
    return node;
}

static cudaGraphExec_t run(cudaGraph_t g, cudaStream_t s, int times)
{
    cudaGraphExec_t x;
    CUDA(cudaGraphInstantiate(&x, g, 0));
    for (int i = 0; i < times; i++)
        CUDA(cudaGraphLaunch(x, s));
    CUDA(cudaStreamSynchronize(s));
    return x;
}

// diamond: copy in, two kernels on two copies, a kernel that joins them, copy out.
static void diamond(cudaStream_t s)
{
    int *in, *out, *a, *b, *c, n = N, f1 = 3, a1 = 1, f2 = 5, a2 = -7;
    CUDA(cudaMallocHost(&in, N * 4));
    CUDA(cudaMallocHost(&out, N * 4));
    CUDA(cudaMalloc(&a, N * 4));
    CUDA(cudaMalloc(&b, N * 4));
    CUDA(cudaMalloc(&c, N * 4));
    for (int i = 0; i < N; i++)
        in[i] = (int)(mix(i) & 0xffff);
    cudaGraph_t g;
    CUDA(cudaGraphCreate(&g, 0));
    cudaGraphNode_t in_a = copy(g, {}, a, in, N * 4), in_b = copy(g, {}, b, in, N * 4);
    void *ka[] = {&a, &n, &f1, &a1}, *kb[] = {&b, &n, &f2, &a2}, *kc[] = {&a, &b, &c, &n};
    cudaGraphNode_t k1 = kernel(g, {in_a}, (void *)fma_, N / 128, 128, ka), k2 = kernel(g, {in_b}, (void *)fma_, N / 128, 128, kb);
    cudaGraphNode_t join = kernel(g, {k1, k2}, (void *)sum, N / 128, 128, kc);
    cudaGraphNode_t back = copy(g, {join}, out, c, N * 4);
    // arguments are read when the node is added
    f1 = f2 = 0;
    cudaGraphExec_t x = run(g, s, 1);
    int wrong = 0;
    for (int i = 0; i < N; i++)
        wrong += out[i] != in[i] * 3 + 1 + in[i] * 5 - 7;
    expect(wrong == 0, "diamond");
    for (int i = 0; i < N; i++)
        in[i] += i;
    CUDA(cudaGraphLaunch(x, s));
    CUDA(cudaStreamSynchronize(s));
    wrong = 0;
    for (int i = 0; i < N; i++)
        wrong += out[i] != in[i] * 3 + 1 + in[i] * 5 - 7;
    expect(wrong == 0, "pinned memory is read at each launch");

    // the shape
    size_t nodes = 0, roots = 0, edges = 0, before = 0, after = 0;
    CUDA(cudaGraphGetNodes(g, nullptr, &nodes));
    CUDA(cudaGraphGetRootNodes(g, nullptr, &roots));
    CUDA(GET_EDGES(g, nullptr, nullptr, &edges));
    CUDA(GET_BEFORE(join, nullptr, &before));
    CUDA(GET_AFTER(in_a, nullptr, &after));
    printf("nodes %zu, roots %zu, edges %zu, before the join %zu, after a root %zu\n", nodes, roots, edges, before, after);
    cudaGraphNode_t list[8];
    before = 8;
    CUDA(GET_BEFORE(join, list, &before));
    expect(before == 2 && ((list[0] == k1 && list[1] == k2) || (list[0] == k2 && list[1] == k1)), "dependencies are the nodes that were given");
    CUDA(REMOVE_EDGES(g, &k1, &join, 1));
    CUDA(GET_EDGES(g, nullptr, nullptr, &edges));
    CUDA(ADD_EDGES(g, &k1, &join, 1));
    size_t again = 0;
    CUDA(GET_EDGES(g, nullptr, nullptr, &again));
    printf("edges without one %zu, with it %zu\n", edges, again);
    printf("twice the same edge: %s\n", cudaGetErrorName(ADD_EDGES(g, &k1, &join, 1)));
    cudaGetLastError();

    // parameters as they were set
    cudaKernelNodeParams kp = {};
    CUDA(cudaGraphKernelNodeGetParams(k2, &kp));
    expect(kp.gridDim.x == N / 128 && kp.blockDim.x == 128 && *(int *)kp.kernelParams[2] == 5 && *(int *)kp.kernelParams[3] == -7 &&
               *(int **)kp.kernelParams[0] == b,
           "parameters of a kernel node");
    cudaMemcpy3DParms cp = {};
    CUDA(cudaGraphMemcpyNodeGetParams(back, &cp));
    expect(cp.dstPtr.ptr == out && cp.srcPtr.ptr == c && cp.extent.width == N * 4, "parameters of a copy node");
    cudaGraphNodeType type;
    CUDA(cudaGraphNodeGetType(back, &type));
    expect(type == cudaGraphNodeTypeMemcpy, "type of a copy node");

    // a clone lives on without its original
    cudaGraph_t clone;
    cudaGraphNode_t twin;
    CUDA(cudaGraphClone(&clone, g));
    CUDA(cudaGraphNodeFindInClone(&twin, k2, clone));
    CUDA(cudaGraphKernelNodeGetParams(twin, &kp));
    expect(twin != k2 && *(int *)kp.kernelParams[2] == 5, "a clone's node has its own handle and the same parameters");
    CUDA(cudaGraphDestroy(g));
    int f = 9, *at = b, count = N, plus = 2;
    void *other[] = {&at, &count, &f, &plus};
    kp.kernelParams = other;
    CUDA(cudaGraphKernelNodeSetParams(twin, &kp));
    cudaGraphExec_t y = run(clone, s, 1);
    wrong = 0;
    for (int i = 0; i < N; i++)
        wrong += out[i] != in[i] * 3 + 1 + in[i] * 9 + 2;
    expect(wrong == 0, "changed node of a clone");
    CUDA(cudaGraphLaunch(x, s));
    CUDA(cudaStreamSynchronize(s));
    expect(out[1] == in[1] * 3 + 1 + in[1] * 5 - 7, "what was instantiated stays as it was");
    CUDA(cudaGraphExecDestroy(x));
    CUDA(cudaGraphExecDestroy(y));
    CUDA(cudaGraphDestroy(clone));
}

// kinds: memset, empty, child graph, events, wide arguments.
static void kinds(cudaStream_t s)
{
    int *d, h[64] = {};
    CUDA(cudaMalloc(&d, 64 * 4));
    cudaEvent_t e;
    CUDA(cudaEventCreate(&e));
    cudaGraph_t child, g;
    CUDA(cudaGraphCreate(&child, 0));
    Wide w;
    for (int i = 0; i < 24; i++)
        w.v[i] = i * i;
    short sh = 100;
    double db = 1000.75;
    int *to = d;
    void *args[] = {&w, &sh, &db, &to};
    kernel(child, {}, (void *)spread, 1, 32, args);
    CUDA(cudaGraphCreate(&g, 0));
    cudaGraphNode_t set, empty, inner, record, wait;
    cudaMemsetParams m = {};
    m.dst = d + 32;
    m.value = 0x01020304;
    m.elementSize = 4;
    m.width = 32;
    m.height = 1;
    CUDA(cudaGraphAddMemsetNode(&set, g, nullptr, 0, &m));
    CUDA(cudaGraphAddEmptyNode(&empty, g, &set, 1));
    CUDA(cudaGraphAddChildGraphNode(&inner, g, &empty, 1, child));
    CUDA(cudaGraphAddEventRecordNode(&record, g, &inner, 1, e));
    CUDA(cudaGraphAddEventWaitNode(&wait, g, &record, 1, e));
    CUDA(cudaGraphDestroy(child));
    cudaGraph_t own;
    CUDA(cudaGraphChildGraphNodeGetGraph(inner, &own));
    size_t n = 0;
    CUDA(cudaGraphGetNodes(own, nullptr, &n));
    printf("nodes of the child graph: %zu\n", n);
    cudaGraphNode_t one;
    n = 1;
    CUDA(cudaGraphGetNodes(own, &one, &n));
    cudaKernelNodeParams kp = {};
    CUDA(cudaGraphKernelNodeGetParams(one, &kp));
    expect(((Wide *)kp.kernelParams[0])->v[23] == 529 && *(double *)kp.kernelParams[2] == db, "parameters of a node inside a node");
    cudaMemsetParams back = {};
    CUDA(cudaGraphMemsetNodeGetParams(set, &back));
    expect(back.dst == d + 32 && back.value == m.value && back.width == 32, "parameters of a memset node");
    cudaEvent_t ev;
    CUDA(cudaGraphEventRecordNodeGetEvent(record, &ev));
    expect(ev == e, "event of a record node");
    cudaGraphExec_t x = run(g, s, 2);
    CUDA(cudaEventSynchronize(e));
    CUDA(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost));
    int wrong = 0;
    for (int i = 0; i < 64; i++)
        wrong += h[i] != (i < 24 ? i * i + 1100 : i < 32 ? -1 : 0x01020304);
    expect(wrong == 0, "memset, empty, child and event nodes");
    CUDA(cudaGraphExecDestroy(x));
    CUDA(cudaGraphDestroy(g));
    CUDA(cudaEventDestroy(e));
    CUDA(cudaFree(d));
}

static std::atomic<int> order[4], turn, destroyed;

static void note_turn(void *p)
{
    order[(long)p] = ++turn;
}

static void end_object(void *p)
{
    destroyed += (int)(long)p;
}

// host: functions of the process in the graph's order; an object that lives as long as the graphs
// that hold it.
static void host(cudaStream_t s)
{
    cudaGraph_t g;
    CUDA(cudaGraphCreate(&g, 0));
    cudaGraphNode_t last = nullptr, node;
    for (long i = 0; i < 4; i++) {
        cudaHostNodeParams p = {note_turn, (void *)i};
        CUDA(cudaGraphAddHostNode(&node, g, last ? &last : nullptr, last ? 1 : 0, &p));
        last = node;
    }
    cudaHostNodeParams p = {};
    CUDA(cudaGraphHostNodeGetParams(last, &p));
    expect(p.fn == note_turn && p.userData == (void *)3, "parameters of a host node");
    cudaUserObject_t o;
    CUDA(cudaUserObjectCreate(&o, (void *)5, end_object, 1, cudaUserObjectNoDestructorSync));
    CUDA(cudaGraphRetainUserObject(g, o, 1, cudaGraphUserObjectMove));
    cudaGraphExec_t x = run(g, s, 3);
    printf("turns:");
    for (auto &t : order)
        printf(" %d", (int)t);
    printf("\n");
    CUDA(cudaGraphDestroy(g));
    expect(destroyed == 0, "the object lives while an executable graph holds it");
    CUDA(cudaGraphExecDestroy(x));
    CUDA(cudaDeviceSynchronize());
    for (double start = seconds(); destroyed == 0 && seconds() - start < 60;)
        ;
    expect(destroyed == 5, "and ends after it");
}

// memory: allocated and freed by the graph itself.
static void memory(cudaStream_t s)
{
    cudaGraph_t g;
    CUDA(cudaGraphCreate(&g, 0));
    cudaMemAllocNodeParams p = {};
    p.poolProps.allocType = cudaMemAllocationTypePinned;
    p.poolProps.location.type = cudaMemLocationTypeDevice;
    p.bytesize = N * 4;
    cudaGraphNode_t alloc, set, k, out, freed;
    CUDA(cudaGraphAddMemAllocNode(&alloc, g, nullptr, 0, &p));
    expect(p.dptr != nullptr, "an allocation node has an address");
    cudaMemsetParams m = {};
    m.dst = p.dptr;
    m.value = 7;
    m.elementSize = 4;
    m.width = N;
    m.height = 1;
    CUDA(cudaGraphAddMemsetNode(&set, g, &alloc, 1, &m));
    int n = N, f = 6, a = 0, *d = (int *)p.dptr, *h;
    CUDA(cudaMallocHost(&h, N * 4));
    void *args[] = {&d, &n, &f, &a};
    k = kernel(g, {set}, (void *)fma_, N / 128, 128, args);
    out = copy(g, {k}, h, d, N * 4);
    CUDA(cudaGraphAddMemFreeNode(&freed, g, &out, 1, d));
    void *ptr;
    CUDA(cudaGraphMemFreeNodeGetParams(freed, &ptr));
    expect(ptr == d, "address of a free node");
    memset(h, 0, N * 4);
    cudaGraphExec_t x = run(g, s, 3);
    int wrong = 0;
    for (int i = 0; i < N; i++)
        wrong += h[i] != 42;
    expect(wrong == 0, "memory of a graph");
    unsigned long long used = 1;
    CUDA(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrUsedMemCurrent, &used));
    note("in use by graphs afterwards: %llu", used);
    CUDA(cudaGraphExecDestroy(x));
    CUDA(cudaGraphDestroy(g));
    CUDA(cudaDeviceGraphMemTrim(0));
    CUDA(cudaFreeHost(h));
}

static void mistakes()
{
    cudaGraph_t g, h;
    CUDA(cudaGraphCreate(&g, 0));
    CUDA(cudaGraphCreate(&h, 0));
    cudaGraphNode_t a, b, c;
    CUDA(cudaGraphAddEmptyNode(&a, g, nullptr, 0));
    CUDA(cudaGraphAddEmptyNode(&b, g, &a, 1));
    printf("node of another graph: %s\n", cudaGetErrorName(cudaGraphAddEmptyNode(&c, h, &a, 1)));
    CUDA(ADD_EDGES(g, &b, &a, 1));
    cudaGraphExec_t x = nullptr;
    printf("a cycle: %s\n", cudaGetErrorName(cudaGraphInstantiate(&x, g, 0)));
    CUDA(REMOVE_EDGES(g, &b, &a, 1));
    cudaKernelNodeParams p = {};
    printf("parameters of another kind: %s\n", cudaGetErrorName(cudaGraphKernelNodeGetParams(a, &p)));
    CUDA(cudaGraphDestroyNode(a));
    size_t n = 0;
    CUDA(cudaGraphGetNodes(g, nullptr, &n));
    printf("nodes left: %zu\n", n);
    CUDA(cudaGraphDestroy(g));
    CUDA(cudaGraphDestroy(h));
    cudaGetLastError();
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
    cudaStream_t s;
    CUDA(cudaStreamCreate(&s));
    diamond(s);
    kinds(s);
    host(s);
    memory(s);
    mistakes();
    CUDA(cudaStreamDestroy(s));
    return finish();
}
