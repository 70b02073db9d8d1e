// Managed memory that two GPUs and the CPU use in turns: kernels of both on one allocation,
// prefetches and advice to each, copies between, small objects, and every byte compared. Status 77
// where there is one GPU. Arguments: rounds (60), seed. needs: cuda 13.0
#include "driver.h"

#include <unistd.h>
#include <vector>

__global__ void stir(uint8_t *p, size_t n, uint32_t v)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        p[i] = (uint8_t)(p[i] * 5 + v + i);
}

__global__ void step(uint32_t *p, size_t n, uint32_t v)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        p[i] = p[i] * 3 + v;
}

static uint64_t state;
static uint64_t draw(uint64_t below)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state % below;
}

static CUresult prefetch(const void *p, size_t n, int dev)
{
    CUmemLocation l = {dev < 0 ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE, dev < 0 ? 0 : dev};
    return cuMemPrefetchAsync_v2((CUdeviceptr)p, n, l, 0, 0);
}

static int last(const void *p, size_t n)
{
    int v = -9;
    CU(cuMemRangeGetAttribute(&v, 4, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, (CUdeviceptr)p, n));
    return v;
}

struct area {
    uint8_t *p;
    std::vector<uint8_t> want;
};

// Everybody's turn comes when the others have done.
static void turns(long rounds)
{
    std::vector<area> all;
    size_t wrong = 0;
    for (size_t n : {100ul, 20000ul, 900000ul, 3000000ul, 5ul << 20}) {
        CUDA(cudaSetDevice(all.size() % 2)); // either's
        area a;
        managed(&a.p, n);
        memset(a.p, 3, n);
        a.want.assign(n, 3);
        all.push_back(a);
    }
    for (long r = 0; r < rounds && !wrong; r++) {
        area &a = all[draw(all.size())], &b = all[draw(all.size())];
        int dev = (int)draw(2);
        size_t at = draw(a.want.size()), n = 1 + draw(a.want.size() - at);
        uint32_t v = (uint32_t)draw(256);
        CUDA(cudaSetDevice(dev));
        switch (draw(6)) {
        case 0:
        case 1:
            stir<<<8, 128>>>(a.p + at, n, v);
            for (size_t i = 0; i < n; i++)
                a.want[at + i] = (uint8_t)(a.want[at + i] * 5 + v + i);
            break;
        case 2:
            for (size_t i = at; i < at + n; i += 1 + draw(3000))
                a.p[i] ^= v, a.want[i] ^= v;
            break;
        case 3: {
            int to = (int)draw(3) - 1;
            CU(prefetch(a.p + at, n, to));
            break;
        }
        case 4:
            n = std::min(n, b.want.size());
            if (&a == &b)
                break;
            if (draw(2))
                CUDA(cudaMemcpyPeer(b.p, 1 - dev, a.p + at, dev, n));
            else
                CUDA(cudaMemcpy(b.p, a.p + at, n, cudaMemcpyDefault));
            memcpy(b.want.data(), a.want.data() + at, n);
            break;
        default: {
            CUmem_advise what[] = {CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CU_MEM_ADVISE_SET_ACCESSED_BY, CU_MEM_ADVISE_UNSET_ACCESSED_BY,
                                   CU_MEM_ADVISE_SET_READ_MOSTLY, CU_MEM_ADVISE_UNSET_READ_MOSTLY};
            CU(cuMemAdvise_v2((CUdeviceptr)a.p + at, n, what[draw(5)], {CU_MEM_LOCATION_TYPE_DEVICE, (int)draw(2)}));
        }
        }
        CUDA(cudaDeviceSynchronize());
        if (draw(3) == 0)
            wrong += memcmp(b.p, b.want.data(), b.want.size()) != 0;
    }
    for (area &a : all)
        wrong += memcmp(a.p, a.want.data(), a.want.size()) != 0;
    expect(wrong == 0, "two GPUs and the CPU take turns");
    for (area &a : all)
        CUDA(cudaFree(a.p));
}

// An event of one GPU orders the other's kernel behind it.
static void in_order()
{
    const size_t n = 2 << 20;
    uint8_t *p;
    size_t bad = 0;
    cudaStream_t s[2];
    cudaEvent_t e[2];
    for (int d = 0; d < 2; d++) {
        CUDA(cudaSetDevice(d));
        CUDA(cudaStreamCreateWithFlags(&s[d], cudaStreamNonBlocking));
        CUDA(cudaEventCreateWithFlags(&e[d], cudaEventDisableTiming));
    }
    managed(&p, n);
    memset(p, 1, n);
    std::vector<uint8_t> want(n, 1);
    for (uint32_t k = 0; k < 6; k++) {
        int d = k % 2;
        CUDA(cudaSetDevice(d));
        CUDA(cudaStreamWaitEvent(s[d], e[1 - d], 0));
        stir<<<16, 256, 0, s[d]>>>(p, n, k);
        CUDA(cudaEventRecord(e[d], s[d]));
        for (size_t i = 0; i < n; i++)
            want[i] = (uint8_t)(want[i] * 5 + k + i);
    }
    CUDA(cudaEventSynchronize(e[1]));
    bad = memcmp(p, want.data(), n) != 0;
    expect(bad == 0, "kernels of both, one behind the other");
    for (int d = 0; d < 2; d++) {
        CUDA(cudaSetDevice(d));
        CUDA(cudaStreamDestroy(s[d]));
        CUDA(cudaEventDestroy(e[d]));
    }
    CUDA(cudaFree(p));
}

