// Batches of copies, of bytes and of boxes, and what is refused in them. needs: cuda 12.8
#include "driver.h"

#include <vector>

// The functions of CUDA 12.8, whatever the headers call them.
typedef CUresult (*Linear)(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, CUmemcpyAttributes *, size_t *, size_t, size_t *, CUstream);
typedef CUresult (*Boxes)(size_t, CUDA_MEMCPY3D_BATCH_OP *, size_t *, unsigned long long, CUstream);

int main()
{
    CUdevice device;
    CUcontext context;
    CU(cuInit(0));
    CU(cuDeviceGet(&device, 0));
    CU(cuDevicePrimaryCtxRetain(&context, device));
    CU(cuCtxSetCurrent(context));
    Linear linear = nullptr;
    Boxes boxes = nullptr;
    CU(cuGetProcAddress("cuMemcpyBatchAsync", (void **)&linear, 12080, 0, nullptr));
    CU(cuGetProcAddress("cuMemcpy3DBatchAsync", (void **)&boxes, 12080, 0, nullptr));
    CUstream s;
    CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    const size_t n = 100000;
    CUdeviceptr p, q;
    CU(cuMemAlloc(&p, 4 * n));
    CU(cuMemAlloc(&q, 4 * n));
    std::vector<uint32_t> a(n), b(n), o(n);
    for (size_t i = 0; i < n; i++)
        a[i] = mix(i), b[i] = mix(i + n);
    CUdeviceptr dst[3] = {p, q, p + 200}, src[3] = {(CUdeviceptr)a.data(), (CUdeviceptr)b.data(), q + 200};
    size_t size[3] = {4 * n, 200, 1000}, first[2] = {0, 1}, fail = 555;
    CUmemcpyAttributes attrs[2] = {};
    attrs[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    attrs[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
    CU(cuMemcpyHtoD(q, b.data(), 4 * n));
    CU(linear(dst, src, size, 2, attrs, first, 2, &fail, s));
    expect(fail == SIZE_MAX, "nothing failed");
    CUdeviceptr back[2] = {(CUdeviceptr)o.data(), (CUdeviceptr)o.data() + 1000}, from[2] = {p, q + 1000};
    size_t parts[2] = {1000, 4 * n - 1000};
    CU(linear(back, from, parts, 2, attrs, first, 1, &fail, s));
    CU(cuStreamSynchronize(s));
    expect(!memcmp(o.data(), a.data(), 1000) && !memcmp(&o[250], &b[250], 4 * n - 1000), "bytes");
    // Pinned memory, more copies than fit one message, their sources free after the call.
    const size_t pieces = 3000, words = 17;
    uint32_t *pinned;
    CUdeviceptr r;
    CU(cuMemHostAlloc((void **)&pinned, pieces * words * 4, 0));
    CU(cuMemAlloc(&r, pieces * words * 4));
    for (int order = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM; order <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY; order++) {
        std::vector<CUdeviceptr> to(pieces), of(pieces);
        std::vector<size_t> bytes(pieces, words * 4);
        for (size_t i = 0; i < pieces * words; i++)
            pinned[i] = mix(i + order);
        for (size_t i = 0; i < pieces; i++)
            to[i] = r + i * 7 % pieces * words * 4, of[i] = (CUdeviceptr)(pinned + i * words);
        CUmemcpyAttributes one[2] = {};
        size_t at[2] = {0, 1000};
        one[0].srcAccessOrder = one[1].srcAccessOrder = (CUmemcpySrcAccessOrder)order;
        one[1].flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
        CU(linear(to.data(), of.data(), bytes.data(), pieces, one, at, 2, &fail, s));
        if (order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL)
            memset(pinned, 0, pieces * words * 4);
        CU(cuStreamSynchronize(s));
        for (size_t i = 0; i < pieces; i++)
            std::swap(to[i], of[i]);
        memset(pinned, 0, pieces * words * 4);
        one[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
        CU(linear(to.data(), of.data(), bytes.data(), pieces, one, at, 1, &fail, s));
        CU(cuStreamSynchronize(s));
        bool same = true;
        for (size_t i = 0; i < pieces * words; i++)
            same = same && pinned[i] == mix(i + order);
        expect(same, "pinned pieces");
    }
    CU(cuMemFreeHost(pinned));
    CU(cuMemFree(r));
    struct {
        const char *what;
        size_t *field, value;
    } bad[] = {{"too long", &size[1], 1 << 30}, {"nothing to copy", &size[2], 0}, {"no destination", (size_t *)&dst[1], 0}};
    for (auto &t : bad) {
        size_t good = *t.field;
        *t.field = t.value;
        fail = 555;
        CUresult r = linear(dst, src, size, 3, attrs, first, 1, &fail, s);
        printf("%s: %s at %zu\n", t.what, name_of(r), fail);
        *t.field = good;
    }
    printf("default stream: %s\n", name_of(linear(dst, src, size, 3, attrs, first, 1, &fail, nullptr)));
    printf("no copies: %s\n", name_of(linear(dst, src, size, 0, attrs, first, 1, &fail, s)));
    printf("no attributes: %s\n", name_of(linear(dst, src, size, 3, attrs, first, 0, &fail, s)));
    printf("attributes from the second on: %s\n", name_of(linear(dst, src, size, 3, attrs, &first[1], 1, &fail, s)));
    attrs[0].srcAccessOrder = (CUmemcpySrcAccessOrder)9;
    printf("no such order: %s\n", name_of(linear(dst, src, size, 3, attrs, first, 1, &fail, s)));

    CUDA_ARRAY3D_DESCRIPTOR d = {};
    d.Width = 32, d.Height = 16, d.Depth = 4, d.Format = CU_AD_FORMAT_FLOAT, d.NumChannels = 1;
    CUarray array;
    CU(cuArray3DCreate(&array, &d));
    CUDA_MEMCPY3D_BATCH_OP op[2] = {};
    op[0].src.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    op[0].src.op.ptr.ptr = (CUdeviceptr)a.data();
    op[0].dst.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
    op[0].dst.op.array.array = array;
    op[0].extent.width = 32, op[0].extent.height = 16, op[0].extent.depth = 4;
    op[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
    op[1].src.type = op[1].dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    op[1].src.op.ptr.ptr = (CUdeviceptr)b.data();
    op[1].src.op.ptr.rowLength = 400, op[1].src.op.ptr.layerHeight = 10;
    op[1].dst.op.ptr.ptr = p;
    op[1].extent.width = 200, op[1].extent.height = 8, op[1].extent.depth = 3;
    op[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    CU(boxes(2, op, &fail, 0, s));
    CU(cuStreamSynchronize(s));
    std::fill(o.begin(), o.end(), 0);
    CU(cuMemcpyDtoH(o.data(), p, 4800));
    bool good = true;
    for (int z = 0; z < 3; z++)
        for (int y = 0; y < 8; y++)
            good = good && !memcmp((char *)o.data() + (z * 8 + y) * 200, (char *)b.data() + (z * 10 + y) * 400, 200);
    expect(good, "boxes");
    op[0].dst = op[0].src;
    op[0].dst.op.ptr.ptr = (CUdeviceptr)o.data();
    op[0].src.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
    op[0].src.op.array.array = array;
    op[0].src.op.array.offset.x = 0, op[0].src.op.array.offset.y = 1, op[0].src.op.array.offset.z = 2;
    op[0].extent.height = 15, op[0].extent.depth = 2;
    CU(boxes(1, op, &fail, 0, s));
    CU(cuStreamSynchronize(s));
    good = true;
    for (int z = 0; z < 2; z++)
        good = good && !memcmp(&o[z * 15 * 32], &a[((z + 2) * 16 + 1) * 32], 15 * 32 * 4);
    expect(good, "out of an array");
    op[1].src.op.ptr.rowLength = 100;
    printf("rows too short: %s\n", name_of(boxes(2, op, &fail, 0, s)));
    printf("flags: %s\n", name_of(boxes(1, op, &fail, 1, s)));
    op[0].extent.depth = 0;
    printf("no depth: %s\n", name_of(boxes(1, op, &fail, 0, s)));
    CU(cuArrayDestroy(array));
    CU(cuMemFree(p));
    CU(cuMemFree(q));
    CU(cuStreamDestroy(s));
    CU(cuDevicePrimaryCtxRelease(device));
    return finish();
}
