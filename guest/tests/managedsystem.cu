// What the system does to a program's memory, done to managed memory: memory that is locked,
// advised to be of huge pages or protected in parts, pages that are thrown away after both sides
// had them, children by vfork and posix_spawn while the GPU works, two threads at one block, a
// program that outlives the signal by which an access ended. Never an old byte. needs: cuda 13.0
#include "driver.h"

#include <atomic>
#include <csetjmp>
#include <csignal>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

extern char **environ;

__global__ void twice(uint32_t *p, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        p[i] *= 2;
}
__global__ void until_set(volatile uint32_t *flag, uint32_t *p)
{
    while (*flag == 0)
        ;
    p[3] = 33;
}

static const size_t N = 3 << 20; // words: 12 MiB
static void fill(uint32_t *p, uint32_t seed)
{
    for (size_t i = 0; i < N; i++)
        p[i] = mix((uint32_t)i + seed);
}
static size_t wrong(const uint32_t *p, uint32_t seed, uint32_t times)
{
    size_t bad = 0;
    for (size_t i = 0; i < N; i++)
        bad += p[i] != mix((uint32_t)i + seed) * times;
    return bad;
}

// Advice, locks and protection for a part of it, whole and in the middle of what comes at once;
// before the first kernel, and after.
static void parts_of_it()
{
    const size_t MIB = 1 << 20;
    size_t bad = 0;
    for (int late = 0; late < 2; late++) {
        uint32_t *p;
        managed(&p, N * 4);
        char *c = (char *)p;
        if (late) {
            twice<<<8, 256>>>(p, N);
            CUDA(cudaDeviceSynchronize());
            bad += p[N - 1] != 0;
        }
        int got[] = {madvise(c + 2 * MIB, 4 * MIB, MADV_HUGEPAGE), madvise(c + 5 * MIB + 4096, 12288, MADV_NOHUGEPAGE),
                     madvise(c + 8 * MIB + 8192, 4096, MADV_DONTDUMP), mlock(c + 7 * MIB, 16384), mlock(c + 9 * MIB + 4096, 4096)};
        note("late %d: huge %d, not %d, dump %d, locked %d %d", late, got[0], got[1], got[2], got[3], got[4]);
        fill(p, 4);
        for (uint32_t r = 1; r <= 3; r++) {
            twice<<<8, 256>>>(p, N);
            CUDA(cudaDeviceSynchronize());
            bad += wrong(p, 4, 1u << r);
        }
        p[N / 2] += 1;
        twice<<<8, 256>>>(p, N);
        CUDA(cudaDeviceSynchronize());
        bad += p[N / 2] != mix((uint32_t)(N / 2) + 4) * 16 + 2 || p[N / 2 + 1] != mix((uint32_t)(N / 2 + 1) + 4) * 16;
        munlock(c + 7 * MIB, 16384);
        munlock(c + 9 * MIB + 4096, 4096);
        CUDA(cudaFree(p));
    }
    expect(bad == 0, "parts of it advised and locked");
}

