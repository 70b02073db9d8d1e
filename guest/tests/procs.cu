// Several processes on one GPU at the same time: each checks results, memory of its own, and goes
// on when another ends badly.
// usage: procs [processes]
#include "check.h"

#include <csignal>
#include <spawn.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

__device__ unsigned own = 1;

__global__ void churn(uint32_t *x, int n, uint32_t seed)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        x[i] = mix(x[i] ^ seed);
    if (i == 0)
        own += seed;
}

__global__ void trap() { asm volatile("trap;"); }

// work gives 0 if every round was right.
static int work(int id, int rounds)
{
    const int n = 20000;
    std::vector<uint32_t> h(n), got(n);
    uint32_t *d[2];
    cudaStream_t s;
    CUDA(cudaStreamCreate(&s));
    for (uint32_t *&p : d)
        CUDA(cudaMalloc(&p, n * sizeof *p));
    unsigned sum = 1;
    for (int i = 0; i < n; i++)
        h[i] = id * 1000003u + i;
    CUDA(cudaMemcpy(d[0], h.data(), n * sizeof(uint32_t), cudaMemcpyHostToDevice));
    for (int r = 0; r < rounds; r++) {
        uint32_t seed = id * 77 + r;
        for (int k = 0; k < 3; k++, seed += 1000) {
            churn<<<(n + 255) / 256, 256, 0, s>>>(d[0], n, seed);
            sum += seed;
            for (uint32_t &x : h)
                x = mix(x ^ seed);
        }
        CUDA(cudaMemcpyAsync(d[1], d[0], n * sizeof(uint32_t), cudaMemcpyDeviceToDevice, s));
        CUDA(cudaMemcpyAsync(got.data(), d[1], n * sizeof(uint32_t), cudaMemcpyDeviceToHost, s));
        CUDA(cudaStreamSynchronize(s));
        if (got != h)
            return 2;
    }
    unsigned v = 0;
    CUDA(cudaMemcpyFromSymbol(&v, own, sizeof v));
    return v == sum ? 0 : 3;
}

static int child(const char *what, int id)
{
    if (!strcmp(what, "works"))
        return work(id, 12);
    if (!strcmp(what, "traps")) {
        work(id, 1);
        trap<<<1, 1>>>();
        return cudaDeviceSynchronize() != cudaSuccess ? 0 : 4;
    }
    if (!strcmp(what, "leaves")) { // without a word, with work under way
        uint32_t *d;
        CUDA(cudaMalloc(&d, 1 << 20));
        churn<<<1024, 256>>>(d, 1 << 18, 1);
        _Exit(0);
    }
    work(id, 1);
    raise(SIGKILL);
    return 5;
}

int main(int argc, char **argv)
{
    if (argc > 2)
        return child(argv[1], atoi(argv[2]));
    const int count = (int)argument(argc, argv, 1, 4);
    expect(work(99, 2) == 0, "alone");
    std::vector<const char *> what(count, "works");
    for (const char *w : {"traps", "leaves", "killed"})
        what.push_back(w);
    std::vector<pid_t> pids;
    for (size_t i = 0; i < what.size(); i++) {
        std::string id = std::to_string(i + 1);
        char *args[] = {argv[0], (char *)what[i], (char *)id.c_str(), nullptr};
        pid_t p;
        if (posix_spawn(&p, "/proc/self/exe", nullptr, nullptr, args, environ))
            return 1;
        pids.push_back(p);
    }
    // The parent goes on beside its children; its context began before theirs.
    expect(work(98, 12) != 2, "the parent, meanwhile");
    int right = 0;
    for (int i = 0; i < (int)pids.size(); i++) {
        int status = -1;
        waitpid(pids[i], &status, 0);
        bool good = i < count + 2 ? status == 0 : WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        if (!good)
            note("process %d, which %s: status %x", i, what[i], status);
        right += good;
    }
    printf("processes as expected: %d of %d\n", right, count + 3);
    expect(right == count + 3, "children");
    expect(work(97, 1) != 2, "the parent, afterwards");
    return finish();
}
