// Programs that close all descriptors they do not know, as daemons do, or refuse themselves a
// system call that the library makes (seccomp), while managed memory lies at the GPU: an access
// finds what the kernel left or ends with a signal, never an old byte; what the processor had is
// there; what the program opens then, or puts in their place, is its own, and nobody else writes to
// it. needs: cuda 13.0
#include "driver.h"

#include <csetjmp>
#include <csignal>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

__global__ void twice(uint32_t *p, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        p[i] *= 2;
}

static const size_t N = 3 << 20; // words: 12 MiB
static __thread sigjmp_buf back;
static void leave(int) { siglongjmp(back, 1); }

// Of words far apart, how many are as they should be, and how many are wrong; the others ended with
// a signal.
static void look(const volatile uint32_t *p, uint32_t times, size_t from, int *right, int *wrong)
{
    for (volatile size_t i = from; i < N; i += 300000) {
        if (sigsetjmp(back, 1) != 0)
            continue;
        bool is = p[i] == mix((uint32_t)i) * times;
        *right += is, *wrong += !is;
    }
}

// Files and pipes of the program's, which hold four bytes each.
static const int MOST = 512; // beyond the library's, below the limit
static int files[8], pipes[8][2];

// Whether it is the one by which the library hears of accesses.
static bool hears(int fd)
{
    char link[32], to[64] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    return readlink(link, to, sizeof to - 1) > 0 && strstr(to, "userfaultfd");
}

static void close_all(const char *how)
{
    bool all = !strcmp(how, "replaced");
    for (int fd = 3; fd < MOST; fd++)
        if (!strcmp(how, "one by one"))
            close(fd);
        else if ((all || (!strcmp(how, "partly replaced") && !hears(fd))) && fcntl(fd, F_GETFD) >= 0 && dup2(files[fd % 8], fd) != fd)
            _exit(3);
    if (!strcmp(how, "all at once") && syscall(SYS_close_range, 3, ~0u, 0) != 0)
        _exit(3);
}

static void open_files()
{
    for (auto &fd : files)
        if ((fd = (int)syscall(SYS_memfd_create, "mine", 0)) < 0 || write(fd, "mine", 4) != 4)
            _exit(4);
}

// How many hold something else.
static int touched()
{
    int n = 0;
    char text[8] = "";
    for (auto &fd : files)
        n += lseek(fd, 0, SEEK_END) != 4 || pread(fd, text, sizeof text, 0) != 4 || memcmp(text, "mine", 4) != 0;
    for (auto &x : pipes)
        n += x[0] > 0 && (read(x[0], text, sizeof text) != 4 || memcmp(text, "mine", 4) != 0);
    return n;
}

// What one program does: its status is 0 if nothing was wrong.
static int closes(const char *how)
{
    uint32_t *p, *host;
    int right = 0, wrong = 0;
    alarm(100);
    managed(&p, N * 4);
    managed(&host, N * 4);
    for (size_t i = 0; i < N; i++)
        p[i] = mix((uint32_t)i);
    twice<<<8, 256>>>(p, N);
    CUDA(cudaDeviceSynchronize());
    for (size_t i = 0; i < N; i++)
        host[i] = mix((uint32_t)i);
    wrong += p[1] != mix(1) * 2; // some of it is here
    signal(SIGSEGV, leave);
    signal(SIGBUS, leave);
    signal(SIGPIPE, SIG_IGN);
    if (strstr(how, "replaced")) {
        open_files();
        for (auto &fd : files) // out of the way
            fd = fcntl(fd, F_DUPFD, MOST);
        close_all(how);
    } else {
        close_all(how);
        open_files(); // they have the numbers of what was closed
        for (auto &x : pipes)
            if (pipe(x) != 0 || write(x[1], "mine", 4) != 4)
                return 4;
    }
    std::thread other([&] {
        int r = 0, w = 0;
        look(p, 2, 150000, &r, &w);
        if (w)
            _exit(5);
    });
    look(p, 2, 299999, &right, &wrong);
    other.join();
    int seen = right;
    look(host, 1, 0, &right, &wrong);
    bool kept = right - seen == (int)((N + 299999) / 300000);
    // CUDA may have ended with its descriptors; what it says it has done it has
    cudaError_t e = cudaGetLastError();
    twice<<<8, 256>>>(p, N);
    e = cudaDeviceSynchronize();
    if (e == cudaSuccess && cudaGetLastError() == cudaSuccess)
        look(p, 4, 299999, &right, &wrong);
    int others = touched();
    if (others)
        note("%s: %d files of the program's hold something else", how, others);
    wrong += others;
    note("%s: %d right, %d wrong, the next kernel: %d", how, right, wrong, (int)e);
    fflush(stdout);
    return wrong ? 1 : kept ? 0 : 2;
}

// No thread may throw pages away from now on.
static int refuses()
{
    uint32_t *p;
    int right = 0, wrong = 0;
    sock_filter f[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 1),
                       BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    sock_fprog all = {4, f};
    alarm(100);
    managed(&p, N * 4);
    for (size_t i = 0; i < N; i++)
        p[i] = mix((uint32_t)i);
    twice<<<8, 256>>>(p, N);
    CUDA(cudaDeviceSynchronize());
    for (size_t i = 0; i < N; i++)
        ((volatile uint32_t *)p)[i] = mix((uint32_t)i) * 2;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &all) != 0) {
        note("no filter can be had");
        return 0;
    }
    twice<<<8, 256>>>(p, N);
    cudaError_t e = cudaDeviceSynchronize();
    signal(SIGSEGV, leave);
    if (e == cudaSuccess && cudaGetLastError() == cudaSuccess)
        look(p, 4, 0, &right, &wrong);
    note("advice refused: %d right, %d wrong, the kernel: %d", right, wrong, (int)e);
    fflush(stdout);
    return wrong ? 1 : 0;
}

static bool in_a_program(const char *how)
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        execl("/proc/self/exe", "managedclosed", how, nullptr);
        _exit(126);
    }
    bool ok = pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77);
    if (!ok)
        note("%s: status %#x", how, status);
    return ok;
}

int main(int argc, char **argv)
{
    // Where the device promises that both may use it at once too.
    setenv("CAUSEWAY_MANAGED", "gpu", 0);
    setenv("CAUSEWAY_MANAGED_PATIENCE", "20", 0);
    if (argc > 1)
        _exit(!strcmp(argv[1], "advice refused") ? refuses() : closes(argv[1]));
    expect(in_a_program("all at once"), "descriptors closed all at once");
    expect(in_a_program("one by one"), "descriptors closed one by one");
    expect(in_a_program("replaced"), "descriptors replaced by others");
    expect(in_a_program("partly replaced"), "descriptors of the session replaced by others");
    expect(in_a_program("advice refused"), "pages that cannot be thrown away");
    return finish();
}
