// Managed memory in system calls beside plain reads and writes of files (managedpages) and io_uring
// (managedring): sockets, vectors, splices, O_DIRECT, sendfile, and what such calls are told in
// memory that lies at the GPU itself. What is sent a kernel has just left, where it is received a
// kernel has just written, and two threads are at it. Every byte is compared; none is old, and
// nothing is EFAULT. needs: cuda 13.0
#include "driver.h"

#include <arpa/inet.h>
#include <cerrno>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include <vector>

static const size_t N = 1 << 17, BYTES = N * 4; // of each side
static const int VECTORS = 5;

__global__ void twice(uint32_t *p, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        p[i] *= 2;
}

// What calls are told and tell, in managed memory too.
struct words {
    iovec v[VECTORS];
    msghdr m;
    loff_t at;
    pollfd polled;
    struct stat st;
    uint32_t futex;
};

// One allocation each, so that what a test leaves on one side says nothing of the others.
static uint32_t *from, *to;
static words *sent, *received;

static void kernel(void *p, size_t n = N)
{
    twice<<<8, 256>>>((uint32_t *)p, n);
    CUDA(cudaGetLastError());
}
static uint32_t seed;
static bool complain(const char *what, ssize_t k, size_t done)
{
    note("%s: %zd at %zu: %s", what, k, done, k < 0 ? strerror(errno) : "no more");
    return false;
}

// Both sides at the GPU, but for a page in their middle.
static void begin()
{
    seed += 1000;
    for (size_t i = 0; i < N; i++)
        from[i] = mix((uint32_t)i + seed), to[i] = 0xdead;
    kernel(from);
    kernel(to);
    CUDA(cudaDeviceSynchronize());
    volatile uint32_t *p = from, *q = to;
    p[N / 3] = p[N / 3], q[N / 2] = q[N / 2];
}
static bool right(const uint32_t *p, uint32_t times)
{
    for (size_t i = 0; i < N; i++)
        if (p[i] != mix((uint32_t)i + seed) * times) {
            note("word %zu: %x for %x", i, p[i], mix((uint32_t)i + seed) * times);
            return false;
        }
    return true;
}
// That what has come is what the GPU had, to the processor or, when it has it back, to a kernel.
static bool came()
{
    kernel(to);
    CUDA(cudaDeviceSynchronize());
    return right(to, 4) && right(from, 2);
}

// vectors names the bytes at p by pieces of odd sizes, in memory that a kernel has just had.
static int vectors(words *w, const char *p, size_t n)
{
    size_t piece = n / VECTORS + 1, done = 0;
    int count = 0;
    for (; done < n; done += w->v[count++].iov_len)
        w->v[count] = {(void *)(p + done), piece < n - done ? piece : n - done};
    w->m = {};
    w->m.msg_iov = w->v;
    w->m.msg_iovlen = (size_t)count;
    twice<<<1, 1>>>((uint32_t *)&w->futex, 1);
    CUDA(cudaDeviceSynchronize());
    return count;
}

typedef ssize_t call(int fd, char *p, size_t n);
static ssize_t do_send(int fd, char *p, size_t n) { return send(fd, p, n, MSG_NOSIGNAL); }
static ssize_t do_recv(int fd, char *p, size_t n) { return recv(fd, p, n, 0); }
static ssize_t do_all(int fd, char *p, size_t n) { return recv(fd, p, n, MSG_WAITALL); }
static ssize_t do_peek(int fd, char *p, size_t n)
{
    char first[64];
    ssize_t k = recv(fd, p, n < sizeof first ? n : sizeof first, MSG_PEEK), got = 0;
    if (k > 0)
        memcpy(first, p, (size_t)k), got = recv(fd, p, n, 0);
    return k <= 0 || got < k || memcmp(first, p, (size_t)k) != 0 ? -1 : got;
}
static ssize_t do_write(int fd, char *p, size_t n) { return write(fd, p, n); }
static ssize_t do_read(int fd, char *p, size_t n) { return read(fd, p, n); }
static ssize_t do_writev(int fd, char *p, size_t n) { return vectors(sent, p, n) ? writev(fd, sent->v, (int)sent->m.msg_iovlen) : 0; }
static ssize_t do_readv(int fd, char *p, size_t n) { return vectors(received, p, n) ? readv(fd, received->v, (int)received->m.msg_iovlen) : 0; }
static ssize_t do_sendmsg(int fd, char *p, size_t n) { return vectors(sent, p, n) ? sendmsg(fd, &sent->m, MSG_NOSIGNAL) : 0; }
static ssize_t do_recvmsg(int fd, char *p, size_t n) { return vectors(received, p, n) ? recvmsg(fd, &received->m, 0) : 0; }
static ssize_t do_vmsplice(int fd, char *p, size_t n)
{
    iovec v = {p, n};
    return vmsplice(fd, &v, 1, 0);
}

