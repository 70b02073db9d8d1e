// Cube maps: a texture fetched by directions, faces written as layers and as surfaces; layered cube
// maps.
#include "check.h"

#include <vector>

// Directions through the middle of a face's texels, as the faces are laid out: +x -x +y -y +z -z.
__device__ float3 direction(int face, float u, float v)
{
    switch (face) {
    case 0: return make_float3(1, -v, -u);
    case 1: return make_float3(-1, -v, u);
    case 2: return make_float3(u, 1, v);
    case 3: return make_float3(u, -1, -v);
    case 4: return make_float3(u, -v, 1);
    default: return make_float3(-u, -v, -1);
    }
}

__global__ void fetch(cudaTextureObject_t t, float *out, int width, int layer)
{
    int x = threadIdx.x, y = threadIdx.y, face = blockIdx.x;
    float u = (x + 0.5f) / width * 2 - 1, v = (y + 0.5f) / width * 2 - 1;
    float3 d = direction(face, u, v);
    float got = layer < 0 ? texCubemap<float>(t, d.x, d.y, d.z) : texCubemapLayered<float>(t, d.x, d.y, d.z, layer);
    out[(face * width + y) * width + x] = -got;
}

__global__ void write(cudaSurfaceObject_t s, int width)
{
    int x = threadIdx.x, y = threadIdx.y;
    surfCubemapwrite(1000.0f * blockIdx.x + 10 * y + x, s, x * 4, y, blockIdx.x);
}

static cudaTextureObject_t sampler(cudaArray_t a)
{
    cudaResourceDesc r = {};
    cudaTextureDesc d = {};
    cudaTextureObject_t t;
    r.resType = cudaResourceTypeArray, r.res.array.array = a;
    d.normalizedCoords = 1, d.filterMode = cudaFilterModePoint;
    for (auto &m : d.addressMode)
        m = cudaAddressModeWrap;
    CUDA(cudaCreateTextureObject(&t, &r, &d, nullptr));
    return t;
}

static bool same(const float *device, const float *want, int n)
{
    std::vector<float> got(n);
    CUDA(cudaMemcpy(got.data(), device, n * sizeof(float), cudaMemcpyDeviceToHost));
    bool good = true;
    for (int i = 0; i < n; i++)
        good = good && got[i] == -want[i];
    return good;
}

int main()
{
    const int w = 16, n = w * w * 6, cubes = 3;
    int widest = 0;
    note_device();
    CUDA(cudaDeviceGetAttribute(&widest, cudaDevAttrMaxTextureCubemapWidth, 0));
    if (widest == 0) {
        printf("skipped: this GPU has no cube maps\n");
        return 77;
    }
    std::vector<float> h(n * cubes);
    for (int i = 0; i < n * cubes; i++)
        h[i] = (float)(mix(i) & 0xffff);
    float *out;
    CUDA(cudaMalloc(&out, n * sizeof(float)));
    cudaChannelFormatDesc f = cudaCreateChannelDesc<float>();
    cudaArray_t a, layered;
    CUDA(cudaMalloc3DArray(&a, &f, make_cudaExtent(w, w, 6), cudaArrayCubemap | cudaArraySurfaceLoadStore));
    cudaMemcpy3DParms c = {};
    c.srcPtr = make_cudaPitchedPtr(h.data(), w * sizeof(float), w, w);
    c.dstArray = a, c.extent = make_cudaExtent(w, w, 6), c.kind = cudaMemcpyHostToDevice;
    CUDA(cudaMemcpy3D(&c));
    cudaTextureObject_t t = sampler(a);
    fetch<<<6, dim3(w, w)>>>(t, out, w, -1);
    CUDA(cudaGetLastError());
    expect(same(out, h.data(), n), "six faces");
    cudaChannelFormatDesc got;
    cudaExtent e;
    unsigned flags;
    CUDA(cudaArrayGetInfo(&got, &e, &flags, a));
    printf("%zu x %zu x %zu, flags %x\n", e.width, e.height, e.depth, flags);

    cudaResourceDesc r = {};
    cudaSurfaceObject_t s;
    r.resType = cudaResourceTypeArray, r.res.array.array = a;
    CUDA(cudaCreateSurfaceObject(&s, &r));
    write<<<6, dim3(w, w)>>>(s, w);
    fetch<<<6, dim3(w, w)>>>(t, out, w, -1);
    CUDA(cudaGetLastError());
    std::vector<float> want(n);
    for (int i = 0; i < n; i++)
        want[i] = 1000.0f * (i / (w * w)) + 10 * (i / w % w) + i % w;
    expect(same(out, want.data(), n), "written as a surface");
    CUDA(cudaDestroySurfaceObject(s));
    CUDA(cudaDestroyTextureObject(t));

    CUDA(cudaMalloc3DArray(&layered, &f, make_cudaExtent(w, w, 6 * cubes), cudaArrayCubemap | cudaArrayLayered));
    c.dstArray = layered, c.extent = make_cudaExtent(w, w, 6 * cubes);
    CUDA(cudaMemcpy3D(&c));
    t = sampler(layered);
    for (int layer = 0; layer < cubes; layer++) {
        fetch<<<6, dim3(w, w)>>>(t, out, w, layer);
        CUDA(cudaGetLastError());
        printf("cube %d: ", layer);
        expect(same(out, h.data() + layer * n, n), "its faces");
    }
    CUDA(cudaDestroyTextureObject(t));
    CUDA(cudaFreeArray(layered));
    CUDA(cudaFreeArray(a));
    cudaArray_t bad;
    printf("five faces: %s\n", cudaGetErrorName(cudaMalloc3DArray(&bad, &f, make_cudaExtent(w, w, 5), cudaArrayCubemap)));
    cudaGetLastError();
    printf("not square: %s\n", cudaGetErrorName(cudaMalloc3DArray(&bad, &f, make_cudaExtent(w, w / 2, 6), cudaArrayCubemap)));
    cudaGetLastError();
    CUDA(cudaFree(out));
    return finish();
}
