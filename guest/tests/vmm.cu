// Virtual memory management: reservations, physical memory, mappings, access, copies and kernels
// over several mappings.
// needs: cuda 11.8
#include "driver.h"

static const size_t M = 2 << 20;
static CUdevice device;
static CUmemAllocationProp prop;

static int attribute(CUdevice_attribute a)
{
    int v = -1;
    CU(cuDeviceGetAttribute(&v, a, device));
    return v;
}

static void set_access(CUdeviceptr p, size_t size, CUmemAccess_flags flags)
{
    CUmemAccessDesc d = {};
    d.location = prop.location;
    d.flags = flags;
    CU(cuMemSetAccess(p, size, &d, 1));
}

static unsigned long long access_of(CUdeviceptr p)
{
    unsigned long long f = 99;
    CU(cuMemGetAccess(&f, &prop.location, p));
    return f;
}

template <class T> static T ask(CUdeviceptr p, CUpointer_attribute a)
{
    T v = {};
    CU(cuPointerGetAttribute(&v, a, p));
    return v;
}

__global__ static void fill(uint32_t *p, size_t n)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n)
        p[i] = mix((uint32_t)i);
}

static void refusals(CUdeviceptr va, CUmemGenericAllocationHandle two, CUmemGenericAllocationHandle one)
{
    CUdeviceptr p = 0;
    CUmemGenericAllocationHandle h;
    CUmemAllocationProp q = prop;
    CUmemAccessDesc d = {};
    printf("reserve nothing: %s\n", name_of(cuMemAddressReserve(&p, 0, 0, 0, 0)));
    printf("reserve a page: %s\n", name_of(cuMemAddressReserve(&p, 4096, 0, 0, 0)));
    printf("reserve with alignment 3: %s\n", name_of(cuMemAddressReserve(&p, M, 3, 0, 0)));
    printf("reserve with flags: %s\n", name_of(cuMemAddressReserve(&p, M, 0, 0, 1)));
    printf("create a page: %s\n", name_of(cuMemCreate(&h, 4096, &prop, 0)));
    printf("create with flags: %s\n", name_of(cuMemCreate(&h, M, &prop, 1)));
    printf("create 8 TiB: %s\n", name_of(cuMemCreate(&h, 1ull << 43, &prop, 0)));
    q.location.id = 99;
    printf("create on device 99: %s\n", name_of(cuMemCreate(&h, M, &q, 0)));
    q = prop;
    q.type = CU_MEM_ALLOCATION_TYPE_INVALID;
    printf("create of no type: %s\n", name_of(cuMemCreate(&h, M, &q, 0)));
    printf("map too little memory: %s\n", name_of(cuMemMap(va, 2 * M, 0, one, 0)));
    printf("map a part: %s\n", name_of(cuMemMap(va, M, 0, two, 0)));
    printf("map between units: %s\n", name_of(cuMemMap(va + 4096, M, 0, one, 0)));
    printf("map with flags: %s\n", name_of(cuMemMap(va, M, 0, one, 1)));
    d.location = prop.location;
    d.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    printf("access to nothing: %s\n", name_of(cuMemSetAccess(va, M, &d, 1)));
    printf("access of nothing: %s\n", name_of(cuMemGetAccess((unsigned long long *)&p, &prop.location, va)));
    printf("retain of nothing: %s\n", name_of(cuMemRetainAllocationHandle(&h, (void *)va)));
    printf("attribute of reserved addresses: %s\n", name_of(cuPointerGetAttribute(&p, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, va)));
    printf("memset of reserved addresses: %s\n", name_of(cuMemsetD8(va, 1, 4)));
}

