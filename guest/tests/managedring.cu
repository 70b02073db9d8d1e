// Managed memory as buffers of io_uring: reads and writes of a file and of a pipe whose bytes are
// at the GPU when the kernel comes for them, short ones and ones that go on in the ring's own
// threads, vectors, a read that waits until a pipe has bytes while kernels come and go, and buffers
// that are registered for as long as the processor has them. Every byte is compared. Status 77
// where the system has no io_uring. needs: cuda 13.0
#include "driver.h"

#include <atomic>
#include <cerrno>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include <vector>

__global__ void twice(uint32_t *p, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        p[i] *= 2;
}

static const size_t N = 1 << 19; // words

static struct {
    int fd;
    unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
    io_uring_sqe *sqes;
    io_uring_cqe *cqes;
} ring;

static void *part(size_t size, uint64_t at)
{
    void *p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring.fd, (off_t)at);
    return p == MAP_FAILED ? nullptr : p;
}

static void open_ring()
{
    io_uring_params u = {};
    ring.fd = (int)syscall(SYS_io_uring_setup, 8, &u);
    if (ring.fd < 0 && (errno == ENOSYS || errno == EPERM)) {
        printf("skipped: no io_uring\n");
        fflush(stdout);
        _Exit(77);
    }
    char *sq = (char *)part(u.sq_off.array + u.sq_entries * 4, IORING_OFF_SQ_RING);
    char *cq = (char *)part(u.cq_off.cqes + u.cq_entries * sizeof(io_uring_cqe), IORING_OFF_CQ_RING);
    ring.sqes = (io_uring_sqe *)part(u.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES);
    if (ring.fd < 0 || !sq || !cq || !ring.sqes) {
        printf("io_uring: %s\n", strerror(errno));
        exit(1);
    }
    ring.sq_tail = (unsigned *)(sq + u.sq_off.tail);
    ring.sq_mask = (unsigned *)(sq + u.sq_off.ring_mask);
    ring.sq_array = (unsigned *)(sq + u.sq_off.array);
    ring.cq_head = (unsigned *)(cq + u.cq_off.head);
    ring.cq_tail = (unsigned *)(cq + u.cq_off.tail);
    ring.cq_mask = (unsigned *)(cq + u.cq_off.ring_mask);
    ring.cqes = (io_uring_cqe *)(cq + u.cq_off.cqes);
}

static void submit(io_uring_sqe e)
{
    unsigned tail = *ring.sq_tail, i = tail & *ring.sq_mask;
    ring.sqes[i] = e;
    ring.sq_array[i] = i;
    __atomic_store_n(ring.sq_tail, tail + 1, __ATOMIC_RELEASE);
    while (syscall(SYS_io_uring_enter, ring.fd, 1, 0, 0, nullptr, 0) < 0 && errno == EINTR)
        ;
}
static int finished()
{
    unsigned head = *ring.cq_head;
    while (__atomic_load_n(ring.cq_tail, __ATOMIC_ACQUIRE) == head)
        syscall(SYS_io_uring_enter, ring.fd, 0, 1, IORING_ENTER_GETEVENTS, nullptr, 0);
    int res = ring.cqes[head & *ring.cq_mask].res;
    __atomic_store_n(ring.cq_head, head + 1, __ATOMIC_RELEASE);
    return res;
}

static io_uring_sqe of(int op, int fd, const void *p, size_t n, uint64_t off, int flags = 0)
{
    io_uring_sqe e = {};
    e.opcode = (uint8_t)op;
    e.flags = (uint8_t)flags;
    e.fd = fd;
    e.addr = (uintptr_t)p;
    e.len = (uint32_t)n;
    e.off = off;
    return e;
}

// All of it, by as many requests as that takes.
static bool whole(int op, int fd, uint32_t *p, int flags)
{
    for (size_t done = 0; done < N * 4;) {
        submit(of(op, fd, (char *)p + done, N * 4 - done, done, flags));
        int res = finished();
        if (res <= 0) {
            note("operation %d at %zu: %d", op, done, res);
            return false;
        }
        done += (size_t)res;
    }
    return true;
}

static void fill(uint32_t *p, uint32_t seed)
{
    for (size_t i = 0; i < N; i++)
        p[i] = mix((uint32_t)i + seed);
}
static bool right(const uint32_t *p, uint32_t seed, uint32_t times)
{
    for (size_t i = 0; i < N; i++)
        if (p[i] != mix((uint32_t)i + seed) * times)
            return false;
    return true;
}
static void kernel(uint32_t *p)
{
    twice<<<8, 256>>>(p, N);
    CUDA(cudaDeviceSynchronize());
}

