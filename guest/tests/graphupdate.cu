// Executable graphs that change: single nodes, whole graphs, nodes switched off; what an update may
// not change.
// needs: cuda 12.9
#include <unistd.h>

#include "check.h"

__global__ void put(int *at, int value) { *at = value; }
__global__ void add(int *at, int value) { *at += value; }

static cudaStream_t s;
static int *d;

static cudaGraph_t chain(void *first, int v1, int v2, bool more = false)
{
    cudaGraph_t g;
    CUDA(cudaGraphCreate(&g, 0));
    cudaGraphNode_t n1, n2, n3;
    void *a1[] = {&d, &v1}, *a2[] = {&d, &v2};
    cudaKernelNodeParams p = {};
    p.func = first;
    p.gridDim = p.blockDim = 1;
    p.kernelParams = a1;
    CUDA(cudaGraphAddKernelNode(&n1, g, nullptr, 0, &p));
    p.func = (void *)add;
    p.kernelParams = a2;
    CUDA(cudaGraphAddKernelNode(&n2, g, &n1, 1, &p));
    if (more)
        CUDA(cudaGraphAddKernelNode(&n3, g, &n2, 1, &p));
    return g;
}

static int launch(cudaGraphExec_t x)
{
    int v = -1;
    CUDA(cudaGraphLaunch(x, s));
    CUDA(cudaMemcpyAsync(&v, d, 4, cudaMemcpyDeviceToHost, s));
    CUDA(cudaStreamSynchronize(s));
    return v;
}

int main()
{
    note_device();
    CUDA(cudaStreamCreate(&s));
    CUDA(cudaMalloc(&d, 4));
    cudaGraph_t g = chain((void *)put, 10, 5);
    cudaGraphExec_t x;
    CUDA(cudaGraphInstantiate(&x, g, 0));
    printf("at first: %d\n", launch(x));

    cudaGraphNode_t n[2];
    size_t count = 2;
    CUDA(cudaGraphGetRootNodes(g, n, &count));
    printf("roots: %zu\n", count);
    cudaKernelNodeParams p = {};
    CUDA(cudaGraphKernelNodeGetParams(n[0], &p));
    int v = 100;
    void *args[] = {&d, &v};
    p.kernelParams = args;
    CUDA(cudaGraphExecKernelNodeSetParams(x, n[0], &p));
    printf("one node changed: %d\n", launch(x));
    CUDA(cudaGraphKernelNodeGetParams(n[0], &p));
    printf("the graph itself still says: %d\n", *(int *)p.kernelParams[1]);

    unsigned on = 7;
    CUDA(cudaGraphNodeGetEnabled(x, n[0], &on));
    CUDA(cudaGraphNodeSetEnabled(x, n[0], 0));
    printf("enabled %u, switched off: %d\n", on, launch(x));
    CUDA(cudaGraphNodeSetEnabled(x, n[0], 1));
    printf("switched on: %d\n", launch(x));

    cudaGraph_t h = chain((void *)put, 1, 2);
    cudaGraphExecUpdateResultInfo info = {};
    CUDA(cudaGraphExecUpdate(x, h, &info));
    printf("updated %d: %d\n", (int)info.result, launch(x));
    cudaGraph_t i = chain((void *)add, 1, 2);
    cudaError_t e = cudaGraphExecUpdate(x, i, &info);
    printf("another function: %s, result %d: %d\n", cudaGetErrorName(e), (int)info.result, launch(x));
    cudaGraph_t j = chain((void *)put, 1, 2, true);
    e = cudaGraphExecUpdate(x, j, &info);
    printf("another shape: %s, result %d\n", cudaGetErrorName(e), (int)info.result);
    cudaGetLastError();

    unsigned long long flags = 9;
    CUDA(cudaGraphExecGetFlags(x, &flags));
    printf("flags: %llu\n", flags);
    cudaGraphExec_t y;
    cudaGraphInstantiateParams ip = {};
    ip.flags = cudaGraphInstantiateFlagUpload;
    ip.uploadStream = s;
    CUDA(cudaGraphInstantiateWithParams(&y, h, &ip));
    CUDA(cudaGraphExecGetFlags(y, &flags));
    printf("with parameters: result %d, flags %llu: %d\n", (int)ip.result_out, flags, launch(y));

    cudaKernelNodeAttrValue attr = {};
    attr.priority = -1;
    CUDA(cudaGraphKernelNodeSetAttribute(n[0], cudaLaunchAttributePriority, &attr));
    attr.priority = 0;
    CUDA(cudaGraphKernelNodeGetAttribute(n[0], cudaLaunchAttributePriority, &attr));
    printf("priority: %d\n", attr.priority);

    FILE *f;
    char line[256] = "", path[] = "/tmp/graphupdate-XXXXXX";
    close(mkstemp(path));
    CUDA(cudaGraphDebugDotPrint(h, path, 0));
    f = fopen(path, "r");
    if (f && fgets(line, sizeof line, f))
        line[7] = 0;
    printf("printed: %s\n", line);
    remove(path);

    CUDA(cudaGraphExecDestroy(x));
    CUDA(cudaGraphExecDestroy(y));
    for (cudaGraph_t q : {g, h, i, j})
        CUDA(cudaGraphDestroy(q));
    return finish();
}
