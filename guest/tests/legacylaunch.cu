// The launch interface of CUDA 3, which a driver still has: a function keeps its block shape,
// dynamic shared memory and arguments from one launch to the next. Each line of a call that may be
// refused has its error code. Offsets below zero are left out, where the real driver writes, and
// captures, which it does not record.
#include "driver.h"

#include <climits>
#include <cstddef>
#include <vector>

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#pragma nv_diag_suppress 1444

struct Pair {
    short a;
    char b[3];
    long long c;
};

// mixed has arguments of several sizes, with padding between them. Weights of 16 bits would become
// a dot product, for which nvcc
// 11.8 and 12.9 cut the sum with p.c to 32 bits.
__global__ void mixed(char tag, int n, float scale, const int *in, double bias, Pair p, long long *out)
{
    int i = (blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = tag + (long long)(in[i] * scale) + (long long)bias + p.a + 100000 * p.b[0] + 200000 * p.b[1] + 300000 * p.b[2] + p.c;
}

// shape writes what a block finds, and the sum of its dynamic shared memory.
__global__ void shape(int *out, int words)
{
    extern __shared__ int s[];
    int threads = blockDim.x * blockDim.y * blockDim.z;
    int t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    for (int i = t; i < words; i += threads)
        s[i] = i + 1;
    __syncthreads();
    if (t)
        return;
    int sum = 0;
    for (int i = 0; i < words; i++)
        sum += s[i];
    int *o = out + 8 * (blockIdx.y * gridDim.x + blockIdx.x);
    o[0] = gridDim.x, o[1] = gridDim.y, o[2] = gridDim.z, o[3] = blockDim.x, o[4] = blockDim.y, o[5] = blockDim.z, o[6] = sum;
}

__global__ void nothing() {}

static const int count = 1000;
static CUfunction f_mixed, f_shape, f_nothing;
static int *in, *words;
static long long *out;

static void say(const char *what, CUresult r)
{
    printf("%s: %d %s\n", what, (int)r, name_of(r));
}

static CUfunction function(const void *kernel)
{
    cudaFunction_t f;
    CUDA(cudaGetFuncBySymbol(&f, kernel));
    return f;
}

// put adds an argument where the next one of its alignment lies, as programs of that time do.
static int put(CUfunction f, int at, const void *p, size_t size, size_t align)
{
    at = (int)((at + align - 1) / align * align);
    CU(cuParamSetv(f, at, (void *)p, (unsigned)size));
    return at + (int)size;
}

static void give_mixed(char tag, float scale)
{
    const double bias = 7.75;
    const Pair pair = {-5, {1, 2, 3}, 1LL << 40};
    int at = put(f_mixed, 0, &tag, sizeof tag, 1);
    at = (at + 3) / 4 * 4;
    CU(cuParamSeti(f_mixed, at, count));
    CU(cuParamSetf(f_mixed, at + 4, scale));
    at = put(f_mixed, at + 8, &in, sizeof in, alignof(int *));
    at = put(f_mixed, at, &bias, sizeof bias, alignof(double));
    at = put(f_mixed, at, &pair, sizeof pair, alignof(Pair));
    at = put(f_mixed, at, &out, sizeof out, alignof(long long *));
    CU(cuParamSetSize(f_mixed, (unsigned)at));
    printf("arguments end at %d\n", at);
}

static bool mixed_is(int tag, float scale)
{
    std::vector<long long> h(count);
    CUDA(cudaMemcpy(h.data(), out, count * sizeof h[0], cudaMemcpyDeviceToHost));
    CUDA(cudaMemset(out, 0, count * sizeof h[0]));
    for (int i = 0; i < count; i++)
        if (h[i] != tag + (long long)(i * scale) + 7 - 5 + 100000 + 400000 + 900000 + (1LL << 40))
            return false;
    return true;
}

static void arguments(CUstream s)
{
    say("launch before anything is set", cuLaunch(f_mixed)); // one thread, zeros for arguments
    CU(cuFuncSetBlockShape(f_mixed, 64, 1, 1));
    say("launch without a size of arguments", cuLaunch(f_mixed));
    give_mixed(3, 1.5f);
    say("grid of 4 x 4", cuLaunchGrid(f_mixed, 4, 4));
    expect(mixed_is(3, 1.5f), "arguments");
    say("again, as it is", cuLaunchGrid(f_mixed, 16, 1));
    expect(mixed_is(3, 1.5f), "kept arguments");
    CU(cuParamSetf(f_mixed, 8, -2.0f));
    say("one argument changed, on a stream", cuLaunchGridAsync(f_mixed, 2, 8, s));
    CU(cuParamSetf(f_mixed, 8, 99.0f)); // of the next launch only
    CU(cuStreamSynchronize(s));
    expect(mixed_is(3, -2.0f), "changed argument");
    say("size larger than the arguments", cuParamSetSize(f_mixed, 1024));
    say("launched", cuLaunchGrid(f_mixed, 16, 1));
    CU(cuParamSetSize(f_mixed, 56));
}

static void shapes(CUstream s)
{
    const int cases[][6] = {{1, 1, 32, 1, 1, 0}, {3, 2, 8, 4, 2, 100}, {2, 1, 1, 1, 64, 1000}, {1, 3, 1024, 1, 1, 12288}};
    CU(cuParamSetv(f_shape, 0, &words, sizeof words));
    CU(cuParamSetSize(f_shape, sizeof words + sizeof(int)));
    for (const int *c : cases) {
        int h[8 * 6] = {};
        bool good = true;
        CUDA(cudaMemset(words, 0, sizeof h));
        CU(cuFuncSetBlockShape(f_shape, c[2], c[3], c[4]));
        CU(cuFuncSetSharedSize(f_shape, c[5] * sizeof(int)));
        CU(cuParamSeti(f_shape, sizeof words, c[5]));
        CU(c[0] * c[1] == 1 ? cuLaunch(f_shape) : cuLaunchGridAsync(f_shape, c[0], c[1], s));
        CUDA(cudaDeviceSynchronize());
        CUDA(cudaMemcpy(h, words, sizeof h, cudaMemcpyDeviceToHost));
        for (int b = 0; b < c[0] * c[1]; b++) {
            const int *o = h + 8 * b;
            good = good && o[0] == c[0] && o[1] == c[1] && o[2] == 1 && o[3] == c[2] && o[4] == c[3] && o[5] == c[4];
            good = good && o[6] == c[5] * (c[5] + 1) / 2;
        }
        printf("grid %d x %d, block %d x %d x %d, %d words: %s\n", c[0], c[1], c[2], c[3], c[4], c[5], good ? "ok" : "FAILED");
        failures += !good;
    }
}

static void refused(CUstream s)
{
    const int blocks[][3] = {{0, 1, 1}, {1, -1, 1}, {1025, 1, 1}, {1, 1, 65}, {32, 32, 2}, {INT_MAX, INT_MAX, INT_MAX}};
    const int grids[][2] = {{0, 1}, {1, 0}, {-1, 1}, {1, -1}, {INT_MIN, 1}, {1, 65536}};
    static char many[40000];
    int v = 0;
    for (const int *b : blocks) {
        printf("block of %d x %d x %d", b[0], b[1], b[2]);
        say("", cuFuncSetBlockShape(f_nothing, b[0], b[1], b[2]));
    }
    say("block of no function", cuFuncSetBlockShape(nullptr, 1, 1, 1));
    say("launch without a shape", cuLaunch(f_nothing));
    for (const int *g : grids) {
        printf("grid of %d x %d", g[0], g[1]);
        say("", cuLaunchGrid(f_nothing, g[0], g[1]));
    }
    say("launch of no function", cuLaunch(nullptr));
    say("grid of no function", cuLaunchGrid(nullptr, 1, 1));
    say("grid of no function on a stream", cuLaunchGridAsync(nullptr, 1, 1, s));
    say("without arguments", cuLaunch(f_nothing));
    say("on the stream of the thread", cuLaunchGridAsync(f_nothing, 1, 1, CU_STREAM_PER_THREAD));
    say("1 GiB of shared memory", cuFuncSetSharedSize(f_nothing, 1u << 30));
    say("64 KiB of shared memory", cuFuncSetSharedSize(f_nothing, 64 << 10));
    say("launched", cuLaunch(f_nothing));
    say("none", cuFuncSetSharedSize(f_nothing, 0));
    say("launched", cuLaunch(f_nothing));
    say("shared memory of no function", cuFuncSetSharedSize(nullptr, 0));
    say("size of 4096", cuParamSetSize(f_nothing, 4096));
    say("size of 32764", cuParamSetSize(f_nothing, 32764));
    say("size of 32768", cuParamSetSize(f_nothing, 32768));
    say("size of no function", cuParamSetSize(nullptr, 0));
    say("size of nothing", cuParamSetSize(f_nothing, 0));
    say("integer behind the arguments", cuParamSeti(f_mixed, 56, 1));
    say("integer at 32760", cuParamSeti(f_mixed, 32760, 1));
    say("integer at 32764", cuParamSeti(f_mixed, 32764, 1));
    say("integer of no function", cuParamSeti(nullptr, 0, 1));
    say("float of no function", cuParamSetf(nullptr, 0, 1));
    say("no bytes", cuParamSetv(f_mixed, 0, &v, 0));
    say("no bytes of nothing", cuParamSetv(f_mixed, 0, nullptr, 0));
    say("bytes of nothing", cuParamSetv(f_mixed, 0, nullptr, 4));
    say("more bytes than a launch has", cuParamSetv(f_mixed, 0, many, sizeof many));
    say("bytes of no function", cuParamSetv(nullptr, 0, &v, 4));
    CUDA(cudaDeviceSynchronize());
}

// The software GPU has no texture references; what a real one says about them is for comparisons by
// eye.
static void references()
{
    CUtexref ref;
    say("no texture reference", cuParamSetTexRef(f_nothing, CU_PARAM_TR_DEFAULT, nullptr));
    CUresult r = cuTexRefCreate(&ref);
    note("texture reference: %s", name_of(r));
    if (r != CUDA_SUCCESS)
        return;
    note("reference of no module: %s", name_of(cuParamSetTexRef(f_nothing, CU_PARAM_TR_DEFAULT, ref)));
    note("unit 0: %s", name_of(cuParamSetTexRef(f_nothing, 0, ref)));
    CU(cuTexRefDestroy(ref));
}

int main()
{
    note_device();
    CUDA(cudaMalloc(&in, count * sizeof *in));
    CUDA(cudaMalloc(&out, count * sizeof *out));
    CUDA(cudaMalloc(&words, 8 * 6 * sizeof *words));
    std::vector<int> h(count);
    for (int i = 0; i < count; i++)
        h[i] = i;
    CUDA(cudaMemcpy(in, h.data(), count * sizeof *in, cudaMemcpyHostToDevice));
    f_mixed = function((const void *)mixed), f_shape = function((const void *)shape), f_nothing = function((const void *)nothing);
    CUstream s;
    CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    CUDA(cudaDeviceSynchronize());
    arguments(s);
    shapes(s);
    refused(s);
    references();
    return finish();
}
