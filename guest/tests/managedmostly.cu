// Managed memory that is advised to be read mostly, and written all the same: by kernels, copies,
// fills and the processor, by system calls, beside threads that read it without a pause, in parts
// that the program locks, protects or throws away, over children, and freed while there are
// duplicates. Never an old byte; and where the processor's copy stays in memory while kernels run,
// it does. needs: cuda 13.0
#include "driver.h"

#include <atomic>
#include <dirent.h>
#include <csetjmp>
#include <csignal>
#include <fcntl.h>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

static const size_t MIB = 1 << 20, PAGE = 4096;

__global__ void sum(const uint32_t *p, size_t n, uint32_t *out)
{
    uint32_t s = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        s += p[i];
    atomicAdd(out, s);
}
__global__ void add(uint32_t *p, size_t n, size_t step, uint32_t v)
{
    for (size_t i = (blockIdx.x * (size_t)blockDim.x + threadIdx.x) * step; i < n; i += (size_t)gridDim.x * blockDim.x * step)
        p[i] += v;
}
__global__ void set(uint32_t *p, size_t n, uint32_t v)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        p[i] = v;
}

static CUresult advise(const void *p, size_t n, CUmem_advise what) { return cuMemAdvise_v2((CUdeviceptr)p, n, what, {CU_MEM_LOCATION_TYPE_DEVICE, 0}); }

// A table, and what must be in it.
struct table {
    uint32_t *p, *out;
    std::vector<uint32_t> want;

    explicit table(size_t n) : want(n)
    {
        managed(&p, n * 4);
        CUDA(cudaMalloc(&out, 4));
        for (size_t i = 0; i < n; i++)
            p[i] = want[i] = mix((uint32_t)i);
        CU(advise(p, n * 4, CU_MEM_ADVISE_SET_READ_MOSTLY));
    }
    ~table()
    {
        CUDA(cudaFree(p));
        CUDA(cudaFree(out));
    }
    size_t size() const { return want.size(); }
    bool here() const { return !memcmp(p, want.data(), size() * 4); }
    // What a kernel reads.
    bool there()
    {
        uint32_t is, should = 0;
        CUDA(cudaMemset(out, 0, 4));
        sum<<<64, 256>>>(p, size(), out);
        CUDA(cudaMemcpy(&is, out, 4, cudaMemcpyDeviceToHost));
        for (uint32_t w : want)
            should += w;
        return is == should;
    }
    bool right() { return here() && there() && here(); }
};

static size_t resident()
{
    size_t pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%*s %zu", &pages) != 1)
        pages = 0;
    if (f)
        fclose(f);
    return pages * PAGE;
}

// Whether the library serves the faults of managed memory here.
static bool served()
{
    bool found = false;
    DIR *d = opendir("/proc/self/task");
    for (dirent *e; d && !found && (e = readdir(d)) != nullptr;) {
        std::string path = "/proc/self/task/" + std::string(e->d_name) + "/comm";
        char name[32] = "";
        FILE *f = fopen(path.c_str(), "r");
        if (f && fgets(name, sizeof name, f))
            found = !strncmp(name, "causeway-pages", 14);
        if (f)
            fclose(f);
    }
    if (d)
        closedir(d);
    return found;
}

// Both read it, again and again. Its pages are counted while the GPU works.
static void readers()
{
    table t(4 * MIB / 4);
    bool right = t.right();
    size_t least = SIZE_MAX, with, without;
    for (int round = 0; round < 4; round++) {
        right &= t.here() && t.there();
        with = resident();
        least = with < least ? with : least;
    }
    bool kept = served();
    right &= t.here() && t.there();
    CU(advise(t.p, t.size() * 4, CU_MEM_ADVISE_UNSET_READ_MOSTLY));
    right &= t.there();
    without = resident();
    note("%zu KiB of it stay in memory%s", (least - without) >> 10, kept ? "" : ", a driver knows of it");
    expect(right, "both read a table");
    expect(!kept || least > without + MIB, "its duplicate stays");
}

