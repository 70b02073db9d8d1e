// Arrays of the driver API: shapes, copies on either side, mipmapped arrays, batches of copies.
#include "driver.h"

#include <unistd.h>
#include <vector>

static CUarray make(size_t w, size_t h, size_t d, CUarray_format format, unsigned channels, unsigned flags)
{
    CUDA_ARRAY3D_DESCRIPTOR desc = {};
    desc.Width = w;
    desc.Height = h;
    desc.Depth = d;
    desc.Format = format;
    desc.NumChannels = channels;
    desc.Flags = flags;
    CUarray a;
    CU(cuArray3DCreate(&a, &desc));
    return a;
}

static std::vector<uint8_t> pattern(size_t n, uint32_t seed)
{
    std::vector<uint8_t> v(n);
    for (size_t i = 0; i < n; i++)
        v[i] = (uint8_t)mix((uint32_t)i + seed);
    return v;
}

static void one_dimension()
{
    CUDA_ARRAY_DESCRIPTOR d = {100, 0, CU_AD_FORMAT_UNSIGNED_INT16, 2};
    CUarray a, b;
    CU(cuArrayCreate(&a, &d));
    CU(cuArrayCreate(&b, &d));
    CUDA_ARRAY_DESCRIPTOR got = {};
    CU(cuArrayGetDescriptor(&got, a));
    printf("1D: %zu x %zu, format %#x, %u channels\n", got.Width, got.Height, (unsigned)got.Format, got.NumChannels);
    auto h = pattern(400, 1);
    std::vector<uint8_t> o(400);
    CU(cuMemcpyHtoA(a, 0, h.data(), 400));
    CU(cuMemcpyAtoA(b, 40, a, 8, 200));
    CU(cuMemcpyAtoH(o.data(), b, 40, 200));
    expect(!memcmp(o.data(), h.data() + 8, 200), "1D to 1D");
    CUdeviceptr p;
    CU(cuMemAlloc(&p, 400));
    CU(cuMemcpyAtoD(p, a, 0, 400));
    CU(cuMemcpyDtoA(b, 0, p, 400));
    CU(cuCtxSynchronize()); // s waits for nobody
    memset(o.data(), 0, 400);
    CUstream s;
    CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    CU(cuMemcpyAtoHAsync(o.data(), b, 0, 400, s));
    CU(cuStreamSynchronize(s));
    expect(o == h, "1D through device memory");
    printf("beyond the end: %s\n", name_of(cuMemcpyHtoA(a, 8, h.data(), 400)));
    printf("no array: %s\n", name_of(cuMemcpyHtoA(nullptr, 0, h.data(), 4)));
    CU(cuMemFree(p));
    CU(cuStreamDestroy(s));
    CU(cuArrayDestroy(a));
    CU(cuArrayDestroy(b));
}

static void boxes(const char *what, CUarray a, size_t row, size_t rows, size_t slices)
{
    auto h = pattern(row * rows * slices, 7);
    std::vector<uint8_t> o(h.size());
    CUDA_MEMCPY3D to = {};
    to.srcMemoryType = CU_MEMORYTYPE_HOST;
    to.srcHost = h.data();
    to.srcPitch = row;
    to.srcHeight = rows;
    to.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    to.dstArray = a;
    to.WidthInBytes = row;
    to.Height = rows;
    to.Depth = slices;
    CU(cuMemcpy3D(&to));
    // Out again in two steps: device memory first, with a pitch of its own.
    size_t pitch = row + 64;
    CUdeviceptr p;
    CU(cuMemAlloc(&p, pitch * rows * slices));
    CUDA_MEMCPY3D out = {};
    out.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    out.srcArray = a;
    out.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    out.dstDevice = p;
    out.dstPitch = pitch;
    out.dstHeight = rows;
    out.WidthInBytes = row;
    out.Height = rows;
    out.Depth = slices;
    CU(cuMemcpy3DAsync(&out, nullptr));
    CUDA_MEMCPY3D back = {};
    back.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    back.srcDevice = p;
    back.srcPitch = pitch;
    back.srcHeight = rows;
    back.dstMemoryType = CU_MEMORYTYPE_HOST;
    back.dstHost = o.data();
    back.dstPitch = row;
    back.dstHeight = rows;
    back.WidthInBytes = row;
    back.Height = rows;
    back.Depth = slices;
    CU(cuMemcpy3D(&back));
    expect(o == h, what);
    // A part from the middle.
    if (rows > 2) {
        size_t w = row / 2, n = rows - 2;
        std::vector<uint8_t> part(w * n, 0);
        CUDA_MEMCPY2D m = {};
        m.srcMemoryType = CU_MEMORYTYPE_ARRAY;
        m.srcArray = a;
        m.srcXInBytes = row / 4;
        m.srcY = 1;
        m.dstMemoryType = CU_MEMORYTYPE_HOST;
        m.dstHost = part.data();
        m.dstPitch = w;
        m.WidthInBytes = w;
        m.Height = n;
        CU(cuMemcpy2D(&m));
        bool good = true;
        for (size_t y = 0; y < n; y++)
            good = good && !memcmp(&part[y * w], &h[(y + 1) * row + row / 4], w);
        expect(good, "its middle");
        m.Height = rows;
        printf("too many rows: %s\n", name_of(cuMemcpy2D(&m)));
    }
    CU(cuMemFree(p));
    CU(cuArrayDestroy(a));
}

