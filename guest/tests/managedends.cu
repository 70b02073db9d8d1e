// Ends of managed memory, each in a process of its own: the CPU touches what a kernel uses that waits for it, or a child's is touched. What it reads is right, or
// the access ends with SIGSEGV, as where the device does not promise that both may use it at once: never an old value, never for ever.
// With "lost" it waits for a line on stdin between a kernel and reading what that wrote (scripts/errors.sh ends its worker meanwhile). needs: cuda 12.9
#include "driver.h"

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

static void lost()
{
    uint32_t *p;
    char line[8];
    managed(&p, 8 << 20);
    fill<<<1, 256>>>(p, 2 << 20);
    CUDA(cudaDeviceSynchronize());
    printf("ready %d\n", p[9] == 9);
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin))
        _exit(1);
    printf("read %s\n", p[1 << 20] == 1 << 20 ? "right" : "WRONG");
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
    setenv("CAUSEWAY_MANAGED", "gpu", 0); // where the device promises that both may use it at once too
    setenv("CAUSEWAY_MANAGED_PATIENCE", "1", 0);
    if (argc > 1 && !strcmp(argv[1], "lost")) {
        lost();
        return 0;
    }
    ends("a kernel that waits for the CPU", waited_for);
    ends("a child's", a_childs);
    return finish();
}
