// Random writers of managed memory on both sides, in turns as CUDA asks: every byte is compared
// with what it must be. Arguments: seconds (1), seed, and a factor (0): memory is so many times as
// large, and there is room at the GPU for about half of it, where processor and kernels do not use
// it at once.
// needs: cuda 12.9
#include "driver.h"

#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

__global__ void stir(uint8_t *p, size_t n, uint32_t v)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        p[i] = (uint8_t)(p[i] * 5 + v + i);
}
__global__ void gather(uint8_t *out, const uint8_t *p, size_t n, size_t step)
{
    for (size_t i = threadIdx.x; i * step < n; i += blockDim.x)
        out[i] ^= p[i * step];
}

static uint64_t state;
static uint64_t draw(uint64_t below)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state % below;
}

struct area {
    uint8_t *p = nullptr;
    std::vector<uint8_t> want;
};
struct span {
    size_t at, n;
};
static span part(const area &a)
{
    size_t at = draw(a.want.size()), most = draw(3) ? draw(20000) + 1 : a.want.size();
    return {at, 1 + draw(std::min(most, a.want.size() - at))};
}

static size_t wrong, factor = 1;
static void compare(const area &a, span s, const char *what)
{
    if (!memcmp(a.p + s.at, a.want.data() + s.at, s.n))
        return;
    wrong++;
    for (size_t i = s.at; i < s.at + s.n; i++)
        if (a.p[i] != a.want[i]) {
            note("%s: byte %zu of %zu is %u, not %u", what, i, a.want.size(), a.p[i], a.want[i]);
            return;
        }
}

static void renew(area &a)
{
    if (a.p)
        CUDA(cudaFree(a.p)); // sometimes in use
    static const size_t most[] = {200, 5000, 300000, 3 << 20, 9 << 20};
    size_t n = 1 + draw(most[draw(5)] * factor);
    managed(&a.p, n);
    if (draw(2))
        CU(cuMemAdvise_v2((CUdeviceptr)a.p, n, CU_MEM_ADVISE_SET_READ_MOSTLY, {CU_MEM_LOCATION_TYPE_DEVICE, 0}));
    a.want.resize(n);
    uint8_t v = (uint8_t)draw(256);
    memset(a.p, v, n);
    memset(a.want.data(), v, n);
}

static void CUDART_CB bump(void *arg)
{
    area *a = (area *)arg;
    for (size_t i = 0; i < a->want.size(); i += 1000)
        a->p[i]++, a->want[i]++;
}

static void by_gpu(std::vector<area> &all, cudaStream_t s)
{
    for (int k = (int)draw(4); k >= 0; k--) {
        area &a = all[draw(all.size())], &b = all[draw(all.size())];
        span x = part(a);
        uint32_t v = (uint32_t)draw(256);
        switch (draw(7)) {
        case 0:
        case 1:
            stir<<<4, 128, 0, s>>>(a.p + x.at, x.n, v);
            for (size_t i = 0; i < x.n; i++)
                a.want[x.at + i] = (uint8_t)(a.want[x.at + i] * 5 + v + i);
            break;
        case 2: {
            size_t step = 1 + draw(5000);
            if (&a == &b || b.want.size() < a.want.size())
                break;
            gather<<<1, 128, 0, s>>>(b.p, a.p, a.want.size(), step);
            for (size_t i = 0; i * step < a.want.size(); i++)
                b.want[i] ^= a.want[i * step];
            break;
        }
        case 3:
            CUDA(cudaMemsetAsync(a.p + x.at, v, x.n, s));
            memset(a.want.data() + x.at, v, x.n);
            break;
        case 4:
            if (&a == &b || b.want.size() < x.n)
                break;
            CUDA(cudaMemcpyAsync(b.p, a.p + x.at, x.n, cudaMemcpyDefault, s));
            memcpy(b.want.data(), a.want.data() + x.at, x.n);
            break;
        case 5:
            CUDA(cudaStreamSynchronize(s)); // the model is the host function's too
            CUDA(cudaLaunchHostFunc(s, bump, &a));
            CUDA(cudaStreamSynchronize(s));
            break;
        default: {
            CUmemLocation l = {draw(2) ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE, 0};
            CU(cuMemPrefetchAsync_v2((CUdeviceptr)a.p + x.at, x.n, l, 0, s));
        }
        }
    }
}

