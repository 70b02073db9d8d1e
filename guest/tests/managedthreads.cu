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

int main(int argc, char **argv)
{
    setenv("CAUSEWAY_MANAGED", "gpu", 0);
    double t = argument(argc, argv, 1, 1);
    first_touch(t);
    expect(wrong == 0, "all that threads wrote is there");
    return finish();
}