// One word at a time, in each place of a table: first, last, in holes of what the processor has.
static void written()
{
    table t(5 * MIB / 8 + 333);
    bool kernels = t.right(), cpu = true, copies = true, fills = true;
    const size_t n = t.size(), at[] = {0, 4095, 4096, 2 * MIB / 4 - 1, 2 * MIB / 4, n - 1};
    for (size_t i : at) {
        add<<<1, 1>>>(t.p + i, 1, 1, 7);
        CUDA(cudaDeviceSynchronize());
        t.want[i] += 7;
        kernels &= t.here() && t.there();
        t.p[i] ^= 0x55, t.want[i] ^= 0x55;
        cpu &= t.there() && t.here() && t.there();
        uint32_t v = mix((uint32_t)i + 5);
        CUDA(cudaMemcpy(t.p + i, &v, 4, cudaMemcpyHostToDevice));
        t.want[i] = v;
        copies &= t.here() && t.there();
        CUDA(cudaMemset(t.p + i, 9, 4));
        CUDA(cudaDeviceSynchronize());
        t.want[i] = 0x09090909;
        fills &= t.here() && t.there();
    }
    expect(kernels, "kernels write it");
    expect(cpu, "the processor writes it");
    expect(copies, "copies write it");
    expect(fills, "fills do");
    bool holes = true;
    for (uint32_t round = 0; round < 6; round++) { // the processor has some of it
        for (size_t i = round * 555; i < n; i += 30011)
            holes &= t.p[i] == t.want[i];
        add<<<8, 64>>>(t.p, n, 4099 + round, round);
        for (size_t i = 0; i < n; i += 4099 + round)
            t.want[i] += round;
        CUDA(cudaDeviceSynchronize());
        for (size_t i = 0; i < n; i += 9973)
            holes &= t.p[i] == t.want[i];
        if (round % 3 == 2)
            holes &= t.right();
    }
    expect(holes, "of which the processor reads a little");
}

// Who reads never finds less than what a kernel that has ended wrote.
static void beside()
{
    const size_t n = 3 * MIB / 4;
    uint32_t *p;
    std::atomic<uint32_t> ended{0}, wrong{0};
    std::atomic<bool> over{false};
    managed(&p, n * 4);
    memset(p, 0, n * 4);
    CU(advise(p, n * 4, CU_MEM_ADVISE_SET_READ_MOSTLY));
    std::vector<std::thread> all;
    for (uint32_t k = 0; k < 3; k++)
        all.emplace_back([&, k] {
            uint32_t x = k + 1;
            while (!over) {
                uint32_t least = ended;
                x = mix(x + k);
                wrong += (int32_t)(((volatile uint32_t *)p)[x % n] - least) < 0;
            }
        });
    for (uint32_t round = 1; round <= 25; round++) {
        set<<<16, 256>>>(p, n, round);
        CUDA(cudaDeviceSynchronize());
        ended = round;
        set<<<16, 256>>>(p, n, round); // nothing new: duplicates may stay
        CUDA(cudaDeviceSynchronize());
    }
    over = true;
    for (std::thread &t : all)
        t.join();
    expect(wrong == 0, "threads that read it beside kernels that write");
    CUDA(cudaFree(p));
}

static void system_calls()
{
    table t(3 * MIB / 4);
    bool right = t.right();
    const size_t bytes = t.size() * 4;
    int fd = memfd_create("table", 0);
    std::vector<uint32_t> got(t.size());
    for (uint32_t round = 1; round < 6; round++) {
        add<<<8, 64>>>(t.p, t.size(), round % 2 ? 100000 : 1, round % 3);
        for (size_t i = 0; i < t.size(); i += round % 2 ? 100000 : 1)
            t.want[i] += round % 3;
        CUDA(cudaDeviceSynchronize());
        right &= pwrite(fd, t.p, bytes, 0) == (ssize_t)bytes && pread(fd, got.data(), bytes, 0) == (ssize_t)bytes && got == t.want;
        right &= t.there();
        for (size_t i = 0; i < got.size(); i += 7777)
            got[i] += round;
        t.want = got;
        right &= pwrite(fd, got.data(), bytes, 0) == (ssize_t)bytes && pread(fd, t.p, bytes, 0) == (ssize_t)bytes;
        right &= t.there() && t.here();
    }
    close(fd);
    expect(right, "system calls read and write it");
}

