// Threads of a program that share no memory: what one writes to managed memory of its own, by the
// CPU or by copies, is not lost to another's launches, copies and accesses; and memory that one
// frees while others name it. Argument: seconds (1).
// needs: cuda 12.9
#include "driver.h"

#include <atomic>
#include <chrono>
#include <malloc.h>
#include <thread>

__global__ void nothing() {}

static std::atomic<bool> over;
static std::atomic<long> wrong;

static void until(double seconds)
{
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    over = true;
}

// New memory is first touched while another thread gives the GPU work.
static void first_touch(double seconds)
{
    over = false;
    long before = wrong;
    std::thread launcher([] {
        while (!over) {
            nothing<<<1, 1>>>();
            CUDA(cudaDeviceSynchronize());
        }
    });
    std::thread writer([] {
        const size_t n = 4 << 20;
        while (!over) {
            uint8_t *p;
            managed(&p, n);
            for (size_t i = 0; i < n; i += 1024)
                p[i] = 1;
            for (size_t i = 0; i < n; i += 1024)
                wrong += p[i] != 1;
            CUDA(cudaFree(p));
        }
    });
    until(seconds);
    launcher.join();
    writer.join();
    note("first touch: %ld bytes lost", wrong - before);
}

// One thread copies to and from memory of its own, the other reads and writes what lies beside it.
static void beside(double seconds)
{
    over = false;
    long before = wrong;
    uint32_t *x, *y;
    managed(&x, 256);
    managed(&y, 256);
    nothing<<<1, 1>>>();
    CUDA(cudaDeviceSynchronize());
    std::thread copier([x] {
        for (uint32_t i = 1; !over; i++) {
            uint32_t got = 0;
            CUDA(cudaMemcpy(x, &i, sizeof i, cudaMemcpyHostToDevice));
            CUDA(cudaMemcpy(&got, x, sizeof got, cudaMemcpyDeviceToHost));
            wrong += got != i;
        }
    });
    std::thread toucher([y] {
        for (uint32_t i = 1; !over; i++) {
            *(volatile uint32_t *)y = i;
            wrong += *(volatile uint32_t *)y != i;
        }
    });
    until(seconds);
    copier.join();
    toucher.join();
    CUDA(cudaFree(x));
    CUDA(cudaFree(y));
    note("copies beside accesses: %ld values lost", wrong - before);
}

// What a call reads of the program's lies in managed memory, whose pages another thread's launches
// take away.
static void names(double seconds)
{
    over = false;
    char *name;
    CUmodule m;
    CUdeviceptr at;
    size_t size;
    long asked = 0, before = wrong;
    managed(&name, 4 << 20);
    CU(cuModuleLoadData(&m, driverapi_fatbin));
    std::thread launcher([] {
        while (!over) {
            nothing<<<1, 1>>>();
            CUDA(cudaDeviceSynchronize());
            std::this_thread::sleep_for(std::chrono::microseconds(20));
        }
    });
    std::thread clock(until, seconds);
    for (; !over; asked++) {
        char *p = name + 4096 * (asked % 900);
        strcpy(p, "no_such_variable");
        wrong += cuModuleGetGlobal(&at, &size, m, p) != CUDA_ERROR_NOT_FOUND;
    }
    clock.join();
    launcher.join();
    CU(cuModuleUnload(m));
    CUDA(cudaFree(name));
    note("names: %ld asked for, %ld answers wrong", asked, wrong - before);
}

// A thread that never stops launching does not keep another from its memory for ever.
static void busy()
{
    over = false;
    uint32_t *p;
    managed(&p, 4096);
    *p = 0;
    std::thread launcher([] {
        while (!over)
            nothing<<<1, 1>>>();
        CUDA(cudaDeviceSynchronize());
    });
    for (int i = 0; i < 5; i++) {
        CUDA(cudaMemset(p + 1, 0, 4));
        ++*(volatile uint32_t *)p;
    }
    over = true;
    launcher.join();
    wrong += *p != 5;
    CUDA(cudaFree(p));
}

// Memory that is freed while other threads advise, prefetch, attach and set it: they are refused,
// or were in time, and that is all.
static void freed(double seconds)
{
    const size_t n = 6 << 20;
    std::atomic<uint8_t *> at{nullptr};
    std::atomic<long> refused{0};
    long before = wrong, made = 0;
    over = false;
    auto names = [&](uint32_t x) {
        cudaStream_t s;
        CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
        while (!over) {
            x = mix(x + 1);
            CUmemLocation l = {x & 64 ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_HOST, 0};
            CUdeviceptr p = (CUdeviceptr)at.load(), q = p + x % (n - 5000);
            CUresult r = CUDA_SUCCESS;
            if (p == 0)
                continue;
            switch ((x >> 8) % 16) {
            case 0: r = cuMemAdvise_v2(p, n, x & 128 ? CU_MEM_ADVISE_SET_READ_MOSTLY : CU_MEM_ADVISE_UNSET_READ_MOSTLY, l); break;
            case 1: r = cuStreamAttachMemAsync(s, p, 0, CU_MEM_ATTACH_GLOBAL); break;
            case 2: r = cuMemsetD8Async(q, 1, 5000, s); break;
            case 3: cudaStreamSynchronize(s); break;
            default: r = cuMemPrefetchAsync_v2(q, 5000, l, 0, s);
            }
            refused += r != CUDA_SUCCESS;
            // The second is a driver's, of advice (580).
            bool may = r == CUDA_ERROR_INVALID_VALUE || (r == CUDA_ERROR_UNKNOWN && (x >> 8) % 16 == 0);
            if (r != CUDA_SUCCESS && !may && wrong++ == before)
                note("call %u: error %d", (x >> 8) % 16, (int)r);
        }
        cudaStreamSynchronize(s);
        cudaGetLastError();
    };
    mallopt(M_PERTURB, 165); // whoever looks at what the library has freed falls over it
    std::thread a(names, 1), b(names, 2), clock(until, seconds);
    for (; !over; made++) {
        uint8_t *p;
        if (cudaMallocManaged(&p, n) != cudaSuccess) // a set that was refused is heard of here
            continue;
        at = p;
        if (made % 3 == 0)
            std::this_thread::sleep_for(std::chrono::microseconds(100));
        wrong += cudaFree(p) == cudaErrorIllegalAddress;
    }
    a.join(), b.join(), clock.join();
    mallopt(M_PERTURB, 0);
    note("%ld times freed, %ld calls refused", made, refused.load());
    uint8_t *p;
    managed(&p, n);
    memset(p, 7, n);
    CUDA(cudaMemset(p + 1, 8, 1));
    CUDA(cudaDeviceSynchronize());
    expect(wrong == before && p[0] == 7 && p[1] == 8 && p[n - 1] == 7, "freed while others name it");
    CUDA(cudaFree(p));
}

int main(int argc, char **argv)
{
    setenv("CAUSEWAY_MANAGED", "gpu", 0);
    setenv("CAUSEWAY_MANAGED_PATIENCE", "60", 0);
    double t = argument(argc, argv, 1, 1) / 5.0; // seconds
    first_touch(t);
    beside(t);
    names(t);
    busy();
    expect(wrong == 0, "nothing that threads wrote is lost");
    freed(3 * t);
    return finish();
}
