// Ends of managed memory, each in a process of its own: the CPU touches what a kernel uses that
// waits for it, or a child's is touched, or a kernel ran off its memory. What it reads is right, or
// the access ends with SIGSEGV, as where the device does not promise that both may use it at once:
// never an old value, never for ever. Processes are killed while bytes are on their way, too; a
// neighbour of all of them notices nothing. With "lost [MIB]" it waits for a line on stdin between
// kernels and reading what they wrote (scripts/errors.sh ends its worker meanwhile).
// needs: cuda 12.9
#include "driver.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

__global__ void await(volatile uint32_t *p)
{
    for (int i = 0; i < 400000000 && p[0] == 0; i++)
        ;
    p[1] = p[0] + 4;
}
__global__ void fill(uint32_t *p, size_t n)
{
    for (size_t i = threadIdx.x; i < n; i += blockDim.x)
        p[i] = (uint32_t)i;
}

static void waited_for()
{
    uint32_t *p;
    managed(&p, 1 << 20);
    await<<<1, 1>>>(p);
    p[0] = 1;
    if (cudaDeviceSynchronize() != cudaSuccess || p[1] != 5)
        _exit(1);
}

static void a_childs()
{
    uint32_t *p;
    managed(&p, 1 << 20);
    fill<<<1, 256>>>(p, 1000);
    CUDA(cudaDeviceSynchronize());
    pid_t pid = fork();
    if (pid == 0)
        _exit(p[5] == 5 || p[5] == 0 ? 0 : 1); // natively it is not there, or somebody else's
    int status;
    waitpid(pid, &status, 0);
    if (p[700] != 700)
        _exit(1);
}

// The context has failed. What the GPU had is lost to some, who say so by a signal; natively it is
// there.
static void runs_off()
{
    const size_t n = 4 << 20;
    uint32_t *p;
    unsetenv("CAUSEWAY_MANAGED_PATIENCE");
    managed(&p, n);
    for (size_t i = 0; i < n / 4; i++)
        p[i] = 7;
    fill<<<1, 256>>>(p, 1000);
    CUDA(cudaDeviceSynchronize());
    fill<<<1, 1>>>(p + n / 4, 1);
    cudaError_t e = cudaDeviceSynchronize();
    note("it says %d", (int)e);
    if (e != cudaErrorIllegalAddress || cudaDeviceSynchronize() != e || cudaMallocManaged(&p, 4096) != e)
        _exit(1);
    if (p[700] != 700 || p[2000] != 7)
        _exit(2);
}

// In turns for ever, or until a line is there to be read. all: by the CPU, too, so that bytes are
// always on their way.
static int take_turns(size_t n, bool all, int said, int until)
{
    uint32_t *p;
    pollfd there = {until, POLLIN, 0};
    managed(&p, n * 4);
    for (uint32_t round = 1;; round++) {
        for (size_t i = all ? 0 : round % 1000; i < n; i += all ? 1 : 1000)
            p[i] = round + (uint32_t)i;
        fill<<<4, 256>>>(p, n / 2);
        CUDA(cudaDeviceSynchronize());
        for (size_t i = all ? 0 : round % 1000; i < n; i += all ? 1 : 1000)
            if (p[i] != (i < n / 2 ? 0 : round) + (uint32_t)i)
                return 1;
        if (round == 2 && write(said, "\n", 1) != 1)
            return 2;
        if (poll(&there, 1, all ? 0 : 20) != 0) // a neighbour leaves others the CPU
            return 0;
    }
}

static pid_t in_turns(size_t n, bool all, int until)
{
    int said[2];
    char line;
    if (pipe(said))
        _exit(1);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        unsetenv("CAUSEWAY_MANAGED_PATIENCE"); // nobody waits for it in vain
        _exit(take_turns(n, all, said[1], until));
    }
    close(said[1]);
    expect(read(said[0], &line, 1) == 1, "a process that takes turns");
    close(said[0]);
    return pid;
}

static void killed()
{
    int never[2];
    if (pipe(never))
        _exit(1);
    for (unsigned us : {0u, 20000u}) {
        pid_t pid = in_turns(1 << 16, true, never[0]);
        usleep(us);
        kill(pid, SIGKILL);
        int status = 0;
        waitpid(pid, &status, 0);
        expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "killed while bytes are on their way");
    }
    close(never[0]), close(never[1]);
}

static void lost(size_t mib)
{
    enum { PART = 1 << 20 };
    uint32_t *p, *last;
    char line[8];
    managed(&p, mib << 20);
    last = p + (mib << 18) - PART;
    fill<<<1, 256>>>(p, PART);
    fill<<<1, 256>>>(last, PART);
    CUDA(cudaDeviceSynchronize());
    printf("ready %d\n", p[9] == 9);
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin))
        _exit(1);
    printf("read %s\n", p[PART / 2] == PART / 2 && last[PART / 2] == PART / 2 ? "right" : "WRONG");
}

static void ends(const char *what, void (*f)())
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        f();
        _exit(0);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    note("%s: %s %d", what, WIFSIGNALED(status) ? "signal" : "status", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    expect(WIFSIGNALED(status) ? WTERMSIG(status) == SIGSEGV : WEXITSTATUS(status) == 0, what);
}

int main(int argc, char **argv)
{
    // Where the device promises that both may use it at once too.
    setenv("CAUSEWAY_MANAGED", "gpu", 0);
    if (argc > 1 && !strcmp(argv[1], "lost")) {
        lost((size_t)argument(argc, argv, 2, 8));
        return 0;
    }
    setenv("CAUSEWAY_MANAGED_PATIENCE", "1", 0);
    int end[2], status = -1;
    if (pipe(end))
        return 1;
    pid_t neighbour = in_turns(1 << 14, false, end[0]);
    ends("a kernel that waits for the CPU", waited_for);
    ends("a child's", a_childs);
    ends("a kernel that runs off it", runs_off);
    killed();
    if (write(end[1], "\n", 1) != 1)
        return 1;
    waitpid(neighbour, &status, 0);
    expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a neighbour notices nothing");
    return finish();
}
