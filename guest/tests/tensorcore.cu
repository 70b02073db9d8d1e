// Tensor cores: wmma in each type and shape that <mma.h> has, mma.sync, ldmatrix, movmatrix.
// All numbers are small integers, so that every order of summation gives the same bits.
// ptx: 80
#include "check.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>
#include <vector>

using namespace nvcuda;

template <class T> __host__ __device__ inline T from(int v) { return T(v); }
template <> __host__ __device__ inline __half from<__half>(int v) { return __float2half(float(v)); }
template <> __host__ __device__ inline __nv_bfloat16 from<__nv_bfloat16>(int v) { return __float2bfloat16(float(v)); }
template <class T> inline double number(T v) { return double(v); }
template <> inline double number<__half>(__half v) { return __half2float(v); }

// value is an element of the test matrices.
__host__ __device__ inline int value(int seed, int i, int span) { return int(mix(seed * 7919 + i) % span) - span / 3; }

// D = A * B + C by one warp, K in two steps.
template <class In, class Frag, class Acc, int M, int N, int K, class LA, class LB>
__global__ void product(const In *a, const In *b, const Acc *c, Acc *d, bool rowC)
{
    wmma::fragment<wmma::matrix_a, M, N, K, Frag, LA> fa;
    wmma::fragment<wmma::matrix_b, M, N, K, Frag, LB> fb;
    wmma::fragment<wmma::accumulator, M, N, K, Acc> fc;
    const bool colA = std::is_same<LA, wmma::col_major>::value, colB = std::is_same<LB, wmma::col_major>::value;
    wmma::load_matrix_sync(fc, c, rowC ? N : M, rowC ? wmma::mem_row_major : wmma::mem_col_major);
    for (int k = 0; k < 2 * K; k += K) {
        wmma::load_matrix_sync(fa, colA ? a + k * M : a + k, colA ? M : 2 * K);
        wmma::load_matrix_sync(fb, colB ? b + k : b + k * N, colB ? 2 * K : N);
        for (int i = 0; i < fa.num_elements; i++)
            fa.x[i] = fa.x[i]; // elements may be touched one by one
        wmma::mma_sync(fc, fa, fb, fc);
    }
    wmma::store_matrix_sync(d, fc, rowC ? N : M, rowC ? wmma::mem_row_major : wmma::mem_col_major);
}

template <class In, class Frag, class Acc, int M, int N, int K, class LA, class LB>
static void check(const char *what, int lo, bool rowC)
{
    const bool colA = std::is_same<LA, wmma::col_major>::value, colB = std::is_same<LB, wmma::col_major>::value;
    const int depth = 2 * K;
    In *a, *b;
    Acc *c, *d;
    managed(&a, M * depth * sizeof(In));
    managed(&b, N * depth * sizeof(In));
    managed(&c, M * N * sizeof(Acc));
    managed(&d, M * N * sizeof(Acc));
    auto va = [&](int i, int k) { return value(1, i * depth + k, 7) - lo; };
    auto vb = [&](int k, int j) { return value(2, k * N + j, 5) - lo; };
    auto vc = [&](int i, int j) { return value(3, i * N + j, 9); };
    for (int i = 0; i < M; i++)
        for (int k = 0; k < depth; k++)
            a[colA ? k * M + i : i * depth + k] = from<In>(va(i, k));
    for (int k = 0; k < depth; k++)
        for (int j = 0; j < N; j++)
            b[colB ? j * depth + k : k * N + j] = from<In>(vb(k, j));
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++)
            c[rowC ? i * N + j : j * M + i] = from<Acc>(vc(i, j));
    product<In, Frag, Acc, M, N, K, LA, LB><<<1, 32>>>(a, b, c, d, rowC);
    CUDA(cudaGetLastError());
    CUDA(cudaDeviceSynchronize());
    bool good = true;
    long sum = 0;
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            int want = vc(i, j);
            for (int k = 0; k < depth; k++)
                want += va(i, k) * vb(k, j);
            double got = number(d[rowC ? i * N + j : j * M + i]);
            good = good && got == want;
            sum += long(got) * (i + 2 * j + 1);
        }
    printf("%-28s %dx%dx%d sum %ld %s\n", what, M, N, K, sum, good ? "ok" : "FAILED");
    failures += !good;
    CUDA(cudaFree(a)); CUDA(cudaFree(b)); CUDA(cudaFree(c)); CUDA(cudaFree(d));
}