static void shapes()
{
    struct {
        const char *what;
        size_t w, h, d;
        CUarray_format format;
        unsigned channels, flags;
    } list[] = {
        {"nothing", 0, 0, 0, CU_AD_FORMAT_FLOAT, 1, 0},
        {"three channels", 8, 8, 0, CU_AD_FORMAT_FLOAT, 3, 0},
        {"no such format", 8, 8, 0, (CUarray_format)0x55, 1, 0},
        {"depth without height", 8, 0, 4, CU_AD_FORMAT_FLOAT, 1, 0},
        {"layers of one dimension", 8, 0, 4, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_LAYERED},
        {"cube", 8, 8, 6, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_CUBEMAP},
        {"cube of five", 8, 8, 5, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_CUBEMAP},
        {"cubes", 8, 8, 12, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED},
        {"gather in three dimensions", 8, 8, 4, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_TEXTURE_GATHER},
        {"too wide", 200000, 0, 0, CU_AD_FORMAT_FLOAT, 1, 0},
        {"unknown flag", 8, 8, 0, CU_AD_FORMAT_FLOAT, 1, 0x8000},
        {"half", 8, 8, 0, CU_AD_FORMAT_HALF, 2, CUDA_ARRAY3D_SURFACE_LDST},
    };
    for (auto &t : list) {
        CUDA_ARRAY3D_DESCRIPTOR d = {}, got = {};
        d.Width = t.w, d.Height = t.h, d.Depth = t.d, d.Format = t.format, d.NumChannels = t.channels, d.Flags = t.flags;
        CUarray a;
        CUresult r = cuArray3DCreate(&a, &d);
        printf("%s: %s\n", t.what, name_of(r));
        if (r != CUDA_SUCCESS)
            continue;
        CU(cuArray3DGetDescriptor(&got, a));
        expect(!memcmp(&d, &got, sizeof d - 4), "its description");
        CU(cuArrayDestroy(a));
    }
    printf("destroy nothing: %s\n", name_of(cuArrayDestroy(nullptr)));
}

static void mipmaps()
{
    CUDA_ARRAY3D_DESCRIPTOR d = {}, got = {};
    d.Width = 64, d.Height = 16, d.Format = CU_AD_FORMAT_UNSIGNED_INT8, d.NumChannels = 4;
    CUmipmappedArray m;
    CU(cuMipmappedArrayCreate(&m, &d, 20));
    CUarray level, again;
    for (unsigned i = 0; i < 7; i++) {
        CU(cuMipmappedArrayGetLevel(&level, m, i));
        CU(cuMipmappedArrayGetLevel(&again, m, i));
        CU(cuArray3DGetDescriptor(&got, level));
        printf("level %u: %zu x %zu%s\n", i, got.Width, got.Height, level == again ? "" : ", two handles");
        auto h = pattern(got.Width * 4 * got.Height, i);
        CUDA_MEMCPY2D c = {};
        c.srcMemoryType = CU_MEMORYTYPE_HOST, c.srcHost = h.data(), c.srcPitch = got.Width * 4;
        c.dstMemoryType = CU_MEMORYTYPE_ARRAY, c.dstArray = level;
        c.WidthInBytes = got.Width * 4, c.Height = got.Height;
        CU(cuMemcpy2D(&c));
    }
    printf("level 7: %s\n", name_of(cuMipmappedArrayGetLevel(&level, m, 7)));
    bool good = true;
    for (unsigned i = 0; i < 7; i++) {
        CU(cuMipmappedArrayGetLevel(&level, m, i));
        CU(cuArray3DGetDescriptor(&got, level));
        auto h = pattern(got.Width * 4 * got.Height, i);
        std::vector<uint8_t> o(h.size());
        CUDA_MEMCPY2D c = {};
        c.srcMemoryType = CU_MEMORYTYPE_ARRAY, c.srcArray = level;
        c.dstMemoryType = CU_MEMORYTYPE_HOST, c.dstHost = o.data(), c.dstPitch = got.Width * 4;
        c.WidthInBytes = got.Width * 4, c.Height = got.Height;
        CU(cuMemcpy2D(&c));
        good = good && o == h;
    }
    expect(good, "each level has memory of its own");
    CU(cuMipmappedArrayDestroy(m));
}

static void limits()
{
    // Other programs take and give memory of the GPU meanwhile: one quiet moment will do.
    const size_t size = (size_t)4096 * 4096 * 16;
    bool takes = false, gives = false;
    for (int i = 0; i < 50 && !(takes && gives); i++) {
        size_t before, with, after, total;
        CU(cuMemGetInfo(&before, &total));
        CUarray a = make(4096, 4096, 0, CU_AD_FORMAT_FLOAT, 4, 0);
        CU(cuMemGetInfo(&with, &total));
        CU(cuArrayDestroy(a));
        CU(cuMemGetInfo(&after, &total));
        takes = before >= with + size;
        gives = after + (64 << 20) >= before;
        if (!(takes && gives))
            usleep(20000);
    }
    expect(takes, "an array takes memory");
    expect(gives, "and gives it back");
}

int main()
{
    CUdevice device;
    CUcontext context;
    CU(cuInit(0));
    CU(cuDeviceGet(&device, 0));
    CU(cuDevicePrimaryCtxRetain(&context, device));
    CU(cuCtxSetCurrent(context));
    one_dimension();
    boxes("two dimensions", make(64, 40, 0, CU_AD_FORMAT_FLOAT, 1, 0), 256, 40, 1);
    boxes("three dimensions", make(33, 17, 9, CU_AD_FORMAT_UNSIGNED_INT8, 4, 0), 132, 17, 9);
    boxes("layers", make(50, 20, 6, CU_AD_FORMAT_UNSIGNED_INT16, 2, CUDA_ARRAY3D_LAYERED), 200, 20, 6);
    boxes("more than a megabyte a row", make(131072, 3, 0, CU_AD_FORMAT_FLOAT, 4, 0), 131072 * 16, 3, 1);
    shapes();
    mipmaps();
    limits();
    CU(cuDevicePrimaryCtxRelease(device));
    return finish();
}
