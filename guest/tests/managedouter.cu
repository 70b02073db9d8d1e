// Managed memory that somebody else reads and writes, as a debugger does: another process by
// process_vm_readv and process_vm_writev, by ptrace word by word and by /proc/PID/mem, while the
// program runs, while one of its threads is stopped, and while all are. Never an old byte, and what
// it wrote the kernels find. What is at the GPU the first two get, when threads go on that stand
// still; the others get it natively, and may be refused it (EIO). With "debugged" it is a program
// for gdb to stop (scripts/errors.sh), which changes words 10 and 30. needs: cuda 13.0
#include "driver.h"

#include <cerrno>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <string>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

__global__ void twice(uint32_t *p, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        p[i] *= 2;
}

static const size_t N = 1 << 20; // words

// What the debugger does and says; the program waits for it in between.
struct talk {
    int to[2], from[2];
    pid_t pid; // the debugger
};

static bool say(int fd, char c) { return write(fd, &c, 1) == 1; }
static char hear(int fd)
{
    char c = 0;
    return read(fd, &c, 1) == 1 ? c : 0;
}

static size_t peek(pid_t pid, const uint32_t *at, uint32_t *got, size_t n)
{
    iovec mine = {got, n * 4}, its = {(void *)at, n * 4};
    ssize_t k = process_vm_readv(pid, &mine, 1, &its, 1, 0);
    return k < 0 ? 0 : (size_t)k / 4;
}
static size_t poke(pid_t pid, uint32_t *at, const uint32_t *what, size_t n)
{
    iovec mine = {(void *)what, n * 4}, its = {(void *)at, n * 4};
    ssize_t k = process_vm_writev(pid, &mine, 1, &its, 1, 0);
    return k < 0 ? 0 : (size_t)k / 4;
}

// Words here and there of what a kernel left of fill: all times so much.
static bool right(pid_t pid, uint32_t *p, uint32_t seed, uint32_t times)
{
    uint32_t got[64];
    for (size_t at = 100; at + 64 <= N; at += 99991) {
        if (peek(pid, p + at, got, 64) != 64)
            return false;
        for (size_t i = 0; i < 64; i++)
            if (got[i] != mix((uint32_t)(at + i) + seed) * times)
                return false;
    }
    return true;
}

static std::vector<pid_t> threads_of(pid_t pid)
{
    std::vector<pid_t> all;
    if (DIR *d = opendir(("/proc/" + std::to_string(pid) + "/task").c_str())) {
        while (dirent *e = readdir(d))
            if (e->d_name[0] != '.')
                all.push_back(atoi(e->d_name));
        closedir(d);
    }
    return all;
}

static bool stop(pid_t tid)
{
    int status;
    return ptrace(PTRACE_SEIZE, tid, 0, 0) == 0 && ptrace(PTRACE_INTERRUPT, tid, 0, 0) == 0 && waitpid(tid, &status, __WALL) == tid && WIFSTOPPED(status);
}
static bool go_on(pid_t tid) { return ptrace(PTRACE_DETACH, tid, 0, 0) == 0; }

// By its threads, of which it may have made some meanwhile.
static std::vector<pid_t> stop_all(pid_t pid)
{
    std::vector<pid_t> stopped;
    for (bool more = true; more;) {
        more = false;
        for (pid_t t : threads_of(pid)) {
            bool known = false;
            for (pid_t s : stopped)
                known |= s == t;
            if (!known && stop(t))
                stopped.push_back(t), more = true;
        }
    }
    return stopped;
}

struct question {
    pid_t pid;
    uint32_t *p;
    uint32_t seed, times;
    bool ok;
};
static void *ask(void *arg)
{
    question *q = (question *)arg;
    q->ok = right(q->pid, q->p, q->seed, q->times);
    return nullptr;
}

// y: done, and right. e: refused as what is not there. n: anything else.
static char told(bool done, bool is_right) { return done ? is_right ? 'y' : 'n' : errno == EIO ? 'e' : 'n'; }
static char both(char a, char b) { return a == b ? a : 'n'; }

// The debugger's side of each step; the program's is below.
static char step(char what, pid_t pid, uint32_t *p)
{
    uint32_t mine[5000];
    switch (what) {
    case 'r': return right(pid, p, 1, 2) ? 'y' : 'n';
    case 'w':
        for (size_t i = 0; i < 5000; i++)
            mine[i] = (uint32_t)i;
        return poke(pid, p + 70000, mine, 5000) == 5000 ? 'y' : 'n';
    case 'm': { // the memory file
        int fd = open(("/proc/" + std::to_string(pid) + "/mem").c_str(), O_RDWR);
        uint32_t v = 0, w = 77;
        bool read = pread(fd, &v, 4, (off_t)(uintptr_t)(p + 200)) == 4;
        char got = told(read, v == mix(201) * 4);
        char put = told(pwrite(fd, &w, 4, (off_t)(uintptr_t)(p + 300000)) == 4, true);
        close(fd);
        return both(got, put);
    }
    case 's': { // one thread stands, the library's go on; by words
        if (!stop(pid))
            return 'n';
        errno = 0;
        long v = ptrace(PTRACE_PEEKDATA, pid, p + 400, 0);
        char got = told(errno == 0, (uint32_t)v == mix(401) * 8);
        char put = told(ptrace(PTRACE_POKEDATA, pid, p + 500000, (void *)0x0000000b0000000aul) == 0, true);
        return go_on(pid) ? both(got, put) : 'n';
    }
    case 'a': { // all stand; who asks waits, where that has to be, until they go on
        std::vector<pid_t> all = stop_all(pid);
        question q = {pid, p, 1, 16, false};
        pthread_t t;
        pthread_create(&t, nullptr, ask, &q);
        bool ok = !all.empty();
        for (pid_t s : all)
            ok &= go_on(s);
        pthread_join(t, nullptr);
        return ok && q.ok ? 'y' : 'n';
    }
    default: return 'n';
    }
}