using Row = wmma::row_major;
using Col = wmma::col_major;

template <class In, class Acc> static void shapes(const char *what, int lo)
{
    check<In, In, Acc, 16, 16, 16, Row, Col>(what, lo, true);
    check<In, In, Acc, 16, 16, 16, Col, Row>(what, lo, false);
    check<In, In, Acc, 32, 8, 16, Row, Row>(what, lo, true);
    check<In, In, Acc, 8, 32, 16, Col, Col>(what, lo, false);
}

// One mma.sync of each shape, the fragments filled by what the ISA says of their layout.
__global__ void raw(int *out)
{
    int lane = threadIdx.x, g = lane / 4, t = lane % 4;
    auto A = [](int i, int k) { return (i * 3 + k * 5) % 7 - 3; };
    auto B = [](int k, int j) { return (k * 2 + j * 3) % 5 - 2; };
    auto half2of = [](int x, int y) { __half2 h = __floats2half2_rn(float(x), float(y)); return *(unsigned *)&h; };
    auto bf2of = [](int x, int y) { __nv_bfloat162 h = __floats2bfloat162_rn(float(x), float(y)); return *(unsigned *)&h; };
    {
        unsigned a0 = half2of(A(g, 2 * t), A(g, 2 * t + 1)), a1 = half2of(A(g + 8, 2 * t), A(g + 8, 2 * t + 1));
        unsigned a2 = half2of(A(g, 2 * t + 8), A(g, 2 * t + 9)), a3 = half2of(A(g + 8, 2 * t + 8), A(g + 8, 2 * t + 9));
        unsigned b0 = half2of(B(2 * t, g), B(2 * t + 1, g)), b1 = half2of(B(2 * t + 8, g), B(2 * t + 9, g));
        float d0, d1, d2, d3;
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
                     : "=f"(d0), "=f"(d1), "=f"(d2), "=f"(d3) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(1.0f));
        out[lane] = int(d0) + 3 * int(d1) + 5 * int(d2) + 7 * int(d3);
        unsigned h0, h1, zero = 0;
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3}, {%4}, {%5,%5};"
                     : "=r"(h0), "=r"(h1) : "r"(a0), "r"(a1), "r"(b0), "r"(zero));
        out[32 + lane] = int(h0 ^ h1 * 3);
    }
    {
        unsigned a0 = bf2of(A(g, 2 * t), A(g, 2 * t + 1)), a1 = bf2of(A(g + 8, 2 * t), A(g + 8, 2 * t + 1));
        unsigned a2 = bf2of(A(g, 2 * t + 8), A(g, 2 * t + 9)), a3 = bf2of(A(g + 8, 2 * t + 8), A(g + 8, 2 * t + 9));
        unsigned b0 = bf2of(B(2 * t, g), B(2 * t + 1, g)), b1 = bf2of(B(2 * t + 8, g), B(2 * t + 9, g));
        float d0, d1, d2, d3;
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
                     : "=f"(d0), "=f"(d1), "=f"(d2), "=f"(d3) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(-2.0f));
        out[64 + lane] = int(d0) + 3 * int(d1) + 5 * int(d2) + 7 * int(d3);
    }
    {
        unsigned a[4], b[2];
        float d0, d1, d2, d3;
        int rows[4] = {g, g + 8, g, g + 8}, cols[4] = {t, t, t + 4, t + 4};
        for (int i = 0; i < 4; i++)
            a[i] = __float_as_uint(float(A(rows[i], cols[i])));
        for (int i = 0; i < 2; i++)
            b[i] = __float_as_uint(float(B(t + 4 * i, g)));
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
                     : "=f"(d0), "=f"(d1), "=f"(d2), "=f"(d3) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
        out[96 + lane] = int(d0) + 3 * int(d1) + 5 * int(d2) + 7 * int(d3);
    }
    {
        unsigned a[4], b[2];
        int d0, d1, d2, d3;
        auto four = [](int w, int x, int y, int z) { return unsigned(w & 255) | unsigned(x & 255) << 8 | unsigned(y & 255) << 16 | unsigned(z & 255) << 24; };
        int rows[4] = {g, g + 8, g, g + 8}, cols[4] = {4 * t, 4 * t, 4 * t + 16, 4 * t + 16};
        for (int i = 0; i < 4; i++)
            a[i] = four(A(rows[i], cols[i]), A(rows[i], cols[i] + 1), A(rows[i], cols[i] + 2), A(rows[i], cols[i] + 3));
        for (int i = 0; i < 2; i++)
            b[i] = four(B(4 * t + 16 * i, g), B(4 * t + 16 * i + 1, g), B(4 * t + 16 * i + 2, g), B(4 * t + 16 * i + 3, g));
        asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
                     : "=r"(d0), "=r"(d1), "=r"(d2), "=r"(d3) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(4));
        out[128 + lane] = d0 + 3 * d1 + 5 * d2 + 7 * d3;
        asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 {%0,%1}, {%2}, {%3}, {%4,%4};"
                     : "=r"(d0), "=r"(d1) : "r"(a[0] & 0x7f7f7f7f), "r"(b[0]), "r"(0));
        out[160 + lane] = d0 + 3 * d1;
    }
    {
        double a = A(g, t), b = B(t, g), d0, d1;
        asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%4,%4};" : "=d"(d0), "=d"(d1) : "d"(a), "d"(b), "d"(0.5));
        out[192 + lane] = int(2 * d0) + 3 * int(2 * d1);
    }
}

