// malloc, free, new and delete in kernels: memory that outlives the kernel, a list built by
// threads, a heap that runs out.
#include "check.h"

#include <new>

__device__ int freed;

struct Node {
    int value;
    Node *next;
    __device__ Node(int v, Node *n) : value(v), next(n) {}
    __device__ ~Node() { atomicAdd(&freed, 1); }
};
__device__ Node *head;
__device__ int *kept[64];

__global__ void scratch(int *out)
{
    int n = threadIdx.x % 7 + 1;
    int *mine = (int *)malloc(n * sizeof(int));
    if (!mine) {
        out[threadIdx.x] = -1;
        return;
    }
    for (int i = 0; i < n; i++)
        mine[i] = threadIdx.x * 100 + i;
    __syncthreads();
    int sum = 0;
    for (int i = 0; i < n; i++)
        sum += mine[i];
    out[threadIdx.x] = sum;
    free(mine);
    free(nullptr);
}

__global__ void build(int n)
{
    for (int i = 0; i < n; i++)
        head = new Node(i, head);
}

__global__ void sumUp(int *out)
{
    for (Node *n = head; n; n = n->next)
        *out += n->value;
}

__global__ void drop(int *out)
{
    while (head) {
        Node *n = head->next;
        delete head;
        head = n;
    }
    *out = freed;
}

__global__ void keep()
{
    kept[threadIdx.x] = new int[16];
    for (int i = 0; i < 16; i++)
        kept[threadIdx.x][i] = threadIdx.x ^ i;
}

__global__ void look(int *out)
{
    int *p = kept[63 - threadIdx.x], sum = 0;
    for (int i = 0; i < 16; i++)
        sum += p[i];
    out[threadIdx.x] = sum;
    if (((size_t)p & 15) != 0)
        out[threadIdx.x] = -1;
    delete[] p;
}

__global__ void exhaust(int *out)
{
    int got = 0;
    void *all[64];
    for (int i = 0; i < 64; i++) {
        all[i] = malloc(1 << 20);
        got += all[i] != nullptr;
    }
    for (int i = 0; i < 64; i++)
        free(all[i]);
    void *again = malloc(1 << 20);
    out[0] = got > 0 && got < 64;
    out[1] = again != nullptr;
    free(again);
}

__global__ void moves(char *out)
{
    char *a = (char *)malloc(100), *b = (char *)malloc(100);
    memset(a, 'x', 100);
    memcpy(b, "device memory", 14);
    memcpy(a + 3, b, 13);
    memcpy(out, a, 100);
    free(a);
    free(b);
}

int main()
{
    note_device();
    size_t heap = 0;
    CUDA(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 16 << 20));
    CUDA(cudaDeviceGetLimit(&heap, cudaLimitMallocHeapSize));
    expect(heap >= 16 << 20, "heap size");
    int *out;
    managed(&out, 4096);
    scratch<<<1, 256>>>(out);
    CUDA(cudaDeviceSynchronize());
    long sum = 0;
    for (int i = 0; i < 256; i++)
        sum += out[i];
    printf("scratch: %d %d %ld\n", out[1], out[255], sum);
    build<<<1, 1>>>(100);
    out[0] = 0;
    sumUp<<<1, 1>>>(out);
    CUDA(cudaDeviceSynchronize());
    printf("list: %d\n", out[0]);
    drop<<<1, 1>>>(out);
    CUDA(cudaDeviceSynchronize());
    printf("deleted: %d\n", out[0]);
    keep<<<1, 64>>>();
    look<<<1, 64>>>(out);
    CUDA(cudaDeviceSynchronize());
    printf("kept: %d %d\n", out[0], out[63]);
    exhaust<<<1, 1>>>(out);
    CUDA(cudaDeviceSynchronize());
    expect(out[0], "the heap ends");
    expect(out[1], "freed memory is there again");
    moves<<<1, 1>>>((char *)out);
    CUDA(cudaDeviceSynchronize());
    printf("moves: %.20s\n", (char *)out);
    return finish();
}