// Other mappings meet in the middle of it.
static void parts()
{
    table t(3 * MIB / 4);
    uint8_t *b = (uint8_t *)t.p;
    bool right = t.right();
    mlock(b + 40 * PAGE, 30 * PAGE); // a bare driver's may refuse any of these
    right &= t.right() && t.right();
    madvise(b + 300 * PAGE, 400 * PAGE, MADV_NOHUGEPAGE);
    right &= t.right() && t.right();
    mprotect(b + 100 * PAGE, 50 * PAGE, PROT_READ);
    right &= t.right() && t.right();
    mprotect(b + 100 * PAGE, 50 * PAGE, PROT_READ | PROT_WRITE);
    right &= t.right();
    munlock(b + 40 * PAGE, 30 * PAGE);
    for (uint32_t round = 0; round < 3; round++) {
        add<<<8, 64>>>(t.p, t.size(), 50001, 3);
        for (size_t i = 0; i < t.size(); i += 50001)
            t.want[i] += 3;
        CUDA(cudaDeviceSynchronize());
        right &= t.right();
        t.p[round * 999] = t.want[round * 999] = round;
    }
    expect(right, "parts of it locked, advised and protected");
    // Thrown away while both have it: zero, or what it was.
    right = t.right();
    madvise(b + 8 * PAGE, 8 * PAGE, MADV_DONTNEED);
    for (size_t i = 8 * PAGE / 4; i < 16 * PAGE / 4; i++) {
        right &= t.p[i] == 0 || t.p[i] == t.want[i];
        t.p[i] = t.want[i] = (uint32_t)i;
    }
    right &= t.right();
    madvise(b + 600 * PAGE, 70 * PAGE, MADV_DONTNEED);
    CUDA(cudaDeviceSynchronize());
    for (size_t i = 600 * PAGE / 4; i < 670 * PAGE / 4; i++)
        t.p[i] = t.want[i] = (uint32_t)i;
    expect(right && t.right() && t.right(), "pages of it are thrown away");
}

static sigjmp_buf back;
static void caught(int) { siglongjmp(back, 1); }
static bool refused(volatile uint8_t *p)
{
    if (sigsetjmp(back, 1))
        return true;
    *p = *p;
    return false;
}

// What the program protects while the processor's copy is elsewhere is protected.
static void guarded()
{
    table t(3 * MIB / 4);
    uint8_t *b = (uint8_t *)t.p;
    bool right = t.right(), kept = true;
    signal(SIGSEGV, caught);
    for (size_t part : {50 * PAGE, 3 * MIB}) { // of some, and of all
        size_t from = part == 3 * MIB ? 0 : 100 * PAGE;
        right &= t.there();
        if (mprotect(b + from, part, PROT_READ) != 0) // a bare driver's may refuse
            continue;
        right &= t.here();
        kept &= refused(b + from) && refused(b + from + part - 1);
        right &= t.there() && t.here();
        kept &= refused(b + from) && refused(b + from + part - 1);
        CUDA(cudaDeviceSynchronize());
        mprotect(b + from, part, PROT_READ | PROT_WRITE);
        right &= t.right();
        b[from] = 1, ((uint8_t *)t.want.data())[from] = 1;
    }
    signal(SIGSEGV, SIG_DFL);
    // Protected where the processor has it, and no longer when it touches it again.
    for (int prot : {PROT_READ, PROT_NONE}) {
        right &= t.right();
        if (mprotect(b, 3 * MIB, prot) != 0)
            continue;
        right &= t.there();
        mprotect(b, 3 * MIB, PROT_READ | PROT_WRITE);
        CUDA(cudaDeviceSynchronize());
        right &= t.here();
        b[PAGE] = 2, ((uint8_t *)t.want.data())[PAGE] = 2;
    }
    expect(right && t.right(), "protected between two uses");
    expect(kept, "it stays protected");
}

static void ends()
{
    bool right = true;
    for (uint32_t round = 0; round < 4; round++) {
        table t((2 + round % 3) * MIB / 4); // where one was before
        right &= t.right() && t.here();
        pid_t pid = fork();
        if (pid == 0)
            _Exit(0);
        right &= t.there() && t.here();
        int status = 1;
        waitpid(pid, &status, 0);
        right &= status == 0 && t.right();
        if (round % 2)
            right &= t.there(); // freed while its duplicate is out of sight
        CU(advise(t.p, t.size() * 4, round & 2 ? CU_MEM_ADVISE_UNSET_READ_MOSTLY : CU_MEM_ADVISE_SET_READ_MOSTLY));
    }
    expect(right, "children come and go, and tables end");
    table t(3 * MIB / 4);
    for (uint32_t round = 0; round < 4; round++) {
        right &= t.right();
        CU(cuMemPrefetchAsync_v2((CUdeviceptr)t.p, t.size() * 4, {round % 2 ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE, 0}, 0, 0));
        CU(advise((uint8_t *)t.p + MIB, 2 * MIB, round % 3 ? CU_MEM_ADVISE_SET_READ_MOSTLY : CU_MEM_ADVISE_UNSET_READ_MOSTLY));
    }
    expect(right, "prefetched both ways, advised otherwise");
}

int main()
{
    // Where the device promises that both may use it at once too.
    setenv("CAUSEWAY_MANAGED", "gpu", 0);
    note_device();
    CUDA(cudaFree(0));
    readers();
    written();
    beside();
    system_calls();
    parts();
    guarded();
    ends();
    return finish();
}