static void mapped(CUdeviceptr va, CUmemGenericAllocationHandle two, CUmemGenericAllocationHandle one)
{
    CUdeviceptr base = 0;
    size_t size = 0;
    CUmemAccessDesc d = {};
    d.location = prop.location;
    d.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CU(cuMemMap(va, 2 * M, 0, two, 0));
    printf("map over it: %s\n", name_of(cuMemMap(va + M, M, 0, one, 0)));
    CU(cuMemMap(va + 2 * M, M, 0, one, 0));
    CU(cuMemMap(va + 4 * M, M, 0, one, 0));
    printf("access before: %llu\n", access_of(va));
    printf("memset before access: %s\n", name_of(cuMemsetD8(va, 1, 4)));
    printf("pointer before access: %s\n", name_of(cuPointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, va)));
    printf("range before access: %s\n", name_of(cuMemGetAddressRange(&base, &size, va)));
    printf("access to a part: %s\n", name_of(cuMemSetAccess(va, M, &d, 1)));
    printf("access over a hole: %s\n", name_of(cuMemSetAccess(va, 4 * M, &d, 1)));
    printf("access for nobody: %s\n", name_of(cuMemSetAccess(va, 2 * M, &d, 0)));
    d.location.id = 99;
    printf("access for device 99: %s\n", name_of(cuMemSetAccess(va, 2 * M, &d, 1)));
    set_access(va, 3 * M, CU_MEM_ACCESS_FLAGS_PROT_READ);
    printf("access: %llu\n", access_of(va + 7));
    set_access(va, 3 * M, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    set_access(va + 4 * M, M, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    printf("access: %llu\n", access_of(va + 2 * M));
    CU(cuMemGetAddressRange(&base, &size, va + 100));
    expect(base == va && size == 2 * M, "range of the first mapping");
    CU(cuMemGetAddressRange(&base, &size, va + 2 * M + 100));
    expect(base == va + 2 * M && size == M, "range of the second mapping");
    expect(ask<unsigned>(va, CU_POINTER_ATTRIBUTE_MEMORY_TYPE) == CU_MEMORYTYPE_DEVICE, "memory type");
    expect(ask<CUdeviceptr>(va + 5, CU_POINTER_ATTRIBUTE_DEVICE_POINTER) == va + 5, "device pointer");
    expect(ask<CUdeviceptr>(va + 5, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) == va, "range start is the reservation's");
    expect(ask<CUcontext>(va, CU_POINTER_ATTRIBUTE_CONTEXT) == nullptr, "memory of no context");
    expect(ask<int>(va, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) == 0, "device ordinal");
    expect(ask<int>(va, CU_POINTER_ATTRIBUTE_MAPPED) == 1, "mapped");
    expect(ask<unsigned long long>(va, CU_POINTER_ATTRIBUTE_BUFFER_ID) != ask<unsigned long long>(va + 2 * M, CU_POINTER_ATTRIBUTE_BUFFER_ID),
           "buffer ids differ");
    printf("free of a mapping: %s\n", name_of(cuMemFree(va)));
}

static void copies(CUdeviceptr va)
{
    size_t n = 3 * M / 4;
    uint32_t *host = (uint32_t *)malloc(3 * M), *back = (uint32_t *)malloc(3 * M), word = 0;
    fill<<<(unsigned)((n + 255) / 256), 256>>>((uint32_t *)va, n);
    CUDA(cudaGetLastError());
    CU(cuMemcpyDtoH(back, va, 3 * M));
    bool same = true;
    for (size_t i = 0; i < n; i++)
        same = same && back[i] == mix((uint32_t)i);
    expect(same, "a kernel and a copy over two mappings");
    CU(cuMemcpyDtoH(&word, va + 4 * M + 64, 4));
    expect(word == mix((uint32_t)(2 * M + 64) / 4), "the same memory at a second address");
    for (size_t i = 0; i < n; i++)
        host[i] = mix((uint32_t)i ^ 0x5555);
    CU(cuMemcpyHtoD(va, host, 3 * M));
    CU(cuMemsetD32(va + 2 * M - 8, 0x01020304, 4));
    for (int i = -2; i < 2; i++)
        host[2 * M / 4 + i] = 0x01020304;
    memset(back, 0, 3 * M);
    CU(cuMemcpyDtoH(back, va, 3 * M));
    expect(!memcmp(host, back, 3 * M), "copies and a memset over two mappings");
    CU(cuMemcpyDtoH(back, va + 2 * M - 16, 32));
    expect(!memcmp(back, host + 2 * M / 4 - 4, 32), "a small copy over two mappings");
    printf("memset past the mappings: %s\n", name_of(cuMemsetD8(va, 1, 3 * M + 1)));
    free(host);
    free(back);
}

static void handles(CUdeviceptr va, CUmemGenericAllocationHandle two)
{
    CUmemGenericAllocationHandle h = 0, other;
    CUmemAllocationProp q = {};
    CUdeviceptr plain;
    CU(cuMemRetainAllocationHandle(&h, (void *)(va + M + 17)));
    expect(h == two, "the handle of an address");
    CU(cuMemGetAllocationPropertiesFromHandle(&q, h));
    expect(q.type == prop.type && q.location.type == prop.location.type && q.location.id == 0, "its properties");
    CU(cuMemAlloc(&plain, 1 << 20));
    printf("handle of cuMemAlloc: %s\n", name_of(cuMemRetainAllocationHandle(&other, (void *)plain)));
    CU(cuMemFree(plain));
    CU(cuMemRelease(h));
    CU(cuMemRelease(two));
    CU(cuMemRetainAllocationHandle(&h, (void *)va)); // lives by its mapping
    expect(h == two, "memory outlives its handle");
    CU(cuMemRelease(h));
}

static void unmapping(CUdeviceptr va, size_t size, CUmemGenericAllocationHandle one)
{
    printf("unmap a part: %s\n", name_of(cuMemUnmap(va, M)));
    printf("unmap a page: %s\n", name_of(cuMemUnmap(va, 4096)));
    printf("free addresses in use: %s\n", name_of(cuMemAddressFree(va, size)));
    CU(cuMemUnmap(va, 3 * M));
    printf("unmap again: %s\n", name_of(cuMemUnmap(va, 3 * M)));
    printf("unmap with a hole: %s\n", name_of(cuMemUnmap(va + 3 * M, 2 * M)));
    printf("attribute of unmapped addresses: %s\n", name_of(cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, va)));
    size = 16 * M;
    CU(cuMemRelease(one));
    printf("free a part: %s\n", name_of(cuMemAddressFree(va, 8 * M)));
    printf("free from within: %s\n", name_of(cuMemAddressFree(va + M, 15 * M)));
    CU(cuMemAddressFree(va, size));
    printf("free again: %s\n", name_of(cuMemAddressFree(va, size)));
}