// all repeats a call until the bytes have gone or come.
static bool all(const char *what, call *f, int fd, void *p, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t k = f(fd, (char *)p + done, n - done);
        if (k <= 0)
            return complain(what, k, done);
        done += (size_t)k;
    }
    return true;
}

struct job {
    const char *what;
    call *f;
    int fd;
    bool ok;
};
static void *put_all(void *arg)
{
    job *j = (job *)arg;
    j->ok = all(j->what, j->f, j->fd, from, BYTES);
    if (!j->ok)
        shutdown(j->fd, SHUT_RDWR); // who receives is not to wait for ever
    return nullptr;
}

// through sends from one end and receives at the other, both in managed memory. Vectors have
// kernels between calls, so the two wait for each other then.
static bool through(const char *what, int in, int out, call *put, call *get)
{
    job j = {what, put, in, false};
    pthread_t t;
    begin();
    pthread_create(&t, nullptr, put_all, &j);
    bool ok = all(what, get, out, to, BYTES);
    pthread_join(t, nullptr);
    return ok && j.ok && came();
}

static bool tcp(int ends[2])
{
    sockaddr_in a = {};
    socklen_t n = sizeof a;
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listening = socket(AF_INET, SOCK_STREAM, 0);
    ends[0] = socket(AF_INET, SOCK_STREAM, 0), ends[1] = -1;
    if (bind(listening, (sockaddr *)&a, n) == 0 && listen(listening, 1) == 0 && getsockname(listening, (sockaddr *)&a, &n) == 0 &&
        connect(ends[0], (sockaddr *)&a, n) == 0)
        ends[1] = accept(listening, nullptr, nullptr);
    close(listening);
    return ends[1] >= 0;
}

static void sockets(const char *name, int ends[2])
{
    static const struct {
        const char *what;
        call *put, *get;
    } ways[] = {{"send, recv", do_send, do_recv},     {"send, recv of all", do_send, do_all},   {"send, recv after a look", do_send, do_peek}, {"write, read", do_write, do_read},
                {"writev, readv", do_writev, do_readv}, {"sendmsg, recvmsg", do_sendmsg, do_recvmsg}};
    for (auto &w : ways) {
        char line[80];
        snprintf(line, sizeof line, "%s: %s", name, w.what);
        expect(through(line, ends[0], ends[1], w.put, w.get), line);
    }
    close(ends[0]), close(ends[1]);
}

// Datagrams come whole, and the senders' names with them.
static void datagrams()
{
    int ends[2];
    bool ok = socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0;
    begin();
    const size_t piece = 8192;
    for (size_t done = 0; ok && done < BYTES; done += piece) {
        ok = send(ends[0], (char *)from + done, piece, 0) == (ssize_t)piece;
        ok = ok && recvfrom(ends[1], (char *)to + done, piece, 0, nullptr, nullptr) == (ssize_t)piece;
    }
    expect(ok && came(), "datagrams");
    close(ends[0]), close(ends[1]);
}

static int file()
{
    char path[] = "/tmp/managedcalls.XXXXXX";
    int fd = mkstemp(path);
    unlink(path);
    return fd;
}
static void rewind_of(int fd) { lseek(fd, 0, SEEK_SET); }

