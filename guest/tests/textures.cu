// Texture objects: fetches, points and linear filters, address modes, normalised coordinates,
// layers, mipmaps, plain memory. Coordinates are quarters, so that the few bits that hardware has
// for weights suffice: results are exact.
#include "check.h"

#include <cmath>

#include <vector>

static const int W = 32, H = 16, D = 4;

__host__ __device__ static float value(int x, int y, int z) { return (float)(int)(mix((uint32_t)(x + 64 * y + 4096 * z)) % 1000) - 500; }

__global__ void fetch1(cudaTextureObject_t t, float *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = tex1Dfetch<float>(t, i - 4);
}

__global__ void read1(cudaTextureObject_t t, const float *x, float *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = tex1D<float>(t, x[i]);
}

__global__ void read2(cudaTextureObject_t t, const float *x, const float *y, float *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = tex2D<float>(t, x[i], y[i]);
}

__global__ void read3(cudaTextureObject_t t, const float *x, const float *y, const float *z, float *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = tex3D<float>(t, x[i], y[i], z[i]);
}

__global__ void layer2(cudaTextureObject_t t, const float *x, const float *y, float *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = tex2DLayered<float>(t, x[i], y[i], i % (D + 2));
}

__global__ void lod(cudaTextureObject_t t, const float *x, const float *y, float *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = tex2DLod<float>(t, x[i], y[i], (float)(i % 4));
}

__global__ void bytes(cudaTextureObject_t t, const float *x, const float *y, float4 *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = tex2D<float4>(t, x[i], y[i]);
}

__global__ void words(cudaTextureObject_t t, int4 *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = tex2D<int4>(t, (float)(i % W) + 0.5f, (float)(i / W) + 0.5f);
}

__global__ void gather(cudaTextureObject_t t, const float *x, const float *y, float4 *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = tex2Dgather<float4>(t, x[i], y[i], 0);
}

// sum folds results into a number that the expected text can hold.
static uint32_t sum(const void *p, size_t n)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ ((const uint8_t *)p)[i]) * 16777619u;
    return h;
}

static const int N = 256;
static float *dx, *dy, *dz, *dout;
static std::vector<float> px(N), py(N), pz(N), out(4 * N);

