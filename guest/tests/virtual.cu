// Virtual functions, pointers to functions and members, lambdas, recursion, tables in device and
// constant memory.
#include "check.h"

#include <new>

struct Shape {
    __device__ virtual ~Shape() {}
    __device__ virtual int area() const = 0;
    __device__ virtual int corners() const { return 4; }
};
struct Box : Shape {
    int w, h;
    __device__ Box(int w, int h) : w(w), h(h) {}
    __device__ int area() const override { return w * h; }
};
struct Square : Box {
    __device__ Square(int s) : Box(s, s) {}
    __device__ int corners() const override { return 40; }
};
struct Disc : Shape {
    int r;
    __device__ Disc(int r) : r(r) {}
    __device__ int area() const override { return 3 * r * r; }
    __device__ int corners() const override { return 0; }
};

// Each thread has another class: the warp diverges at each call.
__global__ void shapes(int *out)
{
    __shared__ __align__(16) char room[64][sizeof(Box) + 8];
    int i = threadIdx.x;
    Shape *s;
    switch (i % 3) {
    case 0: s = new (room[i]) Box(i, 2); break;
    case 1: s = new (room[i]) Square(i); break;
    default: s = new (room[i]) Disc(i); break;
    }
    __syncthreads();
    out[i] = s->area() * 100 + s->corners();
    s->~Shape();
}

typedef int (*Op)(int, int);
__device__ int add(int a, int b) { return a + b; }
__device__ int sub(int a, int b) { return a - b; }
__device__ int mul(int a, int b) { return a * b; }
__device__ __noinline__ int power(int a, int b) { return b == 0 ? 1 : a * power(a, b - 1); }
__device__ Op table[4] = {add, sub, mul, power};
__constant__ Op fixed[2] = {mul, add};
__device__ Op chosen = sub;

__global__ void through(int *out, Op given)
{
    int i = threadIdx.x;
    out[i] = table[i % 4](i, 3) + fixed[i % 2](i, 7) + chosen(100, i) + given(i, i);
}

struct Counter {
    int n;
    __device__ __noinline__ int up(int by) { return n += by; }
    __device__ __noinline__ int down(int by) { return n -= by; }
};

__global__ void members(int *out)
{
    Counter c{int(threadIdx.x)};
    int (Counter::*m)(int) = threadIdx.x % 2 ? &Counter::up : &Counter::down;
    (c.*m)(10);
    auto twice = [&](int v) { return v * 2 + c.n; };
    out[threadIdx.x] = twice((c.*m)(3));
}

// Mutual recursion with frames that hold arrays.
__device__ __noinline__ int odd(int n, int *trail);
__device__ __noinline__ int even(int n, int *trail)
{
    int local[4] = {n, trail[0], trail[1], 7};
    return n == 0 ? local[1] : odd(n - 1, local) + local[n % 4];
}
__device__ __noinline__ int odd(int n, int *trail)
{
    int local[4] = {trail[0] + n, n, trail[2], 5};
    return n == 0 ? -1 : even(n - 1, local) + local[n % 4];
}

__global__ void deep(int *out)
{
    int start[4] = {1, 2, 3, 4};
    out[threadIdx.x] = even(threadIdx.x, start);
}

static void show(const char *what, const int *v)
{
    unsigned sum = 0;
    for (int i = 0; i < 64; i++)
        sum = mix(sum ^ unsigned(v[i]));
    printf("%s: %d %d %d %d, sum %08x\n", what, v[0], v[1], v[2], v[63], sum);
}

int main()
{
    note_device();
    CUDA(cudaDeviceSetLimit(cudaLimitStackSize, 64 << 10)); // for the recursion
    int *out;
    managed(&out, 4096);
    shapes<<<1, 64>>>(out);
    CUDA(cudaDeviceSynchronize());
    show("shapes", out);
    Op op;
    CUDA(cudaMemcpyFromSymbol(&op, table, sizeof op, 2 * sizeof op));
    through<<<1, 64>>>(out, op);
    CUDA(cudaDeviceSynchronize());
    show("pointers", out);
    CUDA(cudaMemcpyToSymbol(chosen, &op, sizeof op));
    through<<<1, 64>>>(out, op);
    CUDA(cudaDeviceSynchronize());
    show("replaced", out);
    members<<<1, 64>>>(out);
    CUDA(cudaDeviceSynchronize());
    show("members", out);
    deep<<<1, 64>>>(out);
    CUDA(cudaDeviceSynchronize());
    show("recursion", out);
    return finish();
}