static void files()
{
    int fd = file(), copy = file();
    begin();
    bool ok = all("writev", do_writev, fd, from, BYTES);
    rewind_of(fd);
    expect(ok && all("readv", do_readv, fd, to, BYTES) && came(), "a file: writev, readv");

    // What says where in the file is at the GPU as well.
    begin();
    ok = pwrite(fd, from, BYTES, 0) == (ssize_t)BYTES;
    sent->at = 4096;
    vectors(sent, (char *)to, BYTES - 4096);
    ok = ok && copy_file_range(fd, &sent->at, copy, nullptr, BYTES - 4096, 0) == (ssize_t)(BYTES - 4096) && sent->at == (loff_t)BYTES;
    ok = ok && preadv(copy, sent->v, (int)sent->m.msg_iovlen, 0) == (ssize_t)(BYTES - 4096);
    ok = ok && memcmp(to, (char *)from + 4096, BYTES - 4096) == 0;
    vectors(received, (char *)to, 4096);
    ok = ok && fstat(fd, &received->st) == 0 && received->st.st_size == (off_t)BYTES;
    expect(ok, "a file: offsets, vectors and status");
    close(fd), close(copy);
}

// The processor's page cache left out: the device, or whatever there is, has the pages themselves.
static void direct()
{
    char path[] = "/tmp/managedcalls.XXXXXX";
    int fd = mkostemp(path, O_DIRECT);
    if (fd < 0) {
        note("O_DIRECT: %s; without", strerror(errno));
        fd = file();
    } else
        unlink(path);
    begin();
    bool ok = all("write", do_write, fd, from, BYTES);
    rewind_of(fd);
    ok = ok && all("read", do_read, fd, to, BYTES) && came();
    rewind_of(fd);
    // A kernel had it in between.
    ok = ok && all("what is in the file", do_read, fd, to, BYTES) && right(to, 2);
    expect(ok, "O_DIRECT");
    close(fd);
}

// Pages that a pipe holds, and pipes that hand them on.
static void splices()
{
    int a[2], b[2], ends[2], fd = file();
    bool ok = pipe(a) == 0 && pipe(b) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0;
    const size_t piece = 32768; // a pipe has room for it
    begin();
    for (size_t done = 0; ok && done < BYTES; done += piece) {
        ok = all("vmsplice", do_vmsplice, a[1], (char *)from + done, piece);
        ok = ok && all("vmsplice back", do_vmsplice, a[0], (char *)to + done, piece);
    }
    expect(ok && came(), "vmsplice, both ways");

    begin();
    std::vector<char> twin(BYTES);
    for (size_t done = 0; ok && done < BYTES; done += piece) {
        ok = all("vmsplice", do_vmsplice, a[1], (char *)from + done, piece);
        ok = ok && tee(a[0], b[1], piece, 0) == (ssize_t)piece;
        ok = ok && all("read", do_read, a[0], (char *)to + done, piece) && all("read", do_read, b[0], twin.data() + done, piece);
    }
    ok = ok && memcmp(twin.data(), to, BYTES) == 0;
    expect(ok && came(), "tee");

    begin();
    for (size_t done = 0; ok && done < BYTES; done += piece) {
        // The file's offsets lie where kernels have been.
        ok = all("vmsplice", do_vmsplice, a[1], (char *)from + done, piece);
        sent->at = (loff_t)done;
        ok = ok && vectors(sent, (char *)from, 1) && splice(a[0], nullptr, fd, &sent->at, piece, 0) == (ssize_t)piece && sent->at == (loff_t)(done + piece);
        received->at = (loff_t)done;
        ok = ok && vectors(received, (char *)to, 1) && splice(fd, &received->at, b[1], nullptr, piece, 0) == (ssize_t)piece;
        ok = ok && splice(b[0], nullptr, ends[0], nullptr, piece, 0) == (ssize_t)piece && all("recv", do_recv, ends[1], (char *)to + done, piece);
    }
    expect(ok && came(), "splice to a file, from it, and to a socket");

    begin();
    ok = pwrite(fd, from, BYTES, 0) == (ssize_t)BYTES;
    for (size_t done = 0; ok && done < BYTES; done += piece) {
        sent->at = (loff_t)done;
        ok = vectors(sent, (char *)from, 1) && sendfile(ends[0], fd, &sent->at, piece) == (ssize_t)piece && sent->at == (loff_t)(done + piece);
        ok = ok && all("recv", do_recv, ends[1], (char *)to + done, piece);
    }
    expect(ok && came(), "sendfile");
    for (int x : {a[0], a[1], b[0], b[1], ends[0], ends[1], fd})
        close(x);
}