static void coordinates(bool normalized)
{
    for (int i = 0; i < N; i++) {
        // from beside the image through it
        px[i] = (float)((int)(mix(i) % (48 * 4)) - 8 * 4) / 4;
        py[i] = (float)((int)(mix(i + 1000) % (24 * 4)) - 4 * 4) / 4;
        pz[i] = (float)((int)(mix(i + 2000) % (8 * 4)) - 2 * 4) / 4;
        if (normalized)
            px[i] /= W, py[i] /= H, pz[i] /= D;
    }
    CUDA(cudaMemcpy(dx, px.data(), N * 4, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(dy, py.data(), N * 4, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(dz, pz.data(), N * 4, cudaMemcpyHostToDevice));
}

static int place(int i, int n, cudaTextureAddressMode mode)
{
    switch (mode) {
    case cudaAddressModeWrap: return ((i % n) + n) % n;
    case cudaAddressModeMirror: i = ((i % (2 * n)) + 2 * n) % (2 * n); return i < n ? i : 2 * n - 1 - i;
    case cudaAddressModeBorder: return i < 0 || i >= n ? -1 : i;
    default: return i < 0 ? 0 : i >= n ? n - 1 : i;
    }
}

static float texel(const int *at, int dims, cudaTextureAddressMode mode)
{
    int extent[3] = {W, H, D}, p[3] = {0, 0, 0};
    for (int d = 0; d < dims; d++)
        if ((p[d] = place(at[d], extent[d], mode)) < 0)
            return 0;
    return value(p[0], p[1], p[2]);
}

static float reference(const float *pos, int dims, bool linear, bool normalized, cudaTextureAddressMode mode)
{
    int extent[3] = {W, H, D}, base[3] = {0, 0, 0};
    float part[3] = {0, 0, 0}, total = 0;
    for (int d = 0; d < dims; d++) {
        double v = normalized ? (double)pos[d] * extent[d] : pos[d];
        if (linear)
            v -= 0.5;
        base[d] = (int)floor(v);
        part[d] = linear ? (float)(v - floor(v)) : 0;
    }
    for (int c = 0; c < (linear ? 1 << dims : 1); c++) {
        int at[3];
        float weight = 1;
        for (int d = 0; d < dims; d++) {
            at[d] = base[d] + (c >> d & 1);
            weight *= c >> d & 1 ? part[d] : 1 - part[d];
        }
        total += weight * texel(at, dims, mode);
    }
    return total;
}

static cudaTextureObject_t object(const cudaResourceDesc &r, cudaTextureAddressMode mode, bool linear, bool normalized,
                                  cudaTextureReadMode read = cudaReadModeElementType, int dims = 3)
{
    // A border counts for dimensions that an image lacks, too.
    cudaTextureDesc t = {};
    for (int i = 0; i < 3; i++)
        t.addressMode[i] = i < dims ? mode : cudaAddressModeClamp;
    t.filterMode = linear ? cudaFilterModeLinear : cudaFilterModePoint;
    t.normalizedCoords = normalized;
    t.readMode = read;
    t.maxMipmapLevelClamp = 10;
    cudaTextureObject_t o;
    CUDA(cudaCreateTextureObject(&o, &r, &t, nullptr));
    return o;
}

static void judge(const char *what, int dims, bool linear, bool normalized, cudaTextureAddressMode mode)
{
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy(out.data(), dout, N * 4, cudaMemcpyDeviceToHost));
    int wrong = 0;
    for (int i = 0; i < N; i++) {
        float pos[3] = {px[i], py[i], pz[i]}, want = reference(pos, dims, linear, normalized, mode);
        if (out[i] != want) {
            if (!wrong++)
                note("%s: at %g %g %g: %g, want %g", what, pos[0], pos[1], pos[2], out[i], want);
        }
    }
    expect(wrong == 0, what);
}

static cudaResourceDesc of(cudaArray_t a)
{
    cudaResourceDesc r = {};
    r.resType = cudaResourceTypeArray;
    r.res.array.array = a;
    return r;
}

static void dimensions()
{
    std::vector<float> h(W * H * D);
    for (int z = 0; z < D; z++)
        for (int y = 0; y < H; y++)
            for (int x = 0; x < W; x++)
                h[(z * H + y) * W + x] = value(x, y, z);
    auto format = cudaCreateChannelDesc<float>();
    cudaArray_t a1, a2, a3, layered;
    CUDA(cudaMallocArray(&a1, &format, W));
    CUDA(cudaMallocArray(&a2, &format, W, H, cudaArrayTextureGather));
    CUDA(cudaMalloc3DArray(&a3, &format, make_cudaExtent(W, H, D)));
    CUDA(cudaMalloc3DArray(&layered, &format, make_cudaExtent(W, H, D), cudaArrayLayered));
    CUDA(cudaMemcpy2DToArray(a1, 0, 0, h.data(), W * 4, W * 4, 1, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy2DToArray(a2, 0, 0, h.data(), W * 4, W * 4, H, cudaMemcpyHostToDevice));
    for (cudaArray_t a : {a3, layered}) {
        cudaMemcpy3DParms p = {};
        p.srcPtr = make_cudaPitchedPtr(h.data(), W * 4, W, H);
        p.dstArray = a;
        p.extent = make_cudaExtent(W, H, D);
        p.kind = cudaMemcpyHostToDevice;
        CUDA(cudaMemcpy3D(&p));
    }
    static const struct {
        const char *name;
        cudaTextureAddressMode mode;
        bool normalized;
    } modes[] = {{"clamp", cudaAddressModeClamp, false}, {"border", cudaAddressModeBorder, false},
                 {"wrap", cudaAddressModeWrap, true}, {"mirror", cudaAddressModeMirror, true}, {"clamp normalized", cudaAddressModeClamp, true}};
    for (auto &m : modes)
        for (int linear = 0; linear < 2; linear++) {
            char what[80];
            coordinates(m.normalized);
            cudaTextureObject_t t = object(of(a1), m.mode, linear, m.normalized, cudaReadModeElementType, 1);
            read1<<<2, 128>>>(t, dx, dout, N);
            snprintf(what, sizeof what, "1D %s %s", m.name, linear ? "linear" : "point");
            judge(what, 1, linear, m.normalized, m.mode);
            CUDA(cudaDestroyTextureObject(t));
            t = object(of(a2), m.mode, linear, m.normalized, cudaReadModeElementType, 2);
            read2<<<2, 128>>>(t, dx, dy, dout, N);
            snprintf(what, sizeof what, "2D %s %s", m.name, linear ? "linear" : "point");
            judge(what, 2, linear, m.normalized, m.mode);
            CUDA(cudaDestroyTextureObject(t));
            t = object(of(a3), m.mode, linear, m.normalized);
            read3<<<2, 128>>>(t, dx, dy, dz, dout, N);
            snprintf(what, sizeof what, "3D %s %s", m.name, linear ? "linear" : "point");
            judge(what, 3, linear, m.normalized, m.mode);
            CUDA(cudaDestroyTextureObject(t));
        }
    coordinates(false);
    cudaTextureObject_t t = object(of(layered), cudaAddressModeClamp, false, false);
    layer2<<<2, 128>>>(t, dx, dy, dout, N);
    CUDA(cudaMemcpy(out.data(), dout, N * 4, cudaMemcpyDeviceToHost));
    bool good = true;
    for (int i = 0; i < N; i++) {
        int z = i % (D + 2) < D ? i % (D + 2) : D - 1;
        good = good && out[i] == value(place((int)floorf(px[i]), W, cudaAddressModeClamp), place((int)floorf(py[i]), H, cudaAddressModeClamp), z);
    }
    expect(good, "layers");
    CUDA(cudaDestroyTextureObject(t));

    t = object(of(a2), cudaAddressModeClamp, false, false);
    float4 *four = (float4 *)dout;
    gather<<<2, 128>>>(t, dx, dy, four, N);
    CUDA(cudaMemcpy(out.data(), four, N * 16, cudaMemcpyDeviceToHost));
    good = true;
    for (int i = 0; i < N; i++) {
        int x = (int)floorf(px[i] - 0.5f), y = (int)floorf(py[i] - 0.5f);
        int at[4][2] = {{x, y + 1}, {x + 1, y + 1}, {x + 1, y}, {x, y}};
        for (int c = 0; c < 4; c++)
            good = good && out[4 * i + c] == texel(at[c], 2, cudaAddressModeClamp);
    }
    expect(good, "gather");
    CUDA(cudaDestroyTextureObject(t));
    for (cudaArray_t a : {a1, a2, a3, layered})
        CUDA(cudaFreeArray(a));
}

static void formats()
{
    std::vector<uchar4> h(W * H);
    for (int i = 0; i < W * H; i++) {
        uint32_t v = mix(i + 99);
        h[i] = make_uchar4(v, v >> 8, v >> 16, v >> 24);
    }
    auto format = cudaCreateChannelDesc<uchar4>();
    cudaArray_t a;
    CUDA(cudaMallocArray(&a, &format, W, H));
    CUDA(cudaMemcpy2DToArray(a, 0, 0, h.data(), W * 4, W * 4, H, cudaMemcpyHostToDevice));
    coordinates(false);
    cudaTextureObject_t t = object(of(a), cudaAddressModeClamp, false, false, cudaReadModeNormalizedFloat);
    bytes<<<2, 128>>>(t, dx, dy, (float4 *)dout, N);
    CUDA(cudaMemcpy(out.data(), dout, N * 16, cudaMemcpyDeviceToHost));
    bool good = true;
    for (int i = 0; i < N; i++) {
        uchar4 c = h[place((int)floorf(py[i]), H, cudaAddressModeClamp) * W + place((int)floorf(px[i]), W, cudaAddressModeClamp)];
        good = good && out[4 * i] == c.x / 255.0f && out[4 * i + 1] == c.y / 255.0f && out[4 * i + 2] == c.z / 255.0f && out[4 * i + 3] == c.w / 255.0f;
    }
    expect(good, "bytes as fractions");
    CUDA(cudaDestroyTextureObject(t));
    t = object(of(a), cudaAddressModeClamp, false, false);
    words<<<2, 128>>>(t, (int4 *)dout, N);
    CUDA(cudaMemcpy(out.data(), dout, N * 16, cudaMemcpyDeviceToHost));
    good = true;
    for (int i = 0; i < N; i++) {
        const int *v = (const int *)&out[4 * i];
        good = good && v[0] == h[i].x && v[1] == h[i].y && v[2] == h[i].z && v[3] == h[i].w;
    }
    expect(good, "bytes as integers");
    CUDA(cudaDestroyTextureObject(t));
    CUDA(cudaFreeArray(a));
}

static void memory()
{
    float *p;
    size_t pitch;
    std::vector<float> h(200);
    for (int i = 0; i < 200; i++)
        h[i] = value(i, 5, 0);
    CUDA(cudaMalloc(&p, 800));
    CUDA(cudaMemcpy(p, h.data(), 800, cudaMemcpyHostToDevice));
    cudaResourceDesc r = {};
    r.resType = cudaResourceTypeLinear;
    r.res.linear.devPtr = p;
    r.res.linear.desc = cudaCreateChannelDesc<float>();
    r.res.linear.sizeInBytes = 800;
    cudaTextureObject_t t = object(r, cudaAddressModeClamp, false, false);
    fetch1<<<2, 128>>>(t, dout, N);
    CUDA(cudaMemcpy(out.data(), dout, N * 4, cudaMemcpyDeviceToHost));
    bool good = true;
    for (int i = 0; i < N; i++)
        good = good && out[i] == (i < 4 || i >= 204 ? 0 : h[i - 4]);
    expect(good, "plain memory");
    cudaResourceDesc got;
    CUDA(cudaGetTextureObjectResourceDesc(&got, t));
    expect(got.resType == cudaResourceTypeLinear && got.res.linear.devPtr == p && got.res.linear.sizeInBytes == 800, "its description");
    CUDA(cudaDestroyTextureObject(t));
    CUDA(cudaFree(p));

    CUDA(cudaMallocPitch(&p, &pitch, W * 4, H));
    for (int y = 0; y < H; y++)
        for (int x = 0; x < W; x++)
            h[x] = value(x, y, 0), (void)(x == W - 1 && cudaMemcpy((char *)p + y * pitch, h.data(), W * 4, cudaMemcpyHostToDevice));
    r = cudaResourceDesc();
    r.resType = cudaResourceTypePitch2D;
    r.res.pitch2D.devPtr = p;
    r.res.pitch2D.desc = cudaCreateChannelDesc<float>();
    r.res.pitch2D.width = W;
    r.res.pitch2D.height = H;
    r.res.pitch2D.pitchInBytes = pitch;
    coordinates(false);
    t = object(r, cudaAddressModeClamp, true, false);
    read2<<<2, 128>>>(t, dx, dy, dout, N);
    judge("pitched memory", 2, true, false, cudaAddressModeClamp);
    CUDA(cudaDestroyTextureObject(t));
    CUDA(cudaFree(p));
}

static void mipmaps()
{
    auto format = cudaCreateChannelDesc<float>();
    cudaMipmappedArray_t m;
    CUDA(cudaMallocMipmappedArray(&m, &format, make_cudaExtent(W, H, 0), 4));
    for (int level = 0; level < 4; level++) {
        cudaArray_t a;
        CUDA(cudaGetMipmappedArrayLevel(&a, m, level));
        std::vector<float> h((W >> level) * (H >> level), (float)(100 + level));
        CUDA(cudaMemcpy2DToArray(a, 0, 0, h.data(), (W >> level) * 4, (W >> level) * 4, H >> level, cudaMemcpyHostToDevice));
    }
    cudaResourceDesc r = {};
    r.resType = cudaResourceTypeMipmappedArray;
    r.res.mipmap.mipmap = m;
    coordinates(true);
    cudaTextureObject_t t = object(r, cudaAddressModeWrap, true, true);
    lod<<<2, 128>>>(t, dx, dy, dout, N);
    CUDA(cudaMemcpy(out.data(), dout, N * 4, cudaMemcpyDeviceToHost));
    bool good = true;
    for (int i = 0; i < N; i++)
        good = good && out[i] == 100 + i % 4;
    expect(good, "levels of detail");
    CUDA(cudaDestroyTextureObject(t));
    CUDA(cudaFreeMipmappedArray(m));
}

int main()
{
    note_device();
    CUDA(cudaMalloc(&dx, N * 4));
    CUDA(cudaMalloc(&dy, N * 4));
    CUDA(cudaMalloc(&dz, N * 4));
    CUDA(cudaMalloc(&dout, N * 16));
    dimensions();
    formats();
    memory();
    mipmaps();
    note("%08x", sum(out.data(), 16));
    return finish();
}
