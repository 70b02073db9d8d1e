// Fork before CUDA starts, after it with a child that leaves CUDA alone, one that does not, and one
// that execs.
#include "check.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

__global__ void square(int *p) { p[threadIdx.x] = threadIdx.x * threadIdx.x; }

// works runs one kernel and checks it.
static bool works()
{
    int *d, h[64];
    if (cudaMalloc(&d, sizeof h) != cudaSuccess)
        return false;
    square<<<1, 64>>>(d);
    if (cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost) != cudaSuccess)
        return false;
    for (int i = 0; i < 64; i++)
        if (h[i] != i * i)
            return false;
    return cudaFree(d) == cudaSuccess;
}

// in_child returns the exit status of a child that runs body; -1 if a signal ended it.
template <class F> static int in_child(F body)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        int status = body();
        fflush(stdout);
        _exit(status);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "child") == 0)
        return works() ? 0 : 1;

    expect(in_child([] { return works() ? 0 : 1; }) == 0, "child forked before CUDA started");
    expect(works(), "parent starts CUDA afterwards");
    int *kept, value = 0;
    CUDA(cudaMalloc(&kept, 256));
    square<<<1, 8>>>(kept);

    expect(in_child([] { return 42; }) == 42, "child that leaves CUDA alone");
    expect(works(), "parent goes on");

    int status = in_child([] {
        int *d;
        cudaError_t e = cudaMalloc(&d, 16);
        printf("CUDA in a child forked afterwards: %d %s\n", (int)e, cudaGetErrorName(e));
        return e == cudaErrorInitializationError ? 0 : 1;
    });
    expect(status == 0, "is refused");
    status = in_child([] {
        int *d;
        cudaError_t first = cudaMalloc(&d, 16), second = cudaDeviceSynchronize();
        return first == cudaErrorInitializationError && second == cudaErrorInitializationError ? 0 : 1;
    });
    expect(status == 0, "is refused every time");

    status = in_child([&] {
        execl("/proc/self/exe", argv[0], "child", (char *)nullptr);
        return 99;
    });
    expect(status == 0, "child that execs starts afresh");
    pid_t pid;
    char name[] = "child", *args[] = {argv[0], name, nullptr};
    char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length > 0 ? length : 0] = 0;
    status = -1;
    if (posix_spawn(&pid, self, nullptr, nullptr, args, environ) == 0)
        waitpid(pid, &status, 0);
    expect(status == 0, "spawned child starts afresh");

    // Grandchildren see the same: the mark of a fork is inherited.
    status = in_child([] {
        return in_child([] {
            int *d;
            return cudaMalloc(&d, 16) == cudaErrorInitializationError ? 0 : 1;
        });
    });
    expect(status == 0, "grandchild is refused");

    CUDA(cudaMemcpy(&value, kept + 7, sizeof value, cudaMemcpyDeviceToHost));
    printf("kept value: %d\n", value);
    expect(value == 49 && works(), "parent still works");
    return finish();
}