// What the processor has no access to while kernels run, or may only read: kernels have it all the
// same. Before the first kernel, and after; untouched, and written.
static void guarded()
{
    const size_t page = 1024, from = 4 * page, words = 9 * page, apart = N / 2;
    size_t bad = 0;
    for (int prot : {PROT_NONE, PROT_READ})
        for (int late = 0; late < 3; late++) {
            uint32_t *p;
            managed(&p, N * 4);
            if (late) {
                fill(p, 6);
                twice<<<8, 256>>>(p, N);
                CUDA(cudaDeviceSynchronize());
                bad += wrong(p, 6, 2);
            }
            if (late < 2)
                fill(p, 6);
            else
                for (size_t i = 0; i < N; i++)
                    p[i] /= 2;
            // A bare driver's may refuse.
            if (mprotect(p + from, words * 4, prot) != 0 || mprotect(p + apart, words * 4, prot) != 0)
                note("late %d: not protected", late);
            twice<<<8, 256>>>(p, N);
            CUDA(cudaDeviceSynchronize());
            bad += p[from - 1] != mix((uint32_t)from - 1 + 6) * 2;
            *(volatile uint32_t *)p = mix(6) * 2;
            twice<<<8, 256>>>(p, N);
            CUDA(cudaDeviceSynchronize());
            mprotect(p + from, words * 4, PROT_READ | PROT_WRITE);
            mprotect(p + apart, words * 4, PROT_READ | PROT_WRITE);
            bad += wrong(p, 6, 4);
            p[from]++, p[apart]++;
            twice<<<8, 256>>>(p, N);
            CUDA(cudaDeviceSynchronize());
            bad += p[from] != mix((uint32_t)from + 6) * 8 + 2 || p[apart + 1] != mix((uint32_t)apart + 1 + 6) * 8;
            CUDA(cudaFree(p));
        }
    expect(bad == 0, "parts of it that the program may not touch");
}

// Whoever wrote a page that both had and that was thrown away finds it at the GPU; nobody finds
// anything but zero or what was there.
static void thrown_away()
{
    const size_t page = 1024, at[] = {0, 5 * page, 100 * page, 101 * page, N - page};
    uint32_t *p;
    managed(&p, N * 4);
    fill(p, 1);
    twice<<<8, 256>>>(p, N);
    CUDA(cudaDeviceSynchronize());
    size_t bad = wrong(p, 1, 2);
    bool thrown = true, zero = false;
    for (size_t x : at)
        thrown = madvise(p + x, 4096, MADV_DONTNEED) == 0 && thrown;
    p[at[1] + 7] = 1000; // written first, or read first
    zero = p[at[1] + 8] == 0;
    p[at[2] + 9] += 2000;
    uint32_t was = p[at[2] + 9];
    twice<<<8, 256>>>(p, N);
    CUDA(cudaDeviceSynchronize());
    note("thrown away: %d, zero: %d", thrown, zero);
    bad += p[at[1] + 7] != 2000 || p[at[2] + 9] != 2 * was;
    bad += p[at[1] + 8] != (zero ? 0 : mix((uint32_t)at[1] + 8 + 1) * 4);
    for (size_t x : {at[0], at[3], at[4]})
        bad += p[x + 1] != 0 && p[x + 1] != mix((uint32_t)x + 1 + 1) * 4;
    bad += p[at[1] - 1] != mix((uint32_t)at[1] - 1 + 1) * 4;
    expect(bad == 0, "pages that both had are thrown away");
    CUDA(cudaFree(p));
}

// A program that is started while the GPU works gets its words from managed memory; the parent's
// are what they were.
static void started()
{
    uint32_t *p;
    char *words;
    size_t bad = 0;
    managed(&p, N * 4);
    managed(&words, 65536);
    for (int how = 0; how < 4; how++) {
        char *path = words + 20000, *flag = words + 30000, *script = words + 40000, **argv = (char **)(words + 4096);
        fill(p, how);
        strcpy(path, "/bin/sh");
        strcpy(flag, "-c");
        strcpy(script, "exit 7");
        argv[0] = path, argv[1] = flag, argv[2] = script, argv[3] = nullptr;
        twice<<<8, 256>>>(p, N);
        if (how < 2)
            CUDA(cudaDeviceSynchronize()); // the words are at the GPU; else it may be at work
        pid_t pid;
        if (how % 2 == 0) {
            pid = vfork();
            if (pid == 0) {
                execv(path, argv);
                _exit(9);
            }
        } else if (posix_spawn(&pid, path, nullptr, nullptr, argv, environ) != 0) {
            pid = -1;
        }
        twice<<<8, 256>>>(p, N);
        int status = 0;
        bad += pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 7;
        CUDA(cudaDeviceSynchronize());
        bad += wrong(p, how, 4);
    }
    expect(bad == 0, "vfork and posix_spawn in the middle");
    CUDA(cudaFree(p));
    CUDA(cudaFree(words));
}

