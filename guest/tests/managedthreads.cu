// Threads of a program that share no memory: what one writes to managed memory of its own, by the CPU or by copies, is not lost to another's launches,
// copies and accesses. Argument: seconds (1).
// needs: cuda 12.9
#include "driver.h"

#include <atomic>
#include <chrono>
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

// What a call reads of the program's lies in managed memory, whose pages another thread's launches take away.
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

int main(int argc, char **argv)
{
    setenv("CAUSEWAY_MANAGED", "gpu", 0);
    setenv("CAUSEWAY_MANAGED_PATIENCE", "60", 0);
    double t = argument(argc, argv, 1, 1) / 4.0; // seconds
    first_touch(t);
    beside(t);
    names(t);
    busy();
    expect(wrong == 0, "nothing that threads wrote is lost");
    return finish();
}
