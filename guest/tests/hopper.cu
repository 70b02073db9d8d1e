// Instructions of sm_90: vector atomics, atomics of half pairs, elect, stmatrix, bulk copies and
// reductions.
// ptx: 90. needs: cuda 12.9
#include "check.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

__global__ void atomics(float *f, __half2 *h, __nv_bfloat162 *b, unsigned short *s)
{
    int i = threadIdx.x;
    atomicAdd((float2 *)f, make_float2(float(i), 2.0f));
    atomicAdd((float4 *)(f + 4), make_float4(1.0f, float(i), -1.0f, 0.5f));
    atomicAdd(h, __floats2half2_rn(float(i % 4), 1.0f));
    atomicAdd(b, __floats2bfloat162_rn(1.0f, float(i % 2)));
    atomicAdd((__half *)(h + 1), __float2half(2.0f));
    atomicAdd((__nv_bfloat16 *)(b + 1), __float2bfloat16(1.0f));
    unsigned short old = s[0], seen;
    do {
        seen = old;
        old = atomicCAS(&s[0], seen, (unsigned short)(seen + 3));
    } while (old != seen);
    atomicAdd((double *)(f + 8), 0.25);
    float4 was = atomicAdd((float4 *)(f + 12), make_float4(1, 0, 0, 0));
    atomicAdd(f + 10, was.x);
    asm volatile("red.global.add.noftz.v2.f16x2 [%0], {%1, %2};" ::"l"(h + 2), "r"(0x3c003c00), "r"(0x40003c00) : "memory");
    asm volatile("red.global.min.noftz.v4.f16 [%0], {%1, %2, %3, %4};" ::"l"(h + 4), "h"((short)0xbc00), "h"((short)0), "h"((short)0x3c00), "h"((short)0xc000) : "memory");
}

__global__ void elect(int *out)
{
    int leader, is;
    unsigned mask = threadIdx.x < 16 ? 0xffffu : 0xffff0000u;
    asm volatile("{ .reg .pred p; elect.sync %0|p, %2; selp.s32 %1, 1, 0, p; }" : "=r"(leader), "=r"(is) : "r"(mask));
    out[threadIdx.x] = leader * 10 + is;
    unsigned least, most;
    asm volatile("redux.sync.min.u32 %0, %1, 0xffffffff;" : "=r"(least) : "r"(mix(threadIdx.x)));
    asm volatile("redux.sync.xor.b32 %0, %1, 0xffffffff;" : "=r"(most) : "r"(mix(threadIdx.x)));
    out[32 + threadIdx.x] = int(least ^ most);
}

__global__ void matrices(unsigned *out)
{
    __shared__ __align__(16) unsigned short tile[32][8];
    unsigned r0 = mix(threadIdx.x), r1 = mix(threadIdx.x + 32), r2 = mix(threadIdx.x + 64), r3 = mix(threadIdx.x + 96);
    unsigned at = (unsigned)__cvta_generic_to_shared(&tile[threadIdx.x][0]);
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(r0), "r"(r1), "r"(r2), "r"(r3) : "memory");
    __syncwarp();
    for (int i = 0; i < 4; i++)
        out[threadIdx.x * 4 + i] = ((unsigned *)&tile[threadIdx.x][0])[i];
    __syncwarp();
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1,%2};" ::"r"(at), "r"(r0), "r"(r1) : "memory");
    __syncwarp();
    for (int i = 0; i < 4; i++)
        out[128 + threadIdx.x * 4 + i] = ((unsigned *)&tile[threadIdx.x][0])[i];
}

// Bulk copies: in by mbarrier, out by groups, a reduction on the way.
__global__ void bulk(const int *in, int *out, int *sums)
{
    __shared__ __align__(128) int box[256];
    __shared__ __align__(8) unsigned long long bar;
    unsigned b = (unsigned)__cvta_generic_to_shared(&bar), to = (unsigned)__cvta_generic_to_shared(box);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(b) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    for (int phase = 0; phase < 3; phase++) {
        if (threadIdx.x == 0) {
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(1024) : "memory");
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 512, [%2];" ::"r"(to), "l"(in + phase * 256), "r"(b) : "memory");
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %3, [%2];" ::"r"(to + 512), "l"(in + phase * 256 + 128), "r"(b), "r"(512) : "memory");
        }
        unsigned done = 0;
        while (!done)
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(b), "r"(phase & 1) : "memory");
        box[threadIdx.x] = box[threadIdx.x] * 2 + 1;
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        if (threadIdx.x == 0) {
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 1024;" ::"l"(out + phase * 256), "r"(to) : "memory");
            asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32 [%0], [%1], 1024;" ::"l"(sums), "r"(to) : "memory");
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
            asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        }
        __syncthreads();
    }
}

template <class T> static void show(const char *what, const T *v, int n)
{
    unsigned sum = 0;
    for (int i = 0; i < n; i++)
        sum = mix(sum ^ unsigned(v[i]));
    printf("%s: %d %d ... %d, sum %08x\n", what, int(v[0]), int(v[1]), int(v[n - 1]), sum);
}

int main()
{
    note_device();
    char *mem;
    managed(&mem, 1 << 16);
    memset(mem, 0, 1 << 16);
    float *f = (float *)mem;
    unsigned *h = (unsigned *)(mem + 1024), *b = (unsigned *)(mem + 2048);
    unsigned short *s = (unsigned short *)(mem + 3072);
    atomics<<<2, 64>>>(f, (__half2 *)h, (__nv_bfloat162 *)b, s);
    CUDA(cudaGetLastError());
    CUDA(cudaDeviceSynchronize());
    printf("float2 %g %g\nfloat4 %g %g %g %g\ndouble %g\n", f[0], f[1], f[4], f[5], f[6], f[7], *(double *)(f + 8));
    printf("returned %g\nhalf %08x %08x %08x %08x %08x %08x\nbfloat %08x %08x\nshort %d\n", f[10], h[0], h[1], h[2], h[3], h[4], h[5], b[0], b[1], s[0]);
    int *out = (int *)mem;
    elect<<<1, 32>>>(out);
    CUDA(cudaDeviceSynchronize());
    show("elect", out, 32);
    show("redux", out + 32, 32);
    matrices<<<1, 32>>>((unsigned *)out);
    CUDA(cudaDeviceSynchronize());
    show("stmatrix x4", out, 128);
    show("stmatrix x2 trans", out + 128, 64);
    int *in = (int *)(mem + 8192), *sums = (int *)(mem + 16384);
    for (int i = 0; i < 768; i++)
        in[i] = mix(i) % 1000;
    memset(sums, 0, 1024);
    bulk<<<1, 256>>>(in, out, sums);
    CUDA(cudaDeviceSynchronize());
    show("bulk", out, 768);
    show("bulk sums", sums, 256);
    return finish();
}