// Of a few bytes of their own, which step was wrong.
static bool step(bool ok, const char *what)
{
    if (!ok)
        fprintf(stderr, "%s: errno %d\n", what, errno);
    return ok;
}

// Whether memory is the driver's own, as natively, by its mapping.
static bool of_the_driver(const void *p)
{
    FILE *f = fopen("/proc/self/maps", "re");
    char line[512];
    unsigned long lo, hi;
    bool found = false;
    while (f && !found && fgets(line, sizeof line, f))
        found = sscanf(line, "%lx-%lx", &lo, &hi) == 2 && (uintptr_t)p >= lo && (uintptr_t)p < hi && strstr(line, "/dev/nvidia");
    if (f)
        fclose(f);
    return found;
}

// Calls that read and write a few bytes of their own.
static void small()
{
    int ends[2];
    bool ok = pipe(ends) == 0 && write(ends[1], "x", 1) == 1;
    received->polled = {ends[0], POLLIN, 0};
    vectors(received, (char *)to, 1);
    ok &= step(poll(&received->polled, 1, -1) == 1 && received->polled.revents == POLLIN, "poll");
    received->futex = 21;
    vectors(received, (char *)to, 1); // the kernel doubles it
    errno = 0;
    ok &= step(syscall(SYS_futex, &received->futex, FUTEX_WAIT_PRIVATE, 21, nullptr, nullptr, 0) == -1 && errno == EAGAIN, "private futex");
    timespec soon = {0, 1000};
    vectors(received, (char *)to, 1);
    errno = 0;
    // One that other processes may wait for: Linux has it of its own pages, and of files, alone.
    bool refused = syscall(SYS_futex, &received->futex, FUTEX_WAIT, 84, &soon, nullptr, 0) == -1;
    ok &= step(refused && (errno == ETIMEDOUT || (errno == EFAULT && of_the_driver(received))), "shared futex");
    expect(ok, "poll and futex");
    close(ends[0]), close(ends[1]);
}

// A call while kernels work has what they leave. Where both may use it at once (89) that is the
// program's to see to.
static void while_kernels_work()
{
    int ends[2], at_once = 0, dev = 0;
    CUDA(cudaGetDevice(&dev));
    CUDA(cudaDeviceGetAttribute(&at_once, cudaDevAttrConcurrentManagedAccess, dev));
    bool ok = socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0;
    begin();
    for (int k = 0; k < 3; k++)
        kernel(from);
    if (at_once)
        CUDA(cudaDeviceSynchronize());
    job j = {"send", do_send, ends[0], false};
    pthread_t t;
    pthread_create(&t, nullptr, put_all, &j);
    ok &= all("recv", do_recv, ends[1], to, BYTES);
    pthread_join(t, nullptr);
    expect(ok && j.ok && right(to, 16), "send while kernels work");
    close(ends[0]), close(ends[1]);
}

int main()
{
    // Where the device promises that both may use it at once too.
    setenv("CAUSEWAY_MANAGED", "gpu", 0);
    note_device();
    char *memory[2];
    for (char *&m : memory)
        managed(&m, BYTES + 8192);
    from = (uint32_t *)(((uintptr_t)memory[0] + 4095) & ~4095ul); // O_DIRECT asks for blocks
    to = (uint32_t *)(((uintptr_t)memory[1] + 4095) & ~4095ul);
    managed(&sent, sizeof *sent);
    managed(&received, sizeof *received);
    int ends[2];
    expect(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "a pair of sockets");
    sockets("unix", ends);
    if (!tcp(ends)) {
        note("no TCP on loopback: %s; a pair once more", strerror(errno));
        expect(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "TCP");
    } else
        expect(true, "TCP");
    sockets("tcp", ends);
    datagrams();
    files();
    direct();
    splices();
    small();
    while_kernels_work();
    for (void *p : {(void *)memory[0], (void *)memory[1], (void *)sent, (void *)received})
        CUDA(cudaFree(p));
    return finish();
}