// All begin at once at each block: some read it, some write it.
static void one_block()
{
    const size_t block = 4096; // words, a unit of what moves
    uint32_t *p;
    std::atomic<int> ready{0};
    std::atomic<size_t> bad{0};
    managed(&p, N * 4);
    fill(p, 2);
    twice<<<8, 256>>>(p, N);
    CUDA(cudaDeviceSynchronize());
    std::vector<std::thread> all;
    for (uint32_t k = 0; k < 4; k++)
        all.emplace_back([&, k] {
            int round = 0;
            for (size_t at = 0; at + block <= N; at += 37 * block) {
                ready++;
                while (ready < 4 * (round + 1))
                    std::this_thread::yield();
                round++;
                volatile uint32_t *q = p + at;
                if (k % 2)
                    q[k] = k;
                bad += q[16] != mix((uint32_t)at + 16 + 2) * 2;
                if (k == 2)
                    q[1030] = 9;
            }
        });
    for (auto &t : all)
        t.join();
    twice<<<8, 256>>>(p, N);
    CUDA(cudaDeviceSynchronize());
    for (size_t at = 0; at + block <= N; at += 37 * block)
        bad += p[at + 1] != 2 || p[at + 3] != 6 || p[at + 1030] != 18 || p[at] != mix((uint32_t)at + 2) * 4;
    expect(bad == 0, "threads at one block");
    CUDA(cudaFree(p));
}

static sigjmp_buf back;
static void leave(int) { siglongjmp(back, 1); }

// The access that came too early ended with a signal, or found what was there. Later it finds what
// the kernel wrote, and so does what lies beside it.
static void outlived()
{
    uint32_t *p;
    uint32_t *flag;
    volatile uint32_t early = 0, ended = 0;
    cudaStream_t s[2];
    for (auto &x : s)
        CUDA(cudaStreamCreateWithFlags(&x, cudaStreamNonBlocking));
    CUDA(cudaMalloc(&flag, 4));
    CUDA(cudaMemset(flag, 0, 4));
    managed(&p, N * 4);
    fill(p, 3);
    twice<<<8, 256>>>(p, N);
    CUDA(cudaDeviceSynchronize());
    until_set<<<1, 1, 0, s[0]>>>(flag, p);
    struct sigaction mine = {}, before;
    mine.sa_handler = leave;
    sigaction(SIGSEGV, &mine, &before);
    if (sigsetjmp(back, 1) == 0)
        early = p[1000];
    else
        ended = 1;
    sigaction(SIGSEGV, &before, nullptr);
    CUDA(cudaMemsetAsync(flag, 1, 4, s[1]));
    CUDA(cudaStreamSynchronize(s[0]));
    note("the access %s", ended ? "ended with a signal" : "was served");
    size_t bad = !ended && early != mix(1003) * 2;
    bad += p[1000] != mix(1003) * 2 || p[3] != 33 || p[2000] != mix(2003) * 2;
    p[1000] = 5;
    twice<<<8, 256>>>(p, N);
    CUDA(cudaDeviceSynchronize());
    bad += p[1000] != 10 || p[1001] != mix(1004) * 4 || p[N - 1] != mix((uint32_t)N - 1 + 3) * 4;
    expect(bad == 0, "a program that outlives the signal of an access");
    CUDA(cudaFree(p));
    CUDA(cudaFree(flag));
    for (auto &x : s)
        CUDA(cudaStreamDestroy(x));
}

int main()
{
    // Where the device promises that both may use it at once too.
    setenv("CAUSEWAY_MANAGED", "gpu", 0);
    setenv("CAUSEWAY_MANAGED_PATIENCE", "1", 0);
    note_device();
    CUDA(cudaFree(0));
    parts_of_it();
    guarded();
    thrown_away();
    started();
    one_block();
    outlived();
    return finish();
}