static void asked()
{
    const size_t n = 4 << 20;
    uint8_t *p;
    managed(&p, n);
    memset(p, 9, n);
    for (int dev : {0, 1, -1, 1}) {
        CU(prefetch(p, n, dev));
        printf("last prefetch %d\n", last(p, n));
    }
    CU(prefetch(p, n / 2, 0));
    printf("of halves %d, %d, of both %d\n", last(p, n / 2), last(p + n / 2, n / 2), last(p, n));
    for (int d = 0; d < 2; d++) {
        int by[3] = {-9, -9, -9};
        CU(cuMemAdvise_v2((CUdeviceptr)p, n, CU_MEM_ADVISE_SET_ACCESSED_BY, {CU_MEM_LOCATION_TYPE_DEVICE, d}));
        CU(cuMemRangeGetAttribute(by, sizeof by, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, (CUdeviceptr)p, n));
        printf("accessed by %d %d %d\n", by[0], by[1], by[2]);
    }
    for (int d = 0; d < 2; d++) {
        CUDA(cudaSetDevice(d));
        CUDA(cudaDeviceSynchronize());
    }
    size_t bad = 0;
    for (size_t i = 0; i < n; i++)
        bad += p[i] != 9;
    expect(bad == 0, "prefetches to each");
    CUDA(cudaFree(p));
}

// What turns up to this one make of a word.
static uint32_t want(uint32_t i, uint32_t turn)
{
    uint32_t x = i;
    for (uint32_t t = 0; t <= turn; t++) {
        x = x * 3 + t;
        if (t == 2 && i == 77)
            x += 5;
        x = x * 3 + t + 100;
    }
    return x;
}

static size_t room_of(int dev)
{
    size_t left, all;
    CUDA(cudaSetDevice(dev));
    CUDA(cudaMemGetInfo(&left, &all));
    return left;
}

// Until n bytes have left a GPU and are at another, whose rooms before are given: a prefetch waits
// for neither, and there is room for both meanwhile. A driver takes some MiB of its own, for the
// mappings (2 on an H200, 580), so they count as moved if most are.
static bool comes(int to, size_t before, int from, size_t left, size_t n)
{
    n -= n / 2;
    double end = seconds() + 60;
    for (;;) {
        size_t there = room_of(to), here = room_of(from);
        if (there + n <= before && here >= left + n)
            return true;
        if (seconds() > end) {
            note("room at %d: %zu, %zu before; at %d: %zu, %zu before", to, there, before, from, here, left);
            return false;
        }
        usleep(1000);
    }
}

// A prefetch moves what it names, to the other GPU and back: it leaves the one and is at the other,
// with its bytes.
static void goes_over()
{
    const size_t n = 8 << 20, words = n / 4;
    uint32_t *p;
    int both = 0;
    CUDA(cudaDeviceGetAttribute(&both, cudaDevAttrConcurrentManagedAccess, 0));
    CUDA(cudaSetDevice(0));
    managed(&p, n);
    for (size_t i = 0; i < words; i++)
        p[i] = (uint32_t)i;
    size_t bad = 0;
    // Else both have the room that the limit leaves, or a driver's moves are its own.
    bool over = true, told = room_of(0) != room_of(1) && !both;
    for (uint32_t turn = 0; turn < 4; turn++) {
        int from = turn % 2, to = !from;
        CUDA(cudaSetDevice(from));
        step<<<64, 256>>>(p, words, turn);
        CUDA(cudaDeviceSynchronize());
        if (turn == 2)
            p[77] += 5; // the CPU has some of it
        size_t before = room_of(to), left = room_of(from);
        CU(prefetch(p, n, to));
        over &= !told || comes(to, before, from, left, n);
        CUDA(cudaSetDevice(to));
        step<<<64, 256>>>(p, words, turn + 100);
        CUDA(cudaDeviceSynchronize());
        if (turn % 2)
            bad += p[4096 * turn] != want(4096 * turn, turn);
    }
    for (size_t i = 0; i < words; i++)
        bad += p[i] != want((uint32_t)i, 3);
    expect(bad == 0, "what goes over has its bytes");
    expect(over, "and is at the other GPU");
    CUDA(cudaFree(p));
    CUDA(cudaSetDevice(0));
}

int main(int argc, char **argv)
{
    // Where the device promises that both may use it at once too.
    setenv("CAUSEWAY_MANAGED", "gpu", 0);
    int devices = 0, there = 0, back = 0;
    CUDA(cudaGetDeviceCount(&devices));
    if (devices < 2) {
        printf("skipped: one GPU\n");
        return 77;
    }
    note_device();
    state = 88172645463325252ull + (uint64_t)argument(argc, argv, 2, 0);
    CUDA(cudaDeviceCanAccessPeer(&there, 0, 1));
    CUDA(cudaDeviceCanAccessPeer(&back, 1, 0));
    note("peer access %d %d", there, back);
    asked();
    goes_over();
    in_order();
    turns(argument(argc, argv, 1, 60));
    if (there && back) {
        CUDA(cudaSetDevice(0));
        CUDA(cudaDeviceEnablePeerAccess(1, 0));
        turns(argument(argc, argv, 1, 60));
    }
    return finish();
}
