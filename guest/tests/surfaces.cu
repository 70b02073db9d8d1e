// Surface objects: kernels that write and read arrays, in one, two and three dimensions and in
// layers; boundary modes.
#include "check.h"

#include <vector>

static const int W = 48, H = 20, D = 3;

__host__ __device__ static uint32_t value(int x, int y, int z) { return mix((uint32_t)(x + 64 * y + 4096 * z)); }

__global__ void write1(cudaSurfaceObject_t s)
{
    int x = threadIdx.x;
    if (x < W)
        surf1Dwrite(value(x, 0, 0), s, x * 4);
}

__global__ void write2(cudaSurfaceObject_t s)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    if (x < W)
        surf2Dwrite(make_ushort4(value(x, y, 1), value(x, y, 2), value(x, y, 3), value(x, y, 4)), s, x * 8, y);
}

__global__ void write3(cudaSurfaceObject_t s)
{
    int x = threadIdx.x, y = blockIdx.x, z = blockIdx.y;
    if (x < W)
        surf3Dwrite((unsigned char)value(x, y, z), s, x, y, z);
}

__global__ void layers(cudaSurfaceObject_t s)
{
    int x = threadIdx.x, y = blockIdx.x, z = blockIdx.y;
    if (x < W)
        surf2DLayeredwrite(make_float2((float)(value(x, y, z) % 1000), (float)z), s, x * 8, y, z);
}

// turn reads a surface and writes its rows in reverse.
__global__ void turn(cudaSurfaceObject_t from, cudaSurfaceObject_t to)
{
    int x = threadIdx.x, y = blockIdx.x;
    if (x < W) {
        ushort4 v;
        surf2Dread(&v, from, x * 8, y);
        surf2Dwrite(v, to, (W - 1 - x) * 8, y);
    }
}

// beside reads and writes outside of a surface.
__global__ void beside(cudaSurfaceObject_t s, uint32_t *out)
{
    int x = threadIdx.x;
    out[2 * x] = surf1Dread<uint32_t>(s, (x - 4) * 4, cudaBoundaryModeClamp);
    out[2 * x + 1] = surf1Dread<uint32_t>(s, (x - 4) * 4, cudaBoundaryModeZero);
    surf1Dwrite(7u, s, (W + x) * 4, cudaBoundaryModeZero);
}

static cudaSurfaceObject_t object(cudaArray_t a)
{
    cudaResourceDesc r = {};
    r.resType = cudaResourceTypeArray;
    r.res.array.array = a;
    cudaSurfaceObject_t s;
    CUDA(cudaCreateSurfaceObject(&s, &r));
    return s;
}

int main()
{
    note_device();
    cudaArray_t a1, a2, b2, a3, l2;
    auto word = cudaCreateChannelDesc<uint32_t>(), shorts = cudaCreateChannelDesc<ushort4>(), byte = cudaCreateChannelDesc<unsigned char>(),
         pair = cudaCreateChannelDesc<float2>();
    CUDA(cudaMallocArray(&a1, &word, W, 0, cudaArraySurfaceLoadStore));
    CUDA(cudaMallocArray(&a2, &shorts, W, H, cudaArraySurfaceLoadStore));
    CUDA(cudaMallocArray(&b2, &shorts, W, H, cudaArraySurfaceLoadStore));
    CUDA(cudaMalloc3DArray(&a3, &byte, make_cudaExtent(W, H, D), cudaArraySurfaceLoadStore));
    CUDA(cudaMalloc3DArray(&l2, &pair, make_cudaExtent(W, H, D), cudaArraySurfaceLoadStore | cudaArrayLayered));
    cudaSurfaceObject_t s1 = object(a1), s2 = object(a2), t2 = object(b2), s3 = object(a3), sl = object(l2);
    write1<<<1, 64>>>(s1);
    write2<<<dim3(2, H), 32>>>(s2);
    write3<<<dim3(H, D), 64>>>(s3);
    layers<<<dim3(H, D), 64>>>(sl);
    turn<<<H, 64>>>(s2, t2);
    CUDA(cudaDeviceSynchronize());

    std::vector<uint32_t> h1(W);
    CUDA(cudaMemcpy2DFromArray(h1.data(), W * 4, a1, 0, 0, W * 4, 1, cudaMemcpyDeviceToHost));
    bool good = true;
    for (int x = 0; x < W; x++)
        good = good && h1[x] == value(x, 0, 0);
    expect(good, "one dimension");

    std::vector<ushort4> h2(W * H), r2(W * H);
    CUDA(cudaMemcpy2DFromArray(h2.data(), W * 8, a2, 0, 0, W * 8, H, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy2DFromArray(r2.data(), W * 8, b2, 0, 0, W * 8, H, cudaMemcpyDeviceToHost));
    good = true;
    bool turned = true;
    for (int y = 0; y < H; y++)
        for (int x = 0; x < W; x++) {
            ushort4 v = h2[y * W + x], r = r2[y * W + W - 1 - x];
            good = good && v.x == (uint16_t)value(x, y, 1) && v.y == (uint16_t)value(x, y, 2) && v.z == (uint16_t)value(x, y, 3) && v.w == (uint16_t)value(x, y, 4);
            turned = turned && !memcmp(&v, &r, sizeof v);
        }
    expect(good, "two dimensions");
    expect(turned, "read and written");

    std::vector<unsigned char> h3(W * H * D);
    std::vector<float2> hl(W * H * D);
    cudaMemcpy3DParms p = {};
    p.srcArray = a3;
    p.dstPtr = make_cudaPitchedPtr(h3.data(), W, W, H);
    p.extent = make_cudaExtent(W, H, D);
    p.kind = cudaMemcpyDeviceToHost;
    CUDA(cudaMemcpy3D(&p));
    p.srcArray = l2;
    p.dstPtr = make_cudaPitchedPtr(hl.data(), W * 8, W, H);
    CUDA(cudaMemcpy3D(&p));
    good = turned = true;
    for (int z = 0; z < D; z++)
        for (int y = 0; y < H; y++)
            for (int x = 0; x < W; x++) {
                int i = (z * H + y) * W + x;
                good = good && h3[i] == (unsigned char)value(x, y, z);
                turned = turned && hl[i].x == (float)(value(x, y, z) % 1000) && hl[i].y == (float)z;
            }
    expect(good, "three dimensions");
    expect(turned, "layers");

    uint32_t *out, h[16];
    CUDA(cudaMalloc(&out, sizeof h));
    beside<<<1, 8>>>(s1, out);
    CUDA(cudaMemcpy(h, out, sizeof h, cudaMemcpyDeviceToHost));
    good = true;
    for (int x = 0; x < 8; x++)
        good = good && h[2 * x] == value(x < 4 ? 0 : x - 4, 0, 0) && h[2 * x + 1] == (x < 4 ? 0 : value(x - 4, 0, 0));
    expect(good, "beside the surface");
    for (cudaSurfaceObject_t s : {s1, s2, t2, s3, sl})
        CUDA(cudaDestroySurfaceObject(s));
    for (cudaArray_t a : {a1, a2, b2, a3, l2})
        CUDA(cudaFreeArray(a));
    CUDA(cudaFree(out));
    return finish();
}
