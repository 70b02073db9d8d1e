// Functions of the program that streams call and that touch managed memory, with more queued behind them than a driver takes, and while a thread waits to free
// memory. Argument: launches (3000). needs: cuda 13.0
#include "driver.h"

#include <thread>
#include <unistd.h>

__global__ void add(uint32_t *p)
{
    if (threadIdx.x == 0 && blockIdx.x == 0)
        p[0] += 1;
}

struct job {
    uint32_t *p, seen;
};
static void CUDART_CB touch(void *arg)
{
    job *j = (job *)arg;
    usleep(200000);
    j->seen = j->p[0];
    j->p[1000] += 7;
}

int main(int argc, char **argv)
{
    setenv("CAUSEWAY_MANAGED", "gpu", 0); // where the device promises that both may use it at once too
    const uint32_t launches = (uint32_t)argument(argc, argv, 1, 3000);
    alarm(100);
    note_device();
    cudaStream_t s;
    uint32_t *p, *d[4];
    CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    managed(&p, 8000);
    memset(p, 0, 8000);
    for (auto &x : d)
        CUDA(cudaMalloc(&x, 4 << 20));
    job j = {p, 99};
    double t = seconds();
    add<<<1, 32, 0, s>>>(p);
    CUDA(cudaLaunchHostFunc(s, touch, &j));
    for (uint32_t k = 0; k < launches; k++)
        add<<<1, 32, 0, s>>>(p);
    CUDA(cudaStreamSynchronize(s));
    note("%.3f s", seconds() - t);
    expect(j.seen == 1 && p[0] == launches + 1 && p[1000] == 7, "many launches behind a function");
    for (auto x : d) {
        CUDA(cudaLaunchHostFunc(s, touch, &j));
        std::thread other([x] { CUDA(cudaFree(x)); });
        add<<<1, 32, 0, s>>>(p);
        other.join();
    }
    CUDA(cudaStreamSynchronize(s));
    expect(p[0] == launches + 5 && p[1000] == 35, "freeing while a function is ahead");
    CUDA(cudaFree(p));
    CUDA(cudaStreamDestroy(s));
    return finish();
}