// ASYNC: by the ring's own threads.
static void files(uint32_t *p, int fd)
{
    for (int flags : {0, (int)IOSQE_ASYNC}) {
        bool ok = true;
        fill(p, 1);
        kernel(p);
        ok &= whole(IORING_OP_WRITE, fd, p, flags);
        kernel(p);
        std::vector<uint32_t> back(N);
        ok &= pread(fd, back.data(), N * 4, 0) == (ssize_t)(N * 4) && right(back.data(), 1, 2);
        kernel(p); // nothing of it is here
        ok &= whole(IORING_OP_READ, fd, p, flags);
        kernel(p);
        ok &= right(p, 1, 4);
        expect(ok, flags ? "a file, by the ring's threads" : "a file");
    }
    // Pieces of a vector, the vector itself in managed memory.
    iovec *v;
    managed(&v, 4096);
    for (int i = 0; i < 8; i++)
        v[i] = {p + i * 60000, 40000};
    kernel(p); // 8 times
    submit(of(IORING_OP_WRITEV, fd, v, 8, 0));
    std::vector<uint32_t> back(80000);
    bool ok = finished() == 320000 && pread(fd, back.data(), 320000, 0) == 320000;
    for (size_t i = 0; i < 80000; i++)
        ok &= back[i] == mix((uint32_t)(i / 10000 * 60000 + i % 10000) + 1) * 8;
    kernel(p);
    submit(of(IORING_OP_READV, fd, v, 8, 0));
    ok &= finished() == 320000;
    kernel(p);
    for (size_t i = 0; i < 80000; i++)
        ok &= p[i / 10000 * 60000 + i % 10000] == mix((uint32_t)(i / 10000 * 60000 + i % 10000) + 1) * 16;
    expect(ok, "vectors");
    CUDA(cudaFree(v));
}

// The read is given before there is anything to read; meanwhile the buffer goes to the GPU and its
// kernels have it.
static void pipes(uint32_t *p)
{
    int ends[2];
    uint32_t words[64];
    bool ok = pipe(ends) == 0;
    fill(p, 3);
    submit(of(IORING_OP_READ, ends[0], p + 100, sizeof words, 0));
    kernel(p);
    kernel(p);
    for (uint32_t i = 0; i < 64; i++)
        words[i] = i + 5;
    ok &= write(ends[1], words, sizeof words) == (ssize_t)sizeof words && finished() == (int)sizeof words;
    kernel(p);
    for (size_t i = 0; i < 300; i++)
        ok &= p[i] == (i >= 100 && i < 164 ? (uint32_t)(i - 100 + 5) * 2 : mix((uint32_t)i + 3) * 8);
    submit(of(IORING_OP_WRITE, ends[1], p + 100, sizeof words, 0)); // at the GPU again in part
    ok &= finished() == (int)sizeof words && read(ends[0], words, sizeof words) == (ssize_t)sizeof words;
    for (uint32_t i = 0; i < 64; i++)
        ok &= words[i] == (i + 5) * 2;
    expect(ok, "a pipe that has nothing yet");
    close(ends[0]), close(ends[1]);
}

// Registered buffers keep pages: they are good until the next kernel, and have to be registered
// anew then.
static void registered(uint32_t *p, int fd)
{
    bool ok = true;
    for (uint32_t round = 1; round <= 2; round++) {
        fill(p, round);
        kernel(p);
        iovec v = {p, N * 2};
        if (syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, &v, 1) != 0) {
            // RLIMIT_MEMLOCK, or memory that is not for that
            note("registering: %s", strerror(errno));
            break;
        }
        io_uring_sqe e = of(IORING_OP_WRITE_FIXED, fd, p, N * 2, 0);
        submit(e);
        ok &= finished() == (int)(N * 2);
        std::vector<uint32_t> back(N / 2);
        ok &= pread(fd, back.data(), N * 2, 0) == (ssize_t)(N * 2) && back[77] == mix(77 + round) * 2;
        for (uint32_t &x : back)
            x = round;
        ok &= pwrite(fd, back.data(), N * 2, 0) == (ssize_t)(N * 2);
        submit(of(IORING_OP_READ_FIXED, fd, p, N * 2, 0));
        ok &= finished() == (int)(N * 2);
        syscall(SYS_io_uring_register, ring.fd, IORING_UNREGISTER_BUFFERS, nullptr, 0);
        kernel(p);
        ok &= p[0] == round * 2 && p[N / 2 - 1] == round * 2 && p[N / 2] == mix((uint32_t)(N / 2) + round) * 4;
    }
    expect(ok, "registered between two kernels");
}

int main()
{
    // Where the device promises that both may use it at once too.
    setenv("CAUSEWAY_MANAGED", "gpu", 0);
    open_ring();
    note_device();
    uint32_t *p;
    char path[] = "/tmp/managedring.XXXXXX";
    int fd = mkstemp(path);
    unlink(path);
    managed(&p, N * 4);
    files(p, fd);
    pipes(p);
    registered(p, fd);
    close(fd);
    CUDA(cudaFree(p));
    return finish();
}