// grow works as growing arrays do: one reservation, memory added piece by piece, contents kept.
static void grow()
{
    CUdeviceptr va;
    CUmemGenericAllocationHandle h[8];
    size_t total = 0, free0 = 0, free1 = 0, free2 = 0;
    bool same = true;
    CU(cuMemGetInfo(&free0, &total));
    CU(cuMemAddressReserve(&va, 64 * M, 0, 0, 0));
    for (int i = 0; i < 8; i++) {
        CU(cuMemCreate(&h[i], M, &prop, 0));
        CU(cuMemMap(va + i * M, M, 0, h[i], 0));
        CU(cuMemRelease(h[i]));
        set_access(va + i * M, M, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        CU(cuMemsetD8(va + i * M, (unsigned char)(i + 1), M));
    }
    CU(cuMemGetInfo(&free1, &total));
    for (int i = 0; i < 8; i++) {
        unsigned char c = 0;
        CU(cuMemcpyDtoH(&c, va + i * M + M / 2, 1));
        same = same && c == i + 1;
    }
    expect(same, "growing keeps contents");
    CU(cuMemUnmap(va, 8 * M));
    CU(cuMemAddressFree(va, 64 * M));
    CU(cuMemGetInfo(&free2, &total));
    note("free: %zu, %zu, %zu", free0, free1, free2); // others may use the same GPU
}

int main()
{
    CUdeviceptr va = 0, aligned = 0;
    CUmemGenericAllocationHandle two, one;
    size_t unit = 0, best = 0;
    CUDA(cudaFree(nullptr)); // the primary context is current
    CU(cuDeviceGet(&device, 0));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = 0;
    printf("supported: %d\n", attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED));
    CU(cuMemGetAllocationGranularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CU(cuMemGetAllocationGranularity(&best, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    expect(unit == M && best == M, "granularity is 2 MiB");
    CU(cuMemAddressReserve(&va, 16 * M, 0, 0, 0));
    CU(cuMemAddressReserve(&aligned, M, 1 << 30, 0, 0));
    expect(va % M == 0 && aligned % (1 << 30) == 0, "addresses are aligned");
    CU(cuMemAddressFree(aligned, M));
    CU(cuMemCreate(&two, 2 * M, &prop, 0));
    CU(cuMemCreate(&one, M, &prop, 0));
    refusals(va, two, one);
    mapped(va, two, one);
    copies(va);
    handles(va, two);
    unmapping(va, 16 * M, one);
    grow();
    return finish();
}