// ldmatrix of one, two and four matrices, straight and transposed; movmatrix.
__global__ void matrices(unsigned *out)
{
    __shared__ __align__(16) unsigned short tile[32][8];
    int lane = threadIdx.x;
    for (int i = 0; i < 8; i++)
        tile[lane][i] = (unsigned short)mix(lane * 8 + i);
    __syncwarp();
    unsigned at = (unsigned)__cvta_generic_to_shared(&tile[lane][0]);
    unsigned r0, r1, r2, r3;
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r0) : "r"(at) : "memory");
    out[lane] = r0;
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(r0), "=r"(r1) : "r"(at) : "memory");
    out[32 + lane] = r0 ^ r1 * 3;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(at) : "memory");
    out[64 + lane] = r0 ^ r1 * 3 ^ r2 * 5 ^ r3 * 7;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(at) : "memory");
    out[96 + lane] = r0 ^ r1 * 3 ^ r2 * 5 ^ r3 * 7;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r1) : "r"(r0));
    out[128 + lane] = r1;
}

template <class T> static void print(const char *what, const T *v, int from, int n)
{
    unsigned sum = 0;
    for (int i = 0; i < n; i++)
        sum = mix(sum ^ unsigned(v[from + i]) + i);
    printf("%s: first %d, second %d, sum %08x\n", what, int(v[from]), int(v[from + 1]), sum);
}

int main()
{
    note_device();
    shapes<__half, float>("f16 to f32", 0);
    shapes<__half, __half>("f16 to f16", 0);
    shapes<__nv_bfloat16, float>("bf16 to f32", 0);
    shapes<signed char, int>("s8 to s32", 0);
    shapes<unsigned char, int>("u8 to s32", -3);
    check<float, wmma::precision::tf32, float, 16, 16, 8, Row, Col>("tf32 to f32", 0, true);
    check<float, wmma::precision::tf32, float, 16, 16, 8, Col, Row>("tf32 to f32", 0, false);
    check<double, double, double, 8, 8, 4, Row, Col>("f64", 0, true);
    check<double, double, double, 8, 8, 4, Col, Row>("f64", 0, false);
    int *out;
    managed(&out, 1024);
    raw<<<1, 32>>>(out);
    CUDA(cudaDeviceSynchronize());
    const char *names[] = {"m16n8k16 f16", "m16n8k8 f16", "m16n8k16 bf16", "m16n8k8 tf32", "m16n8k32 s8", "m8n8k16 u8 s8", "m8n8k4 f64"};
    for (int i = 0; i < 7; i++)
        print(names[i], out, 32 * i, 32);
    matrices<<<1, 32>>>((unsigned *)out);
    CUDA(cudaDeviceSynchronize());
    const char *moves[] = {"ldmatrix x1", "ldmatrix x2 trans", "ldmatrix x4", "ldmatrix x4 trans", "movmatrix"};
    for (int i = 0; i < 5; i++)
        print(moves[i], (unsigned *)out, 32 * i, 32);
    return finish();
}
