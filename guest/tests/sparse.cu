// Sparse arrays and arrays whose memory comes later: tiles, pools of tiles, mapping in stream
// order. needs: cuda 11.6
#include "driver.h"

#include <vector>

static CUarray make(unsigned flags)
{
    CUDA_ARRAY3D_DESCRIPTOR d = {};
    d.Width = 512, d.Height = 256, d.Format = CU_AD_FORMAT_UNSIGNED_INT32, d.NumChannels = 1, d.Flags = flags;
    CUarray a;
    CUresult r = cuArray3DCreate(&a, &d);
    if (r == CUDA_ERROR_NOT_SUPPORTED) {
        printf("this device has no such arrays\n");
        fflush(stdout);
        _Exit(77);
    }
    CU(r);
    return a;
}

static CUmemGenericAllocationHandle pool(size_t size, unsigned short usage)
{
    CUmemAllocationProp p = {};
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.allocFlags.usage = usage;
    size_t unit;
    CU(cuMemGetAllocationGranularity(&unit, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CUmemGenericAllocationHandle h;
    CU(cuMemCreate(&h, (size + unit - 1) / unit * unit, &p, 0));
    return h;
}

// copy moves a part of the array, width by height elements, to or from h.
static void copy(CUarray a, size_t x, size_t y, size_t width, size_t height, uint32_t *h, bool in)
{
    CUDA_MEMCPY2D m = {};
    m.srcMemoryType = in ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_ARRAY;
    m.dstMemoryType = in ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_HOST;
    if (in)
        m.srcHost = h, m.srcPitch = width * 4, m.dstArray = a, m.dstXInBytes = x * 4, m.dstY = y;
    else
        m.dstHost = h, m.dstPitch = width * 4, m.srcArray = a, m.srcXInBytes = x * 4, m.srcY = y;
    m.WidthInBytes = width * 4, m.Height = height;
    CU(cuMemcpy2D(&m));
}

int main()
{
    CUdevice device;
    CUcontext context;
    CU(cuInit(0));
    CU(cuDeviceGet(&device, 0));
    CU(cuDevicePrimaryCtxRetain(&context, device));
    CU(cuCtxSetCurrent(context));
    CUstream s;
    CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));

    CUarray sparse = make(CUDA_ARRAY3D_SPARSE);
    CUDA_ARRAY_SPARSE_PROPERTIES tiles = {};
    CU(cuArrayGetSparseProperties(&tiles, sparse));
    unsigned w = tiles.tileExtent.width, h = tiles.tileExtent.height;
    note("tiles of %u x %u", w, h);
    expect(w && h && 512 % w == 0 && 256 % h == 0 && tiles.tileExtent.depth == 1, "tiles");
    CUmemGenericAllocationHandle mem = pool((size_t)4 << 20, CU_MEM_CREATE_USAGE_TILE_POOL);
    CUarrayMapInfo map = {};
    map.resourceType = CU_RESOURCE_TYPE_ARRAY;
    map.resource.array = sparse;
    map.subresource.sparseLevel.offsetX = w, map.subresource.sparseLevel.offsetY = h;
    map.subresource.sparseLevel.extentWidth = w, map.subresource.sparseLevel.extentHeight = h;
    map.subresource.sparseLevel.extentDepth = 1;
    map.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
    map.memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
    map.memHandle.memHandle = mem;
    map.deviceBitMask = 1;
    CU(cuMemMapArrayAsync(&map, 1, s));
    CU(cuStreamSynchronize(s));
    std::vector<uint32_t> in(w * h), out(w * h);
    for (size_t i = 0; i < in.size(); i++)
        in[i] = mix((uint32_t)i);
    copy(sparse, w, h, w, h, in.data(), true);
    copy(sparse, w, h, w, h, out.data(), false);
    expect(in == out, "a tile that has memory");
    map.memOperationType = CU_MEM_OPERATION_TYPE_UNMAP;
    map.memHandle.memHandle = 0;
    CU(cuMemMapArrayAsync(&map, 1, s));
    CU(cuStreamSynchronize(s));
    map.resource.array = nullptr;
    printf("no array: %s\n", name_of(cuMemMapArrayAsync(&map, 1, s)));
    printf("no list: %s\n", name_of(cuMemMapArrayAsync(nullptr, 1, s)));
    CU(cuArrayDestroy(sparse));
    CU(cuMemRelease(mem));

    CUarray later = make(CUDA_ARRAY3D_DEFERRED_MAPPING);
    CUDA_ARRAY_MEMORY_REQUIREMENTS need = {};
    CU(cuArrayGetMemoryRequirements(&need, later, device));
    expect(need.size >= 512 * 256 * 4 && need.alignment > 0, "what it needs");
    mem = pool(need.size, CU_MEM_CREATE_USAGE_TILE_POOL);
    map = CUarrayMapInfo();
    map.resourceType = CU_RESOURCE_TYPE_ARRAY;
    map.resource.array = later;
    map.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
    map.memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
    map.memHandle.memHandle = mem;
    map.deviceBitMask = 1;
    CU(cuMemMapArrayAsync(&map, 1, s));
    CU(cuStreamSynchronize(s));
    std::vector<uint32_t> all(512 * 256), back(512 * 256);
    for (size_t i = 0; i < all.size(); i++)
        all[i] = mix((uint32_t)i + 77);
    copy(later, 0, 0, 512, 256, all.data(), true);
    copy(later, 0, 0, 512, 256, back.data(), false);
    expect(all == back, "an array that got memory");
    CU(cuArrayDestroy(later));
    CU(cuMemRelease(mem));
    CU(cuStreamDestroy(s));
    CU(cuDevicePrimaryCtxRelease(device));
    return finish();
}
