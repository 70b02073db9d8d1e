// The mode of rounds.cu with sparse arrays: memory of a pool changes places behind their tiles, is
// written and read through them, and lies behind none at times.
#pragma once

// Tiled is a sparse array of SIDE by SIDE tiles, and the memory behind them in pieces of a tile's
// size, with what each is to hold.
struct Tiled {
    enum { SIDE = 4, TILES = SIDE * SIDE, PIECES = 32, BYTES = 64 << 10, WORDS = BYTES / 4 };

    CUarray array;
    CUmemGenericAllocationHandle pool, released;
    CUstream stream;
    unsigned width, height;
    std::vector<uint32_t> holds[PIECES + 1]; // the last: of memory whose handle is released
    int at[TILES];                           // piece behind a tile; -1: none

    static CUmemGenericAllocationHandle memory(size_t size)
    {
        CUmemAllocationProp p = {};
        p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        p.allocFlags.usage = CU_MEM_CREATE_USAGE_TILE_POOL;
        size_t unit;
        DRIVER(cuMemGetAllocationGranularity, &unit, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
        CUmemGenericAllocationHandle h;
        DRIVER(cuMemCreate, &h, (size + unit - 1) / unit * unit, &p, 0);
        return h;
    }

    Tiled()
    {
        CUDA_ARRAY3D_DESCRIPTOR d = {};
        d.Width = d.Height = 128 * SIDE, d.Format = CU_AD_FORMAT_UNSIGNED_INT32, d.NumChannels = 1, d.Flags = CUDA_ARRAY3D_SPARSE;
        CUresult made = driver((decltype(&cuArray3DCreate_v2))nullptr, "cuArray3DCreate_v2")(&array, &d);
        if (made == CUDA_ERROR_NOT_SUPPORTED) {
            printf("this device has no sparse arrays\n");
            _Exit(77);
        }
        CUDA_ARRAY_SPARSE_PROPERTIES tile = {};
        expect(made == CUDA_SUCCESS, "a sparse array");
        DRIVER(cuArrayGetSparseProperties, &tile, array);
        width = tile.tileExtent.width, height = tile.tileExtent.height;
        expect(width * height == WORDS && 128 * SIDE == SIDE * width && 128 * SIDE == SIDE * height, "tiles");
        DRIVER(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
        pool = memory((size_t)PIECES * BYTES), released = memory(BYTES);
        for (int i = 0; i < TILES; i++)
            at[i] = -1;
        for (auto &h : holds)
            h.assign(WORDS, 0);
        for (int i = 0; i < PIECES; i++) { // each has been written, behind whatever tile
            map(0, i);
            write(0, i);
        }
        map(TILES - 1, PIECES);
        write(TILES - 1, 77);
        DRIVER(cuMemRelease, released);
        map(0, -1);
    }

    // map has a piece lie behind a tile, or none.
    void map(int tile, int piece)
    {
        CUarrayMapInfo m = {};
        m.resourceType = CU_RESOURCE_TYPE_ARRAY;
        m.resource.array = array;
        m.subresource.sparseLevel.offsetX = tile % SIDE * width, m.subresource.sparseLevel.offsetY = tile / SIDE * height;
        m.subresource.sparseLevel.extentWidth = width, m.subresource.sparseLevel.extentHeight = height, m.subresource.sparseLevel.extentDepth = 1;
        m.memOperationType = piece < 0 ? CU_MEM_OPERATION_TYPE_UNMAP : CU_MEM_OPERATION_TYPE_MAP;
        m.memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
        m.memHandle.memHandle = piece < 0 ? 0 : piece == PIECES ? released : pool;
        m.offset = piece < 0 || piece == PIECES ? 0 : (unsigned long long)piece * BYTES;
        m.deviceBitMask = 1;
        DRIVER(cuMemMapArrayAsync, &m, 1, stream);
        at[tile] = piece;
    }

    void copy(int tile, uint32_t *h, bool in)
    {
        CUDA_MEMCPY2D m = {};
        m.srcMemoryType = in ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_ARRAY, m.dstMemoryType = in ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_HOST;
        size_t x = (size_t)(tile % SIDE) * width * 4, y = (size_t)(tile / SIDE) * height;
        if (in)
            m.srcHost = h, m.srcPitch = width * 4, m.dstArray = array, m.dstXInBytes = x, m.dstY = y;
        else
            m.dstHost = h, m.dstPitch = width * 4, m.srcArray = array, m.srcXInBytes = x, m.srcY = y;
        m.WidthInBytes = width * 4, m.Height = height;
        DRIVER(cuMemcpy2DAsync_v2, &m, stream);
        DRIVER(cuStreamSynchronize, stream);
    }

    void write(int tile, uint32_t seed)
    {
        std::vector<uint32_t> &h = holds[at[tile]];
        for (int i = 0; i < WORDS; i++)
            h[i] = mix(i + seed);
        copy(tile, h.data(), true);
    }

    bool right(int tile)
    {
        std::vector<uint32_t> got(WORDS);
        copy(tile, got.data(), false);
        return got == holds[at[tile]];
    }
};

static void tiles(Rounds &r)
{
    CUDA(cudaFree(0));
    Tiled t;
    uint32_t x = 1;
    while (r.next()) {
        int tile = (int)(r.n % (Tiled::TILES - 1)), piece = (int)((x = scramble(x, (uint32_t)r.n)) >> 8) % Tiled::PIECES;
        for (int i = 0; i < Tiled::TILES; i++) // behind one tile at a time
            if (t.at[i] == piece)
                t.map(i, -1);
        t.map(tile, piece);
        r.check(t.right(tile));
        t.write(tile, x);
        for (int i = 0; i < Tiled::TILES; i++)
            r.check(t.at[i] < 0 || t.right(i));
    }
}
