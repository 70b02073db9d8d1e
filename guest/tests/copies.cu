// 2D and 3D copies and memsets in every direction, synchronous and not.
#include "check.h"

#include <vector>

// pitched compares rows of a packed host image with a pattern.
static bool matches(const std::vector<uint8_t> &v, size_t width, size_t height, size_t depth, uint32_t seed)
{
    for (size_t i = 0; i < width * height * depth; i++)
        if (v[i] != (uint8_t)mix((uint32_t)i + seed))
            return false;
    return true;
}

static std::vector<uint8_t> pattern(size_t n, uint32_t seed)
{
    std::vector<uint8_t> v(n);
    for (size_t i = 0; i < n; i++)
        v[i] = (uint8_t)mix((uint32_t)i + seed);
    return v;
}

__global__ void transpose(const uint8_t *in, size_t in_pitch, uint8_t *out, size_t out_pitch, int width, int height)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < width && y < height)
        out[x * out_pitch + y] = in[y * in_pitch + x];
}

static void flat()
{
    const size_t n = 3 << 20;
    std::vector<uint8_t> in = pattern(n, 1), out(n);
    uint8_t *a, *b;
    CUDA(cudaMalloc(&a, n));
    CUDA(cudaMalloc(&b, n));
    CUDA(cudaMemcpy(a, in.data(), n, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(b, a, n, cudaMemcpyDeviceToDevice));
    CUDA(cudaMemcpy(out.data(), b, n, cudaMemcpyDefault));
    expect(out == in, "1D, 3 MiB, through two buffers");
    // Odd sizes at odd addresses: what travels inside the command ring, in staging and by page.
    const size_t sizes[] = {1, 3, 4, 63, 64, 4095, 4097, 65535, 65537, 1000003};
    bool good = true;
    for (size_t s : sizes) {
        std::fill(out.begin(), out.end(), 0);
        CUDA(cudaMemset(a, 0xa5, n));
        CUDA(cudaMemcpy(a + 13, in.data() + 7, s, cudaMemcpyHostToDevice));
        CUDA(cudaMemcpy(out.data() + 5, a + 12, s + 2, cudaMemcpyDeviceToHost));
        good = good && out[5] == 0xa5 && out[5 + s + 1] == 0xa5 && out[5 + s + 2] == 0 && out[4] == 0 &&
               memcmp(out.data() + 6, in.data() + 7, s) == 0;
    }
    expect(good, "1D, odd sizes and addresses");
    CUDA(cudaMemset(a, 0, n));
    CUDA(cudaMemsetAsync(a + 1, 0x5a, 1000, 0));
    CUDA(cudaMemcpyAsync(out.data(), a, 1002, cudaMemcpyDeviceToHost, 0));
    CUDA(cudaStreamSynchronize(0));
    good = out[0] == 0 && out[1001] == 0;
    for (int i = 1; i <= 1000; i++)
        good = good && out[i] == 0x5a;
    expect(good, "1D, asynchronous memset and copy to pageable memory");
    CUDA(cudaFree(a));
    CUDA(cudaFree(b));
}

static void planes()
{
    const size_t width = 201, height = 67;
    std::vector<uint8_t> in = pattern(width * height, 2), out(width * height);
    uint8_t *a, *b;
    size_t pa, pb;
    CUDA(cudaMallocPitch((void **)&a, &pa, width, height));
    CUDA(cudaMallocPitch((void **)&b, &pb, height, width));
    note("pitch: %zu", pa);
    expect(pa >= width && pa % 32 == 0, "pitch is aligned");
    CUDA(cudaMemcpy2D(a, pa, in.data(), width, width, height, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy2D(out.data(), width, a, pa, width, height, cudaMemcpyDeviceToHost));
    expect(matches(out, width, height, 1, 2), "2D there and back");
    transpose<<<dim3(13, 5), dim3(16, 16)>>>(a, pa, b, pb, (int)width, (int)height);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy2DAsync(out.data(), height, b, pb, height, width, cudaMemcpyDeviceToHost, 0));
    CUDA(cudaDeviceSynchronize());
    bool good = true;
    for (size_t y = 0; y < height; y++)
        for (size_t x = 0; x < width; x++)
            good = good && out[x * height + y] == in[y * width + x];
    expect(good, "2D transposed by a kernel");
    // A window of device memory into a window of the same memory elsewhere.
    CUDA(cudaMemcpy2D(a + 100, pa, a, pa, 50, height, cudaMemcpyDeviceToDevice));
    CUDA(cudaMemset2D(a + 10, pa, 0xee, 20, 30));
    CUDA(cudaMemcpy2D(out.data(), width, a, pa, width, height, cudaMemcpyDeviceToHost));
    good = true;
    for (size_t y = 0; y < height; y++)
        for (size_t x = 0; x < width; x++) {
            uint8_t want = x >= 100 && x < 150 ? in[y * width + x - 100] : in[y * width + x];
            if (y < 30 && x >= 10 && x < 30)
                want = 0xee;
            good = good && out[y * width + x] == want;
        }
    expect(good, "2D window copy and memset");
    CUDA(cudaFree(a));
    CUDA(cudaFree(b));
}

static void volumes()
{
    const size_t width = 50, height = 20, depth = 9;
    std::vector<uint8_t> in = pattern(width * height * depth, 3), out(in.size());
    cudaExtent extent = make_cudaExtent(width, height, depth);
    cudaPitchedPtr a, b;
    CUDA(cudaMalloc3D(&a, extent));
    CUDA(cudaMalloc3D(&b, extent));
    CUDA(cudaMemset3D(b, 0x11, extent));

    cudaMemcpy3DParms up = {};
    up.srcPtr = make_cudaPitchedPtr(in.data(), width, width, height);
    up.dstPtr = a;
    up.extent = extent;
    up.kind = cudaMemcpyHostToDevice;
    CUDA(cudaMemcpy3D(&up));

    // A box of 20 x 10 x 4 from (5, 3, 2) of one volume to (25, 7, 4) of the other.
    cudaMemcpy3DParms box = {};
    box.srcPtr = a;
    box.srcPos = make_cudaPos(5, 3, 2);
    box.dstPtr = b;
    box.dstPos = make_cudaPos(25, 7, 4);
    box.extent = make_cudaExtent(20, 10, 4);
    box.kind = cudaMemcpyDeviceToDevice;
    CUDA(cudaMemcpy3DAsync(&box, 0));

    cudaMemcpy3DParms down = {};
    down.srcPtr = a;
    down.dstPtr = make_cudaPitchedPtr(out.data(), width, width, height);
    down.extent = extent;
    down.kind = cudaMemcpyDeviceToHost;
    CUDA(cudaMemcpy3D(&down));
    expect(out == in, "3D there and back");

    down.srcPtr = b;
    CUDA(cudaMemcpy3D(&down));
    bool good = true;
    for (size_t z = 0; z < depth; z++)
        for (size_t y = 0; y < height; y++)
            for (size_t x = 0; x < width; x++) {
                bool inside = x >= 25 && x < 45 && y >= 7 && y < 17 && z >= 4 && z < 8;
                uint8_t want = inside ? in[((z - 2) * height + y - 4) * width + x - 20] : 0x11;
                good = good && out[(z * height + y) * width + x] == want;
            }
    expect(good, "3D box and memset");
    CUDA(cudaFree(a.ptr));
    CUDA(cudaFree(b.ptr));
}

int main()
{
    note_device();
    flat();
    planes();
    volumes();
    return finish();
}