static void by_cpu(std::vector<area> &all)
{
    for (int k = (int)draw(5); k >= 0; k--) {
        area &a = all[draw(all.size())];
        span x = part(a);
        uint8_t v = (uint8_t)draw(256);
        switch (draw(6)) {
        case 0: compare(a, x, "reading"); break;
        case 1:
            memset(a.p + x.at, v, x.n);
            memset(a.want.data() + x.at, v, x.n);
            break;
        case 2: // here and there
            for (size_t i = x.at; i < x.at + x.n; i += 5003)
                a.p[i] += v, a.want[i] += v;
            break;
        case 3: { // through a pipe: the kernel reads it
            int pipes[2];
            std::vector<uint8_t> got(x.n);
            size_t n = std::min(x.n, (size_t)60000);
            if (pipe(pipes))
                break;
            wrong += write(pipes[1], a.p + x.at, n) != (ssize_t)n || read(pipes[0], got.data(), n) != (ssize_t)n ||
                     memcmp(got.data(), a.want.data() + x.at, n);
            memset(got.data(), v, n);
            wrong += write(pipes[1], got.data(), n) != (ssize_t)n || read(pipes[0], a.p + x.at, n) != (ssize_t)n;
            memset(a.want.data() + x.at, v, n);
            close(pipes[0]), close(pipes[1]);
            break;
        }
        case 4: { // by several threads at once
            std::vector<std::thread> t;
            for (size_t j = 0; j < 3; j++)
                t.emplace_back([&a, x, j] {
                    for (size_t i = x.at + j; i < x.at + x.n; i += 3)
                        a.p[i] ^= 0x5a;
                });
            for (size_t i = x.at; i < x.at + x.n; i++)
                a.want[i] ^= 0x5a;
            for (auto &th : t)
                th.join();
            break;
        }
        default: renew(a);
        }
    }
}

int main(int argc, char **argv)
{
    // Where the device promises that both may use it at once too.
    setenv("CAUSEWAY_MANAGED", "gpu", 0);
    double until = seconds() + argument(argc, argv, 1, 1);
    state = 88172645463325252ull + (uint64_t)argument(argc, argv, 2, 0);
    note_device();
    note("seed %ld", argument(argc, argv, 2, 0));
    std::vector<area> all(12);
    cudaStream_t s[2];
    CUDA(cudaFree(0));
    for (auto &x : s)
        CUDA(cudaStreamCreateWithFlags(&x, draw(2) ? cudaStreamNonBlocking : cudaStreamDefault));
    for (auto &a : all)
        renew(a);
    void *hog = nullptr;
    if (size_t times = (size_t)argument(argc, argv, 3, 0)) {
        int concurrent = 0;
        size_t left, total;
        CUDA(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0));
        CUDA(cudaMemGetInfo(&left, &total));
        if (!concurrent)
            CUDA(cudaMalloc(&hog, (left - times * (8 << 20)) & ~(size_t)((2 << 20) - 1)));
        factor = times;
        for (auto &a : all)
            renew(a);
        note("room for %zu MiB", factor * 8);
    }
    long rounds = 0, most = 0;
    for (; seconds() < until && !wrong; rounds++) {
        by_gpu(all, s[rounds % 2]);
        if (draw(50) == 0) { // a child, while the GPU works
            pid_t pid = fork();
            if (pid == 0)
                _exit(3);
            int status = 0;
            waitpid(pid, &status, 0);
            wrong += WEXITSTATUS(status) != 3;
        }
        if (draw(10) == 0)
            renew(all[draw(all.size())]); // perhaps in use
        CUDA(cudaDeviceSynchronize());
        by_cpu(all);
        long mib = 0;
        for (auto &a : all)
            mib += (long)(a.want.size() >> 20);
        most = std::max(most, mib);
    }
    CUDA(cudaDeviceSynchronize());
    for (auto &a : all) {
        compare(a, {0, a.want.size()}, "at the end");
        CUDA(cudaFree(a.p));
    }
    CUDA(cudaFree(hog));
    note("%ld rounds, up to %ld MiB", rounds, most);
    expect(wrong == 0, "every byte is what it must be");
    return finish();
}