static void debugger(const talk &t, pid_t pid, uint32_t *p)
{
    while (char what = hear(t.to[0]))
        if (!say(t.from[1], step(what, pid, p)))
            break;
    _exit(0);
}

// Where gdb stops, and an access that is the first instruction of a function, so that a breakpoint
// is at the access itself.
extern "C" __attribute__((noinline)) void stopped(uint32_t *p, int step) { asm volatile("" ::"r"(p), "r"(step) : "memory"); }
extern "C" uint32_t first_word(const uint32_t *p);
asm(".text\n.globl first_word\n.type first_word, @function\nfirst_word: movl (%rdi), %eax\nret\n.size first_word, . - first_word\n");

static int debugged()
{
    uint32_t *p;
    managed(&p, N * 4);
    for (size_t i = 0; i < N; i++)
        p[i] = (uint32_t)i;
    stopped(p, 1); // p[10] = 1000
    twice<<<8, 256>>>(p, N);
    CUDA(cudaDeviceSynchronize());
    stopped(p, 2); // p[30] = 5
    twice<<<8, 256>>>(p, N);
    stopped(p, 3); // at work
    expect(first_word(p + 40) == 160, "an access that is stepped over");
    CUDA(cudaDeviceSynchronize());
    stopped(p, 4);
    size_t bad = 0;
    for (size_t i = 0; i < N; i++)
        bad += p[i] != (i == 10 ? 4000 : i == 30 ? 10 : 4 * (uint32_t)i);
    expect(bad == 0, "every word");
    CUDA(cudaFree(p));
    return finish();
}

static char have(const talk &t, char what) { return say(t.to[1], what) ? hear(t.from[0]) : 'n'; }
// What may be refused where the bytes are at the GPU must not be where the program has just written
// them.
static bool here(const talk &t, char what, volatile uint32_t *p, volatile uint32_t *q)
{
    char first = have(t, what), second = 0;
    *p = *p, *q = *q;
    second = have(t, what);
    note("%c: %c where it is at the GPU, %c where it is not", what, first, second);
    return (first == 'y' || first == 'e') && second == 'y';
}

int main(int argc, char **argv)
{
    // Where the device promises that both may use it at once too.
    setenv("CAUSEWAY_MANAGED", "gpu", 0);
    if (argc > 1 && !strcmp(argv[1], "debugged"))
        return debugged();
    talk t;
    int place[2];
    if (pipe(t.to) || pipe(t.from) || pipe(place))
        return 1;
    // Made before there is any CUDA in the program, as the child of a program with it is not a
    // debugger's likeness.
    pid_t program = getpid();
    t.pid = fork();
    if (t.pid == 0) {
        uint32_t *p;
        close(t.to[1]);
        close(place[1]);
        if (read(place[0], &p, sizeof p) != sizeof p)
            _exit(1);
        debugger(t, program, p);
    }
    close(t.to[0]);
    prctl(PR_SET_PTRACER, t.pid, 0, 0, 0);
    note_device();
    uint32_t *p;
    managed(&p, N * 4);
    for (size_t i = 0; i < N; i++)
        p[i] = mix((uint32_t)i + 1);
    if (write(place[1], &p, sizeof p) != sizeof p)
        return 1;
    auto kernel = [p] {
        twice<<<8, 256>>>(p, N);
        CUDA(cudaDeviceSynchronize());
    };
    std::vector<uint32_t> want(N);
    auto all = [&](uint32_t times) {
        for (size_t i = 0; i < N; i++)
            want[i] = mix((uint32_t)i + 1) * times;
    };
    kernel();
    expect(have(t, 'r') == 'y', "process_vm_readv finds what a kernel left");
    expect(have(t, 'w') == 'y', "process_vm_writev");
    kernel();
    bool ok = true;
    for (uint32_t i = 0; i < 5000; i++)
        ok &= p[70000 + i] == i * 2;
    expect(ok, "a kernel finds what it wrote");
    expect(here(t, 'm', p + 200, p + 300000), "/proc/PID/mem");
    kernel();
    expect(p[300000] == 154, "a kernel finds that, too");
    expect(here(t, 's', p + 400, p + 500000), "ptrace, word by word");
    kernel();
    expect(p[500000] == 20 && p[500001] == 22, "and that");
    expect(have(t, 'a') == 'y', "asked while all threads stand still");
    all(16);
    for (size_t i = 0; i < 5000; i++)
        want[70000 + i] = (uint32_t)i * 8;
    want[300000] = 308, want[500000] = 20, want[500001] = 22;
    expect(memcmp(p, want.data(), N * 4) == 0, "every byte at the end");
    close(t.to[1]);
    waitpid(t.pid, nullptr, 0);
    CUDA(cudaFree(p));
    return finish();
}
